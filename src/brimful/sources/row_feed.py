"""Rows that come one after the other and cannot be requested again: an iterator, or standard input.

A restarted run is given them from the beginning, and skips the rows that are committed.
"""

from __future__ import annotations

import abc
import os
import select
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from brimful.base.fingerprint import fingerprint_of
from brimful.base.typing import Fingerprint
from brimful.errors import BadSampleError, SourceError
from brimful.sources.fast_json import rows_of_lines
from brimful.sources.feed import Cursor, Feed, reading_of_arrivals, sample_of
from brimful.sources.reading import Reading, RowOptions
from brimful.sources.rows import MAX_ROW_BYTES, oversized
from brimful.sources.sample import MalformedRowError, Sample

_PIECE_BYTES = 1 << 20
"""Maximum bytes of one read from a pipe."""


class RowFeed(Feed):
    """Rows in one sequence; rows after the last settled position are kept, so that the feed can go back there."""

    def __init__(self, title: str, options: RowOptions) -> None:
        self.title, self._options = title, options
        self._rows: list[Any] = []  # from row number `_first` on
        self._first = self._position = 0
        self._reading: Reading | None = None
        self._check: Fingerprint | None = None  # of the row before `_first`, if it is known
        self._expected_check: Fingerprint | None = None
        self._format: str | None = None
        self._is_exhausted = False

    @abc.abstractmethod
    def _read(self, most: int) -> list[Any]:
        """Return about ``most`` rows that have come; none if none has come, or at the end, which is recorded."""

    def poll(self, most: int, first_id: int, *, is_last: bool = False) -> list[Sample | BadSampleError]:
        if not self._pass_committed(most):
            return []
        self._read_until(self._position + most)
        begin = self._position - self._first
        rows = self._rows[begin : begin + most]
        if not rows:
            self.is_ended = self._is_exhausted
            return []
        # The first rows decide the format: a cursor names it, so that it stays the same.
        if self._reading is None and not all(isinstance(row, Sample) for row in rows):
            self._set_reading(rows)
            self._format = None if self._reading is None else self._reading.format.name
        self._position += len(rows)
        return [
            sample_of(row, first_id + index, self._reading, f"{self.title}: row {self._first + begin + index}")
            for index, row in enumerate(rows)
        ]

    def _set_reading(self, rows: Sequence[Any]) -> None:
        options = replace(self._options, format=self._options.format or self._format)
        self._reading = reading_of_arrivals(options, rows, self.title, "")

    def _read_until(self, end: int) -> None:
        while self._first + len(self._rows) < end and not self._is_exhausted:
            rows = self._read(end - self._first - len(self._rows))
            if not rows:
                return
            self._rows += rows

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
                    f"{self.title} has {self._first:,} rows and {self._position:,} of them are committed: give it from "
                    f"its beginning again"
                )
        if self._expected_check not in (None, "", self._check):
            raise SourceError(
                f"{self.title}: row {self._position - 1} is not the committed one: give the same rows again, from "
                f"their beginning"
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
            raise SourceError(f"{self.title} cannot go back to row {last['rows']:,}: give it from its beginning again")
        self._position, self._format = int(last["rows"]), last["format"]
        if self._format is not None:
            self._set_reading([])
        self._expected_check, self.is_ended = str(last["check"]), False


def _check_of(row: Any) -> Fingerprint | None:
    """Return the fingerprint by which a row is recognized; None for a value that JSON cannot hold."""
    try:
        return fingerprint_of(str(row) if isinstance(row, (Sample, MalformedRowError)) else row)
    except (TypeError, ValueError):
        return None


class IteratorFeed(RowFeed):
    """Rows of an iterable, each an object, a text or a ``Sample``; None says that no row is ready yet.

    >>> feed = IteratorFeed([{"text": "a"}, None, {"text": "b"}], RowOptions())
    >>> [[sample.text for sample in feed.poll(9, 0)] for _ in range(3)], feed.is_ended
    ([['a'], ['b'], []], True)
    """

    def __init__(self, rows: Iterable[Any], options: RowOptions) -> None:
        super().__init__(f"{type(rows).__name__} of rows", options)
        self._iterator = iter(rows)

    def _read(self, most: int) -> list[Any]:
        rows: list[Any] = []
        while len(rows) < most:
            try:
                row = next(self._iterator)
            except StopIteration:
                self._is_exhausted = True
                break
            if row is None:
                # The rows before it are taken now, the rows after it at the next call.
                break
            rows.append(row)
        return rows

    def _read_until(self, end: int) -> None:
        # One read, not several: after None, the next poll tries the iterator again.
        if self._first + len(self._rows) < end and not self._is_exhausted:
            self._rows += self._read(end - self._first - len(self._rows))


class PipeFeed(RowFeed):
    """JSON lines from a pipe as they come; never blocks.

    Args:
        descriptor: file descriptor of the pipe, such as standard input.
        title: name for messages.
        options: of the rows.
    """

    def __init__(self, descriptor: int, title: str, options: RowOptions) -> None:
        super().__init__(title, options)
        self._descriptor, self._rest = descriptor, b""

    def _read(self, most: int) -> list[Any]:
        if not select.select([self._descriptor], [], [], 0)[0]:
            return []
        data = os.read(self._descriptor, _PIECE_BYTES)
        self._is_exhausted = not data
        whole = self._rest + data
        *lines, self._rest = whole.split(b"\n")
        if self._is_exhausted:
            # The last line needs no end.
            lines, self._rest = [*lines, self._rest], b""
        elif len(self._rest) > MAX_ROW_BYTES:
            raise SourceError(f"{self.title}: {oversized()}")
        return [*rows_of_lines([line for line in lines if line.strip()], whole)]
