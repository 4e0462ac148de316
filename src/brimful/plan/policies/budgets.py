"""Budgets: the quantities that packs are limited in, as one matrix with its capacities."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from brimful.base.checks import whole_number
from brimful.base.typing import AnyIntArray, Int64Array
from brimful.base.wording import first_few, setting
from brimful.errors import InvalidLengthsError, SettingsError
from brimful.lengths.table import LengthTable

DERIVED: Mapping[str, Callable[[Int64Array], Int64Array]] = {
    "samples": np.ones_like,
    "squares": np.square,
}
"""Budgets that follow from the tokens of a segment: 1 per segment, and length², the cost of attention."""

LOSS_TOKENS = "loss_tokens"
"""Only budget of texts that has to be measured in addition to their tokens."""

_MAX_CAPACITY = 2**52
"""Largest capacity of a budget: sums up to it are exact in float64, in which the scores of packing are computed."""

_WITH_LOSS_TOKENS = setting("budgets", "loss_tokens", python='budgets=["tokens", "loss_tokens"]')


def measured_budgets(budgets: Collection[str], of_encoder: Sequence[str]) -> tuple[str, ...]:
    """Return what has to be measured of samples for a plan with these budgets.

    Args:
        budgets: of the plan, by name.
        of_encoder: those that the encoder of the samples measures.

    Raises:
        SettingsError: a budget that packing cannot measure.

    >>> measured_budgets(["squares", "loss_tokens"], ())
    ('tokens', 'loss_tokens')
    """
    known_budgets = (LOSS_TOKENS, *DERIVED, *of_encoder)
    for name in budgets:
        if name not in known_budgets:
            raise SettingsError(
                f"{setting('budgets', name, python=f'budgets {name!r}')} is unknown: packing can measure "
                f"{', '.join(known_budgets)}"
            )
    return ("tokens", LOSS_TOKENS) if LOSS_TOKENS in budgets else ("tokens",)


@dataclass(frozen=True)
class Budgets:
    """Names and capacities; ``tokens`` is always the first.

    Attributes:
        names: names of the budgets, which are also their units.
        capacities: ``int64[num_budgets]``: limit of each budget in a pack. Never exceeded.

    >>> Budgets.of(4096, {"patches": 16384, "samples": 64})
    Budgets(tokens 4,096, patches 16,384, samples 64)
    """

    names: tuple[str, ...]
    capacities: Int64Array

    @classmethod
    def of(cls, capacity: int, budgets: Mapping[str, int] | None = None) -> Budgets:
        """Make budgets from the capacity of ``tokens`` and from further names and capacities.

        Raises:
            SettingsError: a capacity that is not a whole number from 1 to 2**52, or ``tokens`` given twice.
        """
        if budgets and "tokens" in budgets:
            raise SettingsError(
                f"{setting('budgets', {'tokens': budgets['tokens']})}: the capacity in tokens is {setting('capacity')}"
            )
        limits = {"tokens": capacity, **(budgets or {})}
        for name, limit in limits.items():
            title = setting("capacity") if name == "tokens" else _one_budget(name)
            if not 1 <= whole_number(title, limit) <= _MAX_CAPACITY:
                raise SettingsError(f"{title} must be from 1 to {_MAX_CAPACITY:,} and is {limit:,}")
        return cls(tuple(limits), np.array(list(limits.values()), dtype=np.int64))

    def sizes(
        self, table: LengthTable, *, lengths: AnyIntArray, sample_ids: Int64Array | None, rounded: AnyIntArray
    ) -> Int64Array:
        """Return the size of each segment in each budget: ``int64[num_segments, num_budgets]``.

        A column of the table takes precedence over a derived budget of the same name. A segment that was cut from its
        sample still counts with the sample's whole value of a column: at worst too much.

        Args:
            table: table with the columns.
            lengths: ``int[num_segments]``, tokens of each segment, from which derived budgets follow.
            sample_ids: ``int64[num_segments]``; None if segment ``i`` is sample ``i``.
            rounded: ``int[num_segments]``, the tokens that the segments take: their aligned lengths.

        Raises:
            SettingsError: a budget that the table does not have; names the ones it has.
            InvalidLengthsError: a negative size.
        """
        sizes = np.empty((len(lengths), len(self.names)), dtype=np.int64)
        for column, name in enumerate(self.names):
            if name == "tokens":
                sizes[:, column] = rounded
            elif name in table.budgets:
                values = table.budgets[name]
                sizes[:, column] = values if sample_ids is None else values[sample_ids]
                if len(sizes) and int(sizes[:, column].min()) < 0:
                    row = int(np.argmin(sizes[:, column]))
                    sample = row if sample_ids is None else int(sample_ids[row])
                    raise InvalidLengthsError(f"{name}: sample {sample} has {int(sizes[row, column])}, below 0")
            elif name in DERIVED:
                sizes[:, column] = DERIVED[name](np.asarray(lengths, dtype=np.int64))
            else:
                names = ", ".join([*(stored for stored in table.budgets if stored != "tokens"), *DERIVED])
                ways = f"; lengths measured with {_WITH_LOSS_TOKENS} have them" if name == "loss_tokens" else ""
                raise SettingsError(f"{_one_budget(name)} is unknown: these lengths have {names}{ways}")
        return sizes

    def first_exceeded(self, sizes: Int64Array) -> Int64Array:
        """Return the first budget that each row exceeds, -1 for none: ``int64[num_rows]``."""
        exceeded = sizes > self.capacities
        return np.where(exceeded.any(axis=1), np.argmax(exceeded, axis=1), -1)

    def describe_oversized(self, sizes: Int64Array, sample_ids: Int64Array | None = None) -> tuple[str, str, str]:
        """Return words for samples that exceed a capacity, the setting with which they would fit, and the budget."""
        column, rows = self.exceeding(sizes)
        name = self.names[column]
        verb = "are longer than" if name == "tokens" else "exceed"
        ids = rows if sample_ids is None else sample_ids[rows]
        text = (
            f"{len(rows):,} of {len(sizes):,} samples {verb} the capacity of {int(self.capacities[column]):,} {name}: "
            f"sample {examples_of(ids, sizes[rows, column])}"
        )
        return text, self.larger(column, int(sizes[rows, column].max())), name

    def exceeding(self, sizes: Int64Array) -> tuple[int, Int64Array]:
        """Return the first budget that a row exceeds, and the rows that exceed it; no rows if all fit."""
        exceeded = sizes > self.capacities
        column = int(np.argmax(exceeded.any(axis=0)))
        return column, np.flatnonzero(exceeded[:, column])

    def larger(self, column: int, size: int) -> str:
        """Return the setting with which an item of this size would fit into a pack."""
        name = self.names[column]
        return setting("capacity", size) if name == "tokens" else setting("budgets", {name: size})

    def __repr__(self) -> str:
        limits = zip(self.names, self.capacities.tolist(), strict=True)
        return f"Budgets({', '.join(f'{name} {limit:,}' for name, limit in limits)})"


def examples_of(sample_ids: AnyIntArray, sizes: AnyIntArray) -> str:
    """Return the first samples with their sizes, and the number of the rest.

    >>> examples_of(np.array([7, 12]), np.array([9000, 4100]))
    '7 (9,000), 12 (4,100)'
    """
    pairs = zip(sample_ids, sizes, strict=True)
    return first_few((f"{sample_id} ({size:,})" for sample_id, size in pairs), len(sample_ids))


def _one_budget(name: str) -> str:
    return setting("budgets", name, python=f"budgets[{name!r}]")
