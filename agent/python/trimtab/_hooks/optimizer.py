"""The end of an optimizer step: learning rate, and the step boundary for the C++ half."""

from __future__ import annotations

import time

from .hook import Hook


class OptimizerHook(Hook):
    """PyTorch's global post hook of optimizer steps. It also sees optimizers that were made before it was registered. The
    C++ half sees the same step end through RecordFunction; whichever comes first closes the step."""

    name = "optimizer"

    def __init__(self, hooks):
        super().__init__(hooks)
        self.sampled = True  # is the step in progress a sampled one

    def install(self) -> None:
        import torch
        from torch.optim.optimizer import register_optimizer_step_post_hook

        is_compiling, hook = torch.compiler.is_compiling, self

        def after_step(optimizer, args, kwargs):
            if not hook.enabled or is_compiling():
                return
            try:
                hook.after_step(optimizer)
            except Exception as error:
                hook.fail(error)

        self.undo(register_optimizer_step_post_hook(after_step).remove)

    def after_step(self, optimizer) -> None:
        started = time.perf_counter()
        session = self.session
        if not session.opened:
            session.open_ring()
            if not session.opened:
                return
        self._observe_rate(optimizer)
        norm = self.hooks.grad_norm
        if norm.enabled:
            try:
                norm.before_boundary(optimizer)
            except Exception as error:
                norm.fail(error)
        session.ops.add_overhead(time.perf_counter() - started)
        session.ops.step_boundary("optimizer_hook")
        self.sampled = session.ops.sampled()
        self.hooks.layers.after_boundary()

    def _observe_rate(self, optimizer) -> None:
        rate = optimizer.param_groups[0].get("lr")
        device = getattr(rate, "device", None)
        if rate is None or (device is not None and device.type != "cpu"):
            self.session.report.note("learning_rate: kept on the device; not read, since that would wait for it")
            return
        self.session.ops.observe_learning_rate(float(rate))
