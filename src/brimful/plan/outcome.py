"""Results of planning in addition to the packs: how far the algorithm came, and reasons for dropped samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from brimful.typing import Fingerprint


@dataclass(frozen=True)
class PlanOutcome:
    """Results of planning that neither the packs nor the ledger contain.

    Attributes:
        description: how far the algorithm came, in words; empty if its name says it.
        solver: library that searched for patterns; another may find other packs, but as few. Empty without a search.
        phase_reports: one line for each phase of a recipe.
        packs_below_min_fill: number of packs below ``min_fill`` before they were packed again, and in the plan; None
            without ``min_fill``.
        dropped_by: number of samples left out by reason: the name of a budget, or a name that ``drop_reason`` knows.
            Empty if every dropped sample is longer than a pack.
        groups: fingerprint of the groups; None without groups.
        mixed: requested and realized shares of each source (``mixture_record``); empty without a mixture.

    >>> PlanOutcome(description="optimal", solver="highspy").as_dict()
    {'outcome': 'optimal', 'solver': 'highspy'}
    """

    description: str = ""
    solver: str = ""
    phase_reports: tuple[str, ...] = ()
    packs_below_min_fill: tuple[int, int] | None = None
    dropped_by: Mapping[str, int] = field(default_factory=dict)
    groups: Fingerprint | None = None
    mixed: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields that are set, for JSON."""
        record: dict[str, Any] = {
            "outcome": self.description,
            "solver": self.solver,
            "phase_reports": list(self.phase_reports),
            "packs_below_min_fill": None if self.packs_below_min_fill is None else list(self.packs_below_min_fill),
            "dropped_by": dict(self.dropped_by),
            "groups": self.groups,
            "mixed": dict(self.mixed),
        }
        return {name: value for name, value in record.items() if value}

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> PlanOutcome:
        """Read the outcome from the record of a plan file, which also holds its settings."""
        below = record.get("packs_below_min_fill")
        return cls(
            description=record.get("outcome", ""),
            solver=record.get("solver", ""),
            phase_reports=tuple(record.get("phase_reports", ())),
            packs_below_min_fill=None if below is None else (int(below[0]), int(below[1])),
            dropped_by=dict(record.get("dropped_by", {})),
            groups=record.get("groups"),
            mixed=dict(record.get("mixed", {})),
        )
