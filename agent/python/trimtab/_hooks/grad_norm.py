"""The gradient norm: the total norm that clipping used, or, for jobs that never clip, our own on sampled steps."""

from __future__ import annotations

import functools
import sys

from .hook import Hook
from .local import is_distributed, plain_tensor

# Own norm only for models up to this size: a read of all gradients must stay far below a step.
OWN_NORM_PARAMETERS_MAX = 50_000_000
# Steps without clipping before the job counts as one that never clips.
STEPS_BEFORE_OWN_NORM = 3


class GradNormHook(Hook):
    """Wraps clip_grads_with_norm_, where clip_grad_norm_, clip_grad_norm, accelerate, Trainer, Lightning and torchtitan
    all end, under the private name by which clip_grad_norm_ finds it: callers that imported clip_grad_norm_ earlier are
    seen as well. FSDP1 clips by a method of its own."""

    name = "grad_norm"

    def __init__(self, hooks):
        super().__init__(hooks)
        self.seen_this_step = False
        self._steps_without = 0
        self._fsdp_done = False
        self._own_norm = None  # None: undecided; True, False

    def install(self) -> None:
        import torch

        module = sys.modules["torch.nn.utils.clip_grad"]
        name = "_clip_grads_with_norm_" if hasattr(module, "_clip_grads_with_norm_") else None
        if name is None:
            self.session.report.note(f"grad_norm: torch {torch.__version__} clips in one piece; not read")
            return
        original, is_compiling, hook = getattr(module, name), torch.compiler.is_compiling, self

        @functools.wraps(original)
        def clip_grads_with_norm_(parameters, max_norm, total_norm, *args, **kwargs):
            if hook.enabled and not is_compiling():
                hook.observe(total_norm)
            return original(parameters, max_norm, total_norm, *args, **kwargs)

        self.patch(module, name, clip_grads_with_norm_)
        if hasattr(torch.nn.utils, "clip_grads_with_norm_"):
            self.patch(torch.nn.utils, "clip_grads_with_norm_", clip_grads_with_norm_)

    def observe(self, total_norm) -> None:
        try:
            value = plain_tensor(total_norm)
            if value is None:
                self.session.report.note("grad_norm: a sharded tensor; the whole would take a collective, not read")
                return
            self.seen_this_step = True
            self.session.ops.observe_grad_norm(value)
        except Exception as error:
            self.fail(error)

    def before_boundary(self, optimizer) -> None:
        """Called at the end of each optimizer step, gradients still in place."""
        self._follow_fsdp()
        if self.seen_this_step:
            self.seen_this_step, self._steps_without = False, 0
            return
        self._steps_without += 1
        if self._steps_without <= STEPS_BEFORE_OWN_NORM:
            return
        if self._own_norm is None:
            self._own_norm = self._decide(optimizer)
        if self._own_norm and self.hooks.optimizer.sampled:
            self._observe_own(optimizer)

    def _decide(self, optimizer) -> bool:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        report, count = self.session.report, sum(p.numel() for p in parameters)
        if any(is_distributed(p) for p in parameters) or "fsdp" in self.hooks.layers.wrappers:
            report.note("grad_norm: the job does not clip and its gradients are sharded; not measured")
        elif count > OWN_NORM_PARAMETERS_MAX:
            report.note(f"grad_norm: the job does not clip and has {count} parameters; not measured")
        else:
            report.note("grad_norm: the job does not clip; computed from the gradients on sampled steps")
            return True
        return False

    def _observe_own(self, optimizer) -> None:
        import torch

        with torch.no_grad():
            gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
            gradients = [g for g in gradients if g.layout == torch.strided]
            if gradients:
                norms = torch._foreach_norm(gradients)
                self.session.ops.observe_grad_norm(torch.linalg.vector_norm(torch.stack(norms)))

    def _follow_fsdp(self) -> None:
        module = sys.modules.get("torch.distributed.fsdp.fully_sharded_data_parallel")
        if self._fsdp_done or module is None:
            return
        self._fsdp_done = True
        owner, hook = module.FullyShardedDataParallel, self
        original = owner.clip_grad_norm_

        @functools.wraps(original)
        def clip_grad_norm_(*args, **kwargs):
            total_norm = original(*args, **kwargs)
            if hook.enabled:
                hook.observe(total_norm)
            return total_norm

        self.patch(owner, "clip_grad_norm_", clip_grad_norm_)
