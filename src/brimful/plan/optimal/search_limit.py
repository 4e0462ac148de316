"""Limit of a search: in seconds, or in operations, which are the same on every machine."""

from __future__ import annotations

import time


class SearchLimit:
    """A limit in seconds, in operations, or in both. A search ends at the first limit and keeps its best result.

    Seconds depend on the machine and its load, operations do not: a search with a limit in operations gives the same
    result everywhere. An operation is one step of an inner loop over an array, about a nanosecond on a processor from
    2024.

    Args:
        seconds: wall time from construction; None for no limit.
        operations: None for no limit.

    >>> limit = SearchLimit(operations=100)
    >>> limit.spend(99), limit.exhausted, limit.spend(1), limit.exhausted
    (None, False, None, True)
    """

    def __init__(self, *, seconds: float | None = None, operations: float | None = None) -> None:
        self._start = time.perf_counter()
        self._max_seconds = float("inf") if seconds is None else seconds
        self.remaining_operations = float("inf") if operations is None else operations
        """Infinite without a limit."""

    def spend(self, operations: float) -> None:
        """Count operations of the search."""
        self.remaining_operations -= operations

    @property
    def exhausted(self) -> bool:
        """True once the seconds or the operations are used up."""
        return self.remaining_operations <= 0 or self.remaining_seconds <= 0

    def with_minimum(self) -> SearchLimit:
        """Return a limit for a last step: the rest of this limit, but at least 1 second and 10⁹ operations."""
        return SearchLimit(seconds=max(self.remaining_seconds, 1.0), operations=max(self.remaining_operations, 1e9))

    @property
    def remaining_seconds(self) -> float:
        """Infinite without a limit."""
        return self._max_seconds - (time.perf_counter() - self._start)
