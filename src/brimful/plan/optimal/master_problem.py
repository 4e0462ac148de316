"""The master problem of column generation: a linear program over patterns, solved by HiGHS."""

from abc import ABC, abstractmethod
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeAlias

import numpy as np

from brimful.base.ragged import offsets_of
from brimful.base.typing import Float64Array, Int32Array
from brimful.plan.optimal.knapsack import SearchLimit

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


class MasterProblem(ABC):
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
        self.value = float("inf")
        self._demands = demands
        self._num_substitutions = len(demands) - 1

    def _substitutions(self) -> list[Column]:
        return [([longer, longer - 1], [-1, 1]) for longer in range(1, len(self._demands))]

    def solve(self, limit: SearchLimit) -> bool:
        """Solve the problem; return false if the limit was already exhausted or the solver gave
        up.
        """
        if limit.exhausted:
            return False
        operations = _OPERATIONS_PER_ROW * len(self._demands)
        max_iterations = int(min(2**31 - 1, max(1, limit.remaining_operations / operations)))
        is_solved, iterations = self._run(
            max_iterations, min(limit.remaining_seconds, _NO_TIME_LIMIT)
        )
        limit.spend(operations * max(0, iterations))
        return is_solved

    @abstractmethod
    def add(self, columns: list[Column]) -> None:
        """Add patterns."""

    @abstractmethod
    def _run(self, max_iterations: int, max_seconds: float) -> tuple[bool, int]:
        """Run the simplex method and set the attributes on success; return whether it succeeded,
        and its iterations.
        """


def installed_solver() -> str:
    """Return the name of the library that solves the problem; empty if none is installed."""
    return next((name for name in ("highspy", "scipy") if find_spec(name) is not None), "")


def import_solver() -> None:
    """Import the installed solver library, if any, before it is needed."""
    if installed_solver():
        import_module(installed_solver())


def master_problem_of(demands: Float64Array) -> MasterProblem:
    """Return the problem for these demands, still without patterns, with the best installed
    solver.
    """
    return HighsMaster(demands) if installed_solver() == "highspy" else ScipyMaster(demands)


class HighsMaster(MasterProblem):
    """The problem in ``highspy``, which keeps the problem and its basis between rounds."""

    def __init__(self, demands: Float64Array) -> None:
        import highspy

        super().__init__(demands)
        self._optimal = highspy.HighsModelStatus.kOptimal
        self._infinity = highspy.kHighsInf
        self._solver: Any = highspy.Highs()
        for name, option in (("output_flag", False), ("threads", 1), ("parallel", "off")):
            self._solver.setOptionValue(name, option)
        rows = len(demands)
        no_entries, no_values = np.zeros(0, dtype=np.int32), np.zeros(0)
        upper = np.full(rows, self._infinity)
        self._solver.addRows(
            rows, demands, upper, 0, np.zeros(rows, dtype=np.int32), no_entries, no_values
        )
        self.add(self._substitutions(), cost=0.0)

    def add(self, columns: list[Column], cost: float = 1.0) -> None:
        if not columns:
            return
        offsets, rows, entries = _sparse(columns)
        number = len(columns)
        costs, lower, upper = (
            np.full(number, cost),
            np.zeros(number),
            np.full(number, self._infinity),
        )
        self._solver.addCols(number, costs, lower, upper, len(rows), offsets[:-1], rows, entries)

    def _run(self, max_iterations: int, max_seconds: float) -> tuple[bool, int]:
        # The time limit counts all runs of the solver, the iteration limit only this one.
        self._solver.setOptionValue("time_limit", self._solver.getRunTime() + max_seconds)
        self._solver.setOptionValue("simplex_iteration_limit", max_iterations)
        self._solver.run()
        iterations = self._solver.getInfo().simplex_iteration_count
        if self._solver.getModelStatus() != self._optimal:
            return False, iterations
        self.value = float(self._solver.getObjectiveValue())
        solution = self._solver.getSolution()
        self.prices = np.array(solution.row_dual, dtype=np.float64)
        self.packs = np.array(solution.col_value, dtype=np.float64)[self._num_substitutions :]
        return True, iterations


class ScipyMaster(MasterProblem):
    """The problem in ``scipy``, which contains the same solver but starts from the beginning in
    each round.
    """

    def __init__(self, demands: Float64Array) -> None:
        super().__init__(demands)
        self._columns: list[Column] = []

    def add(self, columns: list[Column]) -> None:
        self._columns += columns

    def _run(self, max_iterations: int, max_seconds: float) -> tuple[bool, int]:
        from scipy.optimize import linprog
        from scipy.sparse import csc_array

        offsets, rows, entries = _sparse([*self._columns, *self._substitutions()])
        num_patterns = len(self._columns)
        shape = (len(self._demands), num_patterns + self._num_substitutions)
        costs = np.concatenate([np.ones(num_patterns), np.zeros(self._num_substitutions)])
        # linprog supports only ≤: both sides change sign, and so do the dual values.
        matrix = csc_array((-entries, rows, offsets), shape=shape)
        options = {"time_limit": max_seconds, "maxiter": max_iterations}
        solution = linprog(
            costs, A_ub=matrix, b_ub=-self._demands, method="highs-ds", options=options
        )
        if solution.status != 0:
            return False, int(solution.nit)
        self.value = float(solution.fun)
        self.prices = -np.asarray(solution.ineqlin.marginals, dtype=np.float64)
        self.packs = np.asarray(solution.x, dtype=np.float64)[:num_patterns]
        return True, int(solution.nit)


def _sparse(columns: list[Column]) -> tuple[Int32Array, Int32Array, Float64Array]:
    """Return the columns as a compressed sparse matrix: ``offsets[num_columns + 1]``, rows and
    entries.
    """
    offsets = offsets_of([len(rows) for rows, _ in columns]).astype(np.int32)
    flat_rows = np.array([row for rows, _ in columns for row in rows], dtype=np.int32)
    flat_entries = np.array(
        [entry for _, entries in columns for entry in entries], dtype=np.float64
    )
    return offsets, flat_rows, flat_entries
