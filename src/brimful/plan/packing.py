"""What an algorithm returns: items grouped into packs."""

from __future__ import annotations

from dataclasses import dataclass

from brimful.typing import AnyIntArray, Offsets

__all__ = ["Packing"]


@dataclass(frozen=True)
class Packing:
    """Items grouped into packs: pack ``i`` holds ``items[offsets[i]:offsets[i + 1]]``.

    Attributes:
        offsets: ``int64[num_packs + 1]``, ascending from 0; no pack is empty.
        items: ``int[num_items]``, positions in the lengths that were packed, each exactly once.

    >>> import numpy as np
    >>> Packing(np.array([0, 2, 3]), np.array([4, 0, 2])).as_lists()
    [[4, 0], [2]]
    """

    offsets: Offsets
    items: AnyIntArray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def as_lists(self) -> list[list[int]]:
        """Packs as lists, for small examples."""
        return [self.items[a:b].tolist() for a, b in zip(self.offsets[:-1], self.offsets[1:], strict=True)]
