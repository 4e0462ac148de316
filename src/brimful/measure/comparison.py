"""Comparison of a share of the rows with the reference, while a job runs.

Faster libraries encode because they gave the reference's tokens on hard texts; a few rows of every block are encoded by
both all the same. One difference stops the job: what those libraries encoded is not used any more.
"""

from collections.abc import Iterator

import numpy as np

from brimful.encode.encoded import EncodedSample
from brimful.encode.token_runs import StoredSamples
from brimful.errors import BadSampleError, EncodersDifferError
from brimful.measure.block import BlockContext, BlockTask
from brimful.messages import setting
from brimful.sources.sample import Sample
from brimful.tables import open_table

ROWS = 16
"""Rows of a block that are compared: of 4,096, a share that costs less than a tenth of the time."""


def compare_block(context: BlockContext, task: BlockTask) -> None:
    """Compare a few rows of a measured block with the reference.

    Raises:
        EncodersDifferError: one has other tokens or other targets.
    """
    if not context.encoder.engine.id:
        return
    tokens = open_table(task.part_path).flat("tokens")
    stored = None if task.encoded_path is None else StoredSamples([(task.start, task.encoded_path)])
    for first in _first_rows(task):
        samples = context.source.read(first, min(first + ROWS, task.stop))
        readable = [sample for sample in samples if isinstance(sample, Sample)]
        results = context.encoder.engine.reference.encode_batch(readable)
        for sample, expected in zip(readable, results, strict=True):
            length = int(tokens[sample.sample_id - task.start])
            difference = _difference(sample, expected, length, stored)
            if difference:
                raise _refusal(context, sample, difference)


def _first_rows(task: BlockTask) -> Iterator[int]:
    """Yield the first row of each run to compare: the beginning of the data, and one place of every block."""
    if task.start == 0:
        yield 0
    # By the number of the block's first row, so that every run of the same job compares the same rows.
    yield task.start + (task.start // 4096 * 2_654_435_761) % max(1, len(task) - ROWS + 1)


def _difference(
    sample: Sample, expected: EncodedSample | BadSampleError, length: int, stored: StoredSamples | None
) -> str:
    """Describe the difference between a measured sample and the reference; empty if there is none."""
    if isinstance(expected, BadSampleError):
        return "" if length < 1 else f"the reference refuses it: {expected.reason}"
    if len(expected) != max(0, length):
        return f"{max(0, length):,} tokens, and {len(expected):,} by the reference"
    if stored is None or length < 1:
        return ""
    found = stored[sample.sample_id]
    for name, ours, theirs in (
        ("token", found.input_ids, expected.input_ids),
        ("target", found.loss_mask, expected.loss_mask),
    ):
        if not np.array_equal(ours, theirs):
            index = int(np.flatnonzero(ours != theirs)[0])
            return f"{name} {index} is {ours[index]}, and {theirs[index]} by the reference"
    return ""


def _refusal(context: BlockContext, sample: Sample, difference: str) -> EncodersDifferError:
    """Return the error for a difference, after it was remembered."""
    engine, place = context.encoder.engine, context.source.where(sample.sample_id)
    name = engine.name  # afterwards it names those that take its place
    engine.distrust(f"it differed from the reference on {place}")
    return EncodersDifferError(
        f"{place} (sample {sample.sample_id}): {name} encodes it otherwise than the libraries that it stands for: "
        f"{difference}. Nothing that it encoded is used; run the same command again: it goes on without it, as with "
        f"{setting('fast', False)}"
    )
