"""Rows of packs that another project wrote: one row a sample, in the order of packs and of the samples in them."""

import abc
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from brimful.base.fingerprint import canonical_json, fingerprint_bytes
from brimful.base.typing import Fingerprint
from brimful.sources.rows import UniformBlockRows
from brimful.sources.sample import MalformedRowError


class PackedRows(UniformBlockRows):
    """Rows of packs; a subclass reads the packs.

    Args:
        title: name for messages.
        counts: number of samples of each pack.
    """

    unit = "one sample of a pack a row"

    def __init__(self, title: str, counts: Sequence[int]) -> None:
        self.title = title
        self._first_rows = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)

    @abc.abstractmethod
    def _packs(self, first: int, last: int) -> Iterator[Sequence[Any]]:
        """Yield the rows of each of the packs ``first … last-1``."""

    @abc.abstractmethod
    def _place(self, pack: int) -> str:
        """Return the place of a pack, for messages."""

    def _content(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return all that a row holds or refers to, for fingerprints."""
        return row

    def __len__(self) -> int:
        return int(self._first_rows[-1])

    def _pack_of(self, index: int) -> int:
        return int(np.searchsorted(self._first_rows, index, side="right")) - 1

    def read(self, start: int, stop: int) -> Iterator[Any]:
        stop = min(stop, len(self))
        if start >= stop:
            return
        first = self._pack_of(start)
        for pack, rows in enumerate(self._packs(first, self._pack_of(stop - 1) + 1), first):
            begin = int(self._first_rows[pack])
            yield from rows[max(0, start - begin) : stop - begin]

    def where(self, index: int) -> str:
        pack = self._pack_of(index)
        return f"{self._place(pack)}: sample {index - int(self._first_rows[pack])} of the pack"

    def block_fingerprint(self, start: int, stop: int) -> Fingerprint:
        rows = [
            str(row) if isinstance(row, MalformedRowError) else self._content(row) for row in self.read(start, stop)
        ]
        return fingerprint_bytes(canonical_json(rows))
