"""The loss: the scalar that backward starts from, freed of a GradScaler's factor."""

from __future__ import annotations

import functools
import weakref

from .hook import Hook
from .local import plain_tensor


class LossHook(Hook):
    """Wraps torch.autograd.backward, in which Tensor.backward ends as well, and GradScaler.scale. With several
    backwards in a step (gradient accumulation) the step's loss is the mean of the roots as they were given."""

    name = "loss"

    def __init__(self, hooks):
        super().__init__(hooks)
        self._scaled = None  # (weak reference to the scaled root, unscaled loss, scaler) since the last backward

    def install(self) -> None:
        import torch

        original, is_compiling, hook = torch.autograd.backward, torch.compiler.is_compiling, self

        @functools.wraps(original)
        def backward(tensors, *args, **kwargs):
            if hook.enabled and not is_compiling():
                try:
                    hook.observe(tensors)
                except Exception as error:
                    hook.fail(error)
            return original(tensors, *args, **kwargs)

        self.patch(torch.autograd, "backward", backward)
        self._install_scaler(torch)

    def _install_scaler(self, torch) -> None:
        scaler_class = torch.amp.GradScaler
        original, hook = scaler_class.scale, self

        @functools.wraps(original)
        def scale(scaler, outputs):
            result = original(scaler, outputs)
            if hook.enabled and isinstance(outputs, torch.Tensor) and scaler.is_enabled():
                try:
                    hook._scaled = (weakref.ref(result), outputs.detach(), scaler)
                except Exception as error:
                    hook.fail(error)
            return result

        self.patch(scaler_class, "scale", scale)

    def observe(self, tensors) -> None:
        session = self.session
        if not session.opened:
            session.open_ring()
        self.hooks.optimizer.close_compiled_step()
        root = tensors
        if isinstance(root, (tuple, list)):
            if len(root) != 1:
                return
            root = root[0]
        scaled, self._scaled = self._scaled, None
        if root.numel() != 1:
            return
        scale = 1.0
        if scaled is not None:
            factor = getattr(scaled[2], "_scale", None)
            if factor is not None and factor.device.type == "cpu":
                scale = float(factor)
            else:  # reading the factor would wait for the device; the loss that was scaled says the same
                root = scaled[1]
        value = plain_tensor(root)
        if value is None:
            session.report.note("loss: a distributed tensor that is not replicated; not read")
            return
        session.ops.observe_loss(value, scale)
