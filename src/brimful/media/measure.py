"""Media of measured rows: states of their files, and a comparison of lengths with the processor.

Lengths of a row are valid as long as its files are unchanged. Rows are identified by their text,
which stays when an image file is replaced. So each row's length has a number: a digest of the sizes
and last changes of its files, and of the range of a member of a tar. Comparing it costs one call of
the file system for each medium, and opens none. Bytes inside a row are in its fingerprint, and need
no number.

Lengths of media come from headers, by arithmetic that was tested against the processors of one
version of Transformers, on selected images. So a few samples of the job are decoded and given to
the installed processor.

The module is the ``attachment_measures`` of ``brimful.measure.block_task``.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from brimful.base.attachment import BadAttachmentError
from brimful.base.execute import Resources, run_tasks
from brimful.base.fingerprint import short_digest
from brimful.base.progress import Progress
from brimful.base.tables import ColumnTable, open_table
from brimful.base.typing import Int64Array
from brimful.base.wording import setting
from brimful.errors import BadSampleError, ProcessorDiffersError
from brimful.measure.block_task import BlockContext, BlockTask
from brimful.measure.comparison import is_recorded, record
from brimful.media.encode.processor import ProcessorReference, reference_of
from brimful.sources.sample import Sample
from brimful.sources.source import Source

_IN_PROCESS_ROWS = 3 * 4096
"""Rows that are compared in this process: starting others would take longer."""

_TASK_ROWS = 4096


def state_of(sample: Sample) -> int:
    """Return the state of the files of a sample's media; 0 without files.

    >>> state_of(Sample(0, text="abc"))
    0
    """
    if not any(medium.path for medium in sample.attachments):
        return 0
    states: list[bytes] = []
    for medium in sample.attachments:
        try:
            states.append(medium.state())
        except BadAttachmentError:
            states.append(b"missing")  # so the row is rejected until the file exists
    return short_digest(b"".join(states))


def noted(
    samples: Iterable[Sample | BadSampleError], states: Int64Array, start: int
) -> Iterator[Sample | BadSampleError]:
    """Yield samples after storing their states in ``states``, so that a later change is
    detected.
    """
    for sample in samples:
        if isinstance(sample, Sample) and sample.attachments:
            states[sample.sample_id - start] = state_of(sample)
        yield sample


@dataclass(frozen=True)
class StatedRows:
    """Rows from ``start`` with their states, ``int64[num_rows]``."""

    start: int
    states: Int64Array

    def __str__(self) -> str:
        return f"media of samples {self.start:,} to {self.start + len(self.states) - 1:,}"


def changed_samples(
    source: Source,
    runs: Sequence[tuple[int, Int64Array]],
    resources: Resources,
) -> Generator[tuple[int, int], None, None]:
    """Yield pieces of runs of rows whose files changed since they were measured: the first row of
    each, and its first changed sample; pieces are compared in processes.

    Args:
        source: the rows.
        runs: first row and states of each, ``int64[num_rows]``.
        resources: to compare them.
    """
    asked = [
        StatedRows(start + first, states[first : first + _TASK_ROWS])
        for start, states in runs
        for first in range(0, len(states), _TASK_ROWS)
        if states[first : first + _TASK_ROWS].any()
    ]
    num_rows = sum(len(run.states) for run in asked)
    resources = resources.for_work(is_small=num_rows <= _IN_PROCESS_ROWS)
    if not asked:
        return
    with resources.progress.stage("files of media", total=num_rows, unit="rows"):
        results = run_tasks(_first_changed, asked, context=source, resources=resources)
        with closing(results) as pairs:
            for run, sample_id in pairs:
                resources.progress.advance(len(run.states))
                if sample_id >= 0:
                    yield run.start, sample_id


def _first_changed(source: Source, rows: StatedRows) -> int:
    """Return the first sample whose files changed since they were measured, in any process; -1
    without one.
    """
    for sample in source.read_plain(rows.start, rows.start + len(rows.states)):
        due = int(rows.states[sample.sample_id - rows.start])
        if due and (not isinstance(sample, Sample) or state_of(sample) != due):
            return sample.sample_id
    return -1


SHARE = 256
"""Samples with media for each compared one, if time allows."""

TIME_SHARE = 0.02
"""Share of the measuring time so far that comparisons may take, not counting the first sample of
each kind.
"""

_COUNTS = ("images", "frames", "sounds")
"""Budgets that tell kinds of samples apart: none, one, or several of each."""


class Comparison:
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
        self._reference = reference_of(context.encoder)
        self._kinds_seen: set[int] = set()
        self._seconds = 0.0
        self._start_time = time.perf_counter()

    def is_due(self, task: BlockTask) -> bool:
        """Return true if the lengths of a measured block were not compared yet."""
        if self._reference is None:
            return False
        lengths = open_table(task.lengths_path)
        return not is_recorded(task, ".processor", [lengths.fingerprint, self._reference.id])

    def compare(self, task: BlockTask) -> None:
        """Compare some samples of a measured block, and record that it was done.

        Raises:
            ProcessorDiffersError: a sample has other tokens or another grid.
        """
        if self._reference is None:
            return
        lengths = open_table(task.lengths_path)
        if _kinds(lengths).any() and self._reference.obstacle:
            self._progress.say(
                f"media are not compared with the processor of the model, which cannot be loaded "
                f"({self._reference.obstacle})"
            )
            self._reference = None
            return
        tokens = lengths.flat("tokens")
        for row in self._rows(lengths, task):
            self._compare_row(task.start + row, int(tokens[row]), self._reference)
        record(task, ".processor", [lengths.fingerprint, self._reference.id])

    def _rows(self, lengths: ColumnTable, task: BlockTask) -> Iterator[int]:
        """Yield rows of a block to compare: the first of each kind, then a share while time
        allows.
        """
        kinds = _kinds(lengths)
        kinds[lengths.flat("tokens") < 1] = 0
        firsts = []
        for kind in np.unique(kinds[kinds > 0]).tolist():
            if kind not in self._kinds_seen:
                self._kinds_seen.add(kind)
                firsts.append(int(np.argmax(kinds == kind)))
        yield from firsts
        # By a hash of the row's number, so that no periodic pattern of the data is missed.
        rows = np.flatnonzero(kinds > 0)
        is_chosen = (rows + task.start) * 2_654_435_761 % 2**32 < 2**32 // SHARE
        for row in rows[is_chosen].tolist():
            if self._seconds > TIME_SHARE * (time.perf_counter() - self._start_time):
                return
            if row not in firsts:
                yield row

    def _compare_row(self, row: int, length: int, reference: ProcessorReference) -> None:
        start = time.perf_counter()
        source = self._context.source
        for sample in source.read(row, row + 1):
            if not isinstance(sample, Sample):
                continue
            try:
                difference = reference.difference(sample, length)
            # No length is wrong: the writer rejects a sample that changed since.
            except BadSampleError as error:
                self._progress.say(error.located(source.where(row)).message)
                continue
            if difference:
                raise ProcessorDiffersError(
                    f"{source.where(row)} (sample {row}): {difference}. Nothing is planned with "
                    f"such lengths: name the processor of the model with {setting('processor')}, "
                    f"or its chat template with {setting('chat_template')}; leave the sample out; "
                    f"or go on without the comparison by {setting('compare_media', False)}"
                )
        self._seconds += time.perf_counter() - start


def _kinds(lengths: ColumnTable) -> Int64Array:
    """Return a number for each row: 0 without media, equal for samples with none, one or several of
    the same media.
    """
    kinds = np.zeros(len(lengths), dtype=np.int64)
    for name in _COUNTS:
        if name in lengths:
            kinds = 3 * kinds + np.clip(lengths.flat(name), 0, 2)
    return kinds
