"""Packs filled one after the other from a pool of candidates, under several budgets.

Compiled or not, the packs are exactly the same: scores are sums of float64 products in a fixed
order, without fused operations, so both round in the same way.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from brimful.base.compiling import compiled
from brimful.base.rng import generator
from brimful.base.typing import AnyIntArray, Float64Array, Int64Array
from brimful.plan.packing import Packing

_MIN_CANDIDATES = 1024
"""Candidates for the next place in a pack; more if packs hold many items."""

_FEW_ITEMS = 20_000
"""Number of items up to which twice the candidates cost little."""

_SCORED_ITEMS = 64
"""Average number of items at the end of a pack that are picked by score; earlier items follow the
stream's order.
"""

_WORTH_COMPILING = 1_000
"""Number of items from which loading compiled code is faster than running NumPy."""

_MIN_SHARE = 1e-3
"""Minimum weight of a budget, as a share of the binding one: even a budget without demand orders
the candidates.
"""


_State: TypeAlias = tuple[int, int, int, int]
"""Next item of the stream, number of candidates in the pool, items packed, packs made."""

_Weights: TypeAlias = tuple[Float64Array, Float64Array, Float64Array, Float64Array, int]
"""Weights of the scores, see ``_weights_for``."""


def _weights_for(
    remaining: Float64Array,
    capacities: Float64Array,
    pool_sizes: Float64Array,
    straightness: float,
) -> _Weights:
    """Compute the weights from the remaining sizes and from the candidates.

    The mean deviation is a quotient of whole numbers: sums of floats may differ between machines.

    Returns:
        Five weights; all but the last are ``float64[num_budgets]``:

        * scale: 1 ÷ (capacity · share), where share is the demand for a budget (remaining sizes ÷
          capacity) as a share of the largest demand: multiplied by scale, the remaining items take
          the same of each budget.
        * progress: share², the weight of progress in a budget.
        * deviation: straightness · (mean size ÷ mean deviation of the candidates) · share².
        * worth: share⁶ ÷ capacity, the worth of one unit of a budget in the comparison of full
          packs.
        * binding: the budget with the largest demand.
    """
    demand = remaining / capacities
    binding = int(np.argmax(demand))
    share = np.maximum(demand / max(float(demand[binding]), 1e-300), _MIN_SHARE)
    scale = 1.0 / (capacities * share)
    square = share * share
    scaled_sizes = np.floor(pool_sizes * (scale * 2.0**20)[:, None]).astype(np.int64)
    progress = scaled_sizes[binding].sum()
    deviation = np.abs(scaled_sizes - scaled_sizes[binding]).sum(axis=1)
    weight = straightness * np.minimum(progress / np.maximum(deviation, 1), 20.0) * square
    return scale, square, weight, square * square * square / capacities, binding


def total_sizes(sizes: AnyIntArray) -> Float64Array:
    """Sum the sizes of all items: ``float64[num_budgets]``, from whole numbers, also beyond 2**63
    (as with length²).
    """
    sizes = sizes.astype(np.int64, copy=False)
    high = (sizes >> 32).sum(axis=0).tolist()
    low = (sizes & 0xFFFFFFFF).sum(axis=0).tolist()
    return np.array([float((upper << 32) + lower) for upper, lower in zip(high, low, strict=True)])


def fill_packs(
    sizes: Int64Array, capacities: Int64Array, straightness: float, seed: int
) -> Packing:
    """Fill pack after pack from a window of the items in random order.

    Args:
        sizes: ``int64[num_items, num_budgets]``, none above its capacity.
        capacities: ``int64[num_budgets]``.
        straightness: weight of the deviation in the score (``pack_vectors``).
        seed: seed of the order in which items become candidates.
    """
    num_items = len(sizes)
    order = generator(seed=seed, epoch=0, purpose="order of candidates").permutation(num_items)
    stream = np.ascontiguousarray(sizes[order].T.astype(np.float64))
    limits = capacities.astype(np.float64)
    total = total_sizes(sizes)
    expected_packs = max(1, int((total / capacities).max()))
    items_per_pack = num_items / expected_packs
    few_items = 2 if num_items <= _FEW_ITEMS else 1
    num_candidates = int(
        min(num_items, max(_MIN_CANDIDATES * few_items, 8 * min(items_per_pack, 1024)))
    )
    pool = np.arange(num_candidates, dtype=np.int64)
    pool_sizes = stream[:, :num_candidates].copy()
    items, ends = np.empty((2, num_items), dtype=np.int64)
    fill = compiled(_fill, num_items, worth=_WORTH_COMPILING)
    state: _State = (num_candidates, num_candidates, 0, 0)
    num_packed, remaining = 0, total
    # Weights depend on the remaining items: they are recomputed after every 256th part of the
    # packs.
    while num_packed < num_items:
        weights = _weights_for(remaining, limits, pool_sizes[:, : state[1]], straightness)
        average = float(remaining[weights[-1]]) / float(num_items - num_packed)
        first_item = num_packed
        state = (fill or _fill)(
            stream, limits, pool, pool_sizes, items, ends, weights, _SCORED_ITEMS * average,
            max(4, expected_packs // 256), fill is not None, state,
        )  # fmt: skip
        num_packed = state[2]
        remaining = np.maximum(
            remaining - sizes[order[items[first_item:num_packed]]].sum(axis=0), 0.0
        )
    return Packing(np.concatenate([[0], ends[: state[3]]]), order[items])


def _fill(
    stream: Float64Array,
    capacities: Float64Array,
    pool: Int64Array,
    pool_sizes: Float64Array,
    items: Int64Array,
    ends: Int64Array,
    weights: _Weights,
    bulk_room: float,
    packs_to_make: int,
    is_compiled: bool,
    state: _State,
) -> _State:
    """Fill some packs, compiled or in NumPy: only the two loops over candidates differ.

    Args:
        stream: ``float64[num_budgets, num_items]``, sizes in order of the stream.
        capacities: ``float64[num_budgets]``.
        pool: ``int64[num_candidates]``, positions in the stream; changed in place.
        pool_sizes: ``float64[num_budgets, num_candidates]``; changed in place.
        items: ``int64[num_items]``, positions in the stream in order of packing; output.
        ends: ``int64[num_items]``, end of each pack in ``items``; output.
        weights: of the scores.
        bulk_room: room in the binding budget above which items are taken in order of the stream.
        packs_to_make: number of packs.
        is_compiled: loop over the candidates, which NumPy would do faster if not compiled.
        state: how far the packs before came.

    Returns:
        How far these packs came.
    """
    scale, progress, deviation, worth, binding = weights
    position, in_pool, num_packed, num_packs = state
    num_budgets, num_items = stream.shape
    pool_limit = len(pool)
    pool_worth = np.zeros(pool_limit)
    for d in range(num_budgets):
        pool_worth[:in_pool] += worth[d] * pool_sizes[d, :in_pool]
    for _ in range(packs_to_make):
        if num_packed == num_items:
            break
        room = capacities.copy()
        # The bulk of a large pack is taken in order of the stream: choosing matters when little
        # room remains.
        while (
            position < num_items
            and in_pool == pool_limit
            and room[binding] > bulk_room
            and np.all(stream[:, position] <= room)
        ):
            room -= stream[:, position]
            items[num_packed] = position
            num_packed += 1
            position += 1
        next_exchange = num_packed
        # Step 0 picks by score, step 1 exchanges picks for candidates of more worth, step 2 adds
        # what still fits.
        step = 0
        while step < 3:
            values = pool_worth[:in_pool]
            threshold = -np.inf
            if step == 0:
                # Picked candidates are replaced from the stream.
                while in_pool < pool_limit and position < num_items:
                    pool[in_pool], pool_worth[in_pool] = position, 0.0
                    for d in range(num_budgets):
                        pool_sizes[d, in_pool] = stream[d, position]
                        pool_worth[in_pool] += worth[d] * stream[d, position]
                    in_pool, position = in_pool + 1, position + 1
                # score = sum of progress[d] · open room[d] · size[d], minus the deviation from the
                # path to zero room.
                open_room = 1.0 - (capacities - room) * scale
                gain = progress * np.maximum(open_room, 0.0) * scale
                values = np.zeros(in_pool)
                for d in range(num_budgets):
                    factor = deviation[d] * scale[d] * open_room[binding]
                    binding_factor = deviation[d] * scale[binding] * open_room[d]
                    if is_compiled:
                        for k in range(in_pool):
                            values[k] += gain[d] * pool_sizes[d, k]
                            if d != binding:
                                values[k] -= abs(
                                    factor * pool_sizes[d, k]
                                    - binding_factor * pool_sizes[binding, k]
                                )
                    else:
                        values += gain[d] * pool_sizes[d, :in_pool]
                        if d != binding:
                            values -= np.abs(
                                factor * pool_sizes[d, :in_pool]
                                - binding_factor * pool_sizes[binding, :in_pool]
                            )
            elif step == 1:
                if next_exchange == num_packed:
                    step = 2
                    continue
                # The pick leaves the pack; if no candidate is worth more, it comes back.
                pick = items[next_exchange]
                pick_worth = 0.0
                for d in range(num_budgets):
                    room[d] += stream[d, pick]
                    pick_worth += worth[d] * stream[d, pick]
                threshold = pick_worth
            # The best candidate that fits; the first of equal ones.
            best = -1
            if is_compiled:
                for k in range(in_pool):
                    if values[k] > threshold:
                        fits = True
                        for d in range(num_budgets):
                            if pool_sizes[d, k] > room[d]:
                                fits = False
                                break
                        if fits:
                            threshold, best = values[k], k
            elif in_pool:
                is_excluded = values <= threshold
                for d in range(num_budgets):
                    is_excluded |= pool_sizes[d, :in_pool] > room[d]
                index = int(np.argmax(np.where(is_excluded, -np.inf, values)))
                best = -1 if is_excluded[index] else index
            if step == 1:
                if best >= 0:
                    items[next_exchange] = pool[best]
                    pool[best], pool_worth[best] = pick, pick_worth
                    for d in range(num_budgets):
                        pool_sizes[d, best] = stream[d, pick]
                for d in range(num_budgets):
                    room[d] -= stream[d, items[next_exchange]]
                next_exchange += 1
            elif best < 0:
                step += 1
            else:
                # The pick leaves the pool, and the last candidate takes its place.
                items[num_packed] = pool[best]
                num_packed += 1
                in_pool -= 1
                pool[best], pool_worth[best] = pool[in_pool], pool_worth[in_pool]
                for d in range(num_budgets):
                    room[d] -= pool_sizes[d, best]
                    pool_sizes[d, best] = pool_sizes[d, in_pool]
        ends[num_packs] = num_packed
        num_packs += 1
    return position, in_pool, num_packed, num_packs
