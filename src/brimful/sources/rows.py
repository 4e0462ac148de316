"""Rows by index, before anybody asks what they mean: what each kind of file offers to a ``Source``."""

from __future__ import annotations

import abc
import bisect
from collections.abc import Iterator, Sequence
from typing import Any

from brimful.fingerprint import fingerprint_of
from brimful.sources.block import Block
from brimful.sources.sample import MalformedRowError
from brimful.typing import Fingerprint

__all__ = ["Block", "ChainedRows", "FirstRows", "Rows"]

MAX_ROW_BYTES = 64 << 20
"""Most bytes of one row of a file, once it is unpacked: some fifteen million tokens. A longer one is malformed: two
megabytes that unpack to gigabytes of one row would take the memory of the machine."""

EMPTY = fingerprint_of([])


class Rows(abc.ABC):
    """Rows ``0 … len-1`` of one file, table or list. Picklable, so that worker processes open the same.

    A row is whatever the format understands (an object or a text), or a ``MalformedRowError`` that says why
    it cannot be read: returned, not raised, so that reading goes on behind it.

    Rows that are handed out are those of ``fingerprint``: who reads a file looks at its ``Stamp`` after the bytes are
    read, and raises ``SourceError`` if it changed.
    """

    title: str
    """What a person calls it: mostly the path that was given."""

    unit: str = ""
    """What one row is, where that is a choice: ``one document a file``."""

    @abc.abstractmethod
    def __len__(self) -> int: ...

    @abc.abstractmethod
    def read(self, start: int, stop: int) -> Iterator[Any]:
        """Rows ``start … stop-1`` in order, cheaply for long runs."""

    @abc.abstractmethod
    def where(self, index: int) -> str:
        """File and line of a row, for messages."""

    @property
    @abc.abstractmethod
    def blocks(self) -> Sequence[Block]:
        """Cuts all rows into blocks with the fingerprint of their content: the unit of caching and of tasks."""

    @property
    @abc.abstractmethod
    def fingerprint(self) -> Fingerprint:
        """Of all contents in order, whatever the blocks."""

    @property
    def members(self) -> list[tuple[str, int]]:
        """Title and number of rows of each file, in order: where a sample comes from."""
        return [(self.title, len(self))]

    def get(self, index: int) -> Any:
        """One row."""
        return next(self.read(index, index + 1))

    def prefix_fingerprints(self, count: int) -> Sequence[Fingerprint]:
        """What ``fingerprint`` may have been when only the first ``count`` rows were there."""
        return [self.fingerprint] if count == len(self) else []


class ChainedRows(Rows):
    """Several files as one, in the order given: sample ids run on from file to file."""

    def __init__(self, parts: Sequence[Rows], title: str) -> None:
        self.parts = list(parts)
        self.title = title
        ends = [0]
        for part in self.parts:
            ends.append(ends[-1] + len(part))
        self.starts = ends[:-1]
        """First row of each part."""
        self._length = ends[-1]

    def __len__(self) -> int:
        return self._length

    def _locate(self, index: int) -> tuple[Rows, int]:
        number = bisect.bisect_right(self.starts, index) - 1
        return self.parts[number], index - self.starts[number]

    def read(self, start: int, stop: int) -> Iterator[Any]:
        for part, first in zip(self.parts, self.starts, strict=True):
            begin, end = max(start - first, 0), min(stop - first, len(part))
            if begin < end:
                yield from part.read(begin, end)

    def get(self, index: int) -> Any:
        part, inner = self._locate(index)
        return part.get(inner)

    def where(self, index: int) -> str:
        part, inner = self._locate(index)
        return part.where(inner)

    @property
    def unit(self) -> str:  # type: ignore[override]
        return " and ".join(dict.fromkeys(part.unit for part in self.parts if part.unit))

    @property
    def blocks(self) -> Sequence[Block]:
        return [
            Block(first + block.start, first + block.stop, block.fingerprint)
            for part, first in zip(self.parts, self.starts, strict=True)
            for block in part.blocks
        ]

    @property
    def members(self) -> list[tuple[str, int]]:
        return [member for part in self.parts for member in part.members]

    @property
    def fingerprint(self) -> Fingerprint:
        chain = EMPTY
        for part in self.parts:
            chain = fingerprint_of([chain, part.fingerprint])
        return chain

    def prefix_fingerprints(self, count: int) -> Sequence[Fingerprint]:
        chain = EMPTY
        for part, first in zip(self.parts, self.starts, strict=True):
            if count <= first + len(part):
                return [fingerprint_of([chain, digest]) for digest in part.prefix_fingerprints(count - first)]
            chain = fingerprint_of([chain, part.fingerprint])
        return []


class FirstRows(Rows):
    """The first rows of others: a trial run."""

    def __init__(self, rows: Rows, count: int) -> None:
        self._rows, self._count = rows, min(count, len(rows))
        self.title = rows.title
        self.unit = rows.unit

    def __len__(self) -> int:
        return self._count

    def read(self, start: int, stop: int) -> Iterator[Any]:
        return self._rows.read(start, min(stop, self._count))

    def get(self, index: int) -> Any:
        return self._rows.get(index)

    def where(self, index: int) -> str:
        return self._rows.where(index)

    @property
    def members(self) -> list[tuple[str, int]]:
        found, begin = [], 0
        for title, length in self._rows.members:
            if begin < self._count:
                found.append((title, min(length, self._count - begin)))
            begin += length
        return found

    @property
    def blocks(self) -> Sequence[Block]:
        """Whole blocks of the others as they are, so that a longer run finds their lengths; the last one cut."""
        found = []
        for block in self._rows.blocks:
            if block.start < self._count:
                stop = min(block.stop, self._count)
                cut = [block.fingerprint, stop - block.start]
                found.append(block if stop == block.stop else Block(block.start, stop, fingerprint_of(cut)))
        return found

    @property
    def fingerprint(self) -> Fingerprint:
        whole = self._count == len(self._rows)
        return self._rows.fingerprint if whole else fingerprint_of([self._rows.fingerprint, self._count])


def oversized() -> MalformedRowError:
    """A row above ``MAX_ROW_BYTES``. Its size is not told: of an unpacked file nobody wrote the rest down."""
    return malformed(f"a row above the most, {MAX_ROW_BYTES:,} bytes: cut it into several")


def malformed(reason: str) -> MalformedRowError:
    """A row that cannot be read, to be returned in its place."""
    return MalformedRowError(reason)
