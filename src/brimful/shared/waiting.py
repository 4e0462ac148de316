"""Times of waiting: one object that checks itself."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from brimful.checks import is_number
from brimful.errors import SettingsError
from brimful.messages import setting


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """Seconds that ranks wait for each other. None of them limits how long a build may take.

    Attributes:
        poll_seconds: between two looks of a follower.
        beat_seconds: between two signs of life of rank 0.
        stale_seconds: without a sign after which rank 0 counts as dead; on its own machine its end is seen at once.
        arrive_seconds: that rank 0 may come later than a follower.
        see_seconds: until a follower that does not see the file of a plan asks for a copy.

    Raises:
        SettingsError: a time that is not positive, or signs that are too rare to be missed.

    >>> Waiting(stale_seconds=30).beat_seconds
    1.0
    """

    poll_seconds: float = 0.5
    beat_seconds: float = 1.0
    stale_seconds: float = 60.0
    arrive_seconds: float = 600.0
    see_seconds: float = 10.0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not is_number(value) or not value > 0:
                raise SettingsError(f"{setting(name, value)} must be a number of seconds above 0")
        if self.stale_seconds < 3 * self.beat_seconds:
            raise SettingsError(
                f"{setting('stale_seconds', self.stale_seconds)} must be at least three times "
                f"{setting('beat_seconds', self.beat_seconds)}: one late sign is no death"
            )
