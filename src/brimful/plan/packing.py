"""What an algorithm returns: items grouped into packs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from brimful.typing import AnyIntArray, Offsets

__all__ = ["Packing"]


@dataclass(frozen=True)
class Packing:
    """Items grouped into packs: pack ``i`` holds ``items[offsets[i]:offsets[i + 1]]``.

    Attributes:
        offsets: ``int64[num_packs + 1]``, ascending from 0; no pack is empty.
        items: ``int[num_items]``, positions in the lengths that were packed, each exactly once.

    >>> Packing(np.array([0, 2, 3]), np.array([4, 0, 2])).as_lists()
    [[4, 0], [2]]
    """

    offsets: Offsets
    items: AnyIntArray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def reordered(self, order: AnyIntArray) -> Packing:
        """The same packs, or some of them, in another order: pack ``i`` is pack ``order[i]`` of these.

        >>> Packing(np.array([0, 2, 3]), np.array([4, 0, 2])).reordered(np.array([1, 0])).as_lists()
        [[2], [4, 0]]
        """
        sizes = np.diff(self.offsets)[order]
        offsets = np.zeros(len(order) + 1, dtype=np.int64)
        np.cumsum(sizes, out=offsets[1:])
        places = np.arange(int(offsets[-1])) + np.repeat(self.offsets[:-1][order] - offsets[:-1], sizes)
        return Packing(offsets, self.items[places])

    def as_lists(self) -> list[list[int]]:
        """Packs as lists, for small examples."""
        return [self.items[a:b].tolist() for a, b in zip(self.offsets[:-1], self.offsets[1:], strict=True)]
