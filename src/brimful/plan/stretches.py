"""Where the items of runs go, in closed form: packs of equal size follow each other, so items stand at equal distances.

Between two packs where some run begins or ends, all packs hold as many items. There the place of an item is a
straight line in the number of its pack, and neither the begin of a pack nor a table of begins has to be looked up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from brimful.plan.kernels import kernels
from brimful.typing import Int64Array, Offsets

__all__ = ["Stretches"]

_CHUNK_PACKS = 1 << 18
"""Packs that NumPy works on at a time: they stay in the cache."""


@dataclass(frozen=True)
class Stretches:
    """Runs of ``Placements``, cut where the size of packs changes.

    Stretch ``t`` puts ``copies[t]`` items into each of ``packs[t]`` packs, side by side from ``start[t]`` on and
    ``stride[t]`` places farther from pack to pack. Level ``v`` is ``widths[v]`` packs in turn of ``sizes[v]`` items.

    Packs ``6``, ``6 1``, ``6 1``: one run of three 6, one of two 1, two levels::

        places     0 │ 1 2 │ 3 4           level  sizes widths      stretch  start stride copies packs
        items      6 │ 6 1 │ 6 1           0      1     1           0        0     1      1      1
                                           1      2     2           1        1     2      1      2
                                                                    2        2     2      1      2

    All arrays are ``int64[num_stretches]`` or ``int64[num_levels]``. There are at most as many stretches as items.

    >>> three = Stretches.of(first=np.array([0, 1]), packs=np.array([3, 2]), copies=np.array([1, 1]),
    ...                      slot=np.array([0, 1]))
    >>> three.start.tolist(), three.stride.tolist(), three.packs.tolist(), three.offsets().tolist()
    ([0, 1, 2], [1, 2, 2], [1, 2, 2], [0, 1, 3, 5])
    """

    start: Int64Array
    stride: Int64Array
    copies: Int64Array
    packs: Int64Array
    sizes: Int64Array
    widths: Int64Array

    @classmethod
    def of(cls, *, first: Int64Array, packs: Int64Array, copies: Int64Array, slot: Int64Array) -> Stretches:
        """Cut runs, as ``Placements`` describes them, that leave no pack empty; their order is kept."""
        edges = np.unique(np.concatenate([first, first + packs]))
        low, high = np.searchsorted(edges, first), np.searchsorted(edges, first + packs)
        change = np.zeros(len(edges), dtype=np.int64)
        np.add.at(change, low, copies)
        np.subtract.at(change, high, copies)
        sizes, widths = np.cumsum(change)[:-1], np.diff(edges)
        begins = np.cumsum(sizes * widths) - sizes * widths
        levels = high - low
        run = np.repeat(np.arange(len(first)), levels)
        level = np.arange(len(run)) - np.repeat(np.cumsum(levels) - levels - low, levels)
        return cls(begins[level] + slot[run], sizes[level], copies[run], widths[level], sizes, widths)

    def pack_sizes(self) -> npt.NDArray[np.unsignedinteger[Any]]:
        """Items of each pack, ``[num_packs]``, in the narrowest type: they are looked up at random."""
        largest = int(self.sizes.max()) if len(self.sizes) else 0
        return np.repeat(self.sizes.astype(np.min_scalar_type(largest)), self.widths)

    def offsets(self) -> Offsets:
        """``int64[num_packs + 1]``: items before each pack."""
        ends = np.cumsum(self.widths)
        num_packs = int(ends[-1]) if len(ends) else 0
        offsets = np.zeros(num_packs + 1, dtype=np.int64)
        compiled = kernels(num_packs)
        if compiled is not None:
            compiled.count_up(self.sizes, self.widths, offsets)
            return offsets
        for begin in range(0, num_packs, _CHUNK_PACKS):
            stop = min(begin + _CHUNK_PACKS, num_packs)
            low, high = int(np.searchsorted(ends, begin, side="right")), int(np.searchsorted(ends, stop)) + 1
            inside = np.minimum(ends[low:high], stop) - np.maximum((ends - self.widths)[low:high], begin)
            sizes = np.repeat(self.sizes[low:high], inside)
            sizes[0] += offsets[begin]
            np.cumsum(sizes, out=offsets[begin + 1 : stop + 1])
        return offsets
