"""The master problem of column generation: a linear program over patterns, solved by HiGHS."""

from importlib.util import find_spec
from typing import Any, TypeAlias

import numpy as np

from brimful.base.ragged import offsets_of
from brimful.base.typing import Float64Array
from brimful.planners.optimal.knapsack import SearchLimit

Column: TypeAlias = tuple[list[int], list[int]]
"""Rows in which a variable has entries, and the entries. For a pattern: positions of lengths,
copies of each.
"""

_OPERATIONS_PER_ROW = 20
"""Operations of one simplex iteration per row."""

_NO_TIME_LIMIT = 1e7
"""Time limit of the solver, in seconds, if the search has none: its options do not accept
infinity.
"""


def installed_solver() -> str:
    """Return the name of the library that solves the problem; empty if it is not installed."""
    return "highspy" if find_spec("highspy") is not None else ""


class MasterProblem:
    """The problem of the fewest packs, with fractions, that have a place for every item.

    ::

        minimize    Σ x[p]                                             packs of pattern p
        subject to  Σ copies[i, p] · x[p] + y[i + 1] - y[i] ≥ demand[i]    for each length i, ascending
                    x, y ≥ 0                                           y[i]: places of length i given to length i - 1

    The substitution columns y (y[0] = 0) let an item of length i - 1 take a place of length i: they
    keep prices ascending (the dual cuts of Valério de Carvalho, 2005), so that few patterns have to
    be generated.

    Args:
        demands: ``float64[num_lengths]``, items of each length, scaled.

    Attributes:
        value: packs of the last solution; infinite before the first.
        prices: dual values of the last solution, ``float64[num_lengths]``: packs that one more item
            of a length costs.
        packs: packs of each pattern in the last solution, in the order in which patterns were
            added.
    """

    prices: Float64Array
    packs: Float64Array

    def __init__(self, demands: Float64Array) -> None:
        import highspy

        self.value = float("inf")
        self._num_rows = len(demands)
        self._optimal = highspy.HighsModelStatus.kOptimal
        self._solver: Any = highspy.Highs()
        for name, option in (("output_flag", False), ("threads", 1), ("parallel", "off")):
            self._solver.setOptionValue(name, option)
        # Rows without entries: each column brings its own.
        no_rows = np.zeros(0, dtype=np.int32)
        row_starts, upper = np.zeros(len(demands), dtype=np.int32), np.full(len(demands), np.inf)
        self._solver.addRows(len(demands), demands, upper, 0, row_starts, no_rows, np.zeros(0))
        substitutions = [([longer, longer - 1], [-1, 1]) for longer in range(1, len(demands))]
        self.add(substitutions, cost=0.0)

    def add(self, columns: list[Column], cost: float = 1.0) -> None:
        """Add patterns."""
        count = len(columns)
        offsets = offsets_of([len(rows) for rows, _ in columns]).astype(np.int32)
        rows = np.array([row for rows, _ in columns for row in rows], dtype=np.int32)
        entries = np.array([entry for _, entries in columns for entry in entries], dtype=np.float64)
        costs, upper = np.full(count, cost), np.full(count, np.inf)
        self._solver.addCols(
            count, costs, np.zeros(count), upper, len(rows), offsets[:-1], rows, entries
        )

    def solve(self, limit: SearchLimit) -> bool:
        """Run the simplex method; return false if the limit was already exhausted or the solver
        gave up.
        """
        if limit.exhausted:
            return False
        operations = _OPERATIONS_PER_ROW * self._num_rows
        max_iterations = int(min(2**31 - 1, max(1, limit.remaining_operations / operations)))
        # The time limit counts all runs of the solver, the iteration limit only this one.
        max_seconds = min(limit.remaining_seconds, _NO_TIME_LIMIT)
        self._solver.setOptionValue("time_limit", self._solver.getRunTime() + max_seconds)
        self._solver.setOptionValue("simplex_iteration_limit", max_iterations)
        self._solver.run()
        limit.spend(operations * max(0, self._solver.getInfo().simplex_iteration_count))
        if self._solver.getModelStatus() != self._optimal:
            return False
        self.value = float(self._solver.getObjectiveValue())
        solution = self._solver.getSolution()
        self.prices = np.array(solution.row_dual, dtype=np.float64)
        self.packs = np.array(solution.col_value, dtype=np.float64)[self._num_rows - 1 :]
        return True
