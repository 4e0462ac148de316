"""Rows of packs that another project wrote, and packs as ms-swift's sharded loader reads them, one
a line.

::

    chunk_00000.jsonl
    {"input_ids": [ … ], "labels": [ … ], "position_ids": [0, 1, 2, 0, 1], "lengths": [3, 2], "pack_length": 5}

Each of ``lengths`` becomes a separate row here: if the line were taken for one sample, its samples
would attend to each other.
"""

from __future__ import annotations

import abc
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from brimful.base.fingerprint import canonical_json, fingerprint_bytes
from brimful.base.typing import Fingerprint
from brimful.sources.lines import JsonLines
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
            str(row) if isinstance(row, MalformedRowError) else self._content(row)
            for row in self.read(start, stop)
        ]
        return fingerprint_bytes(canonical_json(rows))


CHUNK_NAME = re.compile(r"chunk_\d+\.jsonl")
_MARK = b'"pack_length"'


class PackedChunk(PackedRows):
    """Rows of one chunk.

    Opening a chunk reads it once, to count the samples in each pack.

    Args:
        path: of the chunk.
        cache: directory of line indexes.
    """

    def __init__(self, path: str | os.PathLike[str], *, cache: Path | None = None) -> None:
        self._lines = JsonLines(path, cache=cache)
        super().__init__(os.fspath(path), [len(rows) for rows in self._packs(0, len(self._lines))])

    def _packs(self, first: int, last: int) -> Iterator[Sequence[Any]]:
        return map(rows_of_pack, self._lines.read(first, last))

    def _place(self, pack: int) -> str:
        return self._lines.where(pack)


def open_rows(path: str, cache: Path | None) -> PackedChunk | None:
    """Return the rows of a chunk: a file with its name whose first line is a pack; None for another
    path.

    >>> open_rows("chunk_0.json", None) is None
    True
    """
    if not CHUNK_NAME.fullmatch(os.path.basename(path)) or not os.path.isfile(path):
        return None
    with open(path, "rb") as file:
        return PackedChunk(path, cache=cache) if _MARK in file.readline() else None


def rows_of_line(name: str, row: Any) -> list[Any] | None:
    """Return the rows of the pack in one line of a chunk that is still arriving; None for another
    line.

    >>> rows_of_line("in/chunk_00000.jsonl", {"text": "a"}) is None
    True
    """
    is_pack = (
        isinstance(row, Mapping)
        and "pack_length" in row
        and CHUNK_NAME.fullmatch(os.path.basename(name))
    )
    return rows_of_pack(row) if is_pack else None


def rows_of_pack(pack: Any) -> list[Any]:
    """Return the samples of a packed row; for a row that contradicts itself, one error.

    >>> rows_of_pack({"input_ids": [5, 6, 7], "labels": [-100, 6, -100], "lengths": [2, 1], "pack_length": 3})
    [{'input_ids': [5, 6], 'labels': [-100, 6]}, {'input_ids': [7], 'labels': [-100]}]
    """
    if isinstance(pack, MalformedRowError):
        return [pack]
    try:
        ids, labels, lengths = (pack[name] for name in ("input_ids", "labels", "lengths"))
        reason = _contradiction(pack, ids, labels, lengths)
    except (KeyError, TypeError) as error:
        reason = f"is not a packed row ({error!r}): `brimful produce` packs raw rows"
    if reason:
        return [MalformedRowError(reason)]
    return [
        {"input_ids": ids[a:b], "labels": labels[a:b]}
        for a, b in pairwise(accumulate(lengths, initial=0))
    ]


def _contradiction(pack: Mapping[str, Any], ids: Any, labels: Any, lengths: Any) -> str:
    """Return what contradicts the lengths in a packed row; empty if nothing does."""
    if not lengths or min(lengths) < 1:
        return "its lengths are not sample lengths: each must be at least 1"
    num_tokens = sum(lengths)
    for name, number in (
        ("input_ids", len(ids)),
        ("labels", len(labels)),
        ("pack_length", pack.get("pack_length")),
    ):
        if number != num_tokens:
            return f"its lengths are {num_tokens:,} tokens, but {name} gives {number!r}"
    positions = pack.get("position_ids")
    if positions is not None and positions != [
        place for length in lengths for place in range(length)
    ]:
        return "its position_ids do not restart where its lengths say that a sample begins"
    return ""
