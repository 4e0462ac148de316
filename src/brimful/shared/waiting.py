"""Waiting times of ranks, in one object that validates itself."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from brimful.checks import is_number
from brimful.errors import SettingsError
from brimful.messages import setting


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
