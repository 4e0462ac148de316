"""Column generation: from prices to better patterns, and to a proven bound."""

from bisect import bisect_right
from collections.abc import Iterable
from math import ceil

import numpy as np

from brimful.base.typing import Float64Array, Int64Array
from brimful.plan.counts.histogram import Histogram
from brimful.planners.optimal.knapsack import SearchLimit, best_content, solve_knapsack
from brimful.planners.optimal.master_problem import MasterProblem
from brimful.planners.patterns import Pattern, pattern_of

SOLVER_TOLERANCE = 1e-6
"""Packs by which the solver may be wrong. This decides when the search stops, never what is
claimed.
"""

_CENTER_WEIGHTS = (0.5, 0.0)
"""Shares of the best proven prices in the prices of the pricing problem; the next one is used if
one adds nothing.
"""


class ColumnGeneration:
    """The linear relaxation of bin packing over all patterns, solved by patterns that are generated
    when needed.

    All patterns would be too many to list. The master problem has a few of them (its columns); its
    dual values are prices of the lengths, in packs. A pattern whose items are worth more than one
    pack at these prices has the reduced cost ``1 - Σ copies · price < 0`` and improves the master
    problem; the pricing problem, a knapsack, finds it. If the knapsack finds no such pattern, the
    relaxation is solved.

    Bound of Farley (1990): let ``v`` be the largest value of any pattern at prices ``π ≥ 0``. Then
    ``π / v`` is feasible in the dual, and no plan has fewer packs than ::

        ⌈ Σ count[i] · π[i] / v ⌉

    for any such prices. Here prices are first rounded down to whole numbers, so sum and ``v`` are
    exact.

    Args:
        items: at least one, none longer than the capacity.
        patterns: the first columns; together they contain every length.
        limit: limit of the search.

    Attributes:
        columns: the patterns of the master problem, in its order.
        value: packs of its last solution, with fractions; infinite before the first.
        bound: no packing of the items has fewer packs.
    """

    def __init__(
        self, items: Histogram, capacity: int, patterns: Iterable[Pattern], limit: SearchLimit
    ) -> None:
        self.items = items
        self.capacity = capacity
        self.limit = limit
        self.lengths: list[int] = items.lengths.tolist()
        self.position = {length: position for position, length in enumerate(self.lengths)}
        self.columns: dict[Pattern, None] = {}  # a set in order of insertion
        self.value = float("inf")
        self.bound = 0
        # Prices of the best bound so far, and this bound before rounding; initially a length costs
        # its part of a pack.
        self.center = items.lengths / capacity
        self.center_value = 0.0
        # The solver's tolerances are absolute: scaled demands are near 1 for any number of items.
        self.scale = max(1.0, items.num_items / 1e6)
        self.master = MasterProblem(items.counts / self.scale)
        self._add(list(dict.fromkeys(patterns)))

    def _add(self, patterns: list[Pattern]) -> None:
        self.master.add(
            [
                (
                    [self.position[length] for length, _ in pattern],
                    [copies for _, copies in pattern],
                )
                for pattern in patterns
            ]
        )
        self.columns.update(dict.fromkeys(patterns))

    def solve_master(self) -> bool:
        """Solve the master problem; return false if the limit was exhausted or the solver gave
        up.
        """
        if not self.master.solve(self.limit):
            return False
        self.value = self.master.value * self.scale
        return True

    def solution(self) -> dict[Pattern, float]:
        """Return the packs of each used pattern, with fractions; empty before the first
        solution.
        """
        if self.value == float("inf"):
            return {}
        # Columns that were added since the last solution have no packs yet.
        packs = (self.master.packs * self.scale).tolist()
        return {
            pattern: x
            for pattern, x in zip(self.columns, packs, strict=False)
            if x > SOLVER_TOLERANCE
        }

    def add_columns(self) -> bool:
        """Add patterns of negative reduced cost and raise the bound.

        Returns:
            False if no such pattern exists, or the limit was exhausted.
        """
        duals = np.maximum(self.master.prices, 0.0)
        for weight in _CENTER_WEIGHTS:
            # Stabilization by Wentges (1997): prices between the best proven prices and the duals
            # oscillate less.
            num_columns = self._solve_pricing(weight * self.center + (1 - weight) * duals, duals)
            if num_columns is None:
                return False
            if num_columns or ceil(self.value - SOLVER_TOLERANCE) <= self.bound:
                return num_columns > 0
        return False

    def _solve_pricing(self, prices: Float64Array, duals: Float64Array) -> int | None:
        """Solve the knapsack at these prices, for a bound and for patterns that improve the
        solution at the duals.

        Returns:
            Number of patterns added; None if the limit was exhausted.
        """
        # Prices as whole numbers of 1 / unit, small enough that no sum overflows: a full pack is
        # worth at most the best price per token times the capacity, below 2⁶¹ units.
        max_worth = float((prices / self.items.lengths).max()) * self.capacity
        unit = min(2.0**50, 2.0**61 / max(max_worth, 1.0))
        values: Int64Array = np.floor(prices * unit).astype(np.int64)
        # A length that is not worth more than a shorter one is dominated: the shorter one replaces
        # it.
        shorter_maximum = np.concatenate([[0], np.maximum.accumulate(values)[:-1]])
        useful_positions = np.flatnonzero(values > shorter_maximum)
        lengths = self.items.lengths[useful_positions]
        tables = solve_knapsack(
            lengths, values[useful_positions], capacity=self.capacity, limit=self.limit
        )
        if tables is None:
            return None
        best, last = tables
        pack_value = int(best[self.capacity])
        if pack_value == 0:
            return 0

        # Farley's bound, in Python's whole numbers; -(-a // b) rounds up.
        total = sum(
            count * value
            for count, value in zip(self.items.counts.tolist(), values.tolist(), strict=True)
        )
        self.bound = max(self.bound, -(-total // pack_value))
        if total / pack_value > self.center_value:
            self.center_value = total / pack_value
            self.center = prices * (unit / pack_value)
        # For each length the best pattern with it, if new and of negative reduced cost; best first.
        price = duals.tolist()
        pattern_values = values[useful_positions] + best[self.capacity - lengths]
        max_patterns = max(100, len(self.lengths) // 4)
        patterns: dict[Pattern, None] = {}
        for index in np.argsort(-pattern_values, kind="stable").tolist():
            room = self.capacity - int(lengths[index])
            content = useful_positions[[index, *best_content(lengths, last, room)]].tolist()
            positions = self._without_slack(content)
            # The tolerance excludes patterns to which the solver would give the reduced cost 0.
            if sum(price[position] for position in positions) <= 1 + 1e-9:
                continue
            pattern = pattern_of(self.lengths, positions)
            if pattern not in self.columns:
                patterns[pattern] = None
                if len(patterns) == max_patterns:
                    break
        self._add(list(patterns))
        return len(patterns)

    def _without_slack(self, positions: list[int]) -> list[int]:
        """Replace lengths by longer ones and add further lengths while the pattern has room.

        By substitution, a place for a longer length can also hold a shorter one: this never makes a
        pattern worse.
        """
        lengths = self.lengths
        room = self.capacity - sum(lengths[position] for position in positions)
        filled_positions = []
        for position in sorted(positions, reverse=True):
            longer = bisect_right(lengths, lengths[position] + room) - 1
            room -= lengths[longer] - lengths[position]
            filled_positions.append(longer)
        while (further := bisect_right(lengths, room) - 1) >= 0:
            filled_positions.append(further)
            room -= lengths[further]
        return filled_positions
