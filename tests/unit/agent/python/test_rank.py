"""Rank detection from what launchers put into the environment."""

import pytest
from trimtab._rank import resolve


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, (0, 1, 0)),
        ({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}, (3, 8, 1)),
        ({"SLURM_PROCID": "5", "SLURM_NTASKS": "16", "SLURM_LOCALID": "1", "SLURM_STEP_ID": "0"}, (5, 16, 1)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "16", "SLURM_LOCALID": "0"}, (0, 1, 0)),  # not started by srun
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "2"}, (2, 4, 2)),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, (1, 2, 0)),
        ({"RANK": "1", "WORLD_SIZE": "2", "SLURM_PROCID": "7", "SLURM_NTASKS": "9"}, (1, 2, 0)),
    ],
)
def test_launchers(environment, expected):
    rank = resolve(environment)
    assert (rank.rank, rank.world_size, rank.local_rank) == expected
    assert rank.problem == ""


@pytest.mark.parametrize(
    "environment",
    [
        {"RANK": "2", "WORLD_SIZE": "2"},
        {"RANK": "-1", "WORLD_SIZE": "2"},
        {"RANK": "x"},
        {"RANK": "0", "WORLD_SIZE": "0"},
    ],
)
def test_nonsense_becomes_a_single_process_and_a_note(environment):
    rank = resolve(environment)
    assert (rank.rank, rank.world_size) == (0, 1)
    assert "no rank of a world" in rank.problem
