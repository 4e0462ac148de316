"""Rows in the order of their arrival: the contract between growing data and its reader."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from brimful.errors import BadSampleError, SettingsError, UnknownFormatError
from brimful.sources.formats import RowFormat, detect, format_named
from brimful.sources.lines import json_row
from brimful.sources.media import MediaPlace
from brimful.sources.reading import Reading
from brimful.sources.sample import MalformedRowError, Sample

Cursor: TypeAlias = Mapping[str, Any]
"""Position of a feed as JSON: the change since the last settled position."""

_ROWS_FOR_DETECTION = 16
"""Maximum number of rows from which a format is detected."""


class Feed(abc.ABC):
    """Samples in the order of their arrival, from a position that a log record can hold.

    ``poll`` takes what has come; ``cursor`` is the position after it, relative to the last settled one; ``settle`` says
    that a cursor is committed; ``seek`` goes to where a list of committed cursors leads.

    Attributes:
        title: name for messages.
        is_ended: true once nothing can come any more.
    """

    title: str
    is_ended: bool = False

    @abc.abstractmethod
    def poll(self, most: int, first_id: int, *, is_last: bool = False) -> list[Sample | BadSampleError]:
        """Take at most ``most`` of the samples that have come, numbered from ``first_id``; none if none has come.

        Args:
            most: maximum number of samples to take.
            first_id: ``sample_id`` of the first.
            is_last: nothing more will come: text without a line end is a line too, and the feed ends when nothing is
                left.
        """

    @abc.abstractmethod
    def cursor(self) -> Cursor:
        """Return the position after the samples that were taken, as the change since the last settled one."""

    @abc.abstractmethod
    def settle(self) -> None:
        """Note that the current cursor is committed: the next one is relative to it."""

    @abc.abstractmethod
    def seek(self, cursors: Sequence[Cursor]) -> None:
        """Go to the position of these committed cursors, given all in order; to the beginning without any.

        Raises:
            SourceError: the source has changed before that position, or cannot go back to it.
        """


@dataclass(frozen=True)
class RowOptions:
    """Options of ``open_source`` that decide how a row of a feed is read.

    Attributes:
        format: name of the rows' format; detected for each file if None.
        fields: keys of the rows, by the format's field names.
        ignore: columns and marks that may be left out although they carry meaning.
        prompt: turn of the user for formats that write one.
        media: place of the media that rows name; the directory of their file if it names none. None refuses them.
    """

    format: str | None = None
    fields: Mapping[str, str] | None = None
    ignore: tuple[str, ...] = ()
    prompt: str | None = None
    media: MediaPlace | None = None

    def in_folder(self, folder: str) -> RowOptions:
        """Return the options of the rows of a file in a folder."""
        return self if self.media is None else replace(self, media=self.media.beside(folder))

    def reading(self, rows: Sequence[Any], title: str, known_format: str | None = None) -> Reading | None:
        """Return the reading of rows by the first of them; None while none of them can be read.

        Raises:
            UnknownFormatError: they have no format that brimful knows.
        """
        name = self.format or known_format
        if name is not None:
            return self._of(format_named(name, self.fields, self.prompt), title)
        readable = [row for row in rows[:_ROWS_FOR_DETECTION] if not isinstance(row, MalformedRowError)]
        if not readable:
            return None
        # Without media, text with audio is not a transcript.
        wanted = [
            {name: value for name, value in row.items() if name not in self.ignore} if isinstance(row, Mapping) else row
            for row in readable
        ]
        try:
            return self._of(detect(wanted, self.fields, self.prompt), title)
        except UnknownFormatError as error:
            raise UnknownFormatError(f"{title}: {error.message}") from error

    def _of(self, row_format: RowFormat, title: str) -> Reading:
        if row_format.view is not None:
            raise SettingsError(
                f"{title} has rows of format {row_format.name}: a stream packs single samples, and both samples of a row "
                f"stay in one pack. Pack the finished file with brimful pack"
            )
        return Reading(row_format, frozenset(self.ignore), self.media)


def sample_of(row: Any, sample_id: int, reading: Reading | None, where: str) -> Sample | BadSampleError:
    """Return the sample of a row, or the error that names its place."""
    if isinstance(row, Sample):
        return replace(row, sample_id=sample_id)
    try:
        if isinstance(row, MalformedRowError):
            raise row
        # Only if no row could be read is the format unknown; then this row is malformed, and the error was raised
        # above.
        assert reading is not None
        return reading.sample(sample_id, row)
    except MalformedRowError as error:
        reason = str(error)
    except (TypeError, ValueError, KeyError, AttributeError, RecursionError) as error:
        name = reading.format.name if reading is not None else "?"
        reason = f"cannot be read as format {name} ({type(error).__name__}: {error})"
    return BadSampleError(reason, sample_id=sample_id, where=where)


def row_of_line(line: bytes, parse: Callable[[bytes], Any]) -> Any:
    """Return the row of a line of JSON, or the error that says why it cannot be read."""
    try:
        return json_row(parse, line)
    except UnicodeDecodeError as error:
        return MalformedRowError(f"invalid UTF-8 at byte {error.start} of the line ({error.reason})")


def numbered(sample: Sample | BadSampleError, sample_id: int) -> Sample | BadSampleError:
    """Return a sample, or its error, with its number in the feed."""
    if isinstance(sample, Sample):
        return replace(sample, sample_id=sample_id)
    return BadSampleError(sample.reason, sample_id=sample_id, where=sample.where)
