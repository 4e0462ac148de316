"""A run of rows and the fingerprint of what they hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from brimful.typing import Fingerprint

__all__ = ["BLOCK_BYTES", "BLOCK_ROWS", "Block", "cut"]

BLOCK_ROWS = 4096
"""Most rows in a block: a few seconds of tokenising, so that a kill costs little and processes share well."""

BLOCK_BYTES = 8 << 20
"""Bytes after which a block ends even with fewer rows: for long documents."""


@dataclass(frozen=True, slots=True)
class Block:
    """Rows ``start … stop-1``. Equal fingerprints mean equal rows, in this data set or another."""

    start: int
    stop: int
    fingerprint: Fingerprint

    def __len__(self) -> int:
        return self.stop - self.start


def cut(start: int, stop: int, rows: int = BLOCK_ROWS) -> Sequence[tuple[int, int]]:
    """Equal runs of at most ``rows`` rows.

    >>> cut(0, 10, 4)
    [(0, 4), (4, 8), (8, 10)]
    """
    return [(begin, min(begin + rows, stop)) for begin in range(start, stop, rows)]
