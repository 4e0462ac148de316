"""What share each source has of the samples and tokens, before packing and after it.

Long sources lose most to dropping and cutting, so a mixture may not be what it was set to be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from brimful.errors import SettingsError
from brimful.measure import LengthTable
from brimful.messages import setting
from brimful.plan import Plan
from brimful.typing import AnyIntArray

__all__ = ["SourceShare", "source_shares", "sources_of_table"]


@dataclass(frozen=True)
class SourceShare:
    """One source: its samples and tokens in all, and those that are in packs."""

    name: str
    samples: int
    tokens: int
    samples_packed: int
    tokens_packed: int


def source_shares(
    sources: AnyIntArray, names: Sequence[str], table: LengthTable, plan: Plan | None
) -> list[SourceShare]:
    """Count by source.

    Pure: no I/O. Rejected samples have no length and are not counted.

    Args:
        sources: ``int[num_samples]``, the source of each sample, from 0.
        names: of the sources.
        table: the lengths.
        plan: the packs; None counts nothing as packed.

    Raises:
        SettingsError: another number of entries than samples, or a source without a name.

    >>> from brimful.plan import plan_packs
    >>> table = LengthTable.from_lengths([2, 3, 9])
    >>> plan = plan_packs(table, capacity=5, overflow="truncate")
    >>> source_shares(np.array([0, 0, 1]), ["chats", "books"], table, plan)[1]
    SourceShare(name='books', samples=1, tokens=9, samples_packed=1, tokens_packed=5)
    """
    if sources.shape != (len(table),) or sources.dtype.kind not in "iu":
        raise SettingsError(
            f"{setting('sources')} must hold one whole number for each of the {len(table):,} samples and has shape "
            f"{sources.shape} of {sources.dtype}"
        )
    if len(sources) and not 0 <= int(sources.min()) <= int(sources.max()) < len(names):
        wrong = int(sources.max()) if int(sources.min()) >= 0 else int(sources.min())
        raise SettingsError(
            f"{setting('sources')} names source {wrong}, and there are {len(names)} names: add {setting('source_names')}"
        )

    def add(ids: AnyIntArray, tokens: AnyIntArray | None = None) -> list[int]:
        sums = np.bincount(ids, weights=tokens, minlength=len(names))
        return [round(value) for value in sums.tolist()]

    read = table.tokens >= 0
    columns = [add(sources[read]), add(sources[read], table.tokens[read])]
    if plan is None:
        columns += [[0] * len(names)] * 2
    else:
        packed = np.zeros(len(table), dtype=bool)
        packed[plan.sample_ids] = True
        columns += [add(sources[packed]), add(sources[plan.sample_ids], plan.lengths)]
    return [SourceShare(name, *row) for name, row in zip(names, zip(*columns, strict=True), strict=True)]


def sources_of_table(table: LengthTable) -> tuple[AnyIntArray, list[str]] | None:
    """The sources that a table knows of: ``provenance["parts"]``, pairs of a name and a number of samples, in order.

    None if it names none, or if they do not add up to its samples.

    >>> table = LengthTable(LengthTable.from_lengths([2, 3, 9]).budgets, provenance={"parts": [["a", 2], ["b", 1]]})
    >>> sources, names = sources_of_table(table)
    >>> sources.tolist(), names
    ([0, 0, 1], ['a', 'b'])
    """
    parts: list[Any] = table.provenance.get("parts") or []
    if len(parts) < 2:
        return None
    ends = np.cumsum([0, *(int(count) for _, count in parts)])
    if int(ends[-1]) != len(table):
        return None
    sources = np.empty(len(table), dtype=np.int32)
    for number, (begin, end) in enumerate(pairwise(ends.tolist())):
        sources[begin:end] = number
    return sources, [str(name) for name, _ in parts]
