"""Optimal packs: the linear programme over patterns, with a proof of how good they are."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from math import ceil

from brimful.errors import missing_extra
from brimful.messages import setting
from brimful.plan.best_fit_decreasing import best_fit_decreasing
from brimful.plan.bound import lower_bound
from brimful.plan.effort import Effort
from brimful.plan.generation import ColumnGeneration
from brimful.plan.histogram import Histogram, Placements
from brimful.plan.patterns import (
    Pattern,
    Patterns,
    add_patterns,
    packs_of,
    patterns_of,
    placements_of,
    remaining,
    to_the_brim,
)
from brimful.plan.rounding import ROUNDING, fitted, settle

__all__ = ["OptimalResult", "pack_optimally"]

_CAPACITY = 1 << 24
"""Above this the knapsack's tables, with an entry for each size, are not worth their memory."""

_TAIL = 400
"""Different lengths of the first programme that is tried on what full packs leave; twice as many in the next."""

_TRIES = 3
"""Ways of rounding that are tried while packs are more than the bound."""


@dataclass(frozen=True)
class OptimalResult:
    """Packs, and what is proven about them.

    Attributes:
        placements: the runs; ``fill`` names the items.
        num_packs: packs in all.
        bound: no plan of these items has fewer packs. Proven in whole numbers, whatever the solver's rounding errors.
        gap: ``num_packs - bound``; 0 means optimal.
        seconds: wall time.
        rounds: linear programmes solved; 0 where counting was enough.
        status: the outcome in words.
    """

    placements: Placements
    num_packs: int
    bound: int
    gap: int
    seconds: float
    rounds: int
    status: str


def pack_optimally(
    items: Histogram,
    *,
    capacity: int,
    start: Placements | None = None,
    time_limit: float | None,
    operations: float | None = None,
) -> OptimalResult:
    """As few packs as can be found, and a bound that no plan goes below; most often the two are equal.

    ::

        capacity 10, lengths 4 4 3 3 3 3
        best fit decreasing      4 4 · 3 3 3 · 3                       3 packs
        bound by counting        20 / 10                               2 packs at least: go on
        to the brim              4 3 3 · 4 3 3                         2 packs = the bound: done

        capacity 100, seven of 34 and one of 33
        best fit decreasing      34 34 · 34 34 · 34 34 · 34 33         4 packs
        bound by counting        271 / 100                             3 packs at least: go on
        programme                each 34 costs 1/2 pack, 33 costs 1/4  these prices come from fractions of packs
        knapsack                 34 33 33 and 34 34 are worth 1 pack   and nothing that fits is worth more
        bound                    7 · 1/2 + 1/4 = 3.75                  4 packs at least: 4 are optimal

    The steps, each only if packs are still more than the bound:

    1. Best fit decreasing, and the bound L2 (``lower_bound``).
    2. ``to_the_brim``: reaches the bound on most lengths with a long tail, in milliseconds.
    3. The programme over patterns by Gilmore and Gomory (1961), started from the patterns of both. Its columns also
       let the place of a longer length be taken by a shorter one (the dual cuts of Valério de Carvalho, 2005), prices
       are drawn towards the best proven ones (Wentges, 1997), and each round adds the best pattern with each of many
       lengths. It ends as soon as its value, rounded up, is the bound, long before all prices agree. Where the bound
       is tokens / capacity, it is tried first on what the full packs of step 2 leave: fewer lengths, fewer rows.
    4. The bound of Farley (1990) in every round: prices are rounded down to whole numbers, the knapsack is solved in
       whole numbers, and the total price is divided by its value as whole numbers. Prices off by the solver's
       rounding errors make this bound smaller, never wrong.
    5. Whole parts of the solution become packs, the rest goes through steps 1 to 3 again; where whole parts are
       few, the largest fractions are rounded up.

    The solver is HiGHS, through ``highspy`` if it is installed: it keeps the programme and its basis between rounds,
    so that a round costs what its new patterns cost. ``scipy`` carries the same solver, and starts afresh each time.

    Pure: no I/O, no randomness. The same arguments give the same packs with the same version of the solver, unless
    the time limit strikes: then the best packs so far are returned, and a bound that holds.

    Args:
        items: how many there are of each length, none longer than the capacity.
        capacity: most that a pack holds, at least 1.
        start: a packing of these items to improve on; the result never has more packs.
        time_limit: seconds of wall time, looked at between rounds; 0 returns best fit decreasing with the bound L2;
            None for no limit.
        operations: the same in operations (``Effort``), which do not depend on the machine; None for no limit.

    Raises:
        MissingExtraError: neither highspy nor scipy is installed.

    Cost: does not depend on the number of items. A round is a programme of as many rows as there are different
    lengths, and O(different lengths · capacity) for the knapsack.

    >>> import numpy as np
    >>> result = pack_optimally(Histogram.of(np.array([4, 4, 3, 3, 3, 3])), capacity=10, time_limit=10)
    >>> result.num_packs, result.bound, result.status
    (2, 2, 'optimal: packs equal the proven bound')
    """
    if find_spec("highspy") is None and find_spec("scipy") is None:
        raise missing_extra("scipy", "optimal", setting("algorithm", "optimal"))
    search = _Search(items, capacity, Effort(seconds=time_limit, operations=operations))
    search.run(start)
    return search.result()


