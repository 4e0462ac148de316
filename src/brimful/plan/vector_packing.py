"""Vector bin packing: packs under several budgets at once, none ever exceeded."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from brimful.plan.best_fit_decreasing import best_fit_decreasing
from brimful.plan.bound import lower_bound
from brimful.plan.budgets import loads_of, over_any
from brimful.plan.counted_best_fit import counted_best_fit_decreasing
from brimful.plan.dealing import deal
from brimful.plan.histogram import Histogram
from brimful.plan.kernels_budgets import FILLED, PACKS, Float64Array, filler
from brimful.plan.packing import Packing
from brimful.rng import generator
from brimful.typing import BoolArray, Int64Array

__all__ = ["VectorPacking", "bound_of_budgets", "pack_vectors"]

_POOL = 1024
"""Candidates for the next place in a pack."""

_SMALL = 20_000
"""Up to so many items, twice the candidates cost little."""

_CHOSEN = 64
"""So many average items of a pack are chosen; what goes in before them is taken as it comes."""

_CLOSE_ENOUGH = 0.001
"""Distance from the bound, as a share of it, at which nothing further is tried."""

_SAMPLE = 10_000
"""Items on which the ways of scoring are compared when there are many more."""

_STRAIGHTNESS = (0.7, 1.5, 0.3)
"""What an average deviation from the straight way costs, in average items: each is tried, the first suits most."""

_AGAIN = ((10_000, 8), (200_000, 4))
"""Up to so many items, packs are taken apart and filled anew so many times; more items leave little to gain."""

_LEAST_SHARE = 1e-3


@dataclass(frozen=True)
class VectorPacking:
    """Packs, the bound, and what was done.

    Attributes:
        packing: items by pack.
        bound: no packing has fewer packs: the largest of the budgets' own bounds.
        outcome: in words.
    """

    packing: Packing
    bound: int
    outcome: str


def bound_of_budgets(sizes: Int64Array, *, capacities: Int64Array) -> int:
    """Packs that no packing can do without: the most that ``lower_bound`` asks for any one budget.

    >>> bound_of_budgets(np.array([[1, 5], [1, 5], [1, 5]]), capacities=np.array([8, 8]))
    3
    """
    if len(sizes) == 0:
        return 0
    own = [1]
    for column, total, most in zip(sizes.T, _total(sizes).tolist(), capacities.tolist(), strict=True):
        if total < 2.0**62:
            own.append(lower_bound(Histogram.of(column[column > 0]), capacity=most))
        else:  # beyond the sums of int64
            own.append(int(total * (1 - 2.0**-50)) // most)
    return max(own)


def pack_vectors(sizes: Int64Array, *, capacities: Int64Array, seed: int = 0) -> VectorPacking:
    """Put items into few packs, none of which exceeds any of its capacities.

    First the cheap ways, each taken where it is as good as can be: best fit decreasing by the budget that asks for
    most packs, if no other budget is exceeded by it; with a limit on samples, the same on counts, with that limit.
    Else packs are filled one after the other::

        capacities 10 and 10; all that is left takes both alike, so a pack should go straight from (10, 10) to (0, 0)

        item             a     b     c     d           goes with (10, 10)?         room then
                        7 2   2 6   1 2   5 5
        first pick      largest: d, as a deviates      room straight ahead          5 5
        next            c, b deviate: 2 6 no longer fits, 1 2 does                  4 3
        next pack       7 2, then 2 6 sets it straight again                        1 2

    Of the candidates that fit, the one with the most progress along the open room, less what it leads away from the
    straight way to an all-empty room; what is straight follows from what all remaining items take, and deviations are
    measured in the average deviation of the candidates, so that budgets which always come together (patches within
    tokens) count for their difference. A full pack then exchanges each pick for a candidate that fills it better.
    Large items thus find the small ones that make up for their shape, and few are left that fit nothing.

    Candidates are a window on the items in random order: cost and memory are linear in their number. The scoring has
    one weight, of which three are tried until one is within 0.1 % of the bound; of many items on a sample first.
    Where the one-budget packs exceed another budget here and there only, those and as many as balance them are filled
    anew, and the rest stays.

    Pure: no I/O; the same arguments give the same packs on any machine, with or without numba.

    Args:
        sizes: ``int64[num_items, num_budgets]``, at least 0, none above its capacity.
        capacities: ``int64[num_budgets]``, from 1 to 2**52.
        seed: of the order in which items become candidates.

    Cost: items × candidates, 2 to 10 s compiled and a minute or two in NumPy for a million items.
    Source: filling pack by pack along the open room is the dot-product greedy of Panigrahy, Talwar, Uyeda and Wieder,
    "Heuristics for vector bin packing" (2011); the straightness, its scale and the exchange are ours.
    """
    assert not len(sizes) or (int(sizes.min()) >= 0 and bool((sizes <= capacities).all())), "an item exceeds a capacity"
    bound = bound_of_budgets(sizes, capacities=capacities)
    if len(sizes) == 0:
        return VectorPacking(Packing(np.zeros(1, dtype=np.int64), np.empty(0, dtype=np.int64)), 0, "nothing to pack")
    total = _total(sizes)
    demand = total / capacities
    binds = total > capacities  # the others fit one pack altogether
    if not binds.any():
        return VectorPacking(_of_one_pack(len(sizes)), bound, "one pack")
    binding = int(np.argmax(demand))
    number = len(sizes)
    sizes, capacities = np.ascontiguousarray(sizes[:, binds]), capacities[binds]
    binding = int(np.count_nonzero(binds[:binding]))
    best: Packing | None = None
    outcome = ""
    if int(sizes[:, binding].min()) > 0:
        plain = _by_one_budget(sizes[:, binding], int(capacities[binding]))
        over = over_any(plain, sizes, capacities=capacities)
        counted = _by_counts(sizes, capacities)
        if not over.any():
            best, outcome = plain, "best_fit_decreasing by one budget keeps within all"
        elif counted is not None:
            best, outcome = counted, "best_fit_decreasing with a limit on samples"
        if not _is_close(best, bound) and 0 < 2 * np.count_nonzero(over) <= len(plain):
            mended = _mend(plain, over, sizes, capacities, binding, seed)
            best, outcome = _better(best, outcome, mended, "best_fit_decreasing by one budget, some packs filled anew")
    weights: tuple[float, ...] = _STRAIGHTNESS
    if not _is_close(best, bound) and number > 2 * _SAMPLE:
        weights = _suited(sizes, capacities, seed)
    for weight in weights:
        if _is_close(best, bound):
            break
        filled = _fill_packs(sizes, capacities, weight, seed)
        best, outcome = _better(best, outcome, filled, f"filled along the budgets, straightness {weight}")
    assert best is not None
    assert len(best.items) == number
    for turn in range(next((turns for most, turns in _AGAIN if number <= most), 0)):
        if _is_close(best, bound):
            break
        best = _again(best, sizes, capacities, turn, seed)
    return VectorPacking(best, bound, outcome)


def _total(sizes: Int64Array) -> Float64Array:
    """``float64[num_budgets]``: what all items take, added up in whole numbers, also beyond 2**63 (length² does)."""
    high = (sizes >> 32).sum(axis=0).tolist()
    low = (sizes & 0xFFFFFFFF).sum(axis=0).tolist()
    return np.array([float((above << 32) + below) for above, below in zip(high, low, strict=True)])


def _is_close(best: Packing | None, bound: int) -> bool:
    return best is not None and len(best) <= bound + int(_CLOSE_ENOUGH * bound)


def _better(best: Packing | None, outcome: str, other: Packing, its_outcome: str) -> tuple[Packing, str]:
    return (best, outcome) if best is not None and len(best) <= len(other) else (other, its_outcome)


def _of_one_pack(num_items: int) -> Packing:
    return Packing(np.array([0, num_items], dtype=np.int64), np.arange(num_items, dtype=np.int64))


def _by_one_budget(column: Int64Array, capacity: int) -> Packing:
    items = Histogram.of(column)
    return deal(column, items, best_fit_decreasing(items, capacity=capacity))


def _by_counts(sizes: Int64Array, capacities: Int64Array) -> Packing | None:
    """Two budgets, one of which every item takes 1 of: a limit on the items of a pack."""
    if sizes.shape[1] != 2:
        return None
    ones = [at for at in range(2) if bool((sizes[:, at] == 1).all())]
    if len(ones) != 1:
        return None
    column = sizes[:, 1 - ones[0]]
    if int(column.min()) < 1:
        return None
    most = int(capacities[ones[0]])
    items = Histogram.of(column)
    return deal(column, items, counted_best_fit_decreasing(items, capacity=int(capacities[1 - ones[0]]), most=most))


def _mend(
    plain: Packing, over: BoolArray, sizes: Int64Array, capacities: Int64Array, binding: int, seed: int
) -> Packing:
    """Keep packs, but for those that exceed a budget and the ones with most room in it that balance them."""
    shares = loads_of(plain, sizes) / capacities
    others = np.arange(len(capacities)) != binding
    spare = np.flatnonzero(~over)
    spare = spare[np.argsort(shares[spare][:, others].max(axis=1), kind="stable")]
    demand = shares[over].sum(axis=0) + np.concatenate([np.zeros((1, len(capacities))), shares[spare].cumsum(axis=0)])
    balanced = np.flatnonzero((demand[:, others] <= 0.97 * demand[:, [binding]]).all(axis=1))
    taken = int(balanced[0]) if len(balanced) else len(spare)
    anew = over.copy()
    anew[spare[:taken]] = True
    return _anew(plain, anew, sizes, capacities, _STRAIGHTNESS[0], seed)


def _again(best: Packing, sizes: Int64Array, capacities: Int64Array, turn: int, seed: int) -> Packing:
    """Take the emptiest eighth of the packs apart with a quarter at random, and fill them anew if that is no worse.

    Ruin and recreate (Schrimpf et al., 2000). The packs filled last had least to choose from.
    """
    demand = _total(sizes) / capacities
    share = demand / demand.max()
    square = share * share
    filled = ((loads_of(best, sizes) / capacities) * (square * square)).sum(axis=1)
    anew = np.zeros(len(best), dtype=bool)
    anew[np.argsort(filled, kind="stable")[: max(3, len(best) // 8)]] = True
    some = generator(seed=seed, epoch=turn, purpose="packs to take apart").permutation(len(best))
    anew[some[: len(best) // 4]] = True
    weight = _STRAIGHTNESS[turn % len(_STRAIGHTNESS)]
    other = _anew(best, anew, sizes, capacities, weight, seed + turn)
    return other if len(other) <= len(best) else best


def _anew(
    packing: Packing, anew: BoolArray, sizes: Int64Array, capacities: Int64Array, straightness: float, seed: int
) -> Packing:
    """The same packs, but for some whose items are filled into new ones, which come last."""
    counts = np.diff(packing.offsets)
    moved = np.repeat(anew, counts)
    ids = packing.items[moved]
    filled = _fill_packs(np.ascontiguousarray(sizes[ids]), capacities, straightness, seed)
    ends = np.cumsum(np.concatenate([counts[~anew], np.diff(filled.offsets)]))
    return Packing(np.concatenate([[0], ends]), np.concatenate([packing.items[~moved], ids[filled.items]]))


def _suited(sizes: Int64Array, capacities: Int64Array, seed: int) -> tuple[float, ...]:
    """The weight that makes fewest packs of a sample."""
    some = generator(seed=seed, epoch=0, purpose="sample of items").integers(_SAMPLE, below=len(sizes))
    sample = np.ascontiguousarray(sizes[some])
    return (min(_STRAIGHTNESS, key=lambda weight: len(_fill_packs(sample, capacities, weight, seed))),)


def _fill_packs(sizes: Int64Array, capacities: Int64Array, straightness: float, seed: int) -> Packing:
    """Fill pack after pack from a window on the items in random order."""
    number = len(sizes)
    order = generator(seed=seed, epoch=0, purpose="order of candidates").permutation(number)
    stream = np.ascontiguousarray(sizes[order].T.astype(np.float64))
    most = capacities.astype(np.float64)
    fill = filler(number)
    total = _total(sizes)
    expected = max(1, int((total / capacities).max()))
    per_pack = number / expected
    candidates = int(min(number, max(_POOL * (2 if number <= _SMALL else 1), 8 * min(per_pack, 1024))))
    pool = np.arange(candidates, dtype=np.int64)
    pool_sizes = stream[:, :candidates].copy()
    state = np.array([candidates, candidates, 0, 0], dtype=np.int64)
    items = np.empty(number, dtype=np.int64)
    ends = np.empty(number, dtype=np.int64)
    each_time = max(4, expected // 256)
    left = total
    while state[FILLED] < number:
        scale, progress, deviation, worth, binding = _weights(left, most, pool_sizes[:, : state[1]], straightness)
        average = float(left[binding]) / float(number - state[FILLED])
        before = int(state[FILLED])
        fill(
            stream, most, pool, pool_sizes, state, items, ends,
            scale, progress, deviation, worth, binding, _CHOSEN * average, each_time,
        )  # fmt: skip
        left = np.maximum(left - sizes[order[items[before : int(state[FILLED])]]].sum(axis=0), 0.0)
    offsets = np.concatenate([[0], ends[: int(state[PACKS])]])
    return Packing(offsets, order[items])


def _weights(
    left: Float64Array, capacities: Float64Array, pool_sizes: Float64Array, straightness: float
) -> tuple[Float64Array, Float64Array, Float64Array, Float64Array, int]:
    """What the scores are made of, from what all remaining items take, and how the candidates vary.

    Sizes are measured so that the remaining items take the same of each budget in all. A budget that asks for fewer
    packs than the binding one counts for less: squared for progress, to the sixth power for how well a pack is filled.
    The average deviation is a quotient of whole numbers: float sums may differ from machine to machine.
    """
    demand = left / capacities
    binding = int(np.argmax(demand))
    share = np.maximum(demand / max(float(demand[binding]), 1e-300), _LEAST_SHARE)
    scale = 1.0 / (capacities * share)
    square = share * share
    measured = np.floor(pool_sizes * (scale * 2.0**20)[:, None]).astype(np.int64)
    ahead = measured[binding].sum()
    aside = np.abs(measured - measured[binding]).sum(axis=1)
    deviation = straightness * np.minimum(ahead / np.maximum(aside, 1), 20.0) * square
    return scale, square, deviation, square * square * square / capacities, binding
