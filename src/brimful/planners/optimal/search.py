"""Search for optimal packs: heuristics first, then column generation, with a proof of the distance
from the optimum.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from math import ceil

from brimful.base.wording import counted, setting
from brimful.errors import missing_extra
from brimful.plan.algorithms import CountOptions
from brimful.plan.counts.histogram import Histogram, lower_bound
from brimful.plan.counts.runs import PackRuns
from brimful.plan.fit.best_fit_decreasing import best_fit_decreasing
from brimful.plan.packing import PackResult, PlanOutcome
from brimful.planners.optimal.column_generation import SOLVER_TOLERANCE, ColumnGeneration
from brimful.planners.optimal.knapsack import SearchLimit
from brimful.planners.optimal.master_problem import installed_solver
from brimful.planners.optimal.minimum_bin_slack import minimum_bin_slack
from brimful.planners.optimal.rounding import fix_whole_packs, substitute_lengths
from brimful.planners.patterns import (
    Pattern,
    PatternCounts,
    load_of,
    patterns_of,
    remaining,
    runs_of,
)

_MAX_CAPACITY = 1 << 24
"""Largest capacity with column generation: the knapsack's tables have an entry for each size."""

_FIRST_RESIDUAL_LENGTHS = 400
"""Distinct lengths of the first residual instance; each next one has twice as many."""

_SECONDS = 60.0
"""Default time limit of ``optimal``."""

_OPERATIONS = 2e9
"""Operations after which ``auto`` stops its search: a few seconds, and the same plan on every
machine.
"""

_ROUNDING_SHARES = (0.1, 0.05, 0.025)
"""Shares of a solution that are rounded at once, one for each attempt while the packs exceed the
bound.
"""


def pack_counts(items: Histogram, options: CountOptions, bound: int) -> PackResult[PackRuns]:
    """Pack as the algorithm ``optimal`` of ``plan.algorithms``."""
    seconds = _SECONDS if options.time_limit is None else options.time_limit
    return pack_optimally(items, capacity=options.capacity, time_limit=seconds)


def pack_better(
    items: Histogram, options: CountOptions, runs: PackRuns, bound: int
) -> PackResult[PackRuns]:
    """Search for fewer packs than best fit decreasing made (``runs``), if a solver is installed."""
    if not installed_solver():
        distance = counted(runs.num_packs - bound, "pack")
        outcome = f"best_fit_decreasing, {distance} above the bound"
        advice = "with pip install 'brimful[optimal]' fewer may be found"
        return PackResult(runs, bound, PlanOutcome(f"{outcome}; {advice}"))
    operations = _OPERATIONS if options.time_limit is None else None
    return pack_optimally(
        items, capacity=options.capacity, time_limit=options.time_limit, operations=operations
    )


