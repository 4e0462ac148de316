"""Sizes and fingerprints of the media of a job: every file is read once, in parallel, and cached.

The facts of a file are cached under the fingerprint of its block of rows, with a number for the
file's state (``Medium.stamp``): a file that was not written since is not read again, by the same
job or another.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
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
from brimful.base.typing import BoolArray, Fingerprint, Int8Array, Int64Array, Offsets
from brimful.errors import BadSampleError, BrimfulError
from brimful.media import BadMediumError, MediaKind, Medium
from brimful.sources.sample import Sample
from brimful.sources.source import Source

Digests = npt.NDArray[np.uint64]
"""``uint64[num_media, 2]``: the two halves of fingerprints."""

_THREADS = 8
"""Files that one process reads at a time: a network disk has high latency, and serves many requests
at once.
"""

_IN_PROCESS_BLOCKS = 3
"""Maximum number of blocks that are read in this process: starting others would take longer."""

_SETTLED_SECONDS = 2.0
"""Age from which a file's state is cached: a younger file may be written again within one tick of
its clock.
"""

_COLUMNS = ("place", "stamp", "size", "high", "low")
"""Columns of the cached facts: digest of path and range, state, bytes, and the halves of the
fingerprint.
"""

_KIND_NUMBERS = {kind: number for number, kind in enumerate(MediaKind)}

_Row: TypeAlias = tuple[int, int, int, int]
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
    cache_dir: str | os.PathLike[str] | None = None,
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
    facts: dict[int, MediaSurvey] = {}
    with progress.stage("media", total=len(source), unit="samples"):
        tasks = run_tasks(_survey_block, pending, context=source, resources=resources)
        with closing(tasks) as results:
            for block, block_facts in results:
                facts[block.start] = block_facts
                progress.advance(block.stop - block.start)
        progress.advance(
            sum(block.stop - block.start for block in blocks) - progress.stages[-1].done,
            resumed=True,
        )
    return _joined(
        [facts.get(block.start, _no_media(block.stop - block.start)) for block in blocks]
    )


def _joined(parts: Sequence[MediaSurvey]) -> MediaSurvey:
    """Concatenate the facts of all blocks."""
    parts = parts or [_no_media(0)]
    return MediaSurvey(
        offsets_of(np.concatenate([np.diff(part.offsets) for part in parts])),
        *(
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("digests", "sizes", "stamps", "kinds")
        ),
    )


def _no_media(num_rows: int) -> MediaSurvey:
    none = np.empty(0, dtype=np.int64)
    offsets = np.zeros(num_rows + 1, dtype=np.int64)
    return MediaSurvey(
        offsets, none.reshape(0, 2).astype(np.uint64), none, none, none.astype(np.int8)
    )


def _survey_block(source: Source, block: _Block) -> MediaSurvey:
    """Return the facts of the media of one block, in any process."""
    remembered_facts = _remembered(block.path)
    counts = np.zeros(block.stop - block.start, dtype=np.int64)
    readings: dict[int, Future[tuple[_Row, bool]]] = {}
    rows: list[_Row | int] = []
    kinds: list[int] = []
    pool = ThreadPoolExecutor(_THREADS)
    try:
        for sample in _wanted(source, block):
            counts[sample.sample_id - block.start] = len(sample.media)
            for medium in sample.media:
                kinds.append(_KIND_NUMBERS[medium.kind])
                if not medium.path:
                    rows.append(_row_of(medium, stamp=0))
                    continue
                place = short_digest(os.fsencode(f"{medium.offset} {medium.size} {medium.path}"))
                # One image often has several captions: it is read once.
                if place not in readings:
                    readings[place] = pool.submit(
                        _read, source, sample.sample_id, medium, remembered_facts.get(place)
                    )
                rows.append(place)
        results = {place: reading.result() for place, reading in readings.items()}
    finally:
        pool.shutdown(cancel_futures=True)
    fresh = {place: row for place, (row, _) in results.items()}
    _remember(
        block.path,
        remembered_facts,
        {place: row for place, (row, is_settled) in results.items() if is_settled},
    )
    table = [fresh[row] if isinstance(row, int) else row for row in rows]
    return MediaSurvey(
        offsets_of(counts),
        np.array([row[2:] for row in table], dtype=np.uint64).reshape(-1, 2),
        np.array([row[1] for row in table], dtype=np.int64),
        np.array([row[0] for row in table], dtype=np.int64),
        np.array(kinds, dtype=np.int8),
    )


def _wanted(source: Source, block: _Block) -> Iterator[Sample]:
    """Yield the requested samples of a block."""
    for sample in source.read(block.start, block.stop):
        if not block.is_wanted[sample.sample_id - block.start]:
            continue
        if isinstance(sample, BadSampleError):
            raise sample
        yield sample


def _read(source: Source, sample_id: int, medium: Medium, known: _Row | None) -> tuple[_Row, bool]:
    """Return the facts of a file, cached ones if its state is the same, and whether they may be
    cached.
    """
    try:
        stamp = medium.stamp()
        if known is not None and known[0] == stamp:
            return known, True
        row = _row_of(medium, stamp)
        if medium.stamp() != stamp:
            raise BadMediumError("was changed while it was being read")
        is_settled = medium.seconds_since_change() > _SETTLED_SECONDS
    except BadMediumError as error:
        raise BadSampleError(
            f"{medium.kind.value} {medium.name[:200]!r}: {error}",
            sample_id=sample_id,
            where=source.where(sample_id),
        ) from error
    return row, is_settled


def _row_of(medium: Medium, stamp: int) -> _Row:
    digits = medium.fingerprint()
    return stamp, medium.num_bytes, int(digits[:16], 16), int(digits[16:], 16)


def _remembered(path: str) -> dict[int, _Row]:
    """Return the cached facts of the files of a block, by their places; empty if unreadable."""
    try:
        table = open_table(path)
        columns = [table.flat(name).tolist() for name in _COLUMNS]
    except (FileNotFoundError, KeyError, BrimfulError):
        return {}
    return {
        place: (stamp, size, high, low)
        for place, stamp, size, high, low in zip(*columns, strict=True)
    }


def _remember(path: str, known: Mapping[int, _Row], fresh: Mapping[int, _Row]) -> None:
    """Cache new facts for later jobs; ignore a cache that cannot be written."""
    rows = {**known, **fresh}
    if rows == known:
        return
    places = list(rows)
    types = (np.int64, np.int64, np.uint64, np.uint64)
    columns = [
        np.array([rows[place][index] for place in places], dtype=kind)
        for index, kind in enumerate(types)
    ]
    with contextlib.suppress(OSError, BrimfulError):
        write_table(
            path,
            dict(zip(_COLUMNS, [np.array(places, dtype=np.int64), *columns], strict=True)),
            {"kind": "media"},
        )
