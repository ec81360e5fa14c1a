"""Module hooks that do not travel with the module."""

from __future__ import annotations

import contextlib


def _nothing():
    """A callable from the standard library that takes anything and returns None."""
    return contextlib.nullcontext().__exit__


class InertWhenCopied:
    """Base of callables registered on the job's modules. A deep copy (an EMA model) or a pickle (torch.save of a whole
    model) of the module gets a callable that does nothing and that loads where trimtab is not installed."""

    def __deepcopy__(self, memo):
        return _nothing()

    def __reduce__(self):
        return getattr, (contextlib.nullcontext(), "__exit__")
