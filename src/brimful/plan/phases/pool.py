"""Items that fill packs behind a seed: counts of lengths that shrink while packs are made."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from brimful.typing import Int64Array

__all__ = ["Pool"]

FloatArray: TypeAlias = npt.NDArray[np.float64]


class Pool:
    """Counts of lengths, and the three ways to choose from them.

    A choice is written into ``held`` (copies of each length in the pack at hand) and takes nothing from the pool yet:
    ``take`` does, for any number of equal packs. A pack that is not accepted is simply forgotten.
    """

    def __init__(self, lengths: Int64Array, counts: Int64Array) -> None:
        self._all = lengths
        self.lengths: list[int] = lengths.tolist()
        """Lengths of which items are left, ascending."""
        self.counts: dict[int, int] = dict(zip(self.lengths, counts.tolist(), strict=True))
        self._ratio: FloatArray | None = None  # float64[d], items for each length ÷ length, once it is asked for

    def longest(self, room: int, held: dict[int, int], most: int) -> int:
        """Add the longest that fits, again and again, at most that many items; returns the room that stays."""
        at = bisect_right(self.lengths, room) - 1
        while at >= 0 and most:
            length = self.lengths[at]
            before = held.get(length, 0)
            copies = min(self.counts[length] - before, room // length, most)
            if copies > 0:
                held[length] = before + copies
                room -= copies * length
                most -= copies
            at = bisect_right(self.lengths, room, 0, at) - 1
        return room

    def shortest(self, room: int, held: dict[int, int], most: int) -> int:
        """Add the shortest, again and again, at most that many items; returns the room that stays."""
        for length in self.lengths:
            if length > room or not most:
                break
            before = held.get(length, 0)
            copies = min(self.counts[length] - before, room // length, most)
            if copies > 0:
                held[length] = before + copies
                room -= copies * length
                most -= copies
        return room

    def commonest(self, room: int, held: dict[int, int], most: int) -> int:
        """Add the one with the most items for its length, at most that many items; returns the room that stays.

        The largest count × room / length is the largest count / length, since the room is the same for all; of equal
        ones the shortest is taken. Counts are those after what the pack at hand already holds.
        """
        if self._ratio is None:
            counts = np.array([self.counts[length] for length in self._all.tolist()], dtype=np.int64)
            self._ratio = np.asarray(counts / self._all, dtype=np.float64)
        for length, copies in held.items():
            self._rate(length, self.counts[length] - copies)
        while most:
            fitting = self._ratio[: np.searchsorted(self._all, room, side="right")]
            at = int(fitting.argmax()) if len(fitting) else 0
            if not len(fitting) or fitting[at] <= 0:
                break
            length = int(self._all[at])
            held[length] = held.get(length, 0) + 1
            self._rate(length, self.counts[length] - held[length])
            room -= length
            most -= 1
        for length in held:
            self._rate(length, self.counts[length])
        return room

    def times(self, held: Mapping[int, int]) -> int:
        """Packs that the pool has items for."""
        return min((self.counts[length] // copies for length, copies in held.items()), default=2**63 - 1)

    def take(self, held: Mapping[int, int], times: int) -> None:
        """Remove the items of so many packs."""
        for length, copies in held.items():
            self.counts[length] -= copies * times
            if self.counts[length] == 0:
                del self.lengths[bisect_left(self.lengths, length)]
            self._rate(length, self.counts[length])

    def _rate(self, length: int, count: int) -> None:
        if self._ratio is not None:
            self._ratio[np.searchsorted(self._all, length)] = count / length
