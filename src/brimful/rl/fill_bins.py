"""Least load first: longest item to the least loaded bin or rank with room."""

from collections.abc import Callable, Sequence
from heapq import heappop, heappush, heapreplace
from typing import Any

import numpy as np

from brimful.base.compiling import compiled
from brimful.base.typing import AnyIntArray, Int64Array

WORTH_COMPILING = 100
"""Number of items from which a step is planned by compiled code: the next step, a few seconds
later, gains too.
"""


def run_loop(loop: Callable[..., Any], *arguments: Any, results: Sequence[Int64Array]) -> Any:
    """Run a loop compiled if that pays, otherwise on lists, which plain Python reads faster.

    Args:
        loop: function of the arguments and results, with the same decisions in both forms.
        arguments: numbers, and arrays that are read; the first is an array of all items.
        results: arrays that the loop writes.

    Returns:
        The result of the loop.
    """
    kernel = compiled(loop, len(arguments[0]), worth=WORTH_COMPILING)
    if kernel is not None:
        # One layout, and so one compiled form: a reversed view would trigger another compilation.
        arrays = [np.ascontiguousarray(a) if isinstance(a, np.ndarray) else a for a in arguments]
        return kernel(*arrays, *results)
    plain = [
        argument.tolist() if isinstance(argument, np.ndarray) else argument
        for argument in arguments
    ]
    lists = [result.tolist() for result in results]
    value = loop(*plain, *lists)
    for result, values in zip(results, lists, strict=True):
        result[:] = values
    return value


def fill_least_loaded(
    lengths: Int64Array,
    weights: Int64Array,
    *,
    capacity: int,
    num_units: int,
    bins_per_unit: int = 1,
    bin_of: Int64Array | None = None,
    first_bin: int = 0,
) -> Int64Array | None:
    """Place items, longest first, each in the least loaded unit with room, in its emptiest bin.

    Loads of units should be equal: a unit is one micro-batch (one bin), or one rank with all its
    micro-batches.

    ::

        capacity 8, two units of one bin       lengths 6 5 3 2, weights equal to lengths
        6 -> bin 0   5 -> bin 1   3 -> bin 1 (5 of load; 8 now)   2 -> bin 0 (6; 8 now)

    With weights of at least 1, empty bins are used first: no bin stays empty if units have one bin
    and the items are at least as many.

    Pure: no I/O, no randomness.

    Args:
        lengths: ``int64[num_items]``, descending.
        weights: ``int64[num_items]``, at least 1; their sum times the units stays below 2**62.
        capacity: capacity of a bin, never exceeded.
        num_units: number of units.
        bins_per_unit: bins of each unit; the bins of unit ``u`` begin at
            ``first_bin + u · bins_per_unit``.
        bin_of: ``int64[num_items]``, the bin of each item that already has one, otherwise -1;
            changed in place.
        first_bin: number of the first bin to fill; all of them are empty.

    Returns:
        ``int64[num_items]``, the bin of each item; None if an item does not fit into any bin.

    Cost: O(n·(log units + bins_per_unit)). Source: longest processing time first (Graham, 1969).

    >>> lengths = np.array([6, 5, 3, 2])
    >>> fill_least_loaded(lengths, lengths, capacity=8, num_units=2).tolist()
    [0, 1, 1, 0]
    >>> placed = np.array([0, -1, -1, -1])
    >>> fill_least_loaded(lengths, lengths, capacity=8, num_units=2, bin_of=placed, first_bin=1).tolist()
    [0, 1, 2, 2]
    """
    bin_of = np.full(len(lengths), -1, dtype=np.int64) if bin_of is None else bin_of
    is_placed = run_loop(
        _fill, lengths, weights, first_bin, capacity, num_units, bins_per_unit,
        results=(bin_of,),
    )  # fmt: skip
    return bin_of if is_placed else None


