"""Rows by index, before a format interprets them: the contract between storage and ``Source``."""

import abc
import bisect
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain, groupby, islice
from typing import Any, ClassVar

import numpy as np

from brimful.base.checks import MalformedRowError
from brimful.base.fingerprint import fingerprint_of
from brimful.base.typing import Fingerprint, Int32Array

BLOCK_ROWS = 4096
"""Maximum rows of a block: a few seconds of tokenizing, so that a kill costs little and processes
share well.
"""

BLOCK_BYTES = 8 << 20
"""Bytes after which a block ends even with fewer rows, for long documents."""

FEW_FILES = 64
"""Number of leading files that have their own blocks: their lengths stay valid when other files are
added.
"""

MAX_ROW_BYTES = 64 << 20
"""Maximum bytes of one unpacked row of a file: some fifteen million tokens. A longer row is
malformed: two megabytes that unpack to gigabytes in one row would exhaust the memory of the
machine.
"""


ROW_FAULTS = (MalformedRowError, TypeError, ValueError, KeyError, AttributeError, RecursionError)
"""Errors by which a format refuses a row. It may fail anywhere on values of unexpected types: that
is the row's fault, and reading continues.
"""


@dataclass(frozen=True, slots=True)
class Block:
    """Rows ``start … stop-1`` with the fingerprint of their content.

    Equal fingerprints mean equal rows, in this data set or another.

    Attributes:
        num_bytes: of their text in storage; None if unknown.
    """

    start: int
    stop: int
    fingerprint: Fingerprint
    num_bytes: int | None = None

    def __len__(self) -> int:
        return self.stop - self.start


def block_ranges(start: int, stop: int, max_rows: int = BLOCK_ROWS) -> list[tuple[int, int]]:
    """Cut rows ``start … stop-1`` into ranges of at most ``max_rows`` rows.

    >>> block_ranges(0, 10, 4)
    [(0, 4), (4, 8), (8, 10)]
    """
    return [(first, min(first + max_rows, stop)) for first in range(start, stop, max_rows)]


def joined(
    blocks: Iterable[Block], is_last: Callable[[Block], bool] = lambda _: False
) -> Iterator[Block]:
    """Yield consecutive small blocks as one, since each block costs its own files and comparison.

    Args:
        blocks: blocks with known ``num_bytes``.
        is_last: true for a block that must end the joined one.

    >>> [(block.start, block.stop) for block in joined([Block(0, 1000, "a", 10), Block(1000, 2000, "b", 10)])]
    [(0, 2000)]
    """
    run: list[Block] = []
    num_bytes = 0
    for block in blocks:
        size = block.num_bytes or 0
        is_full = run and (block.stop - run[0].start > BLOCK_ROWS or num_bytes + size > BLOCK_BYTES)
        if is_full or (run and is_last(run[-1])):
            yield _one_block(run, num_bytes)
            run, num_bytes = [], 0
        run.append(block)
        num_bytes += size
    if run:
        yield _one_block(run, num_bytes)


def _one_block(run: Sequence[Block], num_bytes: int) -> Block:
    if len(run) == 1:
        return run[0]
    return Block(
        run[0].start, run[-1].stop, fingerprint_of([block.fingerprint for block in run]), num_bytes
    )


class Rows(abc.ABC):
    """Rows ``0 … len-1`` of one file, table or list. Picklable, so that worker processes open the
    same rows.

    A row is a value that the format understands (an object or a text), or a ``MalformedRowError``
    that says why it cannot be read. The error is returned, not raised, so that reading continues
    after it.

    Every row returned belongs to the content of ``fingerprint``: a class that reads a file checks
    its ``Stamp`` after the bytes are read, and raises ``SourceError`` if the file changed.
    """

    title: str
    """Name for messages: usually the path that the user passed."""

    unit: str = ""
    """Content of one row, if the user can choose it: ``one document a file``."""

    lies_in_files = False
    """True if the titles of ``members`` are files, or directories of files, that hold all the data
    of the rows.
    """

    @abc.abstractmethod
    def __len__(self) -> int: ...

    @abc.abstractmethod
    def read(self, start: int, stop: int) -> Iterator[Any]:
        """Yield rows ``start … stop-1`` in order, cheaply for long ranges."""

    def where(self, index: int) -> str:
        """Return the file and line of a row, for messages."""
        return f"{self.title}: row {index}"

    @property
    @abc.abstractmethod
    def blocks(self) -> Sequence[Block]:
        """All rows in blocks with the fingerprints of their content: the unit of caching and of
        tasks.
        """

    @property
    def num_rows(self) -> int:
        """Number of rows in storage: less than ``len`` if a row is several samples."""
        return len(self)

    @property
    def samples_by_row(self) -> Int32Array:
        """Number of samples of each row in storage: ``int32[num_rows]``."""
        return np.ones(len(self), dtype=np.int32)

    @property
    def fingerprint(self) -> Fingerprint:
        """Fingerprint of all contents in order."""
        return fingerprint_of([block.fingerprint for block in self.blocks])

    @property
    def members(self) -> list[tuple[str, int]]:
        """Title and number of rows of each file, in order; they give the origin of each sample."""
        return [(self.title, len(self))]

    def get(self, index: int) -> Any:
        """Return one row."""
        return next(self.read(index, index + 1))

    def read_many(self, indices: Iterable[int]) -> Iterator[Any]:
        """Yield rows in the order of their indices."""
        return map(self.get, indices)

    @property
    def directory(self) -> str:
        """Absolute path of the directory to which file names in rows are relative: the file's, or
        the current one.
        """
        path = os.path.abspath(self.title)
        return os.path.dirname(path) if os.path.isfile(path) else os.getcwd()

    def prefix_fingerprints(self, count: int) -> Sequence[Fingerprint]:
        """Return the possible fingerprints of an earlier state that held only the first ``count``
        rows.
        """
        return [self.fingerprint] if count == len(self) else []


