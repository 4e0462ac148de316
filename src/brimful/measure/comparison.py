"""Comparison of a share of the rows with the reference, while a job runs.

Faster libraries are used because they gave the reference's tokens on hard texts; still, a few rows
of every block are encoded by both. One difference stops the job, and nothing that those libraries
encoded is used.

Lengths of media come from headers, by arithmetic that was tested against the processors of one
version of Transformers, on selected images. So a few samples of the job are decoded and given to
the installed processor.
"""

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from brimful.base.atomic_file import atomic_file
from brimful.base.plain_files import read_plain
from brimful.base.progress import Progress
from brimful.base.tables import Table, open_table
from brimful.base.typing import Fingerprint, Int64Array, LossMask
from brimful.base.wording import setting
from brimful.encode.encoded import EncodedSample, StoredSamples
from brimful.encode.encoder import MediaReference
from brimful.errors import (
    BadSampleError,
    BrimfulError,
    EncodersDifferError,
    ProcessorDiffersError,
    SourceNotFoundError,
)
from brimful.lengths.targets import mask_of_runs
from brimful.measure.block import RUNS, measure_block
from brimful.measure.block_task import BlockContext, BlockTask, num_characters
from brimful.sources.sample import Sample

ROWS = 16
"""Rows of a block that are compared: 16 of 4,096 cost less than a tenth of the time."""

_CHARACTERS = 1 << 17
"""Characters after which no more rows of a run are compared: sixteen long documents cost more than
their block.
"""


ReferenceRows: TypeAlias = list[tuple[Sample, EncodedSample | BadSampleError]]
"""Samples to compare, each with what the reference made of it."""


SHARE = 256
"""Samples with media for each compared one, if time allows."""

TIME_SHARE = 0.02
"""Share of the measuring time so far that comparisons may take, not counting the first sample of
each kind.
"""

_COUNTS = ("images", "frames", "sounds")
"""Budgets that tell kinds of samples apart: none, one, or several of each."""


def reference_rows(context: BlockContext, task: BlockTask) -> ReferenceRows:
    """Return a few rows of a block, encoded by the reference."""
    samples = [sample for first in _first_rows(task) for sample in _few_of(context, task, first)]
    return list(zip(samples, context.encoder.engine.reference.encode_batch(samples), strict=True))


def compare_block(
    context: BlockContext, task: BlockTask, expected: ReferenceRows | None = None
) -> None:
    """Compare a few rows of a measured block with the reference, and record that it was done.

    Args:
        context, task: of the block.
        expected: its ``reference_rows``, if they were encoded before.

    Raises:
        EncodersDifferError: a row has other tokens or targets.
    """
    part = open_table(task.part_path)
    if not part.description.get("engine"):
        return
    tokens = part.flat("tokens")
    fingerprints = _fingerprints(task, part)
    # Tokens are temporary: their reader reports them if they are missing.
    stored = None
    if task.encoded_path is not None and None not in fingerprints:
        stored = StoredSamples([(task.start, task.encoded_path)])
    runs = part.ragged(RUNS) if context.needs_runs else None
    for sample, reference in expected or reference_rows(context, task):
        row = sample.sample_id - task.start
        targets = None if runs is None else mask_of_runs(runs.row(row), max(0, int(tokens[row])))
        difference = _difference(sample, reference, int(tokens[row]), targets, stored)
        if difference:
            raise _refusal(context, part.description, sample, difference)
    _record(task, ".compared", fingerprints)


def measure_and_compare(context: BlockContext, task: BlockTask) -> int:
    """Measure one block, compare it and return the number of its tokens; runs in any process.

    Raises:
        EncodersDifferError: as for ``compare_block``.
    """
    num_tokens = measure_block(context, task)
    compare_block(context, task)
    return num_tokens


def is_compared(task: BlockTask) -> bool:
    """Return true if a record says that the files of a block were compared, or if no fast library
    made them.
    """
    part = open_table(task.part_path)
    if not part.description.get("engine"):
        return True
    return _is_recorded(task, ".compared", _fingerprints(task, part))


def _few_of(context: BlockContext, task: BlockTask, first: int) -> Iterator[Sample]:
    """Yield the samples from a row on, until they have ``_CHARACTERS`` characters."""
    num_all = 0
    for sample in context.source.read(first, min(first + ROWS, task.stop)):
        if isinstance(sample, Sample):
            yield sample
            num_all += num_characters(sample)
            if num_all >= _CHARACTERS:
                return


def _is_recorded(task: BlockTask, kind: str, names: Iterable[str | None]) -> bool:
    """Return true if the record of a comparison next to a block's lengths has all names."""
    try:
        recorded = read_plain(Path(task.part_path).with_suffix(kind)).decode().split()
    except (OSError, ValueError):
        return False
    return all(name in recorded for name in names)


def _record(task: BlockTask, kind: str, names: Iterable[str | None]) -> None:
    """Record a comparison, after it: a job that is killed earlier compares the block when it is
    resumed.
    """
    path = Path(task.part_path).with_suffix(kind)
    with contextlib.suppress(OSError, BrimfulError), atomic_file(path) as file:
        file.write("\n".join(name for name in names if name is not None).encode())


def _fingerprints(task: BlockTask, part: Table) -> list[Fingerprint | None]:
    """Return the fingerprints of a block's lengths and, if the job keeps them, of its tokens; None
    for a missing file.
    """
    if task.encoded_path is None:
        return [part.fingerprint]
    try:
        return [part.fingerprint, open_table(task.encoded_path).fingerprint]
    except SourceNotFoundError:
        return [part.fingerprint, None]


