"""Attaches right after `import torch`, in the processes that train and in no others."""

from __future__ import annotations

import importlib.machinery
import os
import sys

from . import _log

_LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch", "torch.distributed.elastic")


def arm() -> None:
    """Watches for the first import of torch in this process. Idempotent; costs one finder on sys.meta_path."""
    if "torch" in sys.modules or _is_helper(sys.orig_argv):
        return
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def _is_helper(argv: list[str]) -> bool:
    """True for processes of which the command line says that they never train: torchrun's own process and Inductor's
    compile workers. Others that never train (data loaders, for instance) load the hooks and stay silent: a ring is
    opened at the first backward only."""
    words = argv[1:40]
    if any("compile_worker" in word for word in words):
        return True
    if "RANK" in os.environ:
        return False
    if any(os.path.basename(word) == "torchrun" for word in words[:3]):
        return True
    return "-m" in words and any(word.startswith(_LAUNCHERS) for word in words[words.index("-m") + 1 :][:1])


class _Finder:
    """Lets the other finders find torch, and adds one call behind the execution of its module."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        for finder in [] if spec else list(sys.meta_path):
            spec = finder.find_spec(name, path, target) if hasattr(finder, "find_spec") else None
            if spec:
                break
        if spec is None or spec.loader is None or not hasattr(spec.loader, "exec_module"):
            return spec
        execute = spec.loader.exec_module

        def execute_and_attach(module):
            spec.loader.__dict__.pop("exec_module", None)
            execute(module)
            _attach()

        try:
            spec.loader.exec_module = execute_and_attach
        except AttributeError:
            _log.say(f"not attached: torch is loaded by {type(spec.loader).__name__}, which cannot be followed")
        return spec


def _attach() -> None:
    try:
        from . import _session

        _session.attach_from_environment()
    except Exception as error:
        _log.say(f"not attached, the job goes on without: {type(error).__name__}: {error}")
