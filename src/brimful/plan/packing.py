"""Results of an algorithm: items grouped into packs, and the bound."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np

from brimful.base.ragged import offsets_of, ranges
from brimful.base.typing import AnyIntArray, Fingerprint, Int64Array, IntArrayLike, Offsets
from brimful.lengths.table import LengthTable

Packs = TypeVar("Packs", covariant=True)


@dataclass(frozen=True)
class Packing:
    """Items grouped into packs: pack ``i`` holds ``items[offsets[i]:offsets[i + 1]]``.

    Attributes:
        offsets: ``int64[num_packs + 1]``, ascending from 0; no pack is empty.
        items: ``int[num_items]``, positions in the lengths that were packed, each exactly once.

    >>> Packing(np.array([0, 2, 3]), np.array([4, 0, 2])).as_lists()
    [[4, 0], [2]]
    """

    offsets: Offsets
    items: AnyIntArray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> Int64Array:
        """``int64[num_packs]``: items of each pack."""
        return np.diff(self.offsets)

    def take(self, packs: AnyIntArray) -> Packing:
        """Select packs, in the given order: pack ``i`` of the result is pack ``packs[i]`` of this
        packing.

        >>> Packing(np.array([0, 2, 3]), np.array([4, 0, 2])).take(np.array([1, 0])).as_lists()
        [[2], [4, 0]]
        """
        sizes = self.sizes[packs]
        return Packing(offsets_of(sizes), self.items[ranges(self.offsets[:-1][packs], sizes)])

    def joined(self, other: Packing) -> Packing:
        """Return these packs, followed by the packs of another packing."""
        offsets = np.concatenate([self.offsets, self.offsets[-1] + other.offsets[1:]])
        return Packing(offsets, np.concatenate([self.items, other.items]))

    def as_lists(self) -> list[list[int]]:
        """Return packs as lists, for small examples."""
        return [
            self.items[a:b].tolist()
            for a, b in zip(self.offsets[:-1], self.offsets[1:], strict=True)
        ]


@dataclass(frozen=True)
class PlanOutcome:
    """Results of planning that neither the packs nor the ledger contain.

    Attributes:
        description: how far the algorithm came, or how many trees it cut, in words; empty if its
            name says it.
        solver: library that searched for patterns; another may find other packs, but as few. Empty
            without a search.
        phase_reports: one line for each phase of a recipe.
        packs_below_min_fill: number of packs below ``min_fill`` before they were packed again, and
            in the plan; None without ``min_fill``.
        dropped_by: number of samples left out by reason: the name of a budget, or a name that
            ``drop_reason`` knows. Empty if every dropped sample is longer than a pack.
        groups: fingerprint of the groups; None without groups.
        drawn: what the draw of the settings drew (``plan.drawn.Drawn.record``); empty without one.

    >>> PlanOutcome(description="optimal", solver="highspy").as_dict()
    {'outcome': 'optimal', 'solver': 'highspy'}
    """

    description: str = ""
    solver: str = ""
    phase_reports: tuple[str, ...] = ()
    packs_below_min_fill: tuple[int, int] | None = None
    dropped_by: Mapping[str, int] = field(default_factory=dict)
    groups: Fingerprint | None = None
    drawn: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields that are set, for JSON."""
        record: dict[str, Any] = {
            "outcome": self.description,
            "solver": self.solver,
            "phase_reports": list(self.phase_reports),
            "packs_below_min_fill": None
            if self.packs_below_min_fill is None
            else list(self.packs_below_min_fill),
            "dropped_by": dict(self.dropped_by),
            "groups": self.groups,
            "drawn": dict(self.drawn),
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
            packs_below_min_fill=None if below is None else (below[0], below[1]),
            dropped_by=record.get("dropped_by", {}),
            groups=record.get("groups"),
            drawn=record.get("drawn", {}),
        )


@dataclass(frozen=True)
class PackResult(Generic[Packs]):
    """Packs of some items, with a proof of how few packs any plan needs.

    Attributes:
        packs: a ``Packing`` of items, or ``PackRuns`` of counts.
        bound: no packing of the items has fewer packs.
        outcome: what the algorithm reports.
    """

    packs: Packs
    bound: int
    outcome: PlanOutcome = field(default_factory=PlanOutcome)


def loads_of(packing: Packing, sizes: AnyIntArray) -> Int64Array:
    """Sum the sizes in each pack: ``int64[num_packs, num_budgets]``, or ``int64[num_packs]`` for
    one row of sizes.

    >>> loads_of(Packing(np.array([0, 2, 3]), np.array([2, 0, 1])), np.array([[3, 1], [5, 0], [1, 1]])).tolist()
    [[4, 2], [5, 0]]
    """
    loads = np.zeros((len(packing), *sizes.shape[1:]), dtype=np.int64)
    if len(packing):
        # Budget by budget: a column that is gathered alone stays in the cache.
        for load, column in zip(
            loads.reshape(len(loads), -1).T, sizes.reshape(len(sizes), -1).T, strict=True
        ):
            load[:] = np.add.reduceat(column[packing.items], packing.offsets[:-1], dtype=np.int64)
    return loads


def tokens_of(share: float, capacity: int) -> Fraction:
    """Return this share of the capacity exactly, with the share taken as the decimal number that
    was written.

    >>> tokens_of(0.07, 100)  # 0.07 * 100 is 7.000000000000001 in floating point
    Fraction(7, 1)
    """
    return Fraction(repr(float(share))) * capacity


LengthsLike: TypeAlias = LengthTable | IntArrayLike
"""Lengths as callers may pass them: a table, or whole numbers."""
