"""The split of a row over ranks, written slice by slice: plainly right, to compare fast ones with; and wrong splits."""

from collections.abc import Callable
from itertools import pairwise

from brimful.base.typing import CuSeqlens
from brimful.rl.context_parallel_split import ContextParallelLayout


def reference_places(cu_seqlens: CuSeqlens, cp_size: int, layout: ContextParallelLayout) -> list[list[int]]:
    """Return where the tokens of each rank lie in the row.

    >>> import numpy as np
    >>> reference_places(np.array([0, 4, 8]), 2, ContextParallelLayout.ZIGZAG_SEGMENTS)
    [[0, 3, 4, 7], [1, 2, 5, 6]]
    """
    bounds = _bounds(cu_seqlens, layout)
    if layout is ContextParallelLayout.CONTIGUOUS:
        return _dealt(bounds, cp_size, lambda rank: (2 * rank, 2 * rank + 1))
    return _dealt(bounds, cp_size, lambda rank: (rank, 2 * cp_size - 1 - rank))


def wrong_places(
    cu_seqlens: CuSeqlens, cp_size: int, layout: ContextParallelLayout
) -> list[tuple[str, list[list[int]]]]:
    """Return splits that are made by mistake, each with its name; layouts of other trainers first."""
    names = {
        ContextParallelLayout.ZIGZAG_SEGMENTS: "zigzag of every segment (zigzag_segments)",
        ContextParallelLayout.ZIGZAG_ROW: "zigzag of the whole row, across segments (zigzag_row)",
        ContextParallelLayout.CONTIGUOUS: "equal parts in order (contiguous)",
    }
    right = reference_places(cu_seqlens, cp_size, layout)
    swapped = _dealt(_bounds(cu_seqlens, layout), cp_size, lambda rank: (2 * cp_size - 1 - rank, rank))
    without_mirror = _dealt(_bounds(cu_seqlens, layout), cp_size, lambda rank: (rank, cp_size + rank))
    wrong = [
        (name, reference_places(cu_seqlens, cp_size, mistake)) for mistake, name in names.items() if mistake != layout
    ]
    wrong += [
        ("the halves of the zigzag are swapped: the late slice comes before the early one", swapped),
        ("the second half is not a mirror: slices r and cp + r instead of r and 2·cp − 1 − r", without_mirror),
        ("ranks are numbered backwards", right[::-1]),
        ("every rank holds what its neighbor should", right[1:] + right[:1]),
    ]  # fmt: skip
    return [(name, places) for name, places in wrong if places != right]


def _bounds(cu_seqlens: CuSeqlens, layout: ContextParallelLayout) -> list[int]:
    """Return the bounds of what is cut: every segment, or the whole row."""
    bounds: list[int] = cu_seqlens.tolist()
    return bounds if layout is ContextParallelLayout.ZIGZAG_SEGMENTS else [0, bounds[-1]]


def _dealt(bounds: list[int], cp_size: int, slices_of: Callable[[int], tuple[int, int]]) -> list[list[int]]:
    """Cut each part between two bounds into 2·cp slices and give each rank its own."""
    places: list[list[int]] = [[] for _ in range(cp_size)]
    for begin, end in pairwise(bounds):
        size = (end - begin) // (2 * cp_size)
        for rank in range(cp_size):
            for number in slices_of(rank):
                places[rank] += range(begin + number * size, begin + (number + 1) * size)
    return places
