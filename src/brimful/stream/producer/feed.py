"""Rows in the order of their arrival: the contract between growing data and its reader, and rows
without a file.

Rows of an iterator or of standard input come one after the other and cannot be requested again. A
restarted run is given them from the beginning, and skips the rows that are committed.
"""

from __future__ import annotations

import abc
import os
import select
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from brimful.base.checks import MalformedRowError
from brimful.base.fingerprint import fingerprint_of
from brimful.base.typing import Fingerprint
from brimful.errors import BadSampleError, SettingsError, SourceError
from brimful.sources.json_rows import rows_of_lines
from brimful.sources.reading import Reading
from brimful.sources.rows import MAX_ROW_BYTES, oversized
from brimful.sources.sample import Sample
from brimful.sources.settings import RowSettings

Cursor: TypeAlias = Mapping[str, Any]
"""Position of a feed as JSON: the change since the last settled position."""


class Feed(abc.ABC):
    """Samples in the order of their arrival, from a position that a log record can hold.

    ``poll`` takes what has come; ``cursor`` is the position after it, relative to the last settled
    one; ``settle`` says that a cursor is committed; ``seek`` goes to where a list of committed
    cursors leads.

    Attributes:
        title: name for messages.
        is_ended: true once nothing can come any more.
    """

    title: str
    is_ended: bool = False

    @abc.abstractmethod
    def poll(
        self, most: int, first_id: int, *, is_last: bool = False
    ) -> list[Sample | BadSampleError]:
        """Take at most ``most`` of the samples that have come, numbered from ``first_id``; none if
        none has come.

        Args:
            most: maximum number of samples to take.
            first_id: ``sample_id`` of the first.
            is_last: nothing more will come: text without a line end is a line too, and the feed
                ends when nothing is left.
        """

    @abc.abstractmethod
    def cursor(self) -> Cursor:
        """Return the position after the samples that were taken, as the change since the last
        settled one.
        """

    @abc.abstractmethod
    def settle(self) -> None:
        """Note that the current cursor is committed: the next one is relative to it."""

    @abc.abstractmethod
    def seek(self, cursors: Sequence[Cursor]) -> None:
        """Go to the position of these committed cursors, given all in order; to the beginning
        without any.

        Raises:
            SourceError: the source has changed before that position, or cannot go back to it.
        """


def reading_of_arrivals(
    settings: RowSettings, rows: Iterable[Any], title: str, directory: str
) -> Reading | None:
    """Return the reading of arriving rows by the first of them; None while none of them can be
    read.

    Raises:
        UnknownFormatError: they have no format that brimful knows.
        SettingsError: each row is several samples.
    """
    row_format = settings.format_of(rows, title)
    if row_format is None:
        return None
    if row_format.view is not None:
        raise SettingsError(
            f"{title} has rows of format {row_format.name}: a stream packs single samples, and "
            "both samples of a row stay in one pack. Pack the finished file with brimful pack"
        )
    return settings.reading(row_format, directory)


def sample_of(row: Any, reading: Reading | None, where: str) -> Sample | BadSampleError:
    """Return the sample of a row, or the error that names its place; neither has its number yet."""
    if isinstance(row, Sample):
        return row
    if reading is None:
        # Only if no row could be read is the format unknown; then this row is malformed.
        return BadSampleError(str(row), sample_id=0, where=where)
    return reading.convert(0, row, lambda _: where)


def numbered(sample: Sample | BadSampleError, sample_id: int) -> Sample | BadSampleError:
    """Return a sample, or its error, with its number in the feed."""
    if isinstance(sample, Sample):
        return replace(sample, sample_id=sample_id)
    return sample.of_sample(sample_id).located(sample.where)


_PIECE_BYTES = 1 << 20
"""Maximum bytes of one read from a pipe."""


