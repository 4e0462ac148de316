"""Search for optimal packs: heuristics first, then column generation, with a proof of the distance
from the optimum.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import ceil

from brimful.base.wording import setting
from brimful.errors import missing_extra
from brimful.plan.counts.histogram import Histogram, lower_bound
from brimful.plan.counts.patterns import (
    Pattern,
    PatternCounts,
    load_of,
    patterns_of,
    remaining,
    runs_of,
)
from brimful.plan.counts.runs import PackRuns
from brimful.plan.fit.best_fit_decreasing import best_fit_decreasing
from brimful.plan.optimal.column_generation import SOLVER_TOLERANCE, ColumnGeneration
from brimful.plan.optimal.knapsack import SearchLimit
from brimful.plan.optimal.master_problem import installed_solver
from brimful.plan.optimal.minimum_bin_slack import minimum_bin_slack
from brimful.plan.optimal.rounding import fix_whole_packs, substitute_lengths
from brimful.plan.packing import PackResult, PlanOutcome

_MAX_CAPACITY = 1 << 24
"""Largest capacity with column generation: the knapsack's tables have an entry for each size."""

_FIRST_RESIDUAL_LENGTHS = 400
"""Distinct lengths of the first residual instance; each next one has twice as many."""

_ROUNDING_SHARES = (0.1, 0.05, 0.025)
"""Shares of a solution that are rounded at once, one for each attempt while the packs exceed the
bound.
"""


@dataclass(frozen=True)
class OptimalResult(PackResult[PackRuns]):
    """Packs, and their distance from a proven bound.

    The bound is proven in whole numbers, independent of the solver's rounding errors.

    Attributes:
        rounds: number of linear programs solved; 0 if counting was enough.
    """

    rounds: int = 0


def pack_optimally(
    items: Histogram,
    *,
    capacity: int,
    start: PackRuns | None = None,
    time_limit: float | None,
    operations: float | None = None,
) -> OptimalResult:
    """Search for the fewest packs and for the highest proven bound; usually the two are equal.

    ::

        capacity 10, lengths 4 4 3 3 3 3
        best fit decreasing      4 4 · 3 3 3 · 3                       3 packs
        bound by counting        20 / 10                               at least 2 packs: continue
        minimum bin slack        4 3 3 · 4 3 3                         2 packs = the bound: done

        capacity 100, seven of 34 and one of 33
        best fit decreasing      34 34 · 34 34 · 34 34 · 34 33         4 packs
        bound by counting        271 / 100                             at least 3 packs: continue
        master problem           each 34 costs 1/2 pack, 33 costs 1/4  these prices come from fractions of packs
        knapsack                 34 33 33 and 34 34 are worth 1 pack   no pattern that fits is worth more
        bound                    7 · 1/2 + 1/4 = 3.75                  at least 4 packs: 4 are optimal

    The steps, each only if the packs still exceed the bound:

    1. Best fit decreasing, and the bound L2 (``lower_bound``).
    2. ``minimum_bin_slack``: reaches the bound for most length distributions with a long tail, in
      milliseconds.
    3. Column generation by Gilmore and Gomory (1961), started from the patterns of both. Its
       substitution columns also let a shorter item take the place of a longer one (the dual cuts of
       Valério de Carvalho, 2005), prices are pulled toward the best proven ones (Wentges, 1997),
       and each round adds the best pattern with each of many lengths. It ends as soon as its value,
       rounded up, equals the bound, long before all prices agree. If the bound is tokens /
       capacity, it is tried first on residual instances, the items outside full packs of step 2:
       fewer lengths, fewer rows.
    4. The bound of Farley (1990) in every round: prices are rounded down to whole numbers, the
       knapsack is solved in whole numbers, and the total price is divided by its value as whole
       numbers. The solver's rounding errors in the prices can make this bound smaller, never wrong.
    5. Whole parts of the solution become packs, and the remaining items go through steps 1 to 3
       again; if the whole parts are few, the largest fractions are rounded up.

    The solver is HiGHS, through ``highspy`` if it is installed: it keeps the master problem and its
    basis between rounds, so that the cost of a round depends on its new patterns. ``scipy``
    contains the same solver but solves each round from the beginning.

    Pure: no I/O, no randomness. The same arguments give the same packs with the same version of the
    solver, unless
    the time limit ends the search: then the result is the best packs so far and a valid bound.

    Args:
        items: number of items of each length, none longer than the capacity.
        capacity: maximum tokens of a pack, at least 1.
        start: a packing of these items to improve on; the result never has more packs.
        time_limit: seconds of wall time, checked between rounds; 0 returns best fit decreasing with
            the bound L2; None for no limit.
        operations: limit in operations (``SearchLimit``), which do not depend on the machine; None
            for no limit.

    Raises:
        MissingExtraError: neither highspy nor scipy is installed.

    Cost: independent of the number of items. A round solves a linear program with one row for each
    distinct length, and a knapsack in O(distinct lengths · capacity).

    >>> import numpy as np
    >>> result = pack_optimally(Histogram.of(np.array([4, 4, 3, 3, 3, 3])), capacity=10, time_limit=10)
    >>> result.packs.num_packs, result.bound, result.outcome.description
    (2, 2, 'optimal: packs equal the proven bound')
    """
    if not installed_solver():
        raise missing_extra("scipy", "optimal", setting("algorithm", "optimal"))
    search = _Search(items, capacity, SearchLimit(seconds=time_limit, operations=operations))
    search.run(start)
    return search.result()


