"""Least load first: longest item to the least loaded bin or rank with room."""

from collections.abc import Callable, Sequence
from heapq import heappop, heappush, heapreplace
from typing import Any

import numpy as np

from brimful.base.compiling import compiled
from brimful.base.typing import Int64Array

WORTH_COMPILING = 100
"""Number of items from which a step is planned by compiled code: the next step, a few seconds later, gains too."""


def run_loop(loop: Callable[..., Any], work: int, *arguments: Any, results: Sequence[Int64Array]) -> Any:
    """Run a loop compiled if that pays, otherwise on lists, which plain Python reads faster.

    Args:
        loop: function of the arguments and results, with the same decisions in both forms.
        work: number of items of the call.
        arguments: numbers, and arrays that are read.
        results: arrays that the loop writes.

    Returns:
        The result of the loop.
    """
    kernel = compiled(loop, work, worth=WORTH_COMPILING)
    if kernel is not None:
        # One layout, and so one compiled form: a reversed view would trigger another compilation.
        arrays = [np.ascontiguousarray(a) if isinstance(a, np.ndarray) else a for a in arguments]
        return kernel(*arrays, *results)
    plain = [argument.tolist() if isinstance(argument, np.ndarray) else argument for argument in arguments]
    lists = [result.tolist() for result in results]
    value = loop(*plain, *lists)
    for result, values in zip(results, lists, strict=True):
        result[:] = values
    return value


def fill_least_loaded(
    lengths: Int64Array, weights: Int64Array, *, capacity: int, num_units: int, bins_per_unit: int
) -> Int64Array | None:
    """Place items, longest first, each in the least loaded unit with room, in its emptiest bin.

    Loads of units should be equal: a unit is one micro-batch (one bin), or one rank with all its micro-batches.

    ::

        capacity 8, two units of one bin       lengths 6 5 3 2, weights equal to lengths
        6 -> bin 0   5 -> bin 1   3 -> bin 1 (5 of load; 8 now)   2 -> bin 0 (6; 8 now)

    With weights of at least 1, empty bins are used first: no bin stays empty if units have one bin and the items are
    at least as many.

    Pure: no I/O, no randomness.

    Args:
        lengths: ``int64[num_items]``, descending.
        weights: ``int64[num_items]``, at least 1; their sum times the units stays below 2**62.
        capacity: capacity of a bin, never exceeded.
        num_units: number of units.
        bins_per_unit: bins of each unit; the bins of unit ``u`` begin at ``u · bins_per_unit``.

    Returns:
        ``int64[num_items]``, the bin of each item; None if an item does not fit into any bin.

    Cost: O(n·(log units + bins_per_unit)). Source: longest processing time first (Graham, 1969).

    >>> lengths = np.array([6, 5, 3, 2])
    >>> fill_least_loaded(lengths, lengths, capacity=8, num_units=2, bins_per_unit=1).tolist()
    [0, 1, 1, 0]
    """
    bin_of = np.full(len(lengths), -1, dtype=np.int64)
    is_placed = place_rest(
        lengths, weights, bin_of, first_bin=0, capacity=capacity, num_units=num_units, bins_per_unit=bins_per_unit
    )
    return bin_of if is_placed else None


def place_rest(
    lengths: Int64Array,
    weights: Int64Array,
    bin_of: Int64Array,
    *,
    first_bin: int,
    capacity: int,
    num_units: int,
    bins_per_unit: int,
) -> bool:
    """Place the items without a bin, like ``fill_least_loaded``, in the empty bins after the used ones; in place.

    Pure: no I/O, no randomness.

    Args:
        lengths, weights, capacity, num_units, bins_per_unit: see ``fill_least_loaded``.
        bin_of: ``int64[num_items]``: the bin of each item, -1 for items without a bin.
        first_bin: number of the first empty bin.

    Returns:
        False if an item does not fit into any bin: then ``bin_of`` is invalid.

    >>> lengths, bin_of = np.array([6, 5, 3, 2]), np.array([0, -1, -1, -1])
    >>> place_rest(lengths, lengths, bin_of, first_bin=1, capacity=8, num_units=2, bins_per_unit=1)
    True
    >>> bin_of.tolist()
    [0, 1, 2, 2]
    """
    state = (np.zeros(num_units, dtype=np.int64), np.zeros(num_units * bins_per_unit, dtype=np.int64), bin_of)
    shift = int(num_units).bit_length()
    is_placed = run_loop(
        _fill, len(lengths), lengths, weights, int(first_bin), int(capacity), int(bins_per_unit), shift, results=state
    )
    return bool(is_placed)


def _fill(
    lengths: Sequence[int],
    weights: Sequence[int],
    first_bin: int,
    capacity: int,
    bins_per_unit: int,
    shift: int,
    loads: list[int],
    tokens: list[int],
    bin_of: list[int],
) -> bool:
    """Write the bin of each item; return false if one has no room. To be compiled."""
    mask = (1 << shift) - 1
    # Units with room for the current item, by load; load · 2**shift + unit is one key.
    ready = [unit for unit in range(len(loads))]  # noqa: C416 - numba compiles no list(range(…)) of this type
    # Units without room, by the tokens of their emptiest bin. Lengths fall, so a unit returns at most once per item.
    waiting = [0]
    waiting.pop()
    for item in range(len(lengths)):
        if bin_of[item] >= 0:
            continue
        length = lengths[item]
        while len(waiting) > 0 and (waiting[0] >> shift) + length <= capacity:
            unit = heappop(waiting) & mask
            heappush(ready, (loads[unit] << shift) | unit)
        while len(ready) > 0:
            unit = ready[0] & mask
            emptiest = unit * bins_per_unit
            for place in range(emptiest + 1, (unit + 1) * bins_per_unit):
                if tokens[place] < tokens[emptiest]:
                    emptiest = place
            if tokens[emptiest] + length <= capacity:
                bin_of[item] = first_bin + emptiest
                tokens[emptiest] += length
                loads[unit] += weights[item]
                heapreplace(ready, (loads[unit] << shift) | unit)
                break
            heappop(ready)
            heappush(waiting, (tokens[emptiest] << shift) | unit)
        if len(ready) == 0:
            return False
    return True
