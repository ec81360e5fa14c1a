"""trimtab: watches the numerics of a live training job.

    import trimtab
    trimtab.attach(server="127.0.0.1:7070")

One call in each training process, before or after the model is built. Without any code:
`trimtab run -- python train.py`. Importing this package imports neither torch nor anything else
that is heavy.
"""

from ._settings import Settings, SettingsError
from ._version import __version__

__all__ = ["Settings", "SettingsError", "__version__", "attach", "detach", "status", "step"]


def attach(
    server=None,
    run=None,
    act=False,
    mode="observe",
    *,
    sample_every=10,
    emulate_storage="",
    overhead_budget=0.01,
    ring_dir=None,
) -> bool:
    """Watches this process from now on. Returns True when it does.

    server: HOST:PORT of trimtabd; a courier is started for it (one a node under torchrun). None: no courier of our own.
    run: name of the run, the same on every rank; None: made from the script's name.
    act: allow the server to switch attention kernels of this job.
    mode: what attention runs in now: "native", "observe", "stabilized" or "paper".
    sample_every: steps between samples. overhead_budget: share of step time the agent may take.
    emulate_storage: fault injector, see docs/python.md. ring_dir: folder of the rings; None: a private one.

    Idempotent: attached already (also by `trimtab run`), it changes nothing and returns True. With TRIMTAB_DISABLE=1 it
    does nothing and returns False. A failure of the agent (no compiler, for instance) is one line on stderr and False:
    the job goes on. Raises SettingsError for arguments that cannot be right. Cost: the first call on a machine compiles
    the hook library, tens of seconds.
    """
    settings = Settings(
        server=server,
        run=run,
        act=bool(act),
        mode=mode,
        sample_every=sample_every,
        emulate_storage=emulate_storage or "",
        overhead_budget=overhead_budget,
        ring_dir=ring_dir,
    )
    from . import _session

    return _session.attach(settings)


def detach() -> None:
    """Restores the job's own kernels and functions, removes every hook and closes the ring. Idempotent."""
    from . import _session

    _session.detach()


def step(loss=None, grad_norm=None, learning_rate=None) -> None:
    """Ends one training step of this process, for loops whose own steps the hooks cannot see (no torch.optim optimizer, or
    several optimizer steps a training step). Call it once a step, after the optimizer.

    loss, grad_norm, learning_rate: numbers or one-element CPU tensors; None keeps what the hooks saw. Values on a device
    are not read, since that would wait for it. From the first call on steps end here and nowhere else; when a hook has
    just closed a step, the first call only says so, and its values are dropped.

    Never raises; does nothing when not attached. Not for use inside compiled functions.
    """
    from . import _session

    _session.step(loss=loss, grad_norm=grad_norm, learning_rate=learning_rate)


def status() -> dict:
    """What the agent sees: step, modes, layers, coverage, errors, overhead_share; {} when not attached."""
    from . import _session

    return _session.status()
