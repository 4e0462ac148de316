"""Times of waiting: one object that checks itself."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from brimful.checks import is_number
from brimful.errors import SettingsError
from brimful.messages import setting


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """Seconds that ranks wait for rank 0. None of them limits how long a build may take.

    Attributes:
        poll_seconds: between two looks.
        arrive_seconds: that rank 0 may come later than another rank.
        see_seconds: that the file of a plan may be seen later than rank 0 says that it is there.

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