class UniformBlockRows(Rows):
    """Rows in blocks of equal size, each fingerprinted separately."""

    block_rows: int = BLOCK_ROWS
    """Number of rows in each block; the last may have fewer."""

    @abc.abstractmethod
    def block_fingerprint(self, start: int, stop: int) -> Fingerprint:
        """Return the fingerprint of rows ``start … stop-1``."""

    @cached_property
    def blocks(self) -> Sequence[Block]:
        ranges = block_ranges(0, len(self), self.block_rows)
        return [Block(start, stop, self.block_fingerprint(start, stop)) for start, stop in ranges]


class ChainedRows(Rows):
    """Several files as one, in their order: sample ids run on from file to file."""

    def __init__(self, files: Sequence[Rows], title: str) -> None:
        self.files = list(files)
        self.title = title
        self.lies_in_files = all(file.lies_in_files for file in self.files)
        *self.starts, self._length = accumulate(map(len, self.files), initial=0)
        """``starts``: first row of each file."""

    def __len__(self) -> int:
        return self._length

    @property
    def num_rows(self) -> int:
        return sum(file.num_rows for file in self.files)

    @property
    def samples_by_row(self) -> Int32Array:
        return np.concatenate([file.samples_by_row for file in self.files])

    def _file_index(self, index: int) -> int:
        """Return the index of the file that has a row."""
        return bisect.bisect_right(self.starts, index) - 1

    def read(self, start: int, stop: int) -> Iterator[Any]:
        stop = min(stop, self._length)
        while start < stop:
            file_index = self._file_index(start)
            file, file_start = self.files[file_index], self.starts[file_index]
            end = min(stop - file_start, len(file))
            yield from file.read(start - file_start, end)
            start = file_start + end

    def read_many(self, indices: Iterable[int]) -> Iterator[Any]:
        for file_index, run in groupby(indices, self._file_index):
            start = self.starts[file_index]
            yield from self.files[file_index].read_many([index - start for index in run])

    def where(self, index: int) -> str:
        file_index = self._file_index(index)
        return self.files[file_index].where(index - self.starts[file_index])

    @property
    def unit(self) -> str:  # type: ignore[override]
        return " and ".join(dict.fromkeys(file.unit for file in self.files if file.unit))

    @property
    def blocks(self) -> Sequence[Block]:
        return [
            Block(
                file_start + block.start,
                file_start + block.stop,
                block.fingerprint,
                block.num_bytes,
            )
            for file, file_start in zip(self.files, self.starts, strict=True)
            for block in file.blocks
        ]

    @property
    def members(self) -> list[tuple[str, int]]:
        return [member for file in self.files for member in file.members]

    def _chain(self) -> Iterator[Fingerprint]:
        """Yield the fingerprints of the first 0, 1, … and all files.

        The chain runs over files, not over blocks, so that an added file is recognized as appended
        rows.
        """
        digests = (file.fingerprint for file in self.files)
        return accumulate(
            digests,
            lambda digests, digest: fingerprint_of([digests, digest]),
            initial=fingerprint_of([]),
        )

    @property
    def fingerprint(self) -> Fingerprint:
        return list(self._chain())[-1]

    def prefix_fingerprints(self, count: int) -> Sequence[Fingerprint]:
        for file, file_start, digest_before in zip(
            self.files, self.starts, self._chain(), strict=False
        ):
            # The prefix ends in this file: all files before it are complete.
            if count <= file_start + len(file):
                return [
                    fingerprint_of([digest_before, digest])
                    for digest in file.prefix_fingerprints(count - file_start)
                ]
        return []


