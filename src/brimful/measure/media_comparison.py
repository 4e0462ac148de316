"""Comparison of some samples with media with the model's own processor, while a job runs.

Lengths come from headers, by arithmetic that was tested against the processors of one version of Transformers, on
selected images. So a few samples of the job itself are decoded and given to the installed processor. One
difference stops the job: training would use other tokens than the plan.
"""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from brimful.base.atomic_file import atomic_file
from brimful.base.progress import Progress
from brimful.base.tables import Table, open_table
from brimful.base.typing import Int64Array
from brimful.base.wording import setting
from brimful.encode.encoder import MediaReference
from brimful.errors import BadSampleError, BrimfulError, ProcessorDiffersError
from brimful.measure.block_task import BlockContext, BlockTask
from brimful.sources.sample import Sample

SHARE = 256
"""Samples with media for each compared one, if time allows."""

TIME_SHARE = 0.02
"""Share of the measuring time so far that comparisons may take, not counting the first sample of each kind."""

_COUNTS = ("images", "frames", "sounds")
"""Budgets that tell kinds of samples apart: none, one, or several of each."""


class MediaComparison:
    """Comparison of one job, block by block.

    The first sample of each kind is always compared (no, one or several images, with or without videos and audio),
    then one in ``SHARE`` by its number, as long as all comparisons together take less than ``TIME_SHARE`` of the time.

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
        try:
            return _record(task).read_text(encoding="utf-8").split() != [part.fingerprint, self._reference.id]
        except (OSError, ValueError):
            return True

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
        # After the comparison: a job that is killed earlier compares the block when it is resumed.
        with contextlib.suppress(OSError, BrimfulError), atomic_file(_record(task)) as file:
            file.write(f"{part.fingerprint} {self._reference.id}".encode())

    def _rows(self, part: Table, task: BlockTask) -> Iterator[int]:
        """Yield rows of a block to compare: the first of each kind, then a share while time allows."""
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
            except BadSampleError as error:  # no length is wrong; the writer rejects a sample that changed since
                self._progress.say(error.located(source.where(row)).message)
                continue
            if difference:
                raise ProcessorDiffersError(
                    f"{source.where(row)} (sample {row}): {difference}. Nothing is planned with such lengths: name the "
                    f"processor of the model with {setting('processor')}, or its chat template with "
                    f"{setting('chat_template')}; leave the sample out; or go on without the comparison by "
                    f"{setting('compare_media', False)}"
                )
        self._seconds += time.perf_counter() - begin


def _kinds(part: Table) -> Int64Array:
    """Return a number for each row: 0 without media, equal for samples with none, one or several of the same media."""
    kinds = np.zeros(len(part), dtype=np.int64)
    for name in _COUNTS:
        if name in part:
            kinds = 3 * kinds + np.clip(part.flat(name), 0, 2)
    return kinds


def _record(task: BlockTask) -> Path:
    """Return the file next to a block's lengths that names the processor of its comparison."""
    return Path(task.part_path).with_suffix(".processor")
