"""Rows in the order of their arrival: the contract between growing data and its reader."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from brimful.errors import BadSampleError, SettingsError
from brimful.sources.formats import RowFormat, format_named
from brimful.sources.formats.registry import detect_rows
from brimful.sources.media import MediaPlace
from brimful.sources.reading import Reading
from brimful.sources.sample import Sample

Cursor: TypeAlias = Mapping[str, Any]
"""Position of a feed as JSON: the change since the last settled position."""


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
        row_format = detect_rows(rows, title, fields=self.fields, ignore=self.ignore, prompt=self.prompt)
        return None if row_format is None else self._of(row_format, title)

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
    if reading is None:
        # Only if no row could be read is the format unknown; then this row is malformed.
        return BadSampleError(str(row), sample_id=sample_id, where=where)
    return reading.convert(sample_id, row, lambda _: where)


def numbered(sample: Sample | BadSampleError, sample_id: int) -> Sample | BadSampleError:
    """Return a sample, or its error, with its number in the feed."""
    if isinstance(sample, Sample):
        return replace(sample, sample_id=sample_id)
    return BadSampleError(sample.reason, sample_id=sample_id, where=sample.where)
