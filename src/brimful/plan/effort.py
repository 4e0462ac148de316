"""What a search may spend: seconds, or operations, of which every machine takes the same number."""

from __future__ import annotations

import time

__all__ = ["Effort"]


class Effort:
    """A purse that a search pays from. Searches end where it is empty, with what they have found so far.

    Seconds depend on the machine and on what else runs there, operations do not: a search that is limited in
    operations gives the same answer everywhere. An operation is one step of an inner loop over an array, about a
    nanosecond on a processor of 2024.

    Args:
        seconds: of wall time from now on; None for no limit.
        operations: None for no limit.

    >>> effort = Effort(operations=100)
    >>> effort.spend(99), effort.over, effort.spend(1), effort.over
    (None, False, None, True)
    """

    def __init__(self, *, seconds: float | None = None, operations: float | None = None) -> None:
        self.begin = time.perf_counter()
        self.spent = 0.0
        self._deadline = float("inf") if seconds is None else self.begin + seconds
        self._operations = float("inf") if operations is None else operations

    def spend(self, operations: float) -> None:
        """Count operations that were done."""
        self.spent += operations

    @property
    def over(self) -> bool:
        """Nothing is left."""
        return self.spent >= self._operations or time.perf_counter() >= self._deadline

    def with_grace(self) -> Effort:
        """What is left, and at least a second or as many operations: to finish what was begun."""
        return Effort(seconds=max(self.seconds_left, 1.0), operations=max(self.operations_left, 1e9))

    @property
    def seconds_left(self) -> float:
        """Infinite without a limit."""
        return self._deadline - time.perf_counter()

    @property
    def operations_left(self) -> float:
        """Infinite without a limit."""
        return self._operations - self.spent