class IteratorFeed(Feed):
    """Rows of an iterable, each an object, a text or a ``Sample``; None says that no row is ready
    yet.

    Rows after the last settled position are kept, so that the feed can go back there.

    >>> feed = IteratorFeed([{"text": "a"}, None, {"text": "b"}], RowSettings())
    >>> [[sample.text for sample in feed.poll(9, 0)] for _ in range(3)], feed.is_ended
    ([['a'], ['b'], []], True)
    """

    def __init__(self, rows: Iterable[Any], settings: RowSettings, title: str = "") -> None:
        self.title, self._settings = title or f"{type(rows).__name__} of rows", settings
        self._iterator = iter(rows)
        self._rows: list[Any] = []  # from row number `_first` on
        self._first = self._position = 0
        self._reading: Reading | None = None
        self._check: Fingerprint | None = None  # of the row before `_first`, if it is known
        self._expected_check: Fingerprint | None = None
        self._format: str | None = None
        self._is_exhausted = False

    def poll(
        self, most: int, first_id: int, *, is_last: bool = False
    ) -> list[Sample | BadSampleError]:
        if not self._pass_committed(most):
            return []
        self._read_until(self._position + most)
        start = self._position - self._first
        rows = self._rows[start : start + most]
        if not rows:
            self.is_ended = self._is_exhausted
            return []
        # The first rows decide the format: a cursor names it, so that it stays the same.
        if self._reading is None and not all(isinstance(row, Sample) for row in rows):
            self._set_reading(rows)
            self._format = None if self._reading is None else self._reading.format.name
        first = self._position
        self._position += len(rows)
        return [
            numbered(
                sample_of(row, self._reading, f"{self.title}: row {first + index}"),
                first_id + index,
            )
            for index, row in enumerate(rows)
        ]

    def _set_reading(self, rows: Sequence[Any]) -> None:
        settings = replace(self._settings, format=self._settings.format or self._format)
        self._reading = reading_of_arrivals(settings, rows, self.title, "")

    def _read_until(self, end: int) -> None:
        while self._first + len(self._rows) < end and not self._is_exhausted:
            try:
                row = next(self._iterator)
            except StopIteration:
                self._is_exhausted = True
                break
            if row is None:
                # The rows before it are taken now, the rows after it at the next call.
                break
            self._rows.append(row)

    def _pass_committed(self, most: int) -> bool:
        """Skip the rows that are already committed; return false until all of them have come."""
        while self._first < self._position and self._expected_check is not None:
            if not self._rows:
                self._read_until(self._first + most)
            if not self._rows and not self._is_exhausted:
                return False
            count = min(len(self._rows), self._position - self._first)
            if count:
                self._check = _check_of(self._rows[count - 1])
            self._first += count
            del self._rows[:count]
            if self._first < self._position and self._is_exhausted and not self._rows:
                raise SourceError(
                    f"{self.title} has {self._first:,} rows and {self._position:,} of them are "
                    "committed: give it from its beginning again"
                )
        if self._expected_check not in (None, "", self._check):
            raise SourceError(
                f"{self.title}: row {self._position - 1} is not the committed one: give the same "
                "rows again, from their beginning"
            )
        self._expected_check = None
        return True

    def cursor(self) -> Cursor:
        count = self._position - self._first
        # Until the rows up to the position have come again, only the committed position is known.
        check = self._expected_check
        if check is None:
            check = _check_of(self._rows[count - 1]) if count else self._check
        return {"rows": self._position, "check": check or "", "format": self._format}

    def settle(self) -> None:
        if self._expected_check is not None:
            return
        self._check = self.cursor()["check"] or None
        del self._rows[: self._position - self._first]
        self._first = self._position

    def seek(self, cursors: Sequence[Cursor]) -> None:
        last: Cursor = cursors[-1] if cursors else {"rows": 0, "check": "", "format": None}
        if last["rows"] < self._first:
            raise SourceError(
                f"{self.title} cannot go back to row {last['rows']:,}: give it from its beginning "
                "again"
            )
        self._position, self._format = int(last["rows"]), last["format"]
        if self._format is not None:
            self._set_reading([])
        self._expected_check, self.is_ended = str(last["check"]), False


def _check_of(row: Any) -> Fingerprint | None:
    """Return the fingerprint by which a row is recognized; None for a value that JSON cannot
    hold.
    """
    try:
        return fingerprint_of(str(row) if isinstance(row, (Sample, MalformedRowError)) else row)
    except (TypeError, ValueError):
        return None


def arriving_lines(descriptor: int, title: str) -> Iterator[Any]:
    """Yield the rows of JSON lines from a pipe as they come, and None while none has come; never
    blocks.

    Args:
        descriptor: file descriptor of the pipe, such as standard input.
        title: name for messages.
    """
    remainder, is_exhausted = b"", False
    while not is_exhausted:
        if not select.select([descriptor], [], [], 0)[0]:
            yield None
            continue
        data = os.read(descriptor, _PIECE_BYTES)
        is_exhausted = not data
        whole = remainder + data
        *lines, remainder = whole.split(b"\n")
        if is_exhausted:
            lines.append(remainder)  # the last line needs no end
        elif len(remainder) > MAX_ROW_BYTES:
            raise SourceError(f"{title}: {oversized()}")
        yield from rows_of_lines([line for line in lines if line.strip()], whole)
