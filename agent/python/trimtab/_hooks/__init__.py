"""The hooks that need Python: loss, gradient norm, learning rate, step boundary, layers, projections, activations.

Attention itself is hooked in C++ (agent/torch). Every hook here is exception-tight: on an error it switches itself off,
says so in the coverage report, and the job's own call goes on. All of them can be removed.
"""

from __future__ import annotations

from .activations import ActivationHook
from .grad_norm import GradNormHook
from .layers import LayerHook
from .loss import LossHook
from .optimizer import OptimizerHook
from .projections import ProjectionHook


class HookSet:
    """All hooks of a session. `session` gives ops, report, settings, open_ring."""

    def __init__(self, session):
        self.session = session
        self.loss = LossHook(self)
        self.grad_norm = GradNormHook(self)
        self.layers = LayerHook(self)
        self.activations = ActivationHook(self)
        self.projections = ProjectionHook(self)
        self.optimizer = OptimizerHook(self)
        self._all = [self.loss, self.grad_norm, self.layers, self.activations, self.projections, self.optimizer]

    def install(self) -> None:
        for hook in self._all:
            hook.install()

    def remove(self) -> None:
        for hook in reversed(self._all):
            hook.remove()

    def state(self) -> dict:
        """Which hooks are on: {"loss": True, …}."""
        return {hook.name: hook.enabled for hook in self._all}