class WrappedRows(Rows):
    """Rows that are made of the rows of one file or table."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self.title = rows.title
        self.lies_in_files = rows.lies_in_files
        self.unit = rows.unit

    @property
    def directory(self) -> str:
        return self._rows.directory


class RowView(WrappedRows):
    """Rows each seen as several samples that stay in one pack: a group.

    ::

        row        0              1
        sample     0 … n-1        n … 2n-1        for n samples of a row

    A format names the view of its rows (``RowFormat.view``) and converts the parts that it yields
    (``RowFormat.sample_of_part``).
    """

    name: ClassVar[str]
    """Belongs to the fingerprints of the rows."""

    samples_per_row: ClassVar[int] = 2

    rows_together: ClassVar[int] = 1
    """Number of neighboring rows on which the samples of each of them depend."""

    @abc.abstractmethod
    def parts(self, start: int, stop: int) -> Iterator[Sequence[Any]]:
        """Yield ``samples_per_row`` parts of each of the rows ``start … stop-1``."""

    def __len__(self) -> int:
        return self.samples_per_row * len(self._rows)

    @property
    def num_rows(self) -> int:
        return len(self._rows)

    @property
    def samples_by_row(self) -> Int32Array:
        return np.full(len(self._rows), self.samples_per_row, dtype=np.int32)

    def read(self, start: int, stop: int) -> Iterator[Any]:
        if start >= stop:
            return iter(())
        first, last = start // self.samples_per_row, -(-stop // self.samples_per_row)
        offset = first * self.samples_per_row
        return islice(chain.from_iterable(self.parts(first, last)), start - offset, stop - offset)

    def where(self, index: int) -> str:
        return self._rows.where(index // self.samples_per_row)

    @property
    def blocks(self) -> Sequence[Block]:
        return [self._block_of_samples(block) for block in self._rows.blocks]

    def _block_of_samples(self, block: Block) -> Block:
        per_row = self.samples_per_row
        num_bytes = None if block.num_bytes is None else per_row * block.num_bytes
        return Block(
            per_row * block.start, per_row * block.stop, self._of_view(block.fingerprint), num_bytes
        )

    @property
    def members(self) -> list[tuple[str, int]]:
        return [(title, self.samples_per_row * num_rows) for title, num_rows in self._rows.members]

    @property
    def fingerprint(self) -> Fingerprint:
        return self._of_view(self._rows.fingerprint)

    def prefix_fingerprints(self, count: int) -> Sequence[Fingerprint]:
        # A part of a row, or of rows that depend on one another, is not an earlier state of a file.
        if count % (self.samples_per_row * self.rows_together):
            return []
        return [*map(self._of_view, self._rows.prefix_fingerprints(count // self.samples_per_row))]

    def _of_view(self, fingerprint: Fingerprint) -> Fingerprint:
        return fingerprint_of([fingerprint, self.name])


class FirstRows(WrappedRows):
    """The first rows of one file or table, for a trial run."""

    def __init__(self, rows: Rows, count: int) -> None:
        """``count``: less than the number of rows."""
        super().__init__(rows)
        self._count = count

    def __len__(self) -> int:
        return self._count

    def read(self, start: int, stop: int) -> Iterator[Any]:
        return self._rows.read(start, min(stop, self._count))

    def read_many(self, indices: Iterable[int]) -> Iterator[Any]:
        return self._rows.read_many(indices)

    def where(self, index: int) -> str:
        return self._rows.where(index)

    @property
    def blocks(self) -> Sequence[Block]:
        """The blocks of the uncut rows, up to the last row kept, which may lie inside a block."""
        blocks = []
        for block in self._rows.blocks:
            if block.start < self._count:
                # A complete block keeps its fingerprint, so that a longer run reuses its lengths.
                stop = min(block.stop, self._count)
                identity = [block.fingerprint, stop - block.start]
                blocks.append(
                    block
                    if stop == block.stop
                    else Block(block.start, stop, fingerprint_of(identity))
                )
        return blocks

    @property
    def fingerprint(self) -> Fingerprint:
        return fingerprint_of([self._rows.fingerprint, self._count])


def oversized() -> MalformedRowError:
    """Return the error of a row above ``MAX_ROW_BYTES``.

    It does not give the size: the end of such a row in a compressed file is not unpacked.
    """
    return MalformedRowError(
        f"a row above the maximum of {MAX_ROW_BYTES:,} bytes: cut it into several"
    )
