"""A data set: rows by index, and the format that says what they mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from brimful.errors import BadSampleError, SourceError
from brimful.fingerprint import fingerprint_of, short
from brimful.sources.formats import RowFormat, detect, format_named
from brimful.sources.rows import Block, Rows
from brimful.sources.sample import MalformedRowError, Sample
from brimful.typing import Fingerprint

__all__ = ["Source"]

_ROWS_LOOKED_AT = 16


class Source:
    """Samples by index. ``sample_id`` is the position in the source and stays while rows are only appended.

    Picklable: worker processes open the same files through the same indexes.

    >>> from brimful.sources.memory import MemoryRows
    >>> source = Source(MemoryRows([{"question": "1+1?", "answer": "2"}]))
    >>> len(source), source.format.name, source[0].messages[1]["content"]
    (1, 'question_answer', '2')
    """

    def __init__(self, rows: Rows, format: str | None = None, fields: Mapping[str, str] | None = None) -> None:
        self.rows = rows
        self.title = rows.title
        self.detected = format is None
        if format is not None:
            self.format: RowFormat = format_named(format, fields)
        else:
            self.format = detect(self._first_readable(), fields)

    def _first_readable(self) -> list[Any]:
        if len(self.rows) == 0:
            raise SourceError(f"{self.title} is empty: there is no sample to pack")
        first = list(self.rows.read(0, min(_ROWS_LOOKED_AT, len(self.rows))))
        readable = [row for row in first if not isinstance(row, MalformedRowError)]
        if not readable:
            raise BadSampleError(str(first[0]), sample_id=0, where=self.rows.where(0))
        return readable

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, sample_id: int) -> Sample:
        """One sample.

        Raises:
            BadSampleError: the row is malformed; names file, line and what is wrong.
            IndexError: no such sample.
        """
        if not 0 <= sample_id < len(self):
            raise IndexError(f"sample {sample_id} is not in 0 … {len(self) - 1}")
        result = self._convert(sample_id, self.rows.get(sample_id))
        if isinstance(result, BadSampleError):
            raise result
        return result

    def read(self, start: int, stop: int) -> Iterator[Sample | BadSampleError]:
        """Samples ``start … stop-1`` in order; a malformed one comes as the error, not raised."""
        for offset, row in enumerate(self.rows.read(start, stop)):
            yield self._convert(start + offset, row)

    def _convert(self, sample_id: int, row: Any) -> Sample | BadSampleError:
        try:
            if isinstance(row, MalformedRowError):
                raise row
            return Sample(sample_id, **self.format.convert(row))
        except MalformedRowError as error:
            return BadSampleError(str(error), sample_id=sample_id, where=self.rows.where(sample_id))

    def where(self, sample_id: int) -> str:
        """File and line of a sample."""
        return self.rows.where(sample_id)

    @property
    def row_settings(self) -> dict[str, Any]:
        """What, beside the rows, decides what a sample holds."""
        return {"format": self.format.name, "fields": dict(self.format.fields)}

    @property
    def blocks(self) -> Sequence[Block]:
        """Runs of rows with fingerprints of their content and of how it is read.

        Raises:
            SourceError: they leave rows out: those would be in no table and no pack.
        """
        settings = fingerprint_of(self.row_settings)
        blocks = self.rows.blocks
        ends = [0, *(block.stop for block in blocks)]
        if ends[-1] != len(self) or ends[:-1] != [block.start for block in blocks]:
            raise SourceError(f"{self.title}: its blocks do not cover its {len(self):,} rows, each once and in order")
        return [Block(block.start, block.stop, fingerprint_of([block.fingerprint, settings])) for block in blocks]

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
        return f"Source({self.title!r}, {len(self):,} samples, format {self.format.name}, {short(self.fingerprint)})"
