"""The end of an optimizer step: learning rate, and the step boundary for the C++ half."""

from __future__ import annotations

import time

from .hook import Hook


class OptimizerHook(Hook):
    """PyTorch's global post hook of optimizer steps. It also sees optimizers that were made before it was registered.
    The C++ half sees the same step end through RecordFunction; whichever comes first closes the step."""

    name = "optimizer"

    def __init__(self, hooks):
        super().__init__(hooks)
        self.sampled = True  # is the step in progress a sampled one
        self.compiled_step_ended = False

    def install(self) -> None:
        import torch
        from torch.optim.optimizer import register_optimizer_step_post_hook

        is_compiling, hook = torch.compiler.is_compiling, self

        def after_step(optimizer, args, kwargs):
            if is_compiling():  # traced: an attribute is set when the graph has run, nothing breaks it
                hook.compiled_step_ended = True
                return
            if not hook.enabled:
                return
            try:
                hook.after_step(optimizer)
            except Exception as error:
                hook.fail(error)

        self.undo(register_optimizer_step_post_hook(after_step).remove)

    def remove(self) -> None:
        self.close_compiled_step()
        super().remove()

    def close_compiled_step(self) -> None:
        """Closes the step that a compiled optimizer ended without being seen. Called at the next backward: the forward
        that has run in between counts where its backward does."""
        if not self.compiled_step_ended or not self.enabled:
            return
        self.compiled_step_ended = False
        self.session.report.note("learning_rate: the optimizer step is compiled; not read")
        self._close("compiled_optimizer")

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
        self._close("optimizer_hook")

    def end_step(self, loss, grad_norm, learning_rate) -> None:
        """Closes a step by the loop's own word; each value a float or None. See Session::EndStep."""
        if not self.session.opened:
            self.session.open_ring()
        self.compiled_step_ended = False
        self.session.ops.end_step(loss, grad_norm, learning_rate)
        self._after_close()

    def _close(self, source: str) -> None:
        self.session.ops.step_boundary(source)
        self._after_close()

    def _after_close(self) -> None:
        self.sampled = self.session.ops.sampled()
        self.hooks.layers.after_boundary()

    def _observe_rate(self, optimizer) -> None:
        rate = optimizer.param_groups[0].get("lr")
        device = getattr(rate, "device", None)
        if rate is None or (device is not None and device.type != "cpu"):
            self.session.report.note("learning_rate: kept on the device; not read, since that would wait for it")
            return
        self.session.ops.observe_learning_rate(float(rate))