def _fill(
    lengths: Sequence[int],
    weights: Sequence[int],
    first_bin: int,
    capacity: int,
    num_units: int,
    bins_per_unit: int,
    bin_of: list[int],
) -> bool:
    """Write the bin of each item; return false if one has no room. To be compiled."""
    loads = [0 for _ in range(num_units)]
    tokens = [0 for _ in range(num_units * bins_per_unit)]
    shift = 0
    while len(loads) >> shift:
        shift += 1
    mask = (1 << shift) - 1
    # Units with room for the current item, by load; load · 2**shift + unit is one key.
    ready = [unit for unit in range(len(loads))]  # noqa: C416 - numba compiles no list(range(…)) of this type
    # Units without room, by the tokens of their emptiest bin. Lengths fall, so a unit returns at
    # most once per item.
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
            for bin_index in range(emptiest + 1, (unit + 1) * bins_per_unit):
                if tokens[bin_index] < tokens[emptiest]:
                    emptiest = bin_index
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


def fill_vectors(
    sizes: Int64Array,
    weights: Int64Array,
    capacities: Int64Array,
    *,
    loads: Int64Array,
    bins_per_unit: int = 1,
    sums: Int64Array | None = None,
) -> Int64Array | None:
    """Place items under several budgets, each in the least loaded unit, in its emptiest bin that
    has room.

    This is ``fill_least_loaded`` without its data structures: room in one budget says nothing about
    another, so every bin is checked for every item.

    Args:
        sizes: ``int64[num_items, num_budgets]``.
        weights: ``int64[num_items]``.
        capacities: ``int64[num_budgets]``.
        loads: ``int64[num_units]``, the load of each unit before; changed in place.
        bins_per_unit: bins of each unit.
        sums: ``int64[num_bins, num_budgets]``, sizes in the bins before: then the first of equally
            loaded units is taken, not the emptiest. None: bins are empty.

    Returns:
        ``int64[num_items]``, the bin of each item; None if an item does not fit into any bin.
    """
    bin_of = np.empty(len(sizes), dtype=np.int64)
    is_first_taken = sums is not None
    sums = (
        np.zeros((len(loads) * bins_per_unit, len(capacities)), dtype=np.int64)
        if sums is None
        else sums
    )
    is_placed = run_loop(
        _scan_bins, sizes, weights, capacities, bins_per_unit, is_first_taken,
        results=(loads, sums, bin_of),
    )  # fmt: skip
    return bin_of if is_placed else None


def _scan_bins(
    sizes: Sequence[Sequence[int]],
    weights: Sequence[int],
    capacities: Sequence[int],
    bins_per_unit: int,
    is_first_taken: bool,
    loads: list[int],
    sums: list[list[int]],
    bin_of: list[int],
) -> bool:
    """Write the bin of each item; return false if one has no room. To be compiled."""
    for item in range(len(sizes)):
        best, best_unit = -1, -1
        for bin_index in range(len(sums)):
            unit = bin_index // bins_per_unit
            if best >= 0 and (
                loads[unit] > loads[best_unit]
                or (
                    loads[unit] == loads[best_unit]
                    and (is_first_taken or sums[bin_index][0] >= sums[best][0])
                )
            ):
                continue
            has_room = True
            for column in range(len(capacities)):
                if sums[bin_index][column] + sizes[item][column] > capacities[column]:
                    has_room = False
                    break
            if has_room:
                best, best_unit = bin_index, unit
        if best < 0:
            return False
        for column in range(len(capacities)):
            sums[best][column] += sizes[item][column]
        loads[best_unit] += weights[item]
        bin_of[item] = best
    return True


def scattered(values: Int64Array, indices: AnyIntArray) -> Int64Array:
    """Return the array with value ``i`` at ``indices[i]``, which are all places in any order.

    >>> scattered(np.array([7, 8, 9]), np.array([2, 0, 1])).tolist()
    [8, 9, 7]
    """
    result = np.empty_like(values)
    result[indices] = values
    return result
