"""Vector bin packing: packs under several budgets at once, which are never exceeded."""

from typing import TypeAlias

import numpy as np

from brimful.base.rng import generator
from brimful.base.typing import AnyIntArray, BoolArray, Int64Array
from brimful.plan.counts.counting_sort import decreasing_order
from brimful.plan.counts.histogram import Histogram, lower_bound
from brimful.plan.fit.best_fit_decreasing import best_fit_decreasing
from brimful.plan.packing import Packing, PackResult, PlanOutcome, loads_of
from brimful.planners.vector.fill_vectors import fill_packs, total_sizes

_CLOSE_ENOUGH = 0.001
"""Distance from the bound, as a share of the bound, at which the search stops."""

_SAMPLE_ITEMS = 10_000
"""Items in the sample on which the weights are compared; used for more than twice this number of
items.
"""

_STRAIGHTNESS = (0.7, 1.5, 0.3)
"""Weights of the deviation in the score; each is tried, and the first suits most data."""

_Offer: TypeAlias = tuple[Packing, str]
"""Packs of all items, and a description of how they were made."""

_REPACK_ROUNDS = ((10_000, 8), (200_000, 4))
"""Pairs (maximum items, rounds of ruin and recreate); with more items, little can be gained."""


def bound_of_budgets(sizes: AnyIntArray, *, capacities: Int64Array) -> int:
    """Return a lower bound on the number of packs: the largest ``lower_bound`` of any single
    budget.

    >>> bound_of_budgets(np.array([[1, 5], [1, 5], [1, 5]]), capacities=np.array([8, 8]))
    3
    """
    if len(sizes) == 0:
        return 0
    bounds = [1]
    for column, total, capacity in zip(
        sizes.T, total_sizes(sizes).tolist(), capacities.tolist(), strict=True
    ):
        if total < 2.0**62:
            bounds.append(lower_bound(Histogram.of(column[column > 0]), capacity=capacity))
        else:  # beyond the sums of int64; the float is rounded down far enough
            bounds.append(int(total * (1 - 2.0**-50)) // capacity)
    return max(bounds)


def pack_vectors(
    sizes: AnyIntArray, *, capacities: Int64Array, seed: int = 0
) -> PackResult[Packing]:
    """Put items into few packs, none of which exceeds any of its capacities.

    Cheap methods come first, and the first that meets the bound is used: best fit decreasing by the
    binding budget, if it exceeds no other budget; with a limit on samples, the same on counts, with
    this limit. Otherwise packs are filled one after the other::

        capacities 10 and 10; the remaining items use both equally: the room should go straight from (10, 10) to (0, 0)

        item             a     b     c     d           straight from (10, 10)?     room left
                        7 2   2 6   1 2   5 5
        first pick      largest: d, as a deviates      room straight ahead          5 5
        next            c, b deviate: 2 6 no longer fits, 1 2 does                  4 3
        next pack       7 2, then 2 6 corrects the direction                        1 2

    Of the candidates that fit, the one with the highest score comes next::

        score(i) = progress(i) - w · deviation(i)
        progress(i)  = sum over budgets of share² · open room · size of i
        deviation(i) = sum over budgets of share² · distance between the size of i and the straight path to zero room,
                       in units of the mean deviation of the candidates

    where share is the demand for a budget as a share of the demand for the binding one, and room
    and sizes are scaled so that all remaining items take the same of each budget. So budgets that
    always occur together (patches within tokens) count by their difference. A full pack then
    exchanges picks for candidates that fill it better. Large items are thus combined with small
    items that compensate their shape, and few items remain that fit nowhere.

    Candidates are a window of the items in random order: cost and memory are linear in the number
    of items. Three weights w are tried until one is within 0.1 % of the bound; with many items, on
    a sample first. If only some one-budget packs exceed another budget, these packs and packs that
    balance them are refilled, and the others stay.

    Pure: no I/O; the same arguments give the same packs on any machine, with or without numba.

    Args:
        sizes: ``int64[num_items, num_budgets]``, at least 0, none above its capacity.
        capacities: ``int64[num_budgets]``, from 1 to 2**52.
        seed: seed of the order in which items become candidates.

    Returns:
        Packs, the largest bound of any budget, and a description of the method.

    Cost: items × candidates, 2 to 10 s compiled and a minute or two in NumPy for a million items.
    Source: filling pack by pack along the open room is the dot-product greedy of Panigrahy, Talwar,
    Uyeda and Wieder, "Heuristics for vector bin packing" (2011); the straightness, its scale and
    the exchange are ours.
    """
    assert not len(sizes) or (int(sizes.min()) >= 0 and bool((sizes <= capacities).all())), (
        "an item exceeds a capacity"
    )
    bound = bound_of_budgets(sizes, capacities=capacities)
    num_items = len(sizes)
    if num_items == 0:
        empty = Packing(np.zeros(1, dtype=np.int64), np.empty(0, dtype=np.int64))
        return PackResult(empty, 0, PlanOutcome("nothing to pack"))
    total = total_sizes(sizes)
    is_limiting = total > capacities  # for every other budget, all items together fit one pack
    if not is_limiting.any():
        single = Packing(
            np.array([0, num_items], dtype=np.int64), np.arange(num_items, dtype=np.int64)
        )
        return PackResult(single, bound, PlanOutcome("one pack"))
    limited_sizes = np.ascontiguousarray(sizes[:, is_limiting], dtype=np.int64)
    capacities = capacities[is_limiting]
    binding = int(np.argmax(total[is_limiting] / capacities))
    offers: list[_Offer] = []
    if int(limited_sizes[:, binding].min()) > 0:
        offers += _try_cheap_ways(limited_sizes, capacities, bound, binding, seed)
    weights: tuple[float, ...] = _STRAIGHTNESS
    if not _is_any_close(offers, bound) and num_items > 2 * _SAMPLE_ITEMS:
        # The weight that needs the fewest packs for a sample of the items.
        rows = generator(seed=seed, epoch=0, purpose="sample of items").integers(
            _SAMPLE_ITEMS, below=num_items
        )
        sample = np.ascontiguousarray(limited_sizes[rows])
        num_packs = [len(fill_packs(sample, capacities, way, seed)) for way in _STRAIGHTNESS]
        weights = (_STRAIGHTNESS[int(np.argmin(num_packs))],)
    for weight in weights:
        if _is_any_close(offers, bound):
            break
        new_packs = fill_packs(limited_sizes, capacities, weight, seed)
        offers.append((new_packs, f"filled along the budgets, straightness {weight}"))
    packing, description = min(offers, key=lambda offer: len(offer[0]))  # the first of equal ones
    assert len(packing.items) == num_items
    for turn in range(next((rounds for limit, rounds in _REPACK_ROUNDS if num_items <= limit), 0)):
        if _is_any_close([(packing, description)], bound):
            break
        refill = _packs_to_take_apart(packing, limited_sizes, capacities, turn, seed)
        straightness = _STRAIGHTNESS[turn % len(_STRAIGHTNESS)]
        new_packs = _refill(packing, refill, limited_sizes, capacities, straightness, seed + turn)
        if len(new_packs) <= len(packing):
            packing = new_packs
    return PackResult(packing, bound, PlanOutcome(description))


def _is_any_close(offers: list[_Offer], bound: int) -> bool:
    """Return true if some packs are close enough to the bound to stop."""
    return any(len(packing) <= bound + int(_CLOSE_ENOUGH * bound) for packing, _ in offers)


def _try_cheap_ways(
    sizes: Int64Array, capacities: Int64Array, bound: int, binding: int, seed: int
) -> list[_Offer]:
    """Return the packs of best fit decreasing by one budget, if they are within the others or can
    be repaired.
    """
    one_budget = _pack_by_one_budget(sizes[:, binding], int(capacities[binding]))
    overfull: BoolArray = np.asarray((loads_of(one_budget, sizes) > capacities).any(axis=1))
    if not overfull.any():
        return [(one_budget, "best_fit_decreasing by one budget keeps within all")]
    offers: list[_Offer] = []
    # Under two budgets, if every item takes 1 of one of them: a limit on items per pack.
    is_unit = (sizes == 1).all(axis=0)
    if len(is_unit) == 2 and is_unit[0] != is_unit[1] and int(sizes.min()) >= 1:
        unit, column = np.argsort(~is_unit).tolist()
        packing = _pack_by_one_budget(
            sizes[:, column], int(capacities[column]), int(capacities[unit])
        )
        offers.append((packing, "best_fit_decreasing with a limit on samples"))
    if not _is_any_close(offers, bound) and 2 * np.count_nonzero(overfull) <= len(one_budget):
        refill = _balanced_packs(one_budget, overfull, sizes, capacities, binding)
        packing = _refill(one_budget, refill, sizes, capacities, _STRAIGHTNESS[0], seed)
        offers.append((packing, "best_fit_decreasing by one budget, some packs refilled"))
    return offers


def _pack_by_one_budget(column: Int64Array, capacity: int, max_items: int | None = None) -> Packing:
    items = Histogram.of(column)
    runs = best_fit_decreasing(items, capacity=capacity, max_items=max_items)
    return runs.assign(decreasing_order(column, items))


_BALANCE = 0.97
"""Maximum demand for any other budget among refilled packs, as a share of the demand for the
binding budget.
"""


def _balanced_packs(
    packing: Packing, overfull: BoolArray, sizes: Int64Array, capacities: Int64Array, binding: int
) -> BoolArray:
    """Mark the packs that exceed a budget, and the emptiest packs that balance them.

    Args:
        packing: packs within the capacity of the binding budget.
        overfull: ``bool[num_packs]``, packs that exceed another budget.
        binding: the budget of the packing.
        sizes, capacities: see ``fill_packs``.
    """
    shares = loads_of(packing, sizes) / capacities
    others = np.arange(len(capacities)) != binding
    spare = np.flatnonzero(~overfull)
    spare = spare[np.argsort(shares[spare][:, others].max(axis=1), kind="stable")]
    # Row i: the demand of the overfull packs and the i emptiest packs.
    demand = shares[overfull].sum(axis=0) + np.concatenate(
        [np.zeros((1, len(capacities))), shares[spare].cumsum(axis=0)]
    )
    balanced = np.flatnonzero((demand[:, others] <= _BALANCE * demand[:, [binding]]).all(axis=1))
    num_spare = int(balanced[0]) if len(balanced) else len(spare)
    refill = overfull.copy()
    refill[spare[:num_spare]] = True
    return refill


def _packs_to_take_apart(
    packing: Packing, sizes: Int64Array, capacities: Int64Array, turn: int, seed: int
) -> BoolArray:
    """Mark the emptiest eighth of the packs and a random quarter.

    Source: ruin and recreate is by Schrimpf et al. (2000). The last packs had the fewest items to
    choose from.
    """
    demand = total_sizes(sizes) / capacities
    share = demand / demand.max()
    square = share * share
    fill = ((loads_of(packing, sizes) / capacities) * (square * square)).sum(axis=1)
    refill = np.zeros(len(packing), dtype=bool)
    refill[np.argsort(fill, kind="stable")[: max(3, len(packing) // 8)]] = True
    random_packs = generator(seed=seed, epoch=turn, purpose="packs to take apart").permutation(
        len(packing)
    )
    refill[random_packs[: len(packing) // 4]] = True
    return refill


def _refill(
    packing: Packing,
    refill: BoolArray,
    sizes: Int64Array,
    capacities: Int64Array,
    straightness: float,
    seed: int,
) -> Packing:
    """Keep packs except some, whose items are filled into new packs at the end."""
    removed = packing.take(np.flatnonzero(refill))
    filled = fill_packs(np.ascontiguousarray(sizes[removed.items]), capacities, straightness, seed)
    return packing.take(np.flatnonzero(~refill)).joined(
        Packing(filled.offsets, removed.items[filled.items])
    )
