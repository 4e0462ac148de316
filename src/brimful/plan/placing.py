"""From the name of an algorithm to packs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

from brimful.plan.best_fit import best_fit
from brimful.plan.best_fit_decreasing import best_fit_decreasing
from brimful.plan.first_fit import first_fit
from brimful.plan.first_fit_decreasing import first_fit_decreasing
from brimful.plan.histogram import Histogram, Placements
from brimful.plan.next_fit import next_fit
from brimful.plan.optimal import pack_optimally
from brimful.plan.packing import Packing
from brimful.plan.phased import Recipe
from brimful.plan.worst_fit import worst_fit
from brimful.typing import Lengths

__all__ = ["pack_in_order", "place"]

_IN_ORDER: Mapping[str, Callable[..., Packing]] = {
    "next_fit": next_fit,
    "first_fit": first_fit,
    "best_fit": best_fit,
    "worst_fit": worst_fit,
}
_DECREASING: Mapping[str, Callable[..., Placements]] = {
    "best_fit_decreasing": best_fit_decreasing,
    "first_fit_decreasing": first_fit_decreasing,
}

_SECONDS = 60.0
"""That ``optimal`` may search, unless told otherwise."""

_OPERATIONS = 2e9
"""That ``auto`` may search, unless told otherwise (``SearchLimit``): some seconds, and the same plan on every machine."""

_CLOSE_ENOUGH = 0.001
"""Distance from the bound, as a share of it, that ``auto`` leaves as it is."""


def pack_in_order(lengths: Lengths, *, capacity: int, algorithm: str) -> Packing:
    """By an algorithm that takes the items in their order."""
    return _IN_ORDER[algorithm](lengths, capacity=capacity)


def place(
    items: Histogram,
    *,
    capacity: int,
    algorithm: str,
    bound: int,
    phases: Recipe | None,
    time_limit: float | None,
) -> tuple[Placements, int, dict[str, Any]]:
    """By an algorithm that looks at counts.

    Args:
        bound: packs that none does without, as far as counting tells.

    Returns:
        Placements, the bound as far as it is proven then, and what was done where that is not said by the name.
    """
    if algorithm in _DECREASING:
        return _DECREASING[algorithm](items, capacity=capacity), bound, {}
    if phases is not None:
        phased = phases.run(items, capacity=capacity)
        return phased.placements, bound, {"phase_reports": phased.describe()}
    placements = None
    if algorithm == "auto":
        placements = best_fit_decreasing(items, capacity=capacity)
        over = placements.num_packs - bound
        if over == 0:
            return placements, bound, {"outcome": "best_fit_decreasing meets the bound"}
        if over <= _CLOSE_ENOUGH * bound:
            return placements, bound, {"outcome": "best_fit_decreasing, within 0.1 % of the bound"}
        if not _solver():
            found = f"best_fit_decreasing, {over:,} packs above the bound"
            return placements, bound, {"outcome": f"{found}; with pip install 'brimful[optimal]' fewer may be found"}
    operations = None
    if time_limit is None:
        time_limit, operations = (None, _OPERATIONS) if algorithm == "auto" else (_SECONDS, None)
    result = pack_optimally(items, capacity=capacity, start=placements, time_limit=time_limit, operations=operations)
    return result.placements, result.bound, {"outcome": result.status, "solver": _solver()}


def _solver() -> str:
    """Which solver looks for patterns: another may find other packs, as few."""
    return next((name for name in ("highspy", "scipy") if find_spec(name) is not None), "")
