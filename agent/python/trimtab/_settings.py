"""What a watched process needs to know: one value object, its limits, and its way through the environment.

`trimtab run` writes the settings into the environment of the job; every rank reads them back at `import torch`.
"""

from __future__ import annotations

import dataclasses
import datetime
import os
import re
import secrets

MODES = ("native", "observe", "stabilized", "paper")
STORAGE_FORMATS = ("fp32", "bf16", "fp16", "e4m3", "e5m2")
DEFAULT_SERVER = "127.0.0.1:7070"
RUN_NAME_BYTES_MAX = 255
SAMPLE_EVERY_MAX = 1_000_000

# Set by `trimtab run`; its presence makes the injected sitecustomize attach.
ATTACH_VARIABLE = "TRIMTAB_ATTACH"
DISABLE_VARIABLE = "TRIMTAB_DISABLE"

_TRUE = {"1", "true", "yes", "on"}


class SettingsError(ValueError):
    """A setting that cannot be used. The text is one line: what is wrong and how to mend it."""


def disabled() -> bool:
    """True when the owner switched trimtab off with TRIMTAB_DISABLE=1."""
    return os.environ.get(DISABLE_VARIABLE, "").lower() in _TRUE


@dataclasses.dataclass(frozen=True)
class Settings:
    """Immutable. Every field maps to one environment variable (see `_VARIABLES`)."""

    server: str | None = None  # HOST:PORT of trimtabd; None: no courier is started
    run: str | None = None  # 1 to 255 bytes of printable text
    act: bool = False  # the owner allows the server to switch kernels
    mode: str = "observe"
    sample_every: int = 10  # steps between samples
    emulate_storage: str = ""  # fault injector: attention computes in this storage format
    overhead_budget: float = 0.01  # share of step time that the agent may take
    ring_dir: str | None = None  # None: a private folder is made
    log_file: str | None = None  # trimtab's own lines; None: stderr

    def __post_init__(self) -> None:
        if self.server is not None:
            check_server(self.server)
        if self.run is not None:
            check_run_name(self.run)
        if self.mode not in MODES:
            raise SettingsError(f"mode {self.mode!r} is not known; use one of {', '.join(MODES)}")
        if self.emulate_storage and self.emulate_storage not in STORAGE_FORMATS:
            raise SettingsError(
                f"storage format {self.emulate_storage!r} is not known; use one of {', '.join(STORAGE_FORMATS)}"
            )
        if not 1 <= self.sample_every <= SAMPLE_EVERY_MAX:
            raise SettingsError(f"sample-every must be 1 to {SAMPLE_EVERY_MAX} steps, not {self.sample_every}")
        if not 0.0 < self.overhead_budget <= 1.0:
            raise SettingsError(
                "overhead-budget is a share of the step time above 0 and up to 1 (0.01 is 1 %), "
                f"not {self.overhead_budget}"
            )

    @classmethod
    def from_environment(cls, environment=None) -> Settings:
        """Reads what `to_environment` wrote; unset variables keep their defaults. Raises SettingsError."""
        environment = os.environ if environment is None else environment
        values = {}
        for field, variable in _VARIABLES.items():
            text = environment.get(variable)
            if text:
                values[field] = _parse(field, variable, text)
        return cls(**values)

    def to_environment(self) -> dict[str, str]:
        """The variables of all fields that are set."""
        values = {}
        for field, variable in _VARIABLES.items():
            value = getattr(self, field)
            if value is None or value == "":
                continue
            values[variable] = ("1" if value else "0") if isinstance(value, bool) else str(value)
        return values


_VARIABLES = {
    "server": "TRIMTAB_SERVER",
    "run": "TRIMTAB_RUN",
    "act": "TRIMTAB_ACT",
    "mode": "TRIMTAB_MODE",
    "sample_every": "TRIMTAB_SAMPLE_EVERY",
    "emulate_storage": "TRIMTAB_EMULATE_STORAGE",
    "overhead_budget": "TRIMTAB_OVERHEAD_BUDGET",
    "ring_dir": "TRIMTAB_RING_DIR",
    "log_file": "TRIMTAB_LOG_FILE",
}
_NUMBERS = {"sample_every": int, "overhead_budget": float}


def _parse(field: str, variable: str, text: str):
    if field == "act":
        return text.lower() in _TRUE
    if field in _NUMBERS:
        try:
            return _NUMBERS[field](text)
        except ValueError:
            raise SettingsError(f"{variable}={text!r} is not a number") from None
    return text


def check_server(server: str) -> str:
    """Returns HOST:PORT unchanged, or raises SettingsError."""
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})", server)
    if not match or not 1 <= int(match.group(2)) <= 65535:
        raise SettingsError(f"server {server[:80]!r} is not HOST:PORT, for example {DEFAULT_SERVER}")
    return server


def check_run_name(run: str) -> str:
    """Returns the name unchanged, or raises SettingsError: 1 to 255 bytes of printable UTF-8."""
    try:
        size = len(run.encode("utf-8"))
    except UnicodeEncodeError:
        raise SettingsError("run name is not valid UTF-8") from None
    if not 1 <= size <= RUN_NAME_BYTES_MAX:
        raise SettingsError(f"run name has {size} bytes; use 1 to {RUN_NAME_BYTES_MAX}")
    if not run.isprintable():
        raise SettingsError(f"run name {run[:40]!r} has a line break or another character that cannot be printed")
    return run


def default_run_name(program: str) -> str:
    """A name for a job that was given none. Nodes of one scheduler job get the same one."""
    program = "".join(letter if letter.isprintable() else "_" for letter in program)[:60]
    for variable in ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", "LSB_JOBID", "PBS_JOBID"):
        job = os.environ.get(variable)
        if job and job != "none":
            return check_run_name(f"{program}-{job}")
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    return check_run_name(f"{program}-{stamp}-{secrets.token_hex(2)}")
