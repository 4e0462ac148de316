"""Ranks of a job: the number of this process, and how many processes the job has."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any

from brimful.checks import setting_number
from brimful.errors import SettingsError
from brimful.messages import setting

BUILDER = 0
"""Rank that measures and plans."""


@dataclass(frozen=True)
class Ranks:
    """One process of a job.

    Attributes:
        rank: number of this process, from 0.
        world_size: processes of the job, including tensor- and pipeline-parallel processes: all of them get the same
            plan.
        speaks: true if this rank prints while it waits: one follower on each node does.
    """

    rank: int = 0
    world_size: int = 1
    speaks: bool = True

    @property
    def is_builder(self) -> bool:
        """True for the one rank that plans."""
        return self.rank == BUILDER


def find_ranks(rank: int | None = None, world_size: int | None = None) -> Ranks:
    """Return this process among the ranks: from the arguments, PyTorch or the launcher; otherwise it is the only one.

    ``torch.distributed`` is asked if it was initialized; it is never imported for this. ``RANK`` and ``WORLD_SIZE`` of
    torchrun and similar launchers are used if data sets are made before the process group.

    Raises:
        SettingsError: one argument without the other, or a rank outside the world size.

    >>> find_ranks(rank=1, world_size=4)
    Ranks(rank=1, world_size=4, speaks=True)
    """
    if (rank is None) != (world_size is None):
        raise SettingsError(f"{setting('rank')} and {setting('world_size')} go together: give both, or neither")
    if rank is None or world_size is None:
        rank, world_size = _from_process_group() or _from_launcher() or (0, 1)
    world_size = setting_number("world_size", world_size, minimum=1)
    rank = setting_number("rank", rank, minimum=0, maximum=world_size - 1)
    # This variable only decides whether a line is printed.
    return Ranks(rank, world_size, speaks=rank == BUILDER or os.environ.get("LOCAL_RANK", "0") == "0")


def process_group() -> Any | None:
    """Return the module ``torch.distributed`` if this process has initialized a process group, otherwise None."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed


def _from_process_group() -> tuple[int, int] | None:
    distributed = process_group()
    return None if distributed is None else (int(distributed.get_rank()), int(distributed.get_world_size()))


def _from_launcher() -> tuple[int, int] | None:
    try:
        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    except (KeyError, ValueError):
        return None
