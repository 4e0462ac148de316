"""Measurement of one block of rows, in any process: lengths, targets, account and rejected rows."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from brimful.base.ragged import offsets_of
from brimful.base.tables import Ragged, write_table
from brimful.base.typing import BoolArray, Lengths, LossMask, TokenIds
from brimful.encode.encoded import write_stored
from brimful.errors import BadSampleError
from brimful.lengths.table import REJECTED
from brimful.lengths.targets import Account, runs_of_masks
from brimful.measure.block_task import BlockContext, BlockTask, batches_of, in_halves
from brimful.measure.filters import rejection
from brimful.measure.filters.duplicates import CONTENT, content_of
from brimful.measure.media_states import STATES, noted
from brimful.sources.sample import Sample

RUNS = "target_runs"
"""Column of a block's file with the runs of targets of each row."""


def measure_block(context: BlockContext, task: BlockTask) -> int:
    """Measure one block, write its files and return the number of its tokens; runs in any process."""
    errors: list[BadSampleError] = []
    account = Account()
    judgement = _Judgement(context, task, account)
    samples = context.source.read_plain(task.start, task.stop)
    states = np.zeros(len(task) if context.encoder.takes_media else 0, dtype=np.int64)
    if context.encoder.takes_media:
        # Before the filters: a filter that looks at an image rejects its row only as long as the image stays the same.
        samples = noted(samples, states, task.start)
    # Files and filters apply to the samples before transforms, which may replace a file by bytes.
    batches = batches_of(context.source.augment(judgement.kept(samples, errors)), errors)
    columns: dict[str, Any] = {}
    if context.needs_labels:
        ids, mask, media = _encode(context, task, batches, errors, account)
        tokens = np.diff(mask.offsets).astype(np.int32)
        columns |= _sizes_of_media(context, media, len(task))
        if "loss_tokens" in context.budgets:
            columns["loss_tokens"] = np.diff(offsets_of(mask.values)[mask.offsets]).astype(np.int32)
        # The file of lengths is written last: a job that is killed between the two measures the block again.
        if task.encoded_path is not None:
            write_stored(task.encoded_path, Ragged(ids, mask.offsets), mask.values, media)
        if context.needs_runs:
            columns[RUNS] = runs_of_masks(mask)
    else:
        # Labels are not needed where every token but the first is a target, or targets are not measured.
        tokens = _measure(context, task, batches, errors, account)
    # A sample without tokens is rejected in every budget.
    known_ids = {error.sample_id for error in errors}
    empty_ids = (np.flatnonzero(tokens < 1) + task.start).tolist()
    errors += [BadSampleError("has no tokens", sample_id=index) for index in empty_ids if index not in known_ids]
    rejects = _rejects(context, task, errors, judgement.filtered_ids)
    columns["tokens"] = tokens
    for name in context.budgets:
        columns[name][tokens < 1] = REJECTED
    part = {name: columns[name] for name in (*context.budgets, *([RUNS] if RUNS in columns else ()))}
    if context.needs_contents:
        part |= dict(zip(CONTENT, judgement.contents.T, strict=True))
    if context.encoder.takes_media:
        part[STATES] = states
    filtered = {"filtered": [index - task.start for index in sorted(judgement.filtered_ids)]} if context.filters else {}
    write_table(
        task.part_path,
        part,
        {
            "kind": "length_part",
            "rejects": rejects,
            **filtered,
            "account": account.as_dict(),
            "engine": context.encoder.engine.id,
            "encoded_by": context.encoder.engine.name,
        },
    )
    return int(tokens[tokens > 0].sum(dtype=np.int64))


class _Judgement:
    """Verdicts of the filters of a job on the samples of one block.

    Attributes:
        filtered_ids: samples that a filter leaves out.
        contents: ``int64[num_rows, 2]``, fingerprints of contents, if they have to be compared.
    """

    def __init__(self, context: BlockContext, task: BlockTask, account: Account) -> None:
        self._context, self._task, self._account = context, task, account
        self.filtered_ids: set[int] = set()
        self.contents = np.zeros((len(task) if context.needs_contents else 0, 2), dtype=np.int64)

    def kept(
        self, samples: Iterable[Sample | BadSampleError], errors: list[BadSampleError]
    ) -> Iterator[Sample | BadSampleError]:
        """Yield the samples that no filter leaves out, and errors unchanged; append reasons to ``errors``."""
        for sample in samples:
            if isinstance(sample, Sample):
                verdict = rejection(self._context.filters, sample)
                if verdict is not None:
                    name, reason = verdict
                    self._account.filtered[name] += 1
                    self.filtered_ids.add(sample.sample_id)
                    errors.append(BadSampleError(reason, sample_id=sample.sample_id))
                    continue
                if self._context.needs_contents:
                    self.contents[sample.sample_id - self._task.start] = content_of(sample)
            yield sample


