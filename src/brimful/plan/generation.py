"""Column generation: from prices to better patterns, and to a bound that holds."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from math import ceil

import numpy as np
import numpy.typing as npt

from brimful.plan.effort import Effort
from brimful.plan.histogram import Histogram
from brimful.plan.patterns import Pattern, of_positions
from brimful.plan.pricing import Knapsack
from brimful.plan.programme import programme_of
from brimful.plan.rounding import ROUNDING
from brimful.typing import Int64Array

__all__ = ["ColumnGeneration"]


class ColumnGeneration:
    """Column generation: the programme over the patterns known so far, and better ones from its prices."""

    def __init__(self, items: Histogram, capacity: int, patterns: Iterable[Pattern], effort: Effort) -> None:
        self.items = items
        self.capacity = capacity
        self.effort = effort
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
        self.programme = programme_of(items.counts / self.scale)
        self.programme.add([self._column(pattern) for pattern in self.patterns])

    def _column(self, pattern: Pattern) -> tuple[list[int], list[int]]:
        return [self.position[length] for length, _ in pattern], [copies for _, copies in pattern]

    def solve(self) -> bool:
        """Solve the programme; False if the effort was over or the solver gave up."""
        if not self.programme.solve(self.effort):
            return False
        self.value = self.programme.value * self.scale
        return True

    def solution(self) -> dict[Pattern, float]:
        """Packs of each pattern, those that are used."""
        if self.value == float("inf"):
            return {}
        packs = self.programme.packs() * self.scale
        return {self.patterns[at]: float(packs[at]) for at in np.flatnonzero(packs > ROUNDING).tolist()}

    def improve(self) -> bool:
        """Add patterns worth more than a pack at the programme's prices; False if there are none or the effort is over."""
        prices = np.maximum(self.programme.prices(), 0.0)
        for weight in (0.5, 0.0):
            # Prices between the best proven ones and the programme's jump about less from round to round.
            added = self._improve(weight * self.center + (1 - weight) * prices, prices)
            if added is None:
                return False
            if added or ceil(self.value - ROUNDING) <= self.bound:
                return added > 0
        return False

    def _improve(self, asked: npt.NDArray[np.float64], prices: npt.NDArray[np.float64]) -> int | None:
        """Solve the knapsack at the prices asked: the bound, and patterns. Returns how many; None: the effort is over."""
        # Whole numbers, small enough that no sum overflows: no pack is worth more than its best value per token allows.
        most = float((asked / self.items.lengths).max()) * self.capacity
        unit = min(2.0**50, 2.0**61 / max(most, 1.0))
        values: Int64Array = np.floor(asked * unit).astype(np.int64)
        # A length worth no more than a shorter one is never needed.
        worth = np.flatnonzero(values > np.concatenate([[0], np.maximum.accumulate(values)[:-1]]))
        knapsack = Knapsack(self.items.lengths[worth], values[worth], capacity=self.capacity)
        if not knapsack.solve(self.effort):
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
