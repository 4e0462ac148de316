"""Measuring one block of rows, in any process: lengths, targets, what was read, and what could not be."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from brimful.encode.encoded import EncodedSample
from brimful.encode.encoder import Encoder
from brimful.encode.token_runs import write_stored
from brimful.errors import BadSampleError
from brimful.measure.account import Account
from brimful.measure.table import REJECTED
from brimful.measure.targets import runs_of_masks
from brimful.sources.sample import Sample
from brimful.sources.source import Source
from brimful.tables import write_table
from brimful.typing import Lengths

__all__ = ["RUNS", "BlockContext", "BlockReport", "BlockTask", "measure_block"]

RUNS = "target_runs"
"""Column of a block's file with the runs of targets of each row."""

_BATCH_SAMPLES = 256
_BATCH_CHARACTERS = 1 << 20
_BATCHES_AHEAD = 2


@dataclass(frozen=True)
class BlockContext:
    """What all blocks of a job share: sent to each worker process once."""

    source: Source
    encoder: Encoder
    budgets: tuple[str, ...]
    skip_bad: bool
    keep_encoded: bool
    targets: bool

    @property
    def needs_runs(self) -> bool:
        """Whether it has to be found out where the targets of each sample lie."""
        return self.targets and not self.encoder.all_are_targets

    @property
    def needs_labels(self) -> bool:
        """Whether lengths alone are not enough."""
        return self.keep_encoded or self.needs_runs or "loss_tokens" in self.budgets


@dataclass(frozen=True)
class BlockTask:
    """Rows ``start … stop-1``, and where what is found of them goes; their tokens too, if a path is given."""

    start: int
    stop: int
    part_path: str
    encoded_path: str | None


@dataclass(frozen=True)
class BlockReport:
    """What is told of a block that was measured: its rejected rows as ``[row, where, reason]``, and its tokens."""

    rejects: list[list[Any]] = field(default_factory=list)
    tokens: int = 0


def measure_block(context: BlockContext, task: BlockTask) -> BlockReport:
    """Measure one block and publish what was found; runs in any process."""
    size = task.stop - task.start
    columns = {name: np.full(size, REJECTED, dtype=np.int32) for name in context.budgets}
    found: list[BadSampleError] = []
    account = Account()
    encoded: list[EncodedSample | None] = [None] * size
    batches = _batches(context.source.read(task.start, task.stop), found)
    if not context.needs_labels:
        for batch, (lengths, errors) in _lengths_of(context.encoder, batches):
            columns["tokens"][[sample.sample_id - task.start for sample in batch]] = lengths
            found += errors
            for sample, length in zip(batch, lengths.tolist(), strict=True):
                if length > 0:
                    account.add(sample)
                    if length == 1 and context.targets:
                        account.no_target[context.encoder.no_target_reason(sample)] += 1
    else:
        for sample, result in _encoded(context.encoder, batches):
            if isinstance(result, BadSampleError):
                found.append(result)
                continue
            place = sample.sample_id - task.start
            encoded[place] = result
            columns["tokens"][place] = len(result)
            if "loss_tokens" in columns:
                columns["loss_tokens"][place] = np.count_nonzero(result.loss_mask)
            if len(result):
                account.add(sample)
                if context.targets and not result.loss_mask[1:].any():
                    account.no_target[context.encoder.no_target_reason(sample)] += 1
    for empty in np.flatnonzero(columns["tokens"] == 0).tolist():
        for column in columns.values():
            column[empty] = REJECTED
        found.append(BadSampleError("has no tokens", sample_id=empty + task.start))
    rejects = _located(context, task, found)
    if task.encoded_path is not None:
        write_stored(task.encoded_path, encoded)
    written: dict[str, Any] = dict(columns)
    if context.needs_runs:
        written[RUNS] = runs_of_masks([sample.loss_mask if sample is not None else None for sample in encoded])
    write_table(task.part_path, written, {"kind": "length_part", "rejects": rejects, "account": account.as_dict()})
    tokens = columns["tokens"]
    return BlockReport(rejects, int(tokens[tokens > 0].sum(dtype=np.int64)))


def _located(context: BlockContext, task: BlockTask, errors: list[BadSampleError]) -> list[list[Any]]:
    """What was wrong in a block, in the order of its rows; the first is raised if none may be."""
    rejects = []
    for error in sorted(errors, key=lambda error: error.sample_id):
        located = error if error.where else error.located(context.source.where(error.sample_id))
        if not context.skip_bad:
            raise located
        rejects.append([located.sample_id - task.start, located.where, located.reason])
    return rejects


def _lengths_of(
    encoder: Encoder, batches: Iterable[list[Sample]]
) -> Iterator[tuple[list[Sample], tuple[Lengths, list[BadSampleError]]]]:
    """Lengths of batch after batch: one is tokenised, which needs no Python, while the next is rendered."""
    pool = ThreadPoolExecutor(1)
    running: deque[tuple[list[Sample], Future[tuple[Lengths, list[BadSampleError]]]]] = deque()
    try:
        for batch in batches:
            running.append((batch, pool.submit(encoder.begin_lengths(batch))))
            if len(running) > _BATCHES_AHEAD:
                first, future = running.popleft()
                yield first, future.result()
        for first, future in running:
            yield first, future.result()
    finally:
        pool.shutdown(cancel_futures=True)  # an error or Ctrl-C waits for one batch and not for all that are queued


def _encoded(
    encoder: Encoder, batches: Iterable[list[Sample]]
) -> Iterator[tuple[Sample, EncodedSample | BadSampleError]]:
    for batch in batches:
        yield from zip(batch, encoder.encode_batch(batch), strict=True)


def _batches(samples: Iterable[Sample | BadSampleError], unreadable: list[BadSampleError]) -> Iterator[list[Sample]]:
    """Runs of samples that are encoded together, bounded in number and in characters; errors are put aside."""
    batch: list[Sample] = []
    characters = 0
    for sample in samples:
        if isinstance(sample, BadSampleError):
            unreadable.append(sample)
            continue
        batch.append(sample)
        characters += len(sample.text or "") + sum(len(turn.get("content") or "") for turn in sample.messages or ())
        if len(batch) >= _BATCH_SAMPLES or characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch
