"""States of media files: the lengths of a row are valid as long as its files are unchanged.

Rows are identified by their text, which stays when an image file is replaced. So each row's length
has a number: a digest of the sizes and last changes of its files, and of the range of a member of a
tar. Comparing it costs one call of the file system for each medium, and opens none. Bytes inside a
row are in its fingerprint, and need no number.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

from brimful.base.attachment import BadAttachmentError
from brimful.base.execute import Resources, run_tasks
from brimful.base.fingerprint import short_digest
from brimful.base.typing import Int64Array
from brimful.errors import BadSampleError
from brimful.sources.sample import Sample
from brimful.sources.source import Source

STATES = "media_states"
"""Column of the states of rows, ``int64``: 0 for a row without files; and name of the stage that
compares them.
"""

_IN_PROCESS_ROWS = 3 * 4096
"""Rows that are compared in this process: starting others would take longer."""

_TASK_ROWS = 4096


def state_of(sample: Sample) -> int:
    """Return the state of the files of a sample's media; 0 without files.

    >>> state_of(Sample(0, text="abc"))
    0
    """
    if not any(medium.path for medium in sample.media):
        return 0
    states: list[bytes] = []
    for medium in sample.media:
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
        if isinstance(sample, Sample) and sample.media:
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
    rows: Sequence[StatedRows],
    resources: Resources,
) -> Generator[tuple[StatedRows, int], None, None]:
    """Yield the runs of rows whose files changed since they were measured, each with its first
    changed sample; runs are compared in processes.
    """
    asked = [
        StatedRows(run.start + begin, run.states[begin : begin + _TASK_ROWS])
        for run in rows
        for begin in range(0, len(run.states), _TASK_ROWS)
        if run.states[begin : begin + _TASK_ROWS].any()
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
                    yield run, sample_id


def _first_changed(source: Source, rows: StatedRows) -> int:
    """Return the first sample whose files changed since they were measured, in any process; -1
    without one.
    """
    for sample in source.read_plain(rows.start, rows.start + len(rows.states)):
        due = int(rows.states[sample.sample_id - rows.start])
        if due and (not isinstance(sample, Sample) or state_of(sample) != due):
            return sample.sample_id
    return -1
