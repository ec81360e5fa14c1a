"""Which rank this process is: torch.distributed when it is initialised, else as its launcher says."""

from __future__ import annotations

import dataclasses
import os
import sys

# (rank, world size, local rank) as each launcher names them, in order of trust.
_LAUNCHERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),  # torchrun, accelerate, DeepSpeed
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
)


@dataclasses.dataclass(frozen=True)
class Rank:
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    source: str = "single process"
    problem: str = ""  # why a launcher's word was not taken; "" if it was


def resolve(environment=None) -> Rank:
    """Never raises. Call late, when the job has set up its process group."""
    environment = os.environ if environment is None else environment
    from_group = _from_process_group(environment)
    return from_group or _from_environment(environment)


def _from_process_group(environment) -> Rank | None:
    distributed = sys.modules.get("torch.distributed")
    try:
        if distributed is None or not distributed.is_available() or not distributed.is_initialized():
            return None
        rank, world_size = distributed.get_rank(), distributed.get_world_size()
    except Exception:
        return None
    local = _number(environment.get("LOCAL_RANK")) or _number(environment.get("SLURM_LOCALID"))
    return Rank(rank, world_size, rank if local is None else local, "torch.distributed")


def _from_environment(environment) -> Rank:
    for rank_name, size_name, local_name in _LAUNCHERS:
        if rank_name not in environment:
            continue
        rank, size = _number(environment[rank_name]), _number(environment.get(size_name, "1"))
        if rank is None or size is None or rank >= size:
            return Rank(
                problem=f"{rank_name}={environment[rank_name]} {size_name}={environment.get(size_name)} "
                "is no rank of a world; taken as rank 0 of 1"
            )
        if rank_name == "SLURM_PROCID" and size > 1 and "SLURM_STEP_ID" not in environment:
            continue  # inside an allocation but not started by srun
        local = _number(environment.get(local_name, "0"))
        return Rank(rank, size, local or 0, rank_name)
    return Rank()


def _number(text) -> int | None:
    try:
        value = int(text)
    except (TypeError, ValueError):
        return None
    return value if 0 <= value < 2**32 else None
