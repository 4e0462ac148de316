"""The linear programme over patterns, in HiGHS."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from brimful.plan.effort import Effort

__all__ = ["Programme", "programme_of"]

_STEP = 20
"""Operations of a step of the simplex method, for each row."""

_FOR_EVER = 1e7
"""Seconds, where there is no limit."""


def _steps_left(effort: Effort, rows: int) -> int:
    """Steps of the simplex method that may be taken; 0 if the effort is over."""
    return 0 if effort.over else int(min(2**31 - 1, max(1, effort.operations_left / (_STEP * rows))))


class Programme(Protocol):
    """Fewest packs, fractions allowed, that have a place for every item.

    Row ``i``: places of length ``i``, plus places of length ``i + 1`` that stand in for them, less those of length ``i``
    that stand in for shorter ones, are at least the items of length ``i``.
    """

    value: float

    def add(self, columns: list[tuple[list[int], list[int]]]) -> None:
        """Add patterns: positions of lengths, and copies of each."""

    def solve(self, effort: Effort) -> bool:
        """True if solved, False where the effort was over before or the solver gave up."""

    def prices(self) -> npt.NDArray[np.float64]:
        """What one more item of each length costs, in packs."""

    def packs(self) -> npt.NDArray[np.float64]:
        """Packs of each pattern, in the order they were added."""


def programme_of(counts: npt.NDArray[np.float64]) -> Programme:
    """The programme for so many items of each length, without patterns yet."""
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
        self._counts = counts
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

    def solve(self, effort: Effort) -> bool:
        steps = _steps_left(effort, len(self._counts))
        if steps < 1:
            return False
        self._solver.setOptionValue("time_limit", self._solver.getRunTime() + min(effort.seconds_left, _FOR_EVER))
        self._solver.setOptionValue("simplex_iteration_limit", steps)
        self._solver.run()
        effort.spend(_STEP * len(self._counts) * max(0, self._solver.getInfo().simplex_iteration_count))
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

    def solve(self, effort: Effort) -> bool:
        from scipy.optimize import linprog
        from scipy.sparse import csc_array

        rows = len(self._counts)
        steps = _steps_left(effort, rows)
        if steps < 1:
            return False
        stand_ins = [([longer, longer - 1], [-1, 1]) for longer in range(1, rows)]
        columns = [*self._columns, *stand_ins]
        starts = np.cumsum([0, *(len(places) for places, _ in columns)])
        places = np.array([row for rows, _ in columns for row in rows])
        entries = np.array([copies for _, column in columns for copies in column], dtype=np.float64)
        matrix = csc_array((-entries, places, starts), shape=(rows, len(columns)))
        costs = np.concatenate([np.ones(len(self._columns)), np.zeros(len(stand_ins))])
        options = {"time_limit": min(effort.seconds_left, _FOR_EVER), "maxiter": steps}
        solved = linprog(costs, A_ub=matrix, b_ub=-self._counts, method="highs-ds", options=options)
        effort.spend(_STEP * rows * max(0, int(solved.nit)))
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
