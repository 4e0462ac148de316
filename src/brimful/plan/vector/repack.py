"""Refilling of some packs, while all others stay."""

import numpy as np

from brimful.plan.packing import Packing, loads_of
from brimful.plan.vector.fill import fill_packs, total_sizes
from brimful.rng import generator
from brimful.typing import BoolArray, Int64Array

_BALANCE = 0.97
"""Maximum demand for any other budget among refilled packs, as a share of the demand for the binding budget."""


def repair_overfull(
    packing: Packing,
    overfull: BoolArray,
    sizes: Int64Array,
    capacities: Int64Array,
    binding: int,
    straightness: float,
    seed: int,
) -> Packing:
    """Refill the packs that exceed a budget, together with the emptiest packs that balance them.

    Args:
        packing: packs within the capacity of the binding budget.
        overfull: ``bool[num_packs]``, packs that exceed another budget.
        binding: the budget of the packing.
        sizes, capacities, straightness, seed: see ``fill_packs``.
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
    return _refill(packing, refill, sizes, capacities, straightness, seed)


def ruin_and_recreate(
    packing: Packing, sizes: Int64Array, capacities: Int64Array, straightness: float, turn: int, seed: int
) -> Packing:
    """Refill the emptiest eighth of the packs and a random quarter, if this does not take more packs.

    Source: ruin and recreate is by Schrimpf et al. (2000). The last packs had the fewest items to choose from.
    """
    demand = total_sizes(sizes) / capacities
    share = demand / demand.max()
    square = share * share
    fill = ((loads_of(packing, sizes) / capacities) * (square * square)).sum(axis=1)
    refill = np.zeros(len(packing), dtype=bool)
    refill[np.argsort(fill, kind="stable")[: max(3, len(packing) // 8)]] = True
    random_packs = generator(seed=seed, epoch=turn, purpose="packs to take apart").permutation(len(packing))
    refill[random_packs[: len(packing) // 4]] = True
    result = _refill(packing, refill, sizes, capacities, straightness, seed + turn)
    return result if len(result) <= len(packing) else packing


def _refill(
    packing: Packing, refill: BoolArray, sizes: Int64Array, capacities: Int64Array, straightness: float, seed: int
) -> Packing:
    """Keep packs except some, whose items are filled into new packs at the end."""
    removed = packing.take(np.flatnonzero(refill))
    filled = fill_packs(np.ascontiguousarray(sizes[removed.items]), capacities, straightness, seed)
    return packing.take(np.flatnonzero(~refill)).joined(Packing(filled.offsets, removed.items[filled.items]))
