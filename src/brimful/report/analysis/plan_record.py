"""A plan's record as reports read it: no other module of this package knows its keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from brimful.plan import Plan

__all__ = ["PlanRecord"]

_KEYS_WITH_A_LINE = ("capacity", "phases", "phase_reports", "dropped_by", "packs_below_min_fill", "groups")
"""Keys that a description shows on lines of their own, or not at all."""


@dataclass(frozen=True)
class PlanRecord:
    """Requested options of a plan, and what its planner noted.

    Attributes:
        settings: the whole record, for JSON.
        algorithm, overflow, seed: as requested.
        budgets: most that a pack holds of each further budget; None without any.
        groups: fingerprint of the groups; None without any.
        dropped_by: number of dropped samples by budget or reason.
        phase_reports: one line for each phase of a recipe.
        packs_below_min_fill: number of such packs before and after they were packed again; None if not requested.
    """

    settings: dict[str, Any]
    algorithm: Any = None
    overflow: Any = None
    seed: int | None = None
    budgets: Mapping[str, int] | None = None
    groups: str | None = None
    dropped_by: Mapping[str, int] = field(default_factory=dict)
    phase_reports: Sequence[str] = ()
    packs_below_min_fill: tuple[int, int] | None = None

    @classmethod
    def of(cls, plan: Plan) -> PlanRecord:
        """Read the record of a plan; keys that it lacks keep their defaults.

        >>> from brimful.plan import plan_packs
        >>> record = PlanRecord.of(plan_packs([3, 5, 12], capacity=8, overflow="drop"))
        >>> record.overflow, record.seed, record.budgets
        ('drop', 0, None)
        """
        settings = dict(plan.settings)
        # Plans of an earlier version lack keys, and later ones may have more.
        names = {attribute.name for attribute in fields(cls)} & settings.keys()
        return cls(settings, **{name: settings[name] for name in names})

    @property
    def listed_settings(self) -> dict[str, Any]:
        """Settings that fit on one line together."""
        return {key: value for key, value in self.settings.items() if key not in _KEYS_WITH_A_LINE}
