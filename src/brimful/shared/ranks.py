"""Ranks of a job: the number of this process, how many processes the job has, and how long they wait for rank 0."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass

from brimful.base.checks import is_number, setting_number
from brimful.base.wording import setting
from brimful.errors import SettingsError
from brimful.serve.agreement import process_group


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
        return self.rank == 0


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """Seconds that ranks wait for rank 0. They do not limit how long a build may take.

    Attributes:
        poll_seconds: time between two polls.
        arrive_seconds: delay by which rank 0 may arrive later than another rank.
        see_seconds: delay after the announcement of rank 0 until another rank must see the file of the plan.

    Raises:
        SettingsError: a time that is not positive.

    >>> Waiting(arrive_seconds=30).poll_seconds
    0.5
    """

    poll_seconds: float = 0.5
    arrive_seconds: float = 600.0
    see_seconds: float = 60.0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not is_number(value) or not value > 0:
                raise SettingsError(f"{setting(name, value)} must be a number of seconds above 0")


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
        distributed = process_group()
        if distributed is not None:
            rank, world_size = distributed.get_rank(), distributed.get_world_size()
        else:
            try:
                rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
            except (KeyError, ValueError):  # not started by a launcher
                rank, world_size = 0, 1
    world_size = setting_number("world_size", world_size, minimum=1)
    rank = setting_number("rank", rank, minimum=0, maximum=world_size - 1)
    # This variable only decides whether a line is printed.
    return Ranks(rank, world_size, speaks=rank == 0 or os.environ.get("LOCAL_RANK", "0") == "0")
