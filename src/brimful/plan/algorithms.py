"""All algorithms in one table. The planner, ``Lookahead``, what-if, command-line help and
documentation read it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from brimful.base.wings import loaded
from brimful.plan.counts.histogram import Histogram
from brimful.plan.counts.runs import PackRuns
from brimful.plan.fit.any_fit import concat_split, first_fit, next_fit, worst_fit
from brimful.plan.fit.best_fit import best_fit
from brimful.plan.fit.best_fit_decreasing import best_fit_decreasing
from brimful.plan.fit.first_fit_decreasing import first_fit_decreasing
from brimful.plan.fit.spread import spread
from brimful.plan.packing import Packing, PackResult, PlanOutcome

_CLOSE_ENOUGH = 0.001
"""Distance from the bound, as a share of it, up to which ``auto`` does not search."""


@dataclass(frozen=True)
class CountOptions:
    """Options of an algorithm on counts.

    Attributes:
        capacity: tokens of a pack.
        phases: what the reader of the setting ``phases`` made of it; None without a reader.
        time_limit: seconds that a search may take; None for the limit of the algorithm.
        num_packs: exact number of packs, for ``spread``; None for as few as it finds.
    """

    capacity: int
    phases: Any = None
    time_limit: float | None = None
    num_packs: int | None = None


PackInOrder = Callable[..., Packing]
"""``(lengths: int[num_items], *, capacity: int) -> Packing``: takes the items in their order."""

PackCounts = Callable[[Histogram, CountOptions, int], PackResult[PackRuns]]
"""``(items, options, bound) -> PackResult``: reads only counts; ``bound`` comes from
``lower_bound``.
"""

_SEARCH = "brimful.planners.optimal:pack_better"
"""Search for fewer packs than a simple algorithm found."""


@dataclass(frozen=True)
class Algorithm:
    """One way to pack, as the user names it. Exactly one of the two functions is given.

    Attributes:
        name: textbook name.
        in_order: function of an algorithm that keeps the order of the samples.
        on_counts: function of an algorithm that sees the number of samples of each length, or its
            name, ``module:function``.
        options: settings that belong to it alone, each with the ``module:function`` that reads the
            value, or None.
        aliases: names that other libraries use.
        contradicts: settings that cannot be combined with it; only ``auto`` knows budgets.
        window_rule: in-order function that packs the window of a ``Lookahead``, and whether the
            longest go first; None if the algorithm cannot plan a stream. ``X decreasing`` is ``X``
            on sorted items.
        is_compared: what-if compares it with the plan's algorithm.
    """

    name: str
    in_order: PackInOrder | None = None
    on_counts: PackCounts | str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()
    contradicts: frozenset[str] = frozenset({"budgets"})
    window_rule: tuple[PackInOrder, bool] | None = None
    is_compared: bool = False

    def counts_packer(self) -> PackCounts:
        """Return ``on_counts``, loaded if it is a name."""
        assert self.on_counts is not None
        return loaded(self.on_counts) if isinstance(self.on_counts, str) else self.on_counts


def _textbook(function: Callable[..., PackRuns]) -> PackCounts:
    """Give a decreasing algorithm the signature of ``PackCounts``."""

    def pack(items: Histogram, options: CountOptions, bound: int) -> PackResult[PackRuns]:
        return PackResult(function(items, capacity=options.capacity), bound)

    return pack


def _spread_evenly(items: Histogram, options: CountOptions, bound: int) -> PackResult[PackRuns]:
    return PackResult(
        spread(items, capacity=options.capacity, num_packs=options.num_packs, bound=bound), bound
    )


def _pack_automatically(
    items: Histogram, options: CountOptions, bound: int
) -> PackResult[PackRuns]:
    """Pack by best fit decreasing, and search for fewer packs if the result is over 0.1 % above the
    bound.
    """
    runs = best_fit_decreasing(items, capacity=options.capacity)
    distance = runs.num_packs - bound
    if distance == 0:
        return PackResult(runs, bound, PlanOutcome("best_fit_decreasing meets the bound"))
    if distance <= _CLOSE_ENOUGH * bound:
        return PackResult(
            runs, bound, PlanOutcome("best_fit_decreasing, within 0.1 % of the bound")
        )
    # Most plans need no search.
    result: PackResult[PackRuns] = loaded(_SEARCH)(items, options, runs, bound)
    return result


ALGORITHMS: dict[str, Algorithm] = {
    algorithm.name: algorithm
    for algorithm in (
        Algorithm(
            "best_fit_decreasing",
            on_counts=_textbook(best_fit_decreasing),
            aliases=("bfd",),
            window_rule=(best_fit, True),
            is_compared=True,
        ),
        Algorithm(
            "first_fit_decreasing",
            on_counts=_textbook(first_fit_decreasing),
            aliases=("ffd",),
            window_rule=(first_fit, True),
            is_compared=True,
        ),
        Algorithm("optimal", on_counts="brimful.planners.optimal:pack_counts"),
        Algorithm("auto", on_counts=_pack_automatically, contradicts=frozenset()),
        Algorithm(
            "phased",
            on_counts="brimful.planners.phased:pack_counts",
            options={"phases": "brimful.planners.phased:recipe_of"},
        ),
        Algorithm("spread", on_counts=_spread_evenly),
        Algorithm(
            "next_fit",
            in_order=next_fit,
            aliases=("sequential",),
            contradicts=frozenset({"budgets", "min_fill"}),
            window_rule=(next_fit, False),
            is_compared=True,
        ),
        Algorithm("first_fit", in_order=first_fit, window_rule=(first_fit, False)),
        Algorithm("best_fit", in_order=best_fit, window_rule=(best_fit, False)),
        Algorithm("worst_fit", in_order=worst_fit),
        Algorithm(
            "concat_split",
            in_order=concat_split,
            aliases=("wrapped",),
            contradicts=frozenset({"budgets", "min_fill", "alignment"}),
        ),
    )
}
"""Algorithms by name, in the order of help and messages."""

ALGORITHMS_BY_ANY_NAME = {
    name: algorithm
    for algorithm in ALGORITHMS.values()
    for name in (algorithm.name, *algorithm.aliases)
}
"""Algorithms by name and alias."""
