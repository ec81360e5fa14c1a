"""Magnitudes of block outputs, on sampled steps, in eager models."""

from __future__ import annotations

from .hook import Hook
from .inert import InertWhenCopied
from .local import plain_tensor


class ActivationHook(Hook):
    """A forward hook on the module that contains the attention module: the transformer block."""

    name = "activations"

    def watch(self, block, layer: int) -> None:
        self.undo(block.register_forward_hook(_ObserveOutput(self, layer)).remove)


class _ObserveOutput(InertWhenCopied):
    def __init__(self, hook: ActivationHook, layer: int):
        import torch

        self._hook, self._layer = hook, layer
        self._is_compiling, self._grad_on = torch.compiler.is_compiling, torch.is_grad_enabled
        self._tensor, self._task = torch.Tensor, torch._C._current_graph_task_id

    def __call__(self, module, args, output):
        if self._is_compiling():
            return
        hook = self._hook
        if not hook.enabled or not hook.hooks.optimizer.sampled or not self._grad_on() or self._task() != -1:
            return
        try:
            value = output[0] if isinstance(output, (tuple, list)) and output else output
            if isinstance(value, self._tensor) and value.is_floating_point():
                value = plain_tensor(value)
                if value is not None:
                    hook.session.ops.observe_activation(value, self._layer)
        except Exception as error:
            hook.fail(error)
