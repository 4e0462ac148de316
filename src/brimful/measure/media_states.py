"""States of the files of media: lengths of a row hold as long as the files that it names are those that were measured.

Rows are known by their text, which stays when a picture is replaced under its name. So a number goes with the length of each row: of size
and time of last change of its files, and of the part of them for members of a tar. To compare it costs a question to the
file system for each medium, and opens none. Bytes that lie in a row belong to its fingerprint, and need no number.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from brimful.errors import BadSampleError
from brimful.execute import LOCAL, Execution, available_cores, run_tasks
from brimful.fingerprint import short_digest
from brimful.media import BadMediumError, Medium
from brimful.progress import Progress
from brimful.sources.sample import Sample
from brimful.sources.source import Source
from brimful.typing import Int64Array

STATES = "media_states"
"""Column of the states of rows, ``int64``: 0 for a row without files; and the stage that compares them."""

_IN_PROCESS_ROWS = 3 * 4096
"""Rows that are compared in this process: starting others would take longer."""

_TASK_ROWS = 4096


def state_of(sample: Sample) -> int:
    """Return the state of the files of a sample's media; 0 if it has none.

    >>> state_of(Sample(0, text="abc"))
    0
    """
    if not any(medium.path for medium in sample.media):
        return 0
    return short_digest(b"".join(map(_state, sample.media)))


def _state(medium: Medium) -> bytes:
    try:
        return medium.state()
    except BadMediumError:
        return b"missing"  # so the row is rejected, until there is a file


def noted(
    samples: Iterable[Sample | BadSampleError], states: Int64Array, start: int
) -> Iterator[Sample | BadSampleError]:
    """Yield samples behind their states, which go to ``states``: a change between note and reading is found, never missed."""
    for sample in samples:
        if isinstance(sample, Sample) and sample.media:
            states[sample.sample_id - start] = state_of(sample)
        yield sample


@dataclass(frozen=True)
class StatedRows:
    """Rows from ``start`` on with their states, ``int64[num_rows]``."""

    start: int
    states: Int64Array

    def __str__(self) -> str:
        return f"media of samples {self.start:,} to {self.start + len(self.states) - 1:,}"


def changed_samples(
    source: Source,
    rows: Sequence[StatedRows],
    *,
    num_proc: int | None = None,
    execution: Execution = LOCAL,
    progress: Progress,
) -> Generator[tuple[StatedRows, int], None, None]:
    """Yield of some runs of rows those with other files than were measured, each with the first such sample."""
    asked = [run for run in rows if run.states.any()]
    if not asked:
        return
    num_rows = sum(len(run.states) for run in asked)
    if num_proc is None and execution.is_local:
        num_proc = 1 if num_rows <= _IN_PROCESS_ROWS else available_cores()
    with progress.stage("files of media", total=num_rows, unit="rows"):
        results = run_tasks(
            _first_changed, asked, context=source, num_proc=num_proc, execution=execution, say=progress.say
        )
        with closing(results) as pairs:
            for run, sample_id in pairs:
                progress.advance(len(run.states))
                if sample_id >= 0:
                    yield run, sample_id


def runs_of_states(states: Int64Array) -> list[StatedRows]:
    """Return the states of many rows in runs, which processes compare."""
    return [
        StatedRows(start, np.asarray(states[start : start + _TASK_ROWS])) for start in range(0, len(states), _TASK_ROWS)
    ]


def _first_changed(source: Source, rows: StatedRows) -> int:
    """Return the first sample with other files than were measured, in any process; -1 if there is none."""
    for sample in source.read_plain(rows.start, rows.start + len(rows.states)):
        due = int(rows.states[sample.sample_id - rows.start])
        if due and (not isinstance(sample, Sample) or state_of(sample) != due):
            return sample.sample_id
    return -1
