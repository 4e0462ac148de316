"""Lengths of samples: what measuring returns and all that planning needs."""

from typing import TypeAlias

from brimful.base.typing import IntArrayLike
from brimful.lengths.table import LengthTable
from brimful.lengths.targets import Account, Targets

__all__ = ["Account", "LengthTable", "LengthsLike", "Targets", "as_table"]

LengthsLike: TypeAlias = LengthTable | IntArrayLike
"""Lengths as callers may pass them: a table, or whole numbers."""


def as_table(lengths: LengthsLike) -> LengthTable:
    """Return the table itself, or a table of these tokens alone."""
    return lengths if isinstance(lengths, LengthTable) else LengthTable({"tokens": lengths})
