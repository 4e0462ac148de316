"""A data set: rows by index, and the formats that say what they mean."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from brimful.checks import index_of
from brimful.errors import BadSampleError, SourceError, UnknownFormatError
from brimful.fingerprint import fingerprint_of, short
from brimful.sources.formats import RowFormat, detect, format_named
from brimful.sources.reading import Reading
from brimful.sources.rows import Block, ChainedRows, Rows
from brimful.sources.sample import MalformedRowError, Sample
from brimful.typing import Fingerprint

__all__ = ["Source"]

_ROWS_LOOKED_AT = 16


class Source:
    """Samples by index. ``sample_id`` is the position in the source and stays while rows are only appended.

    Of several files each has a format of its own, found by its first rows. Of each row every column is used, or named
    in ``Sample.unread``, or the row is refused by name (``brimful.sources.unread``).

    Picklable: worker processes open the same files through the same indexes.

    Args:
        rows: of one file, table or list, or several chained.
        format: name of the format of all rows; found out for each file if None.
        fields: keys of the rows, by the format's own names.
        ignore: columns, and marks such as ``<image>``, that may be left out though they say something.

    >>> from brimful.sources.memory import MemoryRows
    >>> source = Source(MemoryRows([{"question": "1+1?", "answer": "2"}]))
    >>> len(source), source.format_name, source[0].messages[1]["content"]
    (1, 'question_answer', '2')
    """

    def __init__(
        self,
        rows: Rows,
        format: str | None = None,
        fields: Mapping[str, str] | None = None,
        ignore: Sequence[str] = (),
    ) -> None:
        self.rows = rows
        self.title = rows.title
        self.detected = format is None
        parts = rows.parts if isinstance(rows, ChainedRows) else [rows]
        if len(rows) == 0:
            raise SourceError(f"{self.title} is empty: there is no sample to pack")
        formats = [format_named(format, fields)] * len(parts) if format is not None else _detected(parts, fields)
        readings = [Reading(row_format, frozenset(ignore)) for row_format in formats]
        self._runs = _joined([(len(part), reading) for part, reading in zip(parts, readings, strict=True)])

    @classmethod
    def chained(cls, sources: Sequence[Source], title: str) -> Source:
        """Several sources one behind the other, each read as before: with its formats, and what it may leave out."""
        self = cls.__new__(cls)
        self.rows = ChainedRows([source.rows for source in sources], title)
        self.title = title
        self.detected = any(source.detected for source in sources)
        self._runs = _joined([run for source in sources for run in source._sized_runs()])
        return self

    def _sized_runs(self) -> list[tuple[int, Reading]]:
        """Runs of rows that are read alike, each with its number of rows."""
        stops = [*(start for start, _ in self._runs[1:]), len(self)]
        return [(stop - start, reading) for (start, reading), stop in zip(self._runs, stops, strict=True)]

    @property
    def formats(self) -> list[RowFormat]:
        """The formats of its rows, each once, in the order of the files."""
        return list(dict.fromkeys(reading.format for _, reading in self._runs))

    @property
    def format_name(self) -> str:
        """``messages``, or ``messages and text`` where files differ."""
        return " and ".join(dict.fromkeys(row_format.name for row_format in self.formats))

    @property
    def unit(self) -> str:
        """What one document is, where the files are texts: ``one document a file``; empty for others."""
        return self.rows.unit

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, sample_id: int) -> Sample:
        """One sample.

        Raises:
            BadSampleError: the row is malformed, or says something that cannot be packed; names file, line and what.
            IndexError: no such sample.
        """
        sample_id = index_of("a sample", sample_id)
        if not 0 <= sample_id < len(self):
            raise IndexError(f"sample {sample_id} is not in 0 … {len(self) - 1}")
        result = self._convert(sample_id, self.rows.get(sample_id), self._reading_of(sample_id))
        if isinstance(result, BadSampleError):
            raise result
        return result

    def read(self, start: int, stop: int) -> Iterator[Sample | BadSampleError]:
        """Samples ``start … stop-1`` in order; a malformed one comes as the error, not raised."""
        only = self._runs[0][1] if len(self._runs) == 1 else None
        for sample_id, row in enumerate(self.rows.read(start, stop), start):
            yield self._convert(sample_id, row, only or self._reading_of(sample_id))

    def _reading_of(self, sample_id: int) -> Reading:
        return self._runs[bisect.bisect_right(self._runs, sample_id, key=lambda run: run[0]) - 1][1]

    def _convert(self, sample_id: int, row: Any, reading: Reading) -> Sample | BadSampleError:
        try:
            if isinstance(row, MalformedRowError):
                raise row
            return reading.sample(sample_id, row)
        except MalformedRowError as error:
            return BadSampleError(str(error), sample_id=sample_id, where=self.rows.where(sample_id))
        except (TypeError, ValueError, KeyError, AttributeError, RecursionError) as error:
            reason = f"cannot be read as format {reading.format.name} ({type(error).__name__}: {error})"
            return BadSampleError(reason, sample_id=sample_id, where=self.rows.where(sample_id))

    def where(self, sample_id: int) -> str:
        """File and line of a sample."""
        return self.rows.where(sample_id)

    @property
    def row_settings(self) -> dict[str, Any]:
        """What, beside the rows, decides what a sample holds."""
        if len(self._runs) == 1:
            return self._runs[0][1].settings
        return {"formats": [[start, reading.settings] for start, reading in self._runs]}

    @property
    def blocks(self) -> Sequence[Block]:
        """Runs of rows with fingerprints of their content and of how it is read.

        Raises:
            SourceError: they leave rows out: those would be in no table and no pack.
        """
        blocks = self.rows.blocks
        ends = [0, *(block.stop for block in blocks)]
        if ends[-1] != len(self) or ends[:-1] != [block.start for block in blocks]:
            raise SourceError(f"{self.title}: its blocks do not cover its {len(self):,} rows, each once and in order")
        found: list[Block] = []
        for reading, run in groupby(blocks, lambda block: self._reading_of(block.start)):
            settings = fingerprint_of(reading.settings)
            found += [Block(it.start, it.stop, fingerprint_of([it.fingerprint, settings])) for it in run]
        return found

    def begins_with(self, count: int, fingerprint: Fingerprint) -> bool:
        """Whether the first ``count`` samples are exactly those of a source with that fingerprint."""
        if count == len(self):
            return fingerprint == self.fingerprint
        digests = self.rows.prefix_fingerprints(count)
        return any(fingerprint_of([digest, self.row_settings]) == fingerprint for digest in digests)

    @property
    def fingerprint(self) -> Fingerprint:
        """Of all samples in order: the same for a copy elsewhere, for .jsonl and .jsonl.gz."""
        return fingerprint_of([self.rows.fingerprint, self.row_settings])

    def __repr__(self) -> str:
        return f"Source({self.title!r}, {len(self):,} samples, format {self.format_name}, {short(self.fingerprint)})"


def _joined(sized: Sequence[tuple[int, Reading]]) -> list[tuple[int, Reading]]:
    """Runs of rows that are read alike: the first row of each, ascending from 0, and how it is read."""
    runs: list[tuple[int, Reading]] = []
    start = 0
    for length, reading in sized:
        if length and (not runs or runs[-1][1] != reading):
            runs.append((start, reading))
        start += length
    return runs


def _detected(parts: Sequence[Rows], fields: Mapping[str, str] | None) -> list[RowFormat]:
    """The format of each part; a part without a readable row has that of the part before it (or behind)."""
    found: list[RowFormat | None] = []
    for part in parts:
        readable = [row for row in _first_rows(part) if not isinstance(row, MalformedRowError)]
        if not readable:
            found.append(None)
            continue
        try:
            found.append(detect(readable, fields))
        except UnknownFormatError as error:
            raise UnknownFormatError(f"{part.title}: {error.message}") from error
    known = [row_format for row_format in found if row_format is not None]
    if not known:
        part = next(part for part in parts if len(part))
        raise BadSampleError(str(next(iter(_first_rows(part)))), sample_id=0, where=part.where(0))
    last = known[0]
    formats = []
    for row_format in found:
        last = row_format or last
        formats.append(last)
    return formats


def _first_rows(part: Rows) -> list[Any]:
    return list(part.read(0, min(_ROWS_LOOKED_AT, len(part))))
