"""Optimal packs: the linear programme over patterns, with a proof of how good they are."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from math import ceil
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from brimful.errors import missing_extra
from brimful.plan.best_fit_decreasing import best_fit_decreasing
from brimful.plan.bound import lower_bound
from brimful.plan.histogram import Histogram, Placements
from brimful.plan.patterns import (
    Pattern,
    Patterns,
    add_patterns,
    of_positions,
    packs_of,
    patterns_of,
    placements_of,
    remaining,
    to_the_brim,
)
from brimful.plan.pricing import Knapsack
from brimful.typing import Int64Array

__all__ = ["OptimalResult", "pack_optimally"]

_CAPACITY = 1 << 24
"""Above this the knapsack's tables, with an entry for each size, are not worth their memory."""

_ROUNDING = 1e-6
"""What the solver may be off by, in packs. It decides when to stop looking, never what is claimed."""

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
    items: Histogram, *, capacity: int, start: Placements | None = None, time_limit: float
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

    Pure: no I/O, no randomness. The same arguments give the same packs with the same version of the solver, unless the
    time limit strikes: then the best packs so far are returned, and a bound that holds.

    Args:
        items: how many there are of each length, none longer than the capacity.
        capacity: most that a pack holds, at least 1.
        start: a packing of these items to improve on; the result never has more packs.
        time_limit: seconds of wall time, looked at between rounds; 0 returns best fit decreasing with the bound L2.

    Raises:
        MissingExtraError: neither highspy nor scipy is installed.

    Cost: does not depend on the number of items. A round is a programme of as many rows as there are different
    lengths, and O(different lengths · capacity) for the knapsack.

    >>> result = pack_optimally(Histogram.of(np.array([4, 4, 3, 3, 3, 3])), capacity=10, time_limit=10)
    >>> result.num_packs, result.bound, result.status
    (2, 2, 'optimal: packs equal the proven bound')
    """
    if find_spec("highspy") is None and find_spec("scipy") is None:
        raise missing_extra("scipy", "optimal", "--algorithm optimal")
    search = _Search(items, capacity, time_limit)
    search.run(start)
    return search.result()


@dataclass(frozen=True)
class _Relaxed:
    """Packs of each pattern, fractions; and whether whole packs from it may be of use beyond a first rounding."""

    packs: dict[Pattern, float]
    go_on: bool


class _Search:
    """One call of ``pack_optimally``: the best packs so far, the bound so far, and the clock."""

    def __init__(self, items: Histogram, capacity: int, time_limit: float) -> None:
        self.items = items
        self.capacity = capacity
        self.begin = time.perf_counter()
        self.deadline = self.begin + time_limit
        self.rounds = 0
        self.bound = lower_bound(items, capacity=capacity)
        self.placements = best_fit_decreasing(items, capacity=capacity)
        self.found: Patterns | None = None  # better than ``placements``, if not None

    @property
    def num_packs(self) -> int:
        return self.placements.num_packs if self.found is None else packs_of(self.found)

    @property
    def done(self) -> bool:
        return self.num_packs <= self.bound or self.late

    @property
    def late(self) -> bool:
        return time.perf_counter() >= self.deadline

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
        brim = to_the_brim(self.items, capacity=self.capacity, deadline=self.deadline)
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
        generation = _Generation(rest, self.capacity, patterns, self.deadline)
        before = packs_of(packed)
        more = go_on = True
        while more and go_on:
            if not generation.solve():
                return _Relaxed(generation.solution(), go_on=False)
            self.rounds += 1
            reached = ceil(generation.value - _ROUNDING)
            more = reached > max(self.bound - before, generation.bound) and generation.improve()
            if not packed:
                self.bound = max(self.bound, generation.bound)
            elif generation.bound >= (self.num_packs - before if useless is None else useless):
                go_on = False
        return _Relaxed(generation.solution(), go_on)

    def round(self, packed: Patterns, rest: Histogram, relaxed: _Relaxed, share: float) -> None:
        """Whole packs from fractions, by and by: whole parts first, then the rest again."""
        while relaxed.packs:
            taken, rest = _settle(rest, relaxed.packs, share)
            packed = add_patterns(packed, taken)
            best_fit = patterns_of(best_fit_decreasing(rest, capacity=self.capacity))
            self.offer(add_patterns(packed, best_fit))
            if self.num_packs <= self.bound or not len(rest.lengths):
                return
            brim = to_the_brim(rest, capacity=self.capacity, deadline=max(self.deadline, time.perf_counter() + 1))
            if brim:
                self.offer(add_patterns(packed, brim))
            if self.done or not relaxed.go_on:
                return
            relaxed = self.relax(packed, rest, [*best_fit, *brim, *_fitted(relaxed.packs, rest)])

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
            seconds=time.perf_counter() - self.begin,
            rounds=self.rounds,
            status=self._status(gap),
        )

    def _status(self, gap: int) -> str:
        if gap == 0:
            return "optimal: packs equal the proven bound"
        above = "one pack above the proven bound" if gap == 1 else f"{gap:,} packs above the proven bound"
        if self.capacity > _CAPACITY:
            return f"capacity too large for the programme over patterns: {above}"
        return f"time limit: {above}" if self.late else above


def _check(placements: Placements, items: Histogram, capacity: int) -> None:
    """Every item in one pack, no pack over the capacity; by patterns, whatever the number of items."""
    patterns = patterns_of(placements)
    assert packs_of(patterns) == placements.num_packs, "an empty pack"
    assert all(_load(pattern) <= capacity for pattern in patterns), "a pack over the capacity"
    assert not len(remaining(items, patterns).lengths), "an item is missing"


def _load(pattern: Pattern) -> int:
    return sum(length * copies for length, copies in pattern)


def _fitted(patterns: Iterable[Pattern], items: Histogram) -> list[Pattern]:
    """The patterns with each length replaced by the longest one not above it that items have."""
    lengths = items.lengths.tolist()
    fitted = []
    for pattern in patterns:
        positions = [bisect_right(lengths, length) - 1 for length, copies in pattern for _ in range(copies)]
        positions = [position for position in positions if position >= 0]
        if positions:
            fitted.append(of_positions(lengths, positions))
    return fitted


def _settle(items: Histogram, relaxed: Mapping[Pattern, float], share: float) -> tuple[Patterns, Histogram]:
    """Packs for the whole parts of a solution, and the items that are left.

    Where whole parts are less than a ``share`` of it, so much is rounded up, the largest fractions first.
    """
    whole = {pattern: int(packs + _ROUNDING) for pattern, packs in relaxed.items()}
    up = max(1, int(share * sum(relaxed.values()))) - packs_of(whole)
    if up > 0:
        part = sorted(relaxed, key=lambda pattern: (whole[pattern] - relaxed[pattern], pattern))
        for pattern in part[:up]:
            whole[pattern] += 1
    wanted = {pattern: packs for pattern, packs in whole.items() if packs}
    taken = _fill_places(items, wanted)
    if not taken:  # a pattern may ask for more items of a length than there are
        taken = _fill_places(items, {next(iter(wanted)): 1}, complete=False)
    assert taken, "rounding takes at least one pack"
    return taken, remaining(items, taken)


def _fill_places(items: Histogram, wanted: Mapping[Pattern, int], *, complete: bool = True) -> Patterns:
    """Packs of the wanted patterns with real items in their places.

    The programme lets shorter items stand in for longer ones. Places go to items of their own length first; what is
    too many of a length goes to the longest shorter items that no pattern has a place for. A pack with a place that
    stays empty is not made, if they are to be ``complete``: its items are packed with the rest.
    """
    lengths = items.lengths.tolist()
    position = {length: at for at, length in enumerate(lengths)}
    own = dict.fromkeys(range(len(lengths)), 0)
    for pattern, packs in wanted.items():
        for length, copies in pattern:
            own[position[length]] += copies * packs
    left = items.counts.tolist()
    own_left = [min(own[at], left[at]) for at in range(len(lengths))]
    free = [left[at] - own_left[at] for at in range(len(lengths))]
    below = list(range(len(lengths)))  # below[at]: where to look for the longest free length up to ``at``

    def longest_free(at: int, held: Mapping[int, int]) -> int:
        at = below[at] if free[at] == 0 else at
        while at >= 0 and free[at] <= held.get(at, 0):
            if free[at] == 0:
                below[at] = below[at - 1] if at and free[at - 1] == 0 else at - 1
                at = below[at]
            else:
                at -= 1
        return at

    made: Patterns = {}
    for pattern, packs in sorted(wanted.items(), reverse=True):
        while packs:
            from_own: dict[int, int] = {}
            from_free: dict[int, int] = {}
            empty = 0
            for length, copies in pattern:
                at = position[length]
                owned = min(copies, own_left[at])
                if owned:
                    from_own[at] = owned
                for _ in range(copies - owned):
                    stand_in = longest_free(at, from_free)
                    if stand_in < 0:
                        empty += 1
                    else:
                        from_free[stand_in] = from_free.get(stand_in, 0) + 1
            if (empty and complete) or not (from_own or from_free):
                break
            times = min(
                packs,
                *(own_left[at] // copies for at, copies in from_own.items()),
                *(free[at] // copies for at, copies in from_free.items()),
            )
            held: Counter[int] = Counter()
            for part, store in ((from_own, own_left), (from_free, free)):
                for at, copies in part.items():
                    store[at] -= copies * times
                    held[at] += copies
            content = tuple((lengths[at], held[at]) for at in sorted(held, reverse=True))
            made[content] = made.get(content, 0) + times
            packs -= times
    return made


class _Generation:
    """Column generation: the programme over the patterns known so far, and better ones from its prices."""

    def __init__(self, items: Histogram, capacity: int, patterns: Iterable[Pattern], deadline: float) -> None:
        self.items = items
        self.capacity = capacity
        self.deadline = deadline
        self.lengths: list[int] = items.lengths.tolist()
        self.position = {length: at for at, length in enumerate(self.lengths)}
        self.patterns = list(dict.fromkeys(patterns))
        self.known = set(self.patterns)
        self.value = float("inf")
        self.bound = 0
        # Prices of the best bound so far; at first every length costs its part of a pack.
        self.center = items.lengths / capacity
        self.center_value = 0.0
        # Counts in the programme stay near 1: its tolerances are absolute.
        self.scale = max(1.0, items.num_items / 1e6)
        self.programme = _programme(items.counts / self.scale)
        self.programme.add([self._column(pattern) for pattern in self.patterns])

    def _column(self, pattern: Pattern) -> tuple[list[int], list[int]]:
        return [self.position[length] for length, _ in pattern], [copies for _, copies in pattern]

    def solve(self) -> bool:
        """Solve the programme; False if the time was up or the solver gave up."""
        left = self.deadline - time.perf_counter()
        if left <= 0 or not self.programme.solve(left):
            return False
        self.value = self.programme.value * self.scale
        return True

    def solution(self) -> dict[Pattern, float]:
        """Packs of each pattern, those that are used."""
        if self.value == float("inf"):
            return {}
        packs = self.programme.packs() * self.scale
        return {self.patterns[at]: float(packs[at]) for at in np.flatnonzero(packs > _ROUNDING).tolist()}

    def improve(self) -> bool:
        """Add patterns worth more than a pack at the programme's prices; False if there are none or the time is up."""
        prices = np.maximum(self.programme.prices(), 0.0)
        for weight in (0.5, 0.0):
            # Prices between the best proven ones and the programme's jump about less from round to round.
            added = self._improve(weight * self.center + (1 - weight) * prices, prices)
            if added is None:
                return False
            if added or ceil(self.value - _ROUNDING) <= self.bound:
                return added > 0
        return False

    def _improve(self, asked: npt.NDArray[np.float64], prices: npt.NDArray[np.float64]) -> int | None:
        """Solve the knapsack at the prices asked: the bound, and patterns. Returns how many; None: time is up."""
        # Whole numbers, small enough that no sum overflows: no pack is worth more than its best value per token allows.
        most = float((asked / self.items.lengths).max()) * self.capacity
        unit = min(2.0**50, 2.0**61 / max(most, 1.0))
        values: Int64Array = np.floor(asked * unit).astype(np.int64)
        # A length worth no more than a shorter one is never needed.
        worth = np.flatnonzero(values > np.concatenate([[0], np.maximum.accumulate(values)[:-1]]))
        knapsack = Knapsack(self.items.lengths[worth], values[worth], capacity=self.capacity)
        if not knapsack.solve(self.deadline):
            return None
        most_worth = int(knapsack.best[self.capacity])
        if most_worth == 0:
            return 0
        total = sum(count * value for count, value in zip(self.items.counts.tolist(), values.tolist(), strict=True))
        self.bound = max(self.bound, -(-total // most_worth))
        if total / most_worth > self.center_value:
            self.center_value = total / most_worth
            self.center = asked * (unit / most_worth)
        new = self._patterns(knapsack, worth, prices)
        self.programme.add([self._column(pattern) for pattern in new])
        self.patterns += new
        self.known.update(new)
        return len(new)

    def _patterns(self, knapsack: Knapsack, worth: Int64Array, prices: npt.NDArray[np.float64]) -> list[Pattern]:
        """For each length the best pattern that holds it, the best of these first; those worth more than a pack."""
        price = prices.tolist()
        with_it = knapsack.values + knapsack.best[self.capacity - knapsack.lengths]
        most = max(100, len(self.lengths) // 4)
        new: list[Pattern] = []
        seen: set[Pattern] = set()
        for at in np.argsort(-with_it, kind="stable").tolist():
            rest = self.capacity - int(knapsack.lengths[at])
            positions = [int(worth[at]), *(int(worth[other]) for other in knapsack.contents(rest))]
            positions = self._widened(positions)
            if sum(price[position] for position in positions) <= 1 + 1e-9:
                continue
            pattern = of_positions(self.lengths, positions)
            if pattern not in self.known and pattern not in seen:
                seen.add(pattern)
                new.append(pattern)
                if len(new) == most:
                    break
        return new

    def _widened(self, positions: list[int]) -> list[int]:
        """The same pattern with longer lengths, and further ones, in the room it leaves: a place is good for shorter."""
        lengths = self.lengths
        room = self.capacity - sum(lengths[position] for position in positions)
        wide = []
        for position in sorted(positions, reverse=True):
            wider = bisect_right(lengths, lengths[position] + room) - 1
            room -= lengths[wider] - lengths[position]
            wide.append(wider)
        while (more := bisect_right(lengths, room) - 1) >= 0:
            wide.append(more)
            room -= lengths[more]
        return wide


class _Programme(Protocol):
    """Fewest packs, fractions allowed, that have a place for every item.

    Row ``i``: places of length ``i``, plus places of length ``i + 1`` that stand in for them, less those of length ``i``
    that stand in for shorter ones, are at least the items of length ``i``.
    """

    value: float

    def add(self, columns: list[tuple[list[int], list[int]]]) -> None:
        """Add patterns: positions of lengths, and copies of each."""

    def solve(self, seconds: float) -> bool:
        """True if solved."""

    def prices(self) -> npt.NDArray[np.float64]:
        """What one more item of each length costs, in packs."""

    def packs(self) -> npt.NDArray[np.float64]:
        """Packs of each pattern, in the order they were added."""


def _programme(counts: npt.NDArray[np.float64]) -> _Programme:
    return _Kept(counts) if find_spec("highspy") is not None else _Afresh(counts)


class _Kept:
    """With highspy: the programme stays in the solver, and so does its basis."""

    def __init__(self, counts: npt.NDArray[np.float64]) -> None:
        import highspy

        self.value = float("inf")
        self._optimal = highspy.HighsModelStatus.kOptimal
        self._infinity = highspy.kHighsInf
        self._solver: Any = highspy.Highs()
        for name, setting in (("output_flag", False), ("threads", 1), ("parallel", "off")):
            self._solver.setOptionValue(name, setting)
        rows = len(counts)
        none = np.zeros(0, dtype=np.int32)
        ends = np.full(rows, self._infinity)
        self._solver.addRows(rows, counts, ends, 0, np.zeros(rows, dtype=np.int32), none, np.zeros(0))
        self._stand_ins = rows - 1
        self._add([([longer, longer - 1], [-1, 1]) for longer in range(1, rows)], cost=0.0)

    def add(self, columns: list[tuple[list[int], list[int]]]) -> None:
        self._add(columns, cost=1.0)

    def _add(self, columns: list[tuple[list[int], list[int]]], cost: float) -> None:
        number = len(columns)
        if not number:
            return
        starts = np.zeros(number, dtype=np.int32)
        np.cumsum([len(rows) for rows, _ in columns[:-1]], out=starts[1:])
        rows = np.array([row for rows, _ in columns for row in rows], dtype=np.int32)
        entries = np.array([copies for _, column in columns for copies in column], dtype=np.float64)
        costs, least, most = np.full(number, cost), np.zeros(number), np.full(number, self._infinity)
        self._solver.addCols(number, costs, least, most, len(rows), starts, rows, entries)

    def solve(self, seconds: float) -> bool:
        self._solver.setOptionValue("time_limit", self._solver.getRunTime() + seconds)
        self._solver.run()
        if self._solver.getModelStatus() != self._optimal:
            return False
        self.value = float(self._solver.getObjectiveValue())
        self._solution = self._solver.getSolution()
        return True

    def prices(self) -> npt.NDArray[np.float64]:
        return np.array(self._solution.row_dual, dtype=np.float64)

    def packs(self) -> npt.NDArray[np.float64]:
        return np.array(self._solution.col_value, dtype=np.float64)[self._stand_ins :]


class _Afresh:
    """With scipy: the same programme, solved from the beginning each time."""

    def __init__(self, counts: npt.NDArray[np.float64]) -> None:
        self.value = float("inf")
        self._counts = counts
        self._columns: list[tuple[list[int], list[int]]] = []

    def add(self, columns: list[tuple[list[int], list[int]]]) -> None:
        self._columns += columns

    def solve(self, seconds: float) -> bool:
        from scipy.optimize import linprog
        from scipy.sparse import csc_array

        rows = len(self._counts)
        stand_ins = [([longer, longer - 1], [-1, 1]) for longer in range(1, rows)]
        columns = [*self._columns, *stand_ins]
        starts = np.cumsum([0, *(len(places) for places, _ in columns)])
        places = np.array([row for rows, _ in columns for row in rows])
        entries = np.array([copies for _, column in columns for copies in column], dtype=np.float64)
        matrix = csc_array((-entries, places, starts), shape=(rows, len(columns)))
        costs = np.concatenate([np.ones(len(self._columns)), np.zeros(len(stand_ins))])
        options = {"time_limit": max(seconds, 0.01)}
        solved = linprog(costs, A_ub=matrix, b_ub=-self._counts, method="highs-ds", options=options)
        if solved.status != 0:
            return False
        self.value = float(solved.fun)
        self._prices = -np.asarray(solved.ineqlin.marginals, dtype=np.float64)
        self._packs = np.asarray(solved.x, dtype=np.float64)[: len(self._columns)]
        return True

    def prices(self) -> npt.NDArray[np.float64]:
        return self._prices

    def packs(self) -> npt.NDArray[np.float64]:
        return self._packs
