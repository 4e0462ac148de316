"""Rows in the order of their arrival: the contract between growing data and its reader."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from brimful.errors import BadSampleError, SettingsError
from brimful.sources.reading import Reading, RowOptions
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


def reading_of_arrivals(options: RowOptions, rows: Iterable[Any], title: str, directory: str) -> Reading | None:
    """Return the reading of arriving rows by the first of them; None while none of them can be read.

    Raises:
        UnknownFormatError: they have no format that brimful knows.
        SettingsError: each row is several samples.
    """
    row_format = options.format_of(rows, title)
    if row_format is None:
        return None
    if row_format.view is not None:
        raise SettingsError(
            f"{title} has rows of format {row_format.name}: a stream packs single samples, and both samples of a row "
            f"stay in one pack. Pack the finished file with brimful pack"
        )
    return options.reading(row_format, directory)


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
    return sample.of_sample(sample_id).located(sample.where)
