"""A data set: rows by index, and the formats that turn them into samples."""

from __future__ import annotations

import bisect
import os
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from itertools import accumulate, chain, groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from brimful.base.checks import index_of, setting_number
from brimful.base.fingerprint import fingerprint_of, short
from brimful.base.typing import Fingerprint
from brimful.base.wording import counted, setting
from brimful.errors import BadSampleError, SettingsError, SourceError
from brimful.sources.augmented import Augmentation, Transform, as_transforms
from brimful.sources.formats import RowFormat
from brimful.sources.reading import Reading
from brimful.sources.rows import FEW_FILES, Block, ChainedRows, Rows, joined
from brimful.sources.sample import Sample
from brimful.sources.settings import RowSettings

_DEFAULTS = RowSettings()


class Source:
    """Samples by index. ``sample_id`` is the position in the source and stays while rows are only
    appended.

    Each of several files has its own format, detected from its first rows. Every column of a row is
    used or is named in ``Sample.unread``, or the row is refused with the column's name
    (``brimful.sources.reading``).

    Picklable: worker processes open the same files through the same indexes.

    Args:
        rows: of one file, table or list, or several chained.
        settings: decide how the rows are read.
        cache: directory of what is counted once (``brimful.sources.answers``); None for the
            default.

    >>> from brimful.sources.memory import MemoryRows
    >>> source = Source(MemoryRows([{"question": "1+1?", "answer": "2"}]))
    >>> len(source), source.format_name, source[0].messages[1]["content"]
    (1, 'question_answer', '2')
    """

    def __init__(
        self, rows: Rows, settings: RowSettings = _DEFAULTS, cache: Path | None = None
    ) -> None:
        files = rows.files if isinstance(rows, ChainedRows) else [rows]
        if len(rows) == 0:
            raise SourceError(f"{rows.title} is empty: it has no sample to pack")
        formats = _formats_of(files, settings)
        if settings.prompt is not None and not any(
            row_format.default_prompt for row_format in formats
        ):
            names = " and ".join(dict.fromkeys(row_format.name for row_format in formats))
            raise SettingsError(f"{setting('prompt')} has no effect on rows of format {names}")
        views: list[Rows] = []
        sized_readings: list[tuple[int, Reading]] = []
        for file, row_format in zip(files, formats, strict=True):
            reading = settings.reading(row_format, file.directory)
            views.append(reading.view(file, cache))
            sized_readings.append((len(views[-1]), reading))
        rows = ChainedRows(views, rows.title) if isinstance(rows, ChainedRows) else views[0]
        self._set_rows(rows, sized_readings)
        self.detected = settings.format is None

    @classmethod
    def chained(cls, sources: Sequence[Source], title: str) -> Source:
        """Join several sources one after the other, each with its own formats and ignored columns.

        Raises:
            SettingsError: one is augmented; its draws would belong to other sample ids.
        """
        if any(source.augmentation is not None for source in sources):
            raise SettingsError(
                "join sources as they are, and augment the joined source: "
                "open_source([…]).augmented(…)"
            )
        self = cls.__new__(cls)
        rows = ChainedRows([source.rows for source in sources], title)
        self._set_rows(rows, [pair for source in sources for pair in source._sized_readings])
        self.detected = any(source.detected for source in sources)
        return self

    def _set_rows(self, rows: Rows, sized_readings: list[tuple[int, Reading]]) -> None:
        """Set the rows: for each file, its number of rows and its reading."""
        self.rows = rows
        self.title = rows.title
        self.augmentation: Augmentation | None = None
        """Transforms of the samples, and what decides their draws; None without transforms."""
        self._sized_readings = sized_readings
        formats = [reading.format for _, reading in sized_readings]
        views = {row_format.view for row_format in formats}
        if len(views) > 1:
            names = " and ".join(dict.fromkeys(row_format.name for row_format in formats))
            raise SettingsError(
                f"{rows.title} holds preferences among other samples (formats {names}), whose "
                "losses have no common unit: pack them apart"
            )
        view = next(iter(views), None)
        self.group_size = 1 if view is None else view.samples_per_row
        """Number of samples of one row, which are packed together."""
        self.joins_rows = view is not None and view.rows_together > 1
        """True if a sample is made of several rows: it depends on its neighbors, and must keep its
        beginning.
        """
        choices = {reading.per_turn for _, reading in sized_readings if reading.format.has_turns}
        if len(choices) > 1:
            raise SettingsError(
                f"{rows.title} holds conversations whose answers are samples among others that "
                f"are one sample each: open all with {setting('per_turn', True)}, or none"
            )
        self.per_turn = True in choices
        """True if each answer of a conversation is a sample, which is trained alone."""
        # A run ends where the reading changes: neighboring files that are read alike form one run.
        self._runs: list[tuple[int, Reading]] = []
        start = 0
        for num_rows, reading in sized_readings:
            if num_rows and (not self._runs or self._runs[-1][1] != reading):
                self._runs.append((start, reading))
            start += num_rows

    def augmented(
        self, transforms: Sequence[Transform], *, seed: int = 0, epoch: int = 0
    ) -> Source:
        """Return the same samples after transforms, for measuring, planning, writing and serving
        alike.

        A sample is the same each time it is read, in every process: seed, epoch and sample decide
        what transforms draw from ``random``, ``numpy.random`` and PyTorch. The fingerprint covers
        the transforms too. For new draws in another epoch, measure and plan the source augmented
        for that epoch.

        Args:
            transforms: functions from a sample to a sample, applied in order; without any, the
                samples stay as they are.
            seed, epoch: of the draws.

        Raises:
            SettingsError: these samples are already augmented.

        >>> def half(sample):
        ...     return replace(sample, text=sample.text[: len(sample.text) // 2])
        >>> from brimful.sources import open_source
        >>> source = open_source([{"text": "abcdef"}])
        >>> source.augmented([half])[0].text, source[0].text
        ('abc', 'abcdef')
        """
        if self.augmentation is not None:
            raise SettingsError(
                f"{self.title} is already augmented: give all transforms in one call, on the "
                "source without transforms"
            )
        seeds = (setting_number("seed", seed), setting_number("epoch", epoch, minimum=0))
        self = copy(self)
        self.augmentation = Augmentation(as_transforms(transforms), *seeds) if transforms else None
        return self

    @property
    def formats(self) -> list[RowFormat]:
        """The formats of the rows, each once, in the order of the files."""
        return list(dict.fromkeys(reading.format for _, reading in self._runs))

    @property
    def format_name(self) -> str:
        """Names of the formats: ``messages``, or ``messages and text`` if files differ."""
        return " and ".join(dict.fromkeys(row_format.name for row_format in self.formats))

    @property
    def unit(self) -> str:
        """Content of one document, for files of texts: ``one document a file``; empty for
        others.
        """
        return self.rows.unit

    @property
    def attachment_directories(self) -> list[str]:
        """Absolute directories to which names of attachments in rows are relative, each once; empty
        without attachments.
        """
        placings = (reading.placing for _, reading in self._sized_readings)
        return list(dict.fromkeys(os.path.abspath(one.directory) for one in placings if one))

    @property
    def has_attachments_outside(self) -> bool:
        """True if rows may name files outside these directories."""
        return any(
            reading.placing is not None and reading.placing.allow_outside
            for _, reading in self._sized_readings
        )

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, sample_id: int) -> Sample:
        """Return one sample.

        Raises:
            BadSampleError: the row is malformed, or has content that cannot be packed; names file,
                line and content.
            IndexError: no such sample.
        """
        (result,) = self.read_many([sample_id])
        if isinstance(result, BadSampleError):
            raise result
        return result

    def read(self, start: int, stop: int) -> Iterator[Sample | BadSampleError]:
        """Yield samples ``start … stop-1`` in order; the error of a malformed one is yielded, not
        raised.
        """
        return iter(self.augment(self.read_plain(start, stop)))

    def read_many(self, sample_ids: Sequence[int]) -> Iterator[Sample | BadSampleError]:
        """Yield samples in the order of their ids, as ``read`` does; the rows of each file are read
        in one go.
        """
        sample_ids = [index_of("a sample", sample_id) for sample_id in sample_ids]
        outside = next(
            (sample_id for sample_id in sample_ids if not 0 <= sample_id < len(self)), None
        )
        if outside is not None:
            raise IndexError(f"sample {outside} is not in 0 … {len(self) - 1}")
        return iter(self.augment(self._converted(sample_ids, self.rows.read_many(sample_ids))))

    def augment(
        self, samples: Iterable[Sample | BadSampleError]
    ) -> Iterable[Sample | BadSampleError]:
        """Return samples of this source after its transforms; the samples themselves without
        any.
        """
        augmentation = self.augmentation
        if augmentation is None:
            return samples
        return (
            sample if isinstance(sample, BadSampleError) else augmentation.apply(sample, self.where)
            for sample in samples
        )

    def read_plain(self, start: int, stop: int) -> Iterator[Sample | BadSampleError]:
        """Yield samples as ``read`` does, before transforms."""
        return self._converted(range(start, stop), self.rows.read(start, stop))

    def _converted(
        self, sample_ids: Sequence[int], rows: Iterable[Any]
    ) -> Iterator[Sample | BadSampleError]:
        rows = iter(rows)
        # Nearly every source is one run: then the reading need not be looked up for each row.
        if len(self._runs) == 1:
            return self._runs[0][1].read(sample_ids, rows, self.where)
        runs = groupby(sample_ids, self._reading_of)
        return chain.from_iterable(reading.read(ids, rows, self.where) for reading, ids in runs)

    def _reading_of(self, sample_id: int) -> Reading:
        return self._runs[bisect.bisect_right(self._runs, sample_id, key=itemgetter(0)) - 1][1]

    def where(self, sample_id: int) -> str:
        """Return the file and line of a sample."""
        return self.rows.where(sample_id)

    @property
    def row_settings(self) -> dict[str, Any]:
        """The settings that decide, together with the rows, the content of the samples."""
        augmentation = (
            {} if self.augmentation is None else {"transforms": self.augmentation.settings}
        )
        if len(self._runs) == 1:
            return {**self._runs[0][1].settings, **augmentation}
        return {
            "formats": [[start, reading.settings] for start, reading in self._runs],
            **augmentation,
        }

    @property
    def blocks(self) -> Sequence[Block]:
        """Blocks of rows with fingerprints of their content and of how it is read.

        Raises:
            SourceError: the blocks leave rows out, which would then be in no table and no pack.
        """
        blocks = self.rows.blocks
        edges = [0, *(block.stop for block in blocks)]
        if edges[-1] != len(self) or edges[:-1] != [block.start for block in blocks]:
            raise SourceError(
                f"{self.title}: its blocks do not cover its {len(self):,} rows, each once and in "
                "order"
            )
        result: list[Block] = []
        directories = self.attachment_directories
        file_edges = set(
            [*accumulate((num_rows for num_rows, _ in self._sized_readings), initial=0)][FEW_FILES:]
        )

        def reading_and_unit(block: Block) -> tuple[Reading, bool]:
            is_file = (
                file_edges.issuperset((block.start, block.stop)) and block.num_bytes is not None
            )
            return self._reading_of(block.start), is_file

        # A block spans several files only if it holds whole files that are read alike.
        for (reading, is_of_files), runs in groupby(blocks, reading_and_unit):
            settings = fingerprint_of(reading.settings)
            if is_of_files:
                # A file ends a block if it is one of 256, chosen by content: an edited file moves no
                # block after the next such file.
                runs = joined(runs, lambda file: file.fingerprint.endswith("00"))
            # Draws depend on the sample's number: the same rows elsewhere have other draws.
            draws = [] if self.augmentation is None else [self.augmentation.settings]
            # Equal rows name other files in another directory of this source. Its number is the
            # same for a copy elsewhere.
            files = reading.placing
            directory_index = (
                0 if files is None else directories.index(os.path.abspath(files.directory))
            )
            for run in runs:
                identity = [run.fingerprint, settings, *([*draws, run.start] if draws else [])]
                identity += [directory_index] if directory_index else []
                result.append(replace(run, fingerprint=fingerprint_of(identity)))
        return result

    def begins_with(self, count: int, fingerprint: Fingerprint) -> bool:
        """Return true if the first ``count`` samples are exactly the samples of a source with that
        fingerprint.
        """
        if count == len(self):
            return fingerprint == self.fingerprint
        digests = self.rows.prefix_fingerprints(count)
        return any(fingerprint_of([digest, self.row_settings]) == fingerprint for digest in digests)

    @property
    def fingerprint(self) -> Fingerprint:
        """Fingerprint of all samples in order: the same for a copy elsewhere, for .jsonl and
        .jsonl.gz.
        """
        return fingerprint_of([self.rows.fingerprint, self.row_settings])

    def __repr__(self) -> str:
        size = counted(len(self), "sample")
        return (
            f"Source({self.title!r}, {size}, format {self.format_name}, {short(self.fingerprint)})"
        )


def _formats_of(files: Sequence[Rows], settings: RowSettings) -> list[RowFormat]:
    """Return the format of each part; a part without a readable row gets the format of the previous
    (or next) part.
    """
    formats = [settings.format_of(file.read(0, len(file)), file.title) for file in files]
    first = next((row_format for row_format in formats if row_format is not None), None)
    if first is None:
        # No row of any part can be read: the first row tells why.
        file = next(file for file in files if len(file))
        raise BadSampleError(str(file.get(0)), sample_id=0, where=file.where(0))
    return list(
        accumulate(formats, lambda previous, row_format: row_format or previous, initial=first)
    )[1:]
