"""A plan's record as reports read it: no other module of this package knows its keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from brimful.plan import Plan

__all__ = ["PlanRecord"]

_KEYS_WITH_A_LINE = ("capacity", "phases", "phase_reports", "dropped_by", "packs_below_min_fill", "groups")
"""Keys that a description shows on lines of their own, or not at all."""


@dataclass(frozen=True)
class PlanRecord:
    """Requested options of a plan, and what its planner noted.

    Attributes:
        algorithm, overflow, seed: as requested.
        budgets: most that a pack holds of each further budget; None without any.
        groups: fingerprint of the groups; None without any.
        dropped_by: number of dropped samples by budget or reason.
        phase_reports: one line for each phase of a recipe.
        packs_below_min_fill: number of such packs before and after they were packed again; None if not requested.
        settings: the whole record, for JSON.
    """

    algorithm: Any
    overflow: Any
    seed: int | None
    budgets: Mapping[str, int] | None
    groups: str | None
    dropped_by: Mapping[str, int]
    phase_reports: Sequence[str]
    packs_below_min_fill: tuple[int, int] | None
    settings: dict[str, Any]

    @classmethod
    def of(cls, plan: Plan) -> PlanRecord:
        """Read the record of a plan.

        >>> from brimful.plan import plan_packs
        >>> PlanRecord.of(plan_packs([3, 5, 12], capacity=8, overflow="drop")).dropped_by
        {'tokens': 1}
        """
        settings = dict(plan.settings)
        return cls(
            algorithm=settings.get("algorithm"),
            overflow=settings.get("overflow"),
            seed=settings.get("seed"),
            budgets=settings.get("budgets"),
            groups=settings.get("groups"),
            dropped_by=settings.get("dropped_by", {}),
            phase_reports=settings.get("phase_reports", ()),
            packs_below_min_fill=settings.get("packs_below_min_fill"),
            settings=settings,
        )

    @property
    def listed_settings(self) -> dict[str, Any]:
        """Settings that fit on one line together."""
        return {key: value for key, value in self.settings.items() if key not in _KEYS_WITH_A_LINE}
