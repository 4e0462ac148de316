"""Sizes and fingerprints of the media of a job: every file is read once, in parallel, and cached.

The facts of a file are cached under the fingerprint of its block of rows, with a number for the
file's state (``Medium.stamp``): a file that was not written since is not read again, by the same
job or another.
"""

import contextlib
import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from brimful.base.execute import Resources, run_tasks
from brimful.base.fingerprint import short_digest
from brimful.base.locks import cache_dir as default_cache_dir
from brimful.base.ragged import offsets_of
from brimful.base.tables import open_table, write_table
from brimful.base.typing import AnyPath, BoolArray, Fingerprint, Int8Array, Int64Array, Offsets
from brimful.errors import BadSampleError, BrimfulError
from brimful.media import BadMediumError, MediaKind, Medium
from brimful.sources.source import Source

Digests = npt.NDArray[np.uint64]
"""``uint64[num_media, 2]``: the two halves of fingerprints."""

_THREADS = 8
"""Files that one process reads at a time: a network disk has high latency, and serves many requests
at once.
"""

_IN_PROCESS_BLOCKS = 3
"""Maximum number of blocks that are read in this process: starting others would take longer."""

_COLUMNS = ("place", "stamp", "size", "high", "low")
"""Columns of the cached facts: digest of path and range, state, bytes, and the halves of the
fingerprint.
"""

_KINDS = tuple(MediaKind)

_Row: TypeAlias = tuple[int, ...]
"""Facts of one medium: the columns after the first."""


@dataclass(frozen=True)
class MediaSurvey:
    """Facts of the media of all samples, in the order of samples and of their media.

    Attributes:
        offsets: ``int64[num_samples + 1]``, first medium of each sample, and the end; samples that
            were not requested have none.
        digests: ``uint64[num_media, 2]``, fingerprints of their bytes.
        sizes: ``int64[num_media]``, bytes.
        stamps: ``int64[num_media]``, state of the file they were read from; 0 for bytes that came
            with the row.
        kinds: ``int8[num_media]``, index of their kind among ``MediaKind``.
    """

    offsets: Offsets
    digests: Digests
    sizes: Int64Array
    stamps: Int64Array
    kinds: Int8Array

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def is_in_row(self) -> BoolArray:
        """``bool[num_media]``, true for bytes that are not in a file."""
        is_in_row: BoolArray = self.stamps == 0
        return is_in_row


def fingerprint_of_digest(digest: Sequence[int]) -> Fingerprint:
    """Return the fingerprint with these halves.

    >>> fingerprint_of_digest([1, 255])
    '000000000000000100000000000000ff'
    """
    return f"{int(digest[0]):016x}{int(digest[1]):016x}"


@dataclass(frozen=True)
class _Block:
    """Rows ``start … stop-1``, which of them are requested, and the file that caches their
    media.
    """

    start: int
    stop: int
    is_wanted: BoolArray
    path: str


def survey_media(
    source: Source,
    is_wanted: BoolArray,
    *,
    cache_dir: AnyPath | None = None,
    resources: Resources | None = None,
) -> MediaSurvey:
    """Read the media of samples for their sizes and fingerprints.

    Args:
        source: the samples.
        is_wanted: ``bool[len(source)]``, true for samples whose media are needed.
        cache_dir: directory of the cached facts.
        resources: of the job; the progress reports samples.

    Raises:
        BadSampleError: a medium that cannot be read; names file, line and medium.
    """
    resources = resources or Resources()
    progress = resources.progress
    folder = default_cache_dir(cache_dir) / "media"
    blocks = [
        _Block(
            block.start,
            block.stop,
            is_wanted[block.start : block.stop],
            str(folder / block.fingerprint[:2] / f"{block.fingerprint}.arrow"),
        )
        for block in source.blocks
    ]
    pending = [block for block in blocks if block.is_wanted.any()]
    resources = resources.for_work(is_small=len(pending) <= _IN_PROCESS_BLOCKS)
    counts = {block.start: np.zeros(block.stop - block.start, dtype=np.int64) for block in blocks}
    no_media = np.empty((0, len(_COLUMNS)), dtype=np.uint64)
    facts = {block.start: no_media for block in blocks}
    with progress.stage("media", total=len(source), unit="samples"):
        tasks = run_tasks(_survey_block, pending, context=source, resources=resources)
        with closing(tasks) as results:
            for block, (counts_of_block, facts_of_block) in results:
                counts[block.start], facts[block.start] = counts_of_block, facts_of_block
                progress.advance(block.stop - block.start)
        progress.advance(len(source) - progress.stages[-1].done, resumed=True)
    stamps, sizes, high, low, kinds = np.concatenate([no_media, *facts.values()]).T
    return MediaSurvey(
        offsets_of(np.concatenate([np.zeros(0, dtype=np.int64), *counts.values()])),
        np.column_stack([high, low]),
        sizes.astype(np.int64),
        stamps.astype(np.int64),
        kinds.astype(np.int8),
    )