@dataclass(frozen=True)
class _ResidualInstance:
    """Fixed packs and the remaining items; together they contain all items."""

    fixed_packs: PatternCounts
    items: Histogram


class _Search:
    """One call of ``pack_optimally``: the best packs so far, the bound so far, and the limit."""

    def __init__(self, items: Histogram, capacity: int, limit: SearchLimit) -> None:
        self.items = items
        self.capacity = capacity
        self.limit = limit
        self.rounds = 0
        self.bound = lower_bound(items, capacity=capacity)
        self.runs = best_fit_decreasing(items, capacity=capacity)
        self.best_patterns: PatternCounts | None = None  # fewer packs than ``runs``, if not None

    @property
    def num_packs(self) -> int:
        return self.runs.num_packs if self.best_patterns is None else self.best_patterns.total()

    @property
    def is_done(self) -> bool:
        return self.num_packs <= self.bound or self.limit.exhausted

    def offer(self, patterns: PatternCounts) -> None:
        """Keep these packs of all items if they are fewer than the best so far."""
        if patterns.total() < self.num_packs:
            self.best_patterns = patterns

    def run(self, start: PackRuns | None) -> None:
        if start is not None and start.num_packs < self.runs.num_packs:
            self.runs = start
        if self.is_done or self.capacity > _MAX_CAPACITY:
            return
        start_columns = list(patterns_of(self.runs))
        slack_packs = minimum_bin_slack(self.items, capacity=self.capacity, limit=self.limit)
        if slack_packs:
            self.offer(slack_packs)
        for instance in self.residual_instances(slack_packs):
            if self.is_done:
                return
            # Patterns of only the residual items, by best fit decreasing and by minimum bin slack.
            lengths = set(instance.items.lengths.tolist())
            columns = list(patterns_of(best_fit_decreasing(instance.items, capacity=self.capacity)))
            columns += (
                pattern
                for pattern in slack_packs
                if lengths.issuperset(length for length, _ in pattern)
            )
            self.solve_and_round(instance, columns, must_meet_bound=True)
        if not self.is_done:
            self.solve_and_round(
                _ResidualInstance(Counter(), self.items), [*start_columns, *slack_packs]
            )

    def residual_instances(self, slack_packs: PatternCounts) -> Iterator[_ResidualInstance]:
        """Yield the items outside full packs of the longest items: instances of few lengths first,
        then of more.

        If the bound is tokens / capacity, full packs waste nothing, and a linear program of few
        rows is solved quickly.
        """
        if self.bound != -(-self.items.total // self.capacity):
            return
        # Patterns were made from the longest item down: each prefix of the patterns exhausts the
        # longest lengths.
        counts = dict(zip(self.items.lengths.tolist(), self.items.counts.tolist(), strict=True))
        num_lengths = len(counts)
        runs: list[
            tuple[Pattern, int, int]
        ] = []  # pattern, packs, distinct lengths that remain after it
        for pattern, packs in slack_packs.items():
            for length, copies in pattern:
                counts[length] -= copies * packs
                num_lengths -= counts[length] == 0
            runs.append((pattern, packs, num_lengths))
        max_lengths = _FIRST_RESIDUAL_LENGTHS
        while max_lengths < len(counts) / 1.5:
            prefix = (run for run in runs if run[2] >= max_lengths)
            fixed_packs = Counter(
                {
                    pattern: packs
                    for pattern, packs, _ in prefix
                    if load_of(pattern) == self.capacity
                }
            )
            yield _ResidualInstance(fixed_packs, remaining(self.items, fixed_packs.items()))
            max_lengths *= 2

    def solve_and_round(
        self,
        instance: _ResidualInstance,
        columns: Iterable[Pattern],
        *,
        must_meet_bound: bool = False,
    ) -> None:
        """Pack the residual items by column generation and rounding.

        With ``must_meet_bound``, the search gives up as soon as this residual instance cannot lead
        to the bound.
        """
        stop_at_packs = self.bound - instance.fixed_packs.total() + 1 if must_meet_bound else None
        solution, can_improve = self.relax(instance, columns, stop_at_packs=stop_at_packs)
        for share in _ROUNDING_SHARES:
            self.round_up(instance, solution, can_improve, share)
            if self.is_done or not can_improve:
                return

    def relax(
        self,
        instance: _ResidualInstance,
        columns: Iterable[Pattern],
        *,
        stop_at_packs: int | None = None,
    ) -> tuple[dict[Pattern, float], bool]:
        """Solve the relaxation for the residual items until its value rounds up to a bound, or is
        optimal.

        Args:
            instance: the items to pack.
            columns: initial patterns.
            stop_at_packs: give up once the residual items are proven to take at least this number
                of packs; by default the number with which all packs would be as many as the best so
                far.

        Returns:
            Packs of each pattern, with fractions; and whether whole packs from them may be fewer
            than the best so far, beyond a first rounding.
        """
        generation = ColumnGeneration(instance.items, self.capacity, columns, self.limit)
        num_fixed = instance.fixed_packs.total()
        goes_on = can_improve = True
        while goes_on and can_improve:
            if not generation.solve_master():
                return generation.solution(), False
            self.rounds += 1
            # The fewest packs that rounding can reach from this value. If it meets a bound, more
            # columns do not help.
            num_packs = ceil(generation.value - SOLVER_TOLERANCE)
            goes_on = (
                num_packs > max(self.bound - num_fixed, generation.bound)
                and generation.add_columns()
            )
            # A bound for residual items holds for all items only without fixed packs; it may still
            # show that these fixed packs cannot lead to fewer packs.
            if not num_fixed:
                self.bound = max(self.bound, generation.bound)
            elif generation.bound >= (
                self.num_packs - num_fixed if stop_at_packs is None else stop_at_packs
            ):
                can_improve = False
        return generation.solution(), can_improve

    def round_up(
        self,
        instance: _ResidualInstance,
        solution: dict[Pattern, float],
        can_improve: bool,
        share: float,
    ) -> None:
        """Make whole packs from the whole parts of a relaxation first, then from a relaxation of
        the other items.
        """
        while solution:
            whole_packs, items = fix_whole_packs(instance.items, solution, share)
            instance = _ResidualInstance(instance.fixed_packs + whole_packs, items)
            # Each heuristic completes the packs to a packing of all items.
            best_fit = patterns_of(best_fit_decreasing(items, capacity=self.capacity))
            self.offer(instance.fixed_packs + best_fit)
            if self.num_packs <= self.bound or not len(items.lengths):
                return
            slack_packs = minimum_bin_slack(
                items, capacity=self.capacity, limit=self.limit.with_minimum()
            )
            if slack_packs:
                self.offer(instance.fixed_packs + slack_packs)
            if self.is_done or not can_improve:
                return
            columns = [*best_fit, *slack_packs, *substitute_lengths(solution, items)]
            solution, can_improve = self.relax(instance, columns)

    def result(self) -> OptimalResult:
        runs = self.runs
        if self.best_patterns is not None:
            runs = runs_of(sorted(self.best_patterns.items(), reverse=True))
        _check(runs, self.items, self.capacity)
        gap = runs.num_packs - self.bound
        assert gap >= 0, f"{runs.num_packs} packs are fewer than the bound of {self.bound}"
        outcome = PlanOutcome(self._status(gap), solver=installed_solver())
        return OptimalResult(runs, self.bound, outcome, rounds=self.rounds)

    def _status(self, gap: int) -> str:
        if gap == 0:
            return "optimal: packs equal the proven bound"
        distance = (
            "one pack above the proven bound"
            if gap == 1
            else f"{gap:,} packs above the proven bound"
        )
        if self.capacity > _MAX_CAPACITY:
            return f"capacity too large for the linear program over patterns: {distance}"
        return f"search limit: {distance}" if self.limit.exhausted else distance


def _check(runs: PackRuns, items: Histogram, capacity: int) -> None:
    """Assert that every item is in one pack and no pack exceeds the capacity; the cost depends only
    on the patterns.
    """
    patterns = patterns_of(runs)
    assert patterns.total() == runs.num_packs, "an empty pack"
    assert all(load_of(pattern) <= capacity for pattern in patterns), "a pack over the capacity"
    assert not len(remaining(items, patterns.items()).lengths), "an item is missing"
