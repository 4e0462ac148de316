"""Order of turns: the source of each next draw, so that every prefix has the requested shares.

All arithmetic is in whole numbers, so that the turns are the same on every machine, compiled or
not.
"""

import numpy as np

from brimful.base.typing import AnyIntArray, Int64Array

_UNIT_SCALE = 1 << 30
"""Parts of the whole if every draw counts 1: products of two stay below 2**62."""

_MAX_SCALE = 1 << 42
"""Maximum parts of the whole if draws have sizes."""


def scale_for(largest_size: int, num_sources: int) -> int:
    """Return the number of parts in which shares are counted, so that no credit overflows int64.

    >>> scale_for(1, 3) == 2**30
    True
    """
    if largest_size <= 1:
        return _UNIT_SCALE
    return min(_MAX_SCALE, 1 << (60 - largest_size.bit_length() - num_sources.bit_length()))


def apportioned(
    shares: AnyIntArray | np.ndarray[tuple[int], np.dtype[np.float64]], scale: int
) -> Int64Array:
    """Return shares as whole parts of ``scale`` that add up to it; a share above 0 has at least one
    part.

    >>> apportioned(np.array([1.0, 1.0, 1.0]), 100).tolist()
    [34, 33, 33]
    """
    exact = np.asarray(shares, dtype=np.float64)
    exact = exact / exact.sum() * scale
    quotas: Int64Array = np.floor(exact).astype(np.int64)
    quotas[(quotas == 0) & (exact > 0)] = 1
    # Missing parts go to the largest remainders; excess parts are taken from the largest share.
    num_missing = scale - int(quotas.sum())
    if num_missing > 0:
        quotas[np.argsort(quotas - exact, kind="stable")[:num_missing]] += 1
    quotas[int(np.argmax(quotas))] += scale - int(quotas.sum())
    return quotas


def take_turns(
    quotas: Int64Array,
    credits: Int64Array,
    amounts: Int64Array,
    heads: Int64Array,
    ends: Int64Array,
    demands: Int64Array,
    limits: Int64Array,
    turns: AnyIntArray,
    is_unit: bool,
) -> tuple[int, int]:
    """Give turns to sources until a limit is reached or the source whose turn it is has no draw
    left. To be compiled.

    With equal sizes, the turn goes to the source that would be late first, among the sources that
    are not ahead: Tijdeman's solution of the chairman assignment problem (1980), with which no
    source is ever one draw off its share. With other sizes it goes to the source with the largest
    deficit, so that no source is ahead by more than one draw.

    ::

        shares 1/2 1/3 1/6      turns  0 1 0 2 1 0 | 0 1 0 2 1 0 | ...

    Args:
        quotas: ``int64[num_sources]``, shares, from ``apportioned``; 0 for a source that is exhausted.
        credits: ``int64[num_sources]``, deficit of each source, in parts of one unit; changed in
            place.
        amounts: ``int64[2, num_draws]``, size and tokens of each draw; the draws of a source are
            contiguous.
        heads, ends: ``int64[num_sources]``, next draw of each source, and the end of its draws;
            ``heads`` is changed in place.
        demands: ``int64[num_sources]``, draws that each source still has to give; the turns end
            when all are 0. Negative for a rule that does not count; changed in place.
        limits: ``int64[2]``, remaining draws and tokens; negative for no limit. Changed in place.
        turns: ``int[num_draws + 1]``, the source of each draw; output.
        is_unit: true if each draw counts 1.

    Returns:
        Number of turns; and the source without a draw left, -1 if a limit was reached.
    """
    num_sources = len(quotas)
    scale = 0
    num_active = 0
    num_required = 0
    for source in range(num_sources):
        scale += quotas[source]
        if quotas[source] > 0:
            num_active += 1
        if demands[source] > 0:
            num_required += 1
    counts_required = demands[0] >= 0
    slack = scale // (2 * num_active - 2) if num_active > 1 else 0
    num_turns = 0
    while True:
        if limits[0] == 0 or limits[1] == 0 or (counts_required and num_required == 0):
            return num_turns, -1
        best = -1
        best_late = 0
        best_due = 0
        for source in range(num_sources):
            if quotas[source] == 0:
                continue
            if is_unit:
                # Time until this source is late, times its share: compared by cross-multiplication,
                # without a division.
                due = credits[source] + quotas[source]
                late = scale - slack - due
                if due >= slack and (best < 0 or late * quotas[best] < best_late * quotas[source]):
                    best, best_late = source, late
            elif best < 0 or credits[source] > best_due:
                best, best_due = source, credits[source]
        if best < 0:  # the slack was rounded: take the largest deficit
            for source in range(num_sources):
                due = credits[source] + quotas[source]
                if quotas[source] > 0 and (best < 0 or due > best_due):
                    best, best_due = source, due
        if heads[best] == ends[best]:
            return num_turns, best
        size = amounts[0, heads[best]]
        for source in range(num_sources):
            credits[source] += quotas[source] * size
        credits[best] -= scale * size
        if limits[0] > 0:
            limits[0] -= 1
        if limits[1] > 0:
            limits[1] = max(0, limits[1] - amounts[1, heads[best]])
        if counts_required and demands[best] > 0:
            demands[best] -= 1
            if demands[best] == 0:
                num_required -= 1
        heads[best] += 1
        turns[num_turns] = best
        num_turns += 1