def _survey_block(source: Source, block: _Block) -> tuple[Int64Array, npt.NDArray[np.uint64]]:
    """Return the number of media of each row of a block, and their facts with their kinds, in any
    process.
    """
    remembered_facts = _remembered(block.path)
    counts = np.zeros(block.stop - block.start, dtype=np.int64)
    readings: dict[int, Future[_Row]] = {}
    rows: list[tuple[_Row | int, int]] = []
    pool = ThreadPoolExecutor(_THREADS)
    try:
        for sample in source.read(block.start, block.stop):
            if not block.is_wanted[sample.sample_id - block.start]:
                continue
            if isinstance(sample, BadSampleError):
                raise sample
            counts[sample.sample_id - block.start] = len(sample.attachments)
            for medium in sample.attachments:
                kind = _KINDS.index(medium.kind)
                if not medium.path:
                    rows.append((_row_of(medium, stamp=0), kind))
                    continue
                key = short_digest(os.fsencode(f"{medium.offset} {medium.size} {medium.path}"))
                # One image often has several captions: it is read once.
                if key not in readings:
                    readings[key] = pool.submit(
                        _read, source, sample.sample_id, medium, remembered_facts.get(key)
                    )
                rows.append((key, kind))
        fresh = {key: reading.result() for key, reading in readings.items()}
    finally:
        pool.shutdown(cancel_futures=True)
    if not fresh.items() <= remembered_facts.items():
        facts = [(key, *row) for key, row in (remembered_facts | fresh).items()]
        columns = np.array(facts, dtype=np.uint64).T
        with contextlib.suppress(OSError, BrimfulError):  # a cache that cannot be written
            write_table(block.path, dict(zip(_COLUMNS, columns, strict=True)), {"kind": "media"})
    table = [(*(fresh[row] if isinstance(row, int) else row), kind) for row, kind in rows]
    return counts, np.array(table, dtype=np.uint64).reshape(-1, len(_COLUMNS))


def _read(source: Source, sample_id: int, medium: Medium, known: _Row | None) -> _Row:
    """Return the facts of a file, cached ones if its state is the same."""
    try:
        stamp = medium.stamp()
        if known is not None and known[0] == stamp:
            return known
        row = _row_of(medium, stamp)
        if medium.stamp() != stamp:
            raise BadMediumError("was changed while it was being read")
    except BadMediumError as error:
        raise BadSampleError(
            f"{medium.kind.value} {medium.name[:200]!r}: {error}",
            sample_id=sample_id,
            where=source.where(sample_id),
        ) from error
    return row


def _row_of(medium: Medium, stamp: int) -> _Row:
    digits = medium.fingerprint()
    return stamp, medium.num_bytes, int(digits[:16], 16), int(digits[16:], 16)


def _remembered(path: str) -> dict[int, _Row]:
    """Return the cached facts of the files of a block, by their places; empty if unreadable."""
    try:
        table = open_table(path)
        columns = [table.flat(name).tolist() for name in _COLUMNS]
    except (KeyError, BrimfulError):
        return {}
    return {row[0]: row[1:] for row in zip(*columns, strict=True)}