def _first_rows(task: BlockTask) -> Iterator[int]:
    """Yield the first row of each run to compare: the beginning of the data, and one place in every
    block.
    """
    if task.start == 0:
        yield 0
    # By the number of the block's first row, so that every run of the same job compares the same
    # rows.
    yield task.start + (task.start // 4096 * 2_654_435_761) % max(1, len(task) - ROWS + 1)


def _difference(
    sample: Sample,
    expected: EncodedSample | BadSampleError,
    length: int,
    targets: LossMask | None,
    stored: StoredSamples | None,
) -> str:
    """Describe the difference between a measured sample and the reference; empty without one."""
    if isinstance(expected, BadSampleError):
        return "" if length < 1 else f"the reference rejects it: {expected.reason}"
    if len(expected) != max(0, length):
        return f"{max(0, length):,} tokens, and {len(expected):,} by the reference"
    if length < 1:
        return ""
    if stored is not None:
        return stored[sample.sample_id].difference(expected)
    # Without tokens, only the targets can be compared.
    return "" if targets is None else replace(expected, loss_mask=targets).difference(expected)


def _refusal(
    context: BlockContext, description: Mapping[str, Any], sample: Sample, difference: str
) -> EncodersDifferError:
    """Record a difference and return its error; ``description`` belongs to the block's lengths."""
    place = context.source.where(sample.sample_id)
    # The libraries that encoded the block: a resumed job may have others.
    engine_id = description["engine"]
    context.encoder.engine.distrust(engine_id, f"it differed from the reference on {place}")
    return EncodersDifferError(
        f"{place} (sample {sample.sample_id}): {description.get('encoded_by', engine_id)} encodes "
        f"it differently than the libraries that it replaces: {difference}. Nothing that it "
        "encoded is used; run the same command again: it goes on without it, as with "
        f"{setting('fast', False)}"
    )


class MediaComparison:
    """Comparison of one job, block by block.

    The first sample of each kind is always compared (no, one or several images, with or without
    videos and audio), then one in ``SHARE`` by its number, as long as all comparisons together take
    less than ``TIME_SHARE`` of the time.

    Args:
        context: of the job.
        progress: told if nothing can be compared.
    """

    def __init__(self, context: BlockContext, progress: Progress) -> None:
        self._context, self._progress = context, progress
        self._reference = context.encoder.media_reference
        self._kinds_seen: set[int] = set()
        self._seconds = 0.0
        self._begin = time.perf_counter()

    def is_due(self, task: BlockTask) -> bool:
        """Return true if the lengths of a measured block were not compared yet."""
        if self._reference is None:
            return False
        part = open_table(task.part_path)
        return not _is_recorded(task, ".processor", [part.fingerprint, self._reference.id])

    def compare(self, task: BlockTask) -> None:
        """Compare some samples of a measured block, and record that it was done.

        Raises:
            ProcessorDiffersError: a sample has other tokens or another grid.
        """
        if self._reference is None:
            return
        part = open_table(task.part_path)
        if _kinds(part).any() and self._reference.obstacle:
            self._progress.say(
                f"media are not compared with the processor of the model, which cannot be loaded "
                f"({self._reference.obstacle})"
            )
            self._reference = None
            return
        tokens = part.flat("tokens")
        for row in self._rows(part, task):
            self._compare_row(task.start + row, int(tokens[row]), self._reference)
        _record(task, ".processor", [part.fingerprint, self._reference.id])

    def _rows(self, part: Table, task: BlockTask) -> Iterator[int]:
        """Yield rows of a block to compare: the first of each kind, then a share while time
        allows.
        """
        kinds = _kinds(part)
        kinds[part.flat("tokens") < 1] = 0
        firsts = []
        for kind in np.unique(kinds[kinds > 0]).tolist():
            if kind not in self._kinds_seen:
                self._kinds_seen.add(kind)
                firsts.append(int(np.argmax(kinds == kind)))
        yield from firsts
        # By a hash of the row's number, so that no periodic pattern of the data is missed.
        numbers = np.flatnonzero(kinds > 0)
        is_chosen = (numbers + task.start) * 2_654_435_761 % 2**32 < 2**32 // SHARE
        for row in numbers[is_chosen].tolist():
            if self._seconds > TIME_SHARE * (time.perf_counter() - self._begin):
                return
            if row not in firsts:
                yield row

    def _compare_row(self, row: int, length: int, reference: MediaReference) -> None:
        begin = time.perf_counter()
        source = self._context.source
        for sample in source.read(row, row + 1):
            if not isinstance(sample, Sample):
                continue
            try:
                difference = reference.difference(sample, length)
            except (
                BadSampleError
            ) as error:  # no length is wrong; the writer rejects a sample that changed since
                self._progress.say(error.located(source.where(row)).message)
                continue
            if difference:
                raise ProcessorDiffersError(
                    f"{source.where(row)} (sample {row}): {difference}. Nothing is planned with "
                    f"such lengths: name the processor of the model with {setting('processor')}, "
                    f"or its chat template with {setting('chat_template')}; leave the sample out; "
                    f"or go on without the comparison by {setting('compare_media', False)}"
                )
        self._seconds += time.perf_counter() - begin


def _kinds(part: Table) -> Int64Array:
    """Return a number for each row: 0 without media, equal for samples with none, one or several of
    the same media.
    """
    kinds = np.zeros(len(part), dtype=np.int64)
    for name in _COUNTS:
        if name in part:
            kinds = 3 * kinds + np.clip(part.flat(name), 0, 2)
    return kinds