def _encode(
    context: BlockContext,
    task: BlockTask,
    batches: Iterable[list[Sample]],
    errors: list[BadSampleError],
    account: Account,
) -> tuple[TokenIds, Ragged, dict[int, tuple[Any, ...]]]:
    """Return the tokens and the loss mask of all rows, and the media by row.

    The mask of a row that cannot be encoded is empty. There are no tokens unless the task keeps them.
    """
    sizes = np.zeros(len(task), dtype=np.int64)
    ids: list[TokenIds] = [np.empty(0, dtype=np.int32)]
    masks: list[LossMask] = [np.empty(0, dtype=bool)]
    media: dict[int, tuple[Any, ...]] = {}
    for samples, batch in in_halves(context.encoder.begin_encoding, batches):
        lengths, offsets = batch.lengths, batch.ids.offsets
        # Samples come in the order of their rows, and so do their tokens.
        sizes[[sample.sample_id - task.start for sample in samples]] = lengths
        masks.append(batch.loss_mask)
        if task.encoded_path is not None:
            ids.append(batch.ids.values)
        errors += batch.errors.values()
        media |= {samples[index].sample_id - task.start: items for index, items in batch.attachments.items()}
        # The first token of a sample is not a target: no token before it can predict it.
        num_targets = np.diff(offsets_of(batch.loss_mask)[offsets])
        num_targets[lengths > 0] -= batch.loss_mask[offsets[:-1][lengths > 0]]
        _count(context, account, samples, lengths > 0, num_targets > 0)
    return np.concatenate(ids), Ragged(np.concatenate(masks), offsets_of(sizes)), media


def _sizes_of_media(context: BlockContext, media: Mapping[int, Sequence[Any]], num_rows: int) -> dict[str, Lengths]:
    """Return what the media of each row take of each budget; 0 for rows without media."""
    names = [name for name in context.budgets if name in context.encoder.budgets]
    columns = {name: np.zeros(num_rows, dtype=np.int32) for name in names}
    for row, items in media.items():
        sizes = context.encoder.sizes_of_media(items)
        for name in names:
            columns[name][row] = sizes[name]
    return columns


def _measure(
    context: BlockContext,
    task: BlockTask,
    batches: Iterable[list[Sample]],
    errors: list[BadSampleError],
    account: Account,
) -> Lengths:
    """Return the number of tokens of each row, below 1 for a row that cannot be encoded."""
    tokens = np.zeros(len(task), dtype=np.int32)
    for samples, (lengths, batch_errors) in in_halves(context.encoder.begin_lengths, batches):
        tokens[[sample.sample_id - task.start for sample in samples]] = lengths
        errors += batch_errors
        _count(context, account, samples, lengths > 0, lengths > 1)
    return tokens


def _count(
    context: BlockContext, account: Account, samples: Sequence[Sample], is_encoded: BoolArray, has_target: BoolArray
) -> None:
    """Count encoded samples, and the reasons of samples without a target."""
    account.add(samples if is_encoded.all() else [samples[index] for index in np.flatnonzero(is_encoded).tolist()])
    if context.targets:
        for index in np.flatnonzero(is_encoded & ~has_target).tolist():
            account.no_target[context.encoder.no_target_reason(samples[index])] += 1


def _rejects(
    context: BlockContext, task: BlockTask, errors: list[BadSampleError], filtered_ids: set[int]
) -> list[list[Any]]:
    """Return ``[row, where, reason]`` of the errors, in the order of the rows; raise the first if none is allowed.

    A sample that a filter left out never stops the job.
    """
    rejects = []
    for error in sorted(errors, key=lambda error: error.sample_id):
        if not error.where:
            error = error.located(context.source.where(error.sample_id))
        if not context.skip_bad and error.sample_id not in filtered_ids:
            raise error
        rejects.append([error.sample_id - task.start, error.where, error.reason])
    return rejects
