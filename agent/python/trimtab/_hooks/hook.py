"""What all hooks share: a switch, and what happens on an error."""

from __future__ import annotations

from .. import _log

_MISSING = object()


class Hook:
    """Base of a hook. `enabled` is read on every call; `fail` switches it off for good."""

    name = ""

    def __init__(self, hooks):
        self.hooks = hooks
        self.session = hooks.session
        self.enabled = True
        self._undo = []

    def install(self) -> None:
        """Puts the hook in place."""

    def remove(self) -> None:
        """Takes everything back that `patch` and `undo` noted. Idempotent."""
        self.enabled = False
        while self._undo:
            self._undo.pop()()

    def undo(self, action) -> None:
        self._undo.append(action)

    def patch(self, owner, attribute: str, replacement) -> None:
        """Sets owner.attribute until `remove`. Somebody else's later replacement is left in place: it wraps ours, and
        ours passes through once it is disabled."""
        own = owner.__dict__.get(attribute, _MISSING)
        setattr(owner, attribute, replacement)

        def restore():
            if owner.__dict__.get(attribute) is not replacement:
                return
            if own is _MISSING:
                delattr(owner, attribute)
            else:
                setattr(owner, attribute, own)

        self.undo(restore)

    def fail(self, error: BaseException) -> None:
        """Never raises."""
        self.enabled = False
        text = f"{self.name}: {type(error).__name__}: {error}"
        _log.say(f"the hook for {self.name} switched itself off: {type(error).__name__}: {error}")
        self.session.report.error(text)