@dataclass(frozen=True)
class _Relaxed:
    """Packs of each pattern, fractions; and whether whole packs from it may be of use beyond a first rounding."""

    packs: dict[Pattern, float]
    go_on: bool


class _Search:
    """One call of ``pack_optimally``: the best packs so far, the bound so far, and what may still be spent."""

    def __init__(self, items: Histogram, capacity: int, effort: Effort) -> None:
        self.items = items
        self.capacity = capacity
        self.effort = effort
        self.rounds = 0
        self.bound = lower_bound(items, capacity=capacity)
        self.placements = best_fit_decreasing(items, capacity=capacity)
        self.found: Patterns | None = None  # better than ``placements``, if not None

    @property
    def num_packs(self) -> int:
        return self.placements.num_packs if self.found is None else packs_of(self.found)

    @property
    def done(self) -> bool:
        return self.num_packs <= self.bound or self.effort.over

    def offer(self, patterns: Patterns) -> None:
        """Keep these packs if they are fewer."""
        if packs_of(patterns) < self.num_packs:
            self.found = patterns

    def run(self, start: Placements | None) -> None:
        if start is not None and start.num_packs < self.placements.num_packs:
            self.placements = start
        if self.done or self.capacity > _CAPACITY:
            return
        known = patterns_of(self.placements)
        brim = to_the_brim(self.items, capacity=self.capacity, effort=self.effort)
        if brim:
            self.offer(brim)
        for packed, rest in self.tails(brim):
            if self.done:
                return
            self.improve(packed, rest, self.starting(brim, rest), enough_only=True)
        if self.done:
            return
        self.improve({}, self.items, [*known, *brim])

    def tails(self, brim: Patterns) -> Iterator[tuple[Patterns, Histogram]]:
        """Full packs of the longest items, and the items that are left: of few lengths, then of more.

        Full packs cost nothing where the bound is tokens / capacity, and a programme of few rows is soon solved.
        """
        if self.bound != -(-self.items.total // self.capacity):
            return
        left = dict(zip(self.items.lengths.tolist(), self.items.counts.tolist(), strict=True))
        lengths_left = []  # after each pattern
        alive = len(left)
        for pattern, packs in brim.items():
            for length, copies in pattern:
                left[length] -= copies * packs
                alive -= left[length] == 0
            lengths_left.append(alive)
        size = _TAIL
        while size < len(left) / 1.5:
            part = (item for item, alive in zip(brim.items(), lengths_left, strict=True) if alive >= size)
            packed = {pattern: packs for pattern, packs in part if _load(pattern) == self.capacity}
            yield packed, remaining(self.items, packed)
            size *= 2

    def starting(self, brim: Patterns, rest: Histogram) -> list[Pattern]:
        """Patterns to begin the programme for some of the items with."""
        alive = set(rest.lengths.tolist())
        whole = [pattern for pattern in brim if alive.issuperset(length for length, _ in pattern)]
        return [*patterns_of(best_fit_decreasing(rest, capacity=self.capacity)), *whole]

    def improve(
        self, packed: Patterns, rest: Histogram, patterns: Iterable[Pattern], *, enough_only: bool = False
    ) -> None:
        """Pack the rest by the programme; if ``enough_only``, give up where that cannot meet the bound."""
        useless = self.bound - packs_of(packed) + 1 if enough_only else None
        relaxed = self.relax(packed, rest, patterns, useless=useless)
        for number in range(_TRIES):
            self.round(packed, rest, relaxed, share=0.1 / 2**number)
            if self.done or not relaxed.go_on:
                return

    def relax(
        self, packed: Patterns, rest: Histogram, patterns: Iterable[Pattern], *, useless: int | None = None
    ) -> _Relaxed:
        """Solve the programme for the rest until its value rounds up to a bound, or no better pattern exists.

        Args:
            useless: so many packs for the rest are of no use; as many as the best known if None.
        """
        generation = ColumnGeneration(rest, self.capacity, patterns, self.effort)
        before = packs_of(packed)
        more = go_on = True
        while more and go_on:
            if not generation.solve():
                return _Relaxed(generation.solution(), go_on=False)
            self.rounds += 1
            reached = ceil(generation.value - ROUNDING)
            more = reached > max(self.bound - before, generation.bound) and generation.improve()
            if not packed:
                self.bound = max(self.bound, generation.bound)
            elif generation.bound >= (self.num_packs - before if useless is None else useless):
                go_on = False
        return _Relaxed(generation.solution(), go_on)

    def round(self, packed: Patterns, rest: Histogram, relaxed: _Relaxed, share: float) -> None:
        """Whole packs from fractions, by and by: whole parts first, then the rest again."""
        while relaxed.packs:
            taken, rest = settle(rest, relaxed.packs, share)
            packed = add_patterns(packed, taken)
            best_fit = patterns_of(best_fit_decreasing(rest, capacity=self.capacity))
            self.offer(add_patterns(packed, best_fit))
            if self.num_packs <= self.bound or not len(rest.lengths):
                return
            brim = to_the_brim(rest, capacity=self.capacity, effort=self.effort.with_grace())
            if brim:
                self.offer(add_patterns(packed, brim))
            if self.done or not relaxed.go_on:
                return
            relaxed = self.relax(packed, rest, [*best_fit, *brim, *fitted(relaxed.packs, rest)])

    def result(self) -> OptimalResult:
        placements = self.placements if self.found is None else placements_of(self.found)
        _check(placements, self.items, self.capacity)
        gap = placements.num_packs - self.bound
        assert gap >= 0, f"{placements.num_packs} packs are fewer than the bound of {self.bound}"
        return OptimalResult(
            placements=placements,
            num_packs=placements.num_packs,
            bound=self.bound,
            gap=gap,
            seconds=time.perf_counter() - self.effort.begin,
            rounds=self.rounds,
            status=self._status(gap),
        )

    def _status(self, gap: int) -> str:
        if gap == 0:
            return "optimal: packs equal the proven bound"
        above = "one pack above the proven bound" if gap == 1 else f"{gap:,} packs above the proven bound"
        if self.capacity > _CAPACITY:
            return f"capacity too large for the programme over patterns: {above}"
        return f"search limit: {above}" if self.effort.over else above


def _check(placements: Placements, items: Histogram, capacity: int) -> None:
    """Every item in one pack, no pack over the capacity; by patterns, whatever the number of items."""
    patterns = patterns_of(placements)
    assert packs_of(patterns) == placements.num_packs, "an empty pack"
    assert all(_load(pattern) <= capacity for pattern in patterns), "a pack over the capacity"
    assert not len(remaining(items, patterns).lengths), "an item is missing"


def _load(pattern: Pattern) -> int:
    return sum(length * copies for length, copies in pattern)
