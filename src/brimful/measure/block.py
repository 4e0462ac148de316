"""Measuring one block of rows, in any process: lengths, targets, the account and the rejected rows."""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from brimful.encode.encoded import EncodedSample
from brimful.encode.encoder import Encoder, MeasuredLengths
from brimful.encode.token_runs import write_stored
from brimful.errors import BadSampleError
from brimful.measure.account import Account
from brimful.measure.table import REJECTED
from brimful.measure.targets import runs_of_masks
from brimful.sources.sample import Sample
from brimful.sources.source import Source
from brimful.tables import write_table

RUNS = "target_runs"
"""Column of a block's file with the runs of targets of each row."""

_BATCH_SAMPLES = 256
_BATCH_CHARACTERS = 1 << 20
_BATCHES_AHEAD = 2
"""Batches that wait for the tokenizer while one is rendered."""


@dataclass(frozen=True)
class BlockContext:
    """Settings that all blocks of a job share: sent to each worker process once."""

    source: Source
    encoder: Encoder
    budgets: tuple[str, ...]
    skip_bad: bool
    keep_encoded: bool
    targets: bool

    @property
    def needs_runs(self) -> bool:
        """True if the place of each target has to be found by encoding."""
        return self.targets and not self.encoder.all_are_targets

    @property
    def needs_labels(self) -> bool:
        """True if lengths alone are not enough."""
        return self.keep_encoded or self.needs_runs or "loss_tokens" in self.budgets


@dataclass(frozen=True)
class BlockTask:
    """Rows ``start … stop-1``, the file of their lengths, and that of their tokens if they are kept."""

    start: int
    stop: int
    part_path: str
    encoded_path: str | None

    def __len__(self) -> int:
        return self.stop - self.start


def measure_block(context: BlockContext, task: BlockTask) -> int:
    """Measure one block, write its files and return the number of its tokens; runs in any process."""
    columns = {name: np.full(len(task), REJECTED, dtype=np.int32) for name in context.budgets}
    tokens = columns["tokens"]
    errors: list[BadSampleError] = []
    account = Account()
    samples: list[EncodedSample | None] = [None] * len(task)
    batches = _batches(context.source.read(task.start, task.stop), errors)
    if context.needs_labels:
        encode = context.encoder.encode_batch
        for sample, result in chain.from_iterable(zip(batch, encode(batch), strict=True) for batch in batches):
            if isinstance(result, BadSampleError):
                errors.append(result)
                continue
            row = sample.sample_id - task.start
            samples[row] = result
            tokens[row] = len(result)
            if "loss_tokens" in columns:
                columns["loss_tokens"][row] = np.count_nonzero(result.loss_mask)
            if len(result):
                _add(account, context, sample, has_target=bool(result.loss_mask[1:].any()))
    else:
        # Labels are not needed where every token but the first is a target, or nobody asks for targets.
        for batch, (lengths, batch_errors) in _lengths_of(context.encoder, batches):
            tokens[[sample.sample_id - task.start for sample in batch]] = lengths
            errors += batch_errors
            for sample, length in zip(batch, lengths.tolist(), strict=True):
                if length > 0:
                    _add(account, context, sample, has_target=length > 1)
    # A sample without tokens is rejected, in every budget.
    for row in np.flatnonzero(tokens == 0).tolist():
        for column in columns.values():
            column[row] = REJECTED
        errors.append(BadSampleError("has no tokens", sample_id=row + task.start))
    rejects = _rejects(context, task, errors)
    # The file of lengths is written last: a job that is killed between the two measures the block again.
    if task.encoded_path is not None:
        write_stored(task.encoded_path, samples)
    part: dict[str, Any] = dict(columns)
    if context.needs_runs:
        part[RUNS] = runs_of_masks([sample.loss_mask if sample is not None else None for sample in samples])
    write_table(task.part_path, part, {"kind": "length_part", "rejects": rejects, "account": account.as_dict()})
    return int(tokens[tokens > 0].sum(dtype=np.int64))


def _add(account: Account, context: BlockContext, sample: Sample, *, has_target: bool) -> None:
    """Count an encoded sample, and the reason if it has no target."""
    account.add(sample)
    if context.targets and not has_target:
        account.no_target[context.encoder.no_target_reason(sample)] += 1


def _rejects(context: BlockContext, task: BlockTask, errors: list[BadSampleError]) -> list[list[Any]]:
    """Return ``[row, where, reason]`` of the errors, in the order of the rows; raise the first if none may be."""
    rejects = []
    for error in sorted(errors, key=lambda error: error.sample_id):
        if not error.where:
            error = error.located(context.source.where(error.sample_id))
        if not context.skip_bad:
            raise error
        rejects.append([error.sample_id - task.start, error.where, error.reason])
    return rejects


def _lengths_of(encoder: Encoder, batches: Iterable[list[Sample]]) -> Iterator[tuple[list[Sample], MeasuredLengths]]:
    """Yield the lengths of each batch: one is tokenised, which needs no Python, while the next is rendered."""
    pool = ThreadPoolExecutor(1)
    queue: deque[tuple[list[Sample], Future[MeasuredLengths]]] = deque()
    try:
        for batch in batches:
            queue.append((batch, pool.submit(encoder.begin_lengths(batch))))
            # The queue is bounded: rendered texts of all batches would not fit in memory.
            if len(queue) > _BATCHES_AHEAD:
                first_batch, future = queue.popleft()
                yield first_batch, future.result()
        for first_batch, future in queue:
            yield first_batch, future.result()
    finally:
        pool.shutdown(cancel_futures=True)  # an error or Ctrl-C waits for one batch and not for all that are queued


def _batches(samples: Iterable[Sample | BadSampleError], errors: list[BadSampleError]) -> Iterator[list[Sample]]:
    """Yield runs of samples to encode together, bounded in number and in characters; append errors to ``errors``."""
    batch: list[Sample] = []
    num_characters = 0
    for sample in samples:
        if isinstance(sample, BadSampleError):
            errors.append(sample)
            continue
        batch.append(sample)
        num_characters += len(sample.text or "") + sum(len(turn.get("content") or "") for turn in sample.messages or ())
        if len(batch) >= _BATCH_SAMPLES or num_characters >= _BATCH_CHARACTERS:
            yield batch
            batch, num_characters = [], 0
    if batch:
        yield batch
