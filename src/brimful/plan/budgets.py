"""Budgets: the quantities that packs are limited in, as one matrix beside its capacities."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from brimful.errors import InvalidLengthsError, OversizedSampleError, SettingsError
from brimful.measure.table import LengthTable
from brimful.messages import setting
from brimful.plan.overflow import Overflow
from brimful.plan.packing import Packing
from brimful.typing import AnyIntArray, BoolArray, Int64Array

__all__ = ["DERIVED", "Budgets", "loads_of", "over_any"]

DERIVED: Mapping[str, Callable[[Int64Array], Int64Array]] = {
    "samples": np.ones_like,
    "squares": np.square,
}
"""Budgets that follow from the tokens of a segment: 1 each, and length² (what attention costs)."""

_MOST = 2**52
"""Sums up to a capacity stay exact in float64, which the packing's scores are computed in."""

_EXAMPLES = 10

_WITH_LOSS_TOKENS = setting("budgets", "loss_tokens", python='budgets=["tokens", "loss_tokens"]')


@dataclass(frozen=True)
class Budgets:
    """Names and capacities; ``tokens`` is always the first.

    Attributes:
        names: of the budgets, which also give the units.
        capacities: ``int64[num_budgets]``: most of each that a pack may hold. Never exceeded.

    >>> Budgets.of(4096, {"patches": 16384, "samples": 64})
    Budgets(tokens 4,096, patches 16,384, samples 64)
    """

    names: tuple[str, ...]
    capacities: Int64Array

    @classmethod
    def of(cls, capacity: int, budgets: Mapping[str, int] | None = None) -> Budgets:
        """``tokens`` with its capacity, and further budgets with theirs.

        Raises:
            SettingsError: a capacity that is no whole number from 1 to 2**52, or ``tokens`` given twice.
        """
        if budgets and "tokens" in budgets:
            raise SettingsError(
                f"{setting('budgets', {'tokens': budgets['tokens']})}: the capacity in tokens is {setting('capacity')}"
            )
        wanted = {"tokens": capacity, **(budgets or {})}
        for name, most in wanted.items():
            said = setting("capacity") if name == "tokens" else _one_budget(name)
            if isinstance(most, bool) or not isinstance(most, (int, np.integer)):
                raise SettingsError(f"{said} must be a whole number and is {most!r}")
            if not 1 <= most <= _MOST:
                raise SettingsError(f"{said} must be from 1 to {_MOST:,} and is {most:,}")
        return cls(tuple(wanted), np.array(list(wanted.values()), dtype=np.int64))

    def sizes(
        self, table: LengthTable, *, lengths: AnyIntArray, sample_ids: Int64Array | None, rounded: AnyIntArray
    ) -> Int64Array:
        """What each segment takes of each budget: ``int64[num_segments, num_budgets]``.

        A column of the table goes before a derived budget of the same name. A segment that was cut from its sample
        still counts with all the sample takes of a column: at most too much.

        Args:
            table: where the columns are.
            lengths: ``int[num_segments]``, tokens of each segment; what derived budgets are made of.
            sample_ids: ``int64[num_segments]``; None if segment ``i`` is sample ``i``.
            rounded: ``int[num_segments]``, the tokens that the segments take: their lengths, aligned.

        Raises:
            SettingsError: a budget that the table has not, naming those it has.
            InvalidLengthsError: a negative size.
        """
        sizes = np.empty((len(lengths), len(self.names)), dtype=np.int64)
        for at, name in enumerate(self.names):
            if name == "tokens":
                sizes[:, at] = rounded
            elif name in table.budgets:
                column = table.budgets[name]
                sizes[:, at] = column if sample_ids is None else column[sample_ids]
                if len(sizes) and int(sizes[:, at].min()) < 0:
                    row = int(np.argmin(sizes[:, at]))
                    sample = row if sample_ids is None else int(sample_ids[row])
                    raise InvalidLengthsError(f"{name}: sample {sample} has {int(sizes[row, at])}, below 0")
            elif name in DERIVED:
                sizes[:, at] = DERIVED[name](np.asarray(lengths, dtype=np.int64))
            else:
                has = ", ".join([*(column for column in table.budgets if column != "tokens"), *DERIVED])
                ways = f"; lengths measured with {_WITH_LOSS_TOKENS} have them" if name == "loss_tokens" else ""
                raise SettingsError(f"{_one_budget(name)} is unknown: these lengths have {has}{ways}")
        return sizes

    def oversized(
        self, sizes: Int64Array, *, sample_ids: Int64Array | None, policy: Overflow
    ) -> tuple[BoolArray | None, dict[str, int]]:
        """Segments that alone exceed a capacity, and how many by budget.

        A segment that exceeds several counts for the first of them.

        Returns:
            ``bool[num_segments]``, None if there are none, and counts of those that have any.

        Raises:
            OversizedSampleError: the policy is ``error``; names samples, budget and numbers.
            SettingsError: the policy cuts, and what is exceeded are not tokens.
        """
        exceeded = sizes > self.capacities
        if not exceeded.any():
            return None, {}
        over: BoolArray = np.asarray(exceeded.any(axis=1))
        first = np.argmax(exceeded[over], axis=1)
        counts = {name: int(np.count_nonzero(first == at)) for at, name in enumerate(self.names)}
        counts = {name: count for name, count in counts.items() if count}
        if policy is not Overflow.DROP:
            raise self._complaint(sizes, exceeded, sample_ids, policy)
        return over, counts

    def _complaint(
        self, sizes: Int64Array, exceeded: BoolArray, sample_ids: Int64Array | None, policy: Overflow
    ) -> OversizedSampleError | SettingsError:
        at = int(np.argmax(exceeded.any(axis=0)))
        name, most = self.names[at], int(self.capacities[at])
        rows = np.flatnonzero(exceeded[:, at])
        ids = rows if sample_ids is None else sample_ids[rows]
        pairs = zip(ids[:_EXAMPLES].tolist(), sizes[rows[:_EXAMPLES], at].tolist(), strict=True)
        shown = ", ".join(f"{sample_id} ({size:,})" for sample_id, size in pairs)
        more = f" and {len(rows) - _EXAMPLES:,} more" if len(rows) > _EXAMPLES else ""
        longest = int(sizes[rows, at].max())
        larger = setting("capacity", longest) if name == "tokens" else setting("budgets", {name: longest})
        found = f"{len(rows):,} of {len(sizes):,} samples exceed the capacity of {most:,} {name}: sample {shown}{more}"
        if policy is Overflow.ERROR:
            return OversizedSampleError(f"{found}. Choose {setting('overflow', 'drop')}, or {larger}")
        return SettingsError(
            f"{setting('overflow', policy.value)} cuts tokens, not {name}, and {found}. Choose drop, or {larger}"
        )

    def __repr__(self) -> str:
        shown = zip(self.names, self.capacities.tolist(), strict=True)
        return f"Budgets({', '.join(f'{name} {most:,}' for name, most in shown)})"


def loads_of(packing: Packing, sizes: Int64Array) -> Int64Array:
    """``int64[num_packs, num_budgets]``: what each pack holds of each budget.

    >>> loads_of(Packing(np.array([0, 2, 3]), np.array([2, 0, 1])), np.array([[3, 1], [5, 0], [1, 1]])).tolist()
    [[4, 2], [5, 0]]
    """
    loads = np.zeros((len(packing), sizes.shape[1]), dtype=np.int64)
    if len(packing):
        for at in range(sizes.shape[1]):
            loads[:, at] = np.add.reduceat(sizes[packing.items, at], packing.offsets[:-1])
    return loads


def over_any(packing: Packing, sizes: Int64Array, *, capacities: Int64Array) -> BoolArray:
    """``bool[num_packs]``: whether a pack exceeds any capacity."""
    over: BoolArray = np.asarray((loads_of(packing, sizes) > capacities).any(axis=1))
    return over


def _one_budget(name: str) -> str:
    return setting("budgets", name, python=f"budgets[{name!r}]")
