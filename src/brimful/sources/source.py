"""A data set: rows by index, and the formats that say what they mean."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from brimful.arguments import index_of
from brimful.errors import BadSampleError, SourceError, UnknownFormatError
from brimful.fingerprint import fingerprint_of, short
from brimful.sources.formats import RowFormat, detect, format_named
from brimful.sources.rows import Block, ChainedRows, Rows
from brimful.sources.sample import MalformedRowError, Sample
from brimful.sources.unread import placeholder, refusal, unread_columns, unread_of_messages
from brimful.typing import Fingerprint
from brimful.words import setting

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
        self.ignore = frozenset(ignore)
        parts = rows.parts if isinstance(rows, ChainedRows) else [rows]
        if len(rows) == 0:
            raise SourceError(f"{self.title} is empty: there is no sample to pack")
        formats = [format_named(format, fields)] * len(parts) if format is not None else _detected(parts, fields)
        self._set_formats(parts, formats)

    @classmethod
    def chained(cls, sources: Sequence[Source], title: str) -> Source:
        """Several sources one behind the other, each with the formats it has."""
        self = cls.__new__(cls)
        self.rows = ChainedRows([source.rows for source in sources], title)
        self.title = title
        self.detected = any(source.detected for source in sources)
        self.ignore = frozenset().union(*(source.ignore for source in sources))
        starts, formats = [], []
        for source, start in zip(sources, self.rows.starts, strict=True):
            starts += [start + inner for inner in source._starts]
            formats += source._formats
        self._starts, self._formats = starts, formats
        return self

    def _set_formats(self, parts: Sequence[Rows], formats: Sequence[RowFormat]) -> None:
        """Runs of rows that share a format: where each begins, and the format."""
        self._starts: list[int] = []
        self._formats: list[RowFormat] = []
        start = 0
        for part, row_format in zip(parts, formats, strict=True):
            if len(part) and (not self._formats or self._formats[-1] != row_format):
                self._starts.append(start)
                self._formats.append(row_format)
            start += len(part)

    @property
    def formats(self) -> list[RowFormat]:
        """The formats of its rows, each once, in the order of the files."""
        return list(dict.fromkeys(self._formats))

    @property
    def format_name(self) -> str:
        """``messages``, or ``messages and text`` where files differ."""
        return " and ".join(dict.fromkeys(row_format.name for row_format in self._formats))

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
        result = self._convert(sample_id, self.rows.get(sample_id), self._format_of(sample_id))
        if isinstance(result, BadSampleError):
            raise result
        return result

    def read(self, start: int, stop: int) -> Iterator[Sample | BadSampleError]:
        """Samples ``start … stop-1`` in order; a malformed one comes as the error, not raised."""
        if len(self._formats) == 1:
            row_format = self._formats[0]
            for offset, row in enumerate(self.rows.read(start, stop)):
                yield self._convert(start + offset, row, row_format)
            return
        for offset, row in enumerate(self.rows.read(start, stop)):
            yield self._convert(start + offset, row, self._format_of(start + offset))

    def _format_of(self, sample_id: int) -> RowFormat:
        return self._formats[bisect.bisect_right(self._starts, sample_id) - 1]

    def _convert(self, sample_id: int, row: Any, row_format: RowFormat) -> Sample | BadSampleError:
        try:
            if isinstance(row, MalformedRowError):
                raise row
            refused = refusal(row, row_format.columns, ignore=self.ignore)
            if refused is not None:
                raise MalformedRowError(refused)
            content = row_format.convert(row)
            unread = [name for name in unread_columns(row, row_format.columns) if name not in self.ignore]
            messages = content.get("messages")
            if messages is not None:
                unread += sorted(unread_of_messages(messages) - self.ignore)
            self._check_placeholders(content)
            return Sample(sample_id, **content, unread=tuple(unread))
        except MalformedRowError as error:
            return BadSampleError(str(error), sample_id=sample_id, where=self.rows.where(sample_id))
        except (TypeError, ValueError, KeyError, AttributeError, RecursionError) as error:
            reason = f"cannot be read as format {row_format.name} ({type(error).__name__}: {error})"
            return BadSampleError(reason, sample_id=sample_id, where=self.rows.where(sample_id))

    def _check_placeholders(self, content: Mapping[str, Any]) -> None:
        """No mark says that a medium belongs in a text that comes without one."""
        messages = content.get("messages")
        texts = [content.get("text")] if messages is None else [message.get("content") for message in messages]
        for text in texts:
            mark = placeholder(text, ignore=self.ignore) if text else None
            if mark is not None:
                raise MalformedRowError(
                    f"its text holds {mark} where a medium belongs, and media cannot be packed so far: if it is plain "
                    f"text, say so with {setting('ignore', [mark])}"
                )

    def where(self, sample_id: int) -> str:
        """File and line of a sample."""
        return self.rows.where(sample_id)

    @property
    def row_settings(self) -> dict[str, Any]:
        """What, beside the rows, decides what a sample holds."""
        if len(self._formats) == 1:
            return self._settings_of(self._formats[0])
        return {
            "formats": [[start, *self._described(it)] for start, it in zip(self._starts, self._formats, strict=True)]
        }

    def _settings_of(self, row_format: RowFormat) -> dict[str, Any]:
        name, fields = self._described(row_format)
        return {"format": name, "fields": fields, **({"ignore": sorted(self.ignore)} if self.ignore else {})}

    @staticmethod
    def _described(row_format: RowFormat) -> tuple[str, dict[str, str]]:
        return row_format.name, dict(row_format.fields)

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
        for row_format, run in groupby(blocks, lambda block: self._format_of(block.start)):
            settings = fingerprint_of(self._settings_of(row_format))
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
