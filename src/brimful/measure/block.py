"""Measurement of one block of rows, in any process: lengths, targets, account and rejected rows."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from brimful.base.ragged import offsets_of
from brimful.base.tables import Ragged, write_table
from brimful.base.typing import BoolArray, Lengths, LossMask, TokenIds
from brimful.encode.encoded import write_stored
from brimful.errors import BadSampleError
from brimful.lengths.table import REJECTED, STATES
from brimful.lengths.targets import Account, runs_of_masks
from brimful.measure.block_task import (
    BlockContext,
    BlockTask,
    attachment_measures,
    batches_of,
    in_halves,
)
from brimful.sources.sample import Sample

RUNS = "target_runs"
"""Column of a block's file with the runs of targets of each row."""


def measure_block(context: BlockContext, task: BlockTask) -> int:
    """Measure one block, write its files and return the number of its tokens; runs in any
    process.
    """
    rows = _Rows(context, task)
    has_states = context.encoder.takes_attachments
    samples = context.source.read_plain(task.start, task.stop)
    states = np.zeros(len(task), dtype=np.int64)
    if has_states:
        # Before transforms, which may replace a file by bytes.
        samples = attachment_measures().noted(samples, states, task.start)
    batches = batches_of(context.source.augment(samples), rows.errors)
    ids, mask, attachments = rows.encode(batches)
    columns = {
        "tokens": np.diff(mask.offsets).astype(np.int32),
        **rows.attachment_sizes(attachments),
    }
    if "loss_tokens" in context.budgets:
        columns["loss_tokens"] = np.diff(offsets_of(mask.values)[mask.offsets]).astype(np.int32)
    # The file of lengths is written last: a job that is killed between the two measures the block
    # again.
    if task.encoded_path is not None:
        write_stored(task.encoded_path, Ragged(ids, mask.offsets), mask.values, attachments)
    runs = {RUNS: runs_of_masks(mask)} if context.needs_runs else {}
    is_empty = columns["tokens"] < 1
    description = {
        "kind": "length_part",
        "rejects": rows.rejects(is_empty),
        "account": rows.account.as_dict(),
        "engine": context.encoder.engine.id,
        "encoded_by": context.encoder.engine.name,
    }
    # A sample without tokens is rejected in every budget.
    saved_columns = {
        name: np.where(is_empty, np.int32(REJECTED), columns[name]) for name in context.budgets
    } | runs
    if has_states:
        saved_columns[STATES] = states
    if context.search:
        saved_columns |= context.search.columns_of(ids, mask.offsets, attachments, context.encoder)
    write_table(task.lengths_path, saved_columns, description)
    return int(columns["tokens"][~is_empty].sum(dtype=np.int64))


class _Rows:
    """Rows of one block, and what measuring finds in them.

    Attributes:
        account: counts of samples.
        errors: of rows that cannot be read or encoded.
    """

    def __init__(self, context: BlockContext, task: BlockTask) -> None:
        self.context, self.task = context, task
        self.account = Account()
        self.errors: list[BadSampleError] = []

    def encode(
        self, batches: Iterable[list[Sample]]
    ) -> tuple[TokenIds, Ragged, dict[int, tuple[Any, ...]]]:
        """Return the tokens and the loss mask of all rows, and the attachments by row.

        The mask of a row that cannot be encoded is empty. There are no tokens unless the task keeps
        them or what samples share is looked for.
        """
        sizes = np.zeros(len(self.task), dtype=np.int64)
        ids: list[TokenIds] = [np.empty(0, dtype=np.int32)]
        masks: list[LossMask] = [np.empty(0, dtype=bool)]
        attachments: dict[int, tuple[Any, ...]] = {}
        start = partial(self.context.encoder.begin_encoding, targets=self.context.needs_labels)
        for samples, batch in in_halves(start, batches):
            lengths, offsets = batch.lengths, batch.ids.offsets
            # Samples come in the order of their rows, and so do their tokens.
            rows = [sample.sample_id - self.task.start for sample in samples]
            sizes[rows] = lengths
            masks.append(batch.loss_mask)
            if self.task.encoded_path is not None or self.context.search:
                ids.append(batch.ids.values)
            self.errors += batch.errors.values()
            attachments |= {rows[index]: items for index, items in batch.attachments.items()}
            # The first token of a sample is not a target: no token before it can predict it.
            num_targets = np.diff(offsets_of(batch.loss_mask)[offsets])
            num_targets[lengths > 0] -= batch.loss_mask[offsets[:-1][lengths > 0]]
            self._count(samples, lengths > 0, num_targets > 0)
        return np.concatenate(ids), Ragged(np.concatenate(masks), offsets_of(sizes)), attachments

    def attachment_sizes(self, attachments: Mapping[int, Sequence[Any]]) -> dict[str, Lengths]:
        """Return what the attachments of each row take of each budget; 0 for rows without any."""
        encoder = self.context.encoder
        columns = {name: np.zeros(len(self.task), dtype=np.int32) for name in encoder.budgets}
        for row, items in attachments.items():
            sizes = encoder.attachment_sizes(items)
            for name, column in columns.items():
                column[row] = sizes[name]
        return columns

    def _count(
        self, samples: Sequence[Sample], is_encoded: BoolArray, has_target: BoolArray
    ) -> None:
        """Count encoded samples, and the reasons of samples without a target."""
        encoded = (
            samples
            if is_encoded.all()
            else [samples[index] for index in np.flatnonzero(is_encoded).tolist()]
        )
        self.account.add(encoded)
        if self.context.targets:
            for index in np.flatnonzero(is_encoded & ~has_target).tolist():
                self.account.no_target[self.context.encoder.no_target_reason(samples[index])] += 1

    def rejects(self, is_empty: BoolArray) -> list[list[Any]]:
        """Return ``[row, where, reason]`` of the errors, in the order of the rows; raise the first
        if none is allowed.
        """
        known_ids = {error.sample_id for error in self.errors}
        empty_ids = (np.flatnonzero(is_empty) + self.task.start).tolist()
        self.errors += [
            BadSampleError("has no tokens", sample_id=index)
            for index in empty_ids
            if index not in known_ids
        ]
        rejects = []
        for error in sorted(self.errors, key=lambda error: error.sample_id):
            if not error.where:
                error = error.located(self.context.source.where(error.sample_id))
            if not self.context.skip_bad:
                raise error
            rejects.append([error.sample_id - self.task.start, error.where, error.reason])
        return rejects