def pack_optimally(
    items: Histogram,
    *,
    capacity: int,
    time_limit: float | None,
    operations: float | None = None,
) -> PackResult[PackRuns]:
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

    The solver is HiGHS, through ``highspy``: it keeps the master problem and its basis between
    rounds, so that the cost of a round depends on its new patterns.

    Pure: no I/O, no randomness. The same arguments give the same packs with the same version of the
    solver, unless the time limit ends the search: then the result is the best packs so far and a
    valid bound. The bound is proven in whole numbers, independent of the solver's rounding errors.

    Args:
        items: number of items of each length, none longer than the capacity.
        capacity: maximum tokens of a pack, at least 1.
        time_limit: seconds of wall time, checked between rounds; 0 returns best fit decreasing with
            the bound L2; None for no limit.
        operations: limit in operations (``SearchLimit``), which do not depend on the machine; None
            for no limit.

    Raises:
        MissingExtraError: highspy is not installed.

    Cost: independent of the number of items. A round solves a linear program with one row for each
    distinct length, and a knapsack in O(distinct lengths · capacity).

    >>> import numpy as np
    >>> result = pack_optimally(Histogram.of(np.array([4, 4, 3, 3, 3, 3])), capacity=10, time_limit=10)
    >>> result.packs.num_packs, result.bound, result.outcome.description
    (2, 2, 'optimal: packs equal the proven bound')
    """
    if not installed_solver():
        raise missing_extra("highspy", "optimal", setting("algorithm", "optimal"))
    limit = SearchLimit(seconds=time_limit, operations=operations)
    search = _Search(items, capacity, limit)
    search.run()
    runs = search.runs
    if search.best_patterns is not None:
        runs = runs_of(sorted(search.best_patterns.items(), reverse=True))
    gap = runs.num_packs - search.bound
    assert gap >= 0, f"{runs.num_packs} packs are fewer than the bound of {search.bound}"
    status = f"{counted(gap, 'pack')} above the proven bound"
    if gap == 0:
        status = "optimal: packs equal the proven bound"
    elif capacity > _MAX_CAPACITY:
        status = f"capacity too large for the linear program over patterns: {status}"
    elif limit.exhausted:
        status = f"search limit: {status}"
    return PackResult(runs, search.bound, PlanOutcome(status, solver=installed_solver()))


class _Search:
    """One call of ``pack_optimally``: the best packs so far, the bound so far, and the limit."""

    def __init__(self, items: Histogram, capacity: int, limit: SearchLimit) -> None:
        self.items = items
        self.capacity = capacity
        self.limit = limit
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

    def run(self) -> None:
        if self.is_done or self.capacity > _MAX_CAPACITY:
            return
        start_columns = list(patterns_of(self.runs))
        slack_packs = minimum_bin_slack(self.items, capacity=self.capacity, limit=self.limit)
        if slack_packs:
            self.offer(slack_packs)
        for fixed_packs, items in self.residual_instances(slack_packs):
            if self.is_done:
                return
            # Patterns of only the residual items, by best fit decreasing and by minimum bin slack.
            lengths = set(items.lengths.tolist())
            columns = list(patterns_of(best_fit_decreasing(items, capacity=self.capacity)))
            columns += (
                pattern
                for pattern in slack_packs
                if lengths.issuperset(length for length, _ in pattern)
            )
            self.solve_and_round(fixed_packs, items, columns, must_meet_bound=True)
        if not self.is_done:
            self.solve_and_round(Counter(), self.items, [*start_columns, *slack_packs])

    def residual_instances(
        self, slack_packs: PatternCounts
    ) -> Iterator[tuple[PatternCounts, Histogram]]:
        """Yield full packs of the longest items, and the items outside them: few lengths first,
        then more.

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
            yield fixed_packs, remaining(self.items, fixed_packs.items())
            max_lengths *= 2

    def solve_and_round(
        self,
        fixed_packs: PatternCounts,
        items: Histogram,
        columns: Iterable[Pattern],
        *,
        must_meet_bound: bool = False,
    ) -> None:
        """Pack the items outside the fixed packs by column generation and rounding.

        Whole packs are made from the whole parts of a relaxation first, then from a relaxation of
        the other items. With ``must_meet_bound``, the search gives up as soon as this residual
        instance cannot lead to the bound.
        """
        stop_at_packs = self.bound - fixed_packs.total() + 1 if must_meet_bound else None
        first_solution, first_can_improve = self.relax(
            fixed_packs, items, columns, stop_at_packs=stop_at_packs
        )
        for share in _ROUNDING_SHARES:
            solution, can_improve = first_solution, first_can_improve
            packs, free_items = fixed_packs, items
            while solution:
                whole_packs, free_items = fix_whole_packs(free_items, solution, share)
                packs = packs + whole_packs
                # Each heuristic completes the packs to a packing of all items.
                best_fit = patterns_of(best_fit_decreasing(free_items, capacity=self.capacity))
                self.offer(packs + best_fit)
                if self.num_packs <= self.bound or not len(free_items.lengths):
                    break
                # A last step gets at least 1 second and 10⁹ operations.
                limit = SearchLimit(
                    seconds=max(self.limit.remaining_seconds, 1.0),
                    operations=max(self.limit.remaining_operations, 1e9),
                )
                slack_packs = minimum_bin_slack(free_items, capacity=self.capacity, limit=limit)
                if slack_packs:
                    self.offer(packs + slack_packs)
                if self.is_done or not can_improve:
                    break
                columns = [*best_fit, *slack_packs, *substitute_lengths(solution, free_items)]
                solution, can_improve = self.relax(packs, free_items, columns)
            if self.is_done or not first_can_improve:
                return

    def relax(
        self,
        fixed_packs: PatternCounts,
        items: Histogram,
        columns: Iterable[Pattern],
        *,
        stop_at_packs: int | None = None,
    ) -> tuple[dict[Pattern, float], bool]:
        """Solve the relaxation for the items outside the fixed packs until its value rounds up to a
        bound, or is optimal.

        Args:
            fixed_packs: packs of the other items.
            items: the items to pack.
            columns: initial patterns.
            stop_at_packs: give up once the items are proven to take at least this number of packs;
                by default the number with which all packs would be as many as the best so far.

        Returns:
            Packs of each pattern, with fractions; and whether whole packs from them may be fewer
            than the best so far, beyond a first rounding.
        """
        generation = ColumnGeneration(items, self.capacity, columns, self.limit)
        num_fixed = fixed_packs.total()
        goes_on = can_improve = True
        while goes_on and can_improve:
            if not generation.solve_master():
                return generation.solution(), False
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
