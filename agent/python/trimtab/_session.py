"""The attached state of this process: one library, one set of hooks, one ring."""

from __future__ import annotations

import atexit
import json
import os
import platform
import sys
import tempfile
import threading
from pathlib import Path

from . import _build, _courier, _log, _rank, _ring_dir
from ._hooks import HookSet
from ._hooks.report import Report
from ._settings import ATTACH_VARIABLE, Settings, default_run_name, disabled
from ._version import __version__

_guard = threading.RLock()
_session: Session | None = None


class Session:
    """Hooks are in place from construction to `stop`; the ring is opened by the first backward (`open_ring`), so that a
    process that only imports torch never shows up as a rank. Used on the training thread."""

    def __init__(self, settings: Settings, library: Path):
        import torch

        torch.ops.load_library(str(library))
        self.settings = settings
        self.ops = torch.ops.trimtab
        self.report = Report(self._send_info)
        self.pid = os.getpid()
        self.opened = False
        self._refused = False
        answer = json.loads(self.ops.start(json.dumps(self._start_options(torch.__version__))))
        if not answer.get("ok"):
            raise RuntimeError(answer.get("error") or "the hook library did not start")
        try:
            self.hooks = HookSet(self)
            self.hooks.install()
        except Exception:
            self.ops.stop()
            raise

    def _start_options(self, torch_version: str) -> dict:
        settings = self.settings
        info = {
            "act": settings.act,
            "emulated_storage": settings.emulate_storage,
            "versions": {"trimtab": __version__, "torch": torch_version, "python": platform.python_version()},
            "metadata": {"program": os.path.basename(sys.argv[0] if sys.argv and sys.argv[0] else "python")[:200]},
        }
        rank = _rank.resolve()
        return {
            "run": settings.run,
            "rank": rank.rank,
            "world_size": rank.world_size,
            "local_rank": rank.local_rank,
            "ring_dir": settings.ring_dir,
            "act": settings.act,
            "mode": settings.mode,
            "lazy": True,
            "sample_every_steps": settings.sample_every,
            "emulate_storage": settings.emulate_storage,
            "overhead_budget": settings.overhead_budget,
            "info": info,
        }

    def open_ring(self) -> None:
        """Called by the first backward, when the process group, if any, is up. Never raises; tries once."""
        if self.opened or self._refused or os.getpid() != self.pid:
            return
        rank = _rank.resolve()
        self.opened = True
        answer = json.loads(
            self.ops.open_ring(
                json.dumps(
                    {
                        "run": self.settings.run,
                        "rank": rank.rank,
                        "world_size": rank.world_size,
                        "local_rank": rank.local_rank,
                        "info": {"metadata": {"rank_source": rank.source}},
                    }
                )
            )
        )
        if not answer.get("ok"):
            self.opened, self._refused = False, True
            _log.say(f"no ring, the job goes on unmeasured: {answer.get('error')}")
            return
        if rank.problem:
            _log.say(rank.problem)
            self.report.note(rank.problem)
        self.report.flush()

    def _send_info(self, info: dict) -> None:
        self.ops.set_info(json.dumps(info))

    def stop(self) -> None:
        self.hooks.remove()
        self.ops.stop()


def attach_from_environment() -> bool:
    """Called by the import hook of `trimtab run`."""
    return attach(Settings.from_environment(), injected=True)


def attach(settings: Settings, injected: bool = False) -> bool:
    global _session
    if disabled():
        return False
    with _guard:
        try:
            if not injected:
                import torch  # noqa: F401  under `trimtab run` this attaches, and what the launcher said holds

            if _session is not None:
                if settings.act and not _session.settings.act:
                    _log.say("act=True changes nothing: trimtab is attached already; start the job with trimtab run --act")
                return True
            library = _build.library()
            if not injected:
                settings = _prepare(settings)
            _session = Session(settings, library)
        except Exception as error:
            _log.say(f"not attached, the job goes on without: {error}")
            return False
        atexit.register(_at_exit)
        return True


def detach() -> None:
    global _session
    with _guard:
        session, _session = _session, None
        if session is not None:
            atexit.unregister(_at_exit)
            session.stop()


def step(**values) -> None:
    session = _session
    if session is None:
        return
    try:
        numbers = {name: _number(session, name, value) for name, value in values.items()}
        session.hooks.optimizer.end_step(**numbers)
    except Exception as error:
        session.report.error(f"step: {type(error).__name__}: {error}")


def _number(session, name: str, value) -> float | None:
    device = getattr(value, "device", None)
    if device is not None and device.type != "cpu":
        session.report.note(f"step: {name} is kept on the device; not read, since that would wait for it")
        return None
    return None if value is None else float(value)


def status() -> dict:
    session = _session
    if session is None:
        return {}
    answer = json.loads(session.ops.status())
    answer["hooks"] = session.hooks.state()
    return answer


def _prepare(settings: Settings) -> Settings:
    """Fills in what `trimtab run` would have: a run name, a folder for the ring, a courier."""
    import dataclasses

    if os.environ.get(ATTACH_VARIABLE) == "1":  # under `trimtab run`, after a detach
        outer = Settings.from_environment()
        return dataclasses.replace(
            settings, run=settings.run or outer.run, ring_dir=settings.ring_dir or outer.ring_dir
        )
    program = Path(sys.argv[0]).stem if sys.argv and sys.argv[0] not in ("", "-c", "-m") else "python"
    run = settings.run or os.environ.get("TRIMTAB_RUN") or default_run_name(program)
    folder, starts_courier = Path(settings.ring_dir) if settings.ring_dir else None, True
    rank = _rank.resolve()
    if rank.world_size > 1:  # ranks of one launcher on this node share a folder and a courier
        if folder is None:
            base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir()
            _ring_dir.sweep(Path(base))
            folder = Path(base) / f"trimtab-{os.getuid()}-{os.getppid()}-shared"
        starts_courier = rank.local_rank == 0
    elif folder is None:
        folder = _ring_dir.make()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise RuntimeError(f"{folder} belongs to somebody else; give ring_dir")
    if settings.server and starts_courier:
        _courier.start(settings.server, folder, settings.log_file)
    return dataclasses.replace(settings, run=run, ring_dir=str(folder))


def _at_exit() -> None:
    """Closes the ring cleanly at a normal end. After an uncaught exception it stays open: the server then says that the
    rank was lost, which is what happened."""
    session = _session
    if session is None or os.getpid() != session.pid:
        return
    failed = getattr(sys, "last_type", None)
    if failed is not None and not hasattr(sys, "ps1") and not issubclass(failed, (SystemExit, KeyboardInterrupt)):
        return
    try:
        detach()
    except Exception as error:
        _log.say(f"at exit: {error}")
