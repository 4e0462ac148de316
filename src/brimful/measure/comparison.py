"""Comparison of a share of the rows with the reference, while a job runs.

Faster libraries are used because they gave the reference's tokens on hard texts; still, a few rows
of every block are encoded by both. One difference stops the job, and nothing that those libraries
encoded is used.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from brimful.base.atomic_file import atomic_file
from brimful.base.plain_files import read_plain
from brimful.base.tables import ColumnTable, open_table
from brimful.base.typing import Fingerprint, LossMask
from brimful.base.wording import setting
from brimful.encode.encoded import EncodedSample, StoredSamples
from brimful.errors import (
    BadSampleError,
    BrimfulError,
    EncodersDifferError,
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
    lengths = open_table(task.lengths_path)
    if not lengths.description.get("engine"):
        return
    tokens = lengths.flat("tokens")
    fingerprints = _fingerprints(task, lengths)
    # Tokens are temporary: their reader reports them if they are missing.
    stored = None
    if task.encoded_path is not None and None not in fingerprints:
        stored = StoredSamples([(task.start, task.encoded_path)])
    runs = lengths.ragged(RUNS) if context.needs_runs else None
    for sample, reference in expected or reference_rows(context, task):
        row = sample.sample_id - task.start
        targets = None if runs is None else mask_of_runs(runs.row(row), max(0, int(tokens[row])))
        difference = _difference(sample, reference, int(tokens[row]), targets, stored)
        if difference:
            raise _refusal(context, lengths.description, sample, difference)
    record(task, ".compared", fingerprints)


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
    lengths = open_table(task.lengths_path)
    if not lengths.description.get("engine"):
        return True
    return is_recorded(task, ".compared", _fingerprints(task, lengths))


def _few_of(context: BlockContext, task: BlockTask, first: int) -> Iterator[Sample]:
    """Yield the samples from a row on, until they have ``_CHARACTERS`` characters."""
    num_all = 0
    for sample in context.source.read(first, min(first + ROWS, task.stop)):
        if isinstance(sample, Sample):
            yield sample
            num_all += num_characters(sample)
            if num_all >= _CHARACTERS:
                return


def is_recorded(task: BlockTask, suffix: str, names: Iterable[str | None]) -> bool:
    """Return true if the record of a comparison next to a block's lengths has all names."""
    try:
        recorded = read_plain(Path(task.lengths_path).with_suffix(suffix)).decode().split()
    except (OSError, ValueError):
        return False
    return all(name in recorded for name in names)


def record(task: BlockTask, suffix: str, names: Iterable[str | None]) -> None:
    """Record a comparison, after it: a job that is killed earlier compares the block when it is
    resumed.
    """
    path = Path(task.lengths_path).with_suffix(suffix)
    with contextlib.suppress(OSError, BrimfulError), atomic_file(path) as file:
        file.write("\n".join(filter(None, names)).encode())


def _fingerprints(task: BlockTask, lengths: ColumnTable) -> list[Fingerprint | None]:
    """Return the fingerprints of a block's lengths and, if the job keeps them, of its tokens; None
    for a missing file.
    """
    if task.encoded_path is None:
        return [lengths.fingerprint]
    try:
        return [lengths.fingerprint, open_table(task.encoded_path).fingerprint]
    except SourceNotFoundError:
        return [lengths.fingerprint, None]


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
    location = context.source.where(sample.sample_id)
    # The libraries that encoded the block: a resumed job may have others.
    engine_id = description["engine"]
    context.encoder.engine.disable(engine_id, f"it differed from the reference on {location}")
    return EncodersDifferError(
        f"{location} (sample {sample.sample_id}): {description.get('encoded_by', engine_id)} encodes "
        f"it differently than the libraries that it replaces: {difference}. Nothing that it "
        "encoded is used; run the same command again: it goes on without it, as with "
        f"{setting('fast', False)}"
    )
