"""Rows that ranks of context parallelism share: what each rank holds, gathers and computes.

The truth is laid out slice by slice, without the functions under test.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from brimful.base.typing import IGNORE_INDEX, AnyArray, CuSeqlens, Int64Array
from brimful.collate.batch import PackedBatch
from brimful.collate.columns import ColumnPlace
from brimful.doctor.probing.modes import first_sentence
from brimful.rl.context_parallel_split import ContextParallelLayout, ContextParallelShard
from brimful.verify.checks.loss_sums import loss_difference
from brimful.verify.checks.token_values import ONE_WEIGHT, same_values, values_agree
from brimful.verify.setup import difference, targets_loss
from brimful.verify.verify_report import (
    CheckResult,
    Diagnosis,
    compared,
    failed,
    not_supported,
    passed,
)

Split = Callable[..., ContextParallelShard]
Gather = Callable[..., AnyArray]

_WAY_OUT_OF_SPLIT = (
    "split with split_for_context_parallel, in the layout of the trainer's attention"
)


def check_split(
    batch: PackedBatch, cp_size: int, layout: ContextParallelLayout, split: Split
) -> CheckResult:
    """Compare the parts of every rank with slices cut one by one; name the mistake.

    Args:
        batch: a row that divides among the ranks.
        cp_size: ranks.
        layout: of the attention.
        split: the function under test.
    """
    # Tokens, targets and weights get unique values, which show their origin.
    marks = np.arange(len(batch.input_ids), dtype=np.int64)
    labels = np.where(batch.labels != IGNORE_INDEX, marks, IGNORE_INDEX)
    weights = (marks + 1).astype(np.float32)
    row = replace(batch, input_ids=marks, labels=labels, loss_weights=weights)
    shards = [split(row, cp_rank=rank, cp_size=cp_size, layout=layout) for rank in range(cp_size)]
    right = _reference_places(batch.cu_seqlens, cp_size, layout)
    places_of_ranks = [np.asarray(shard.input_ids).tolist() for shard in shards]
    for rank, (places, due) in enumerate(zip(places_of_ranks, right, strict=True)):
        if places != due:
            detail = (
                f"rank {rank} of {cp_size} holds places {places[:8]}… of the row and "
                f"{due[:8]}… are due"
            )
            cause = _name_split(places_of_ranks, batch.cu_seqlens, layout)
            return failed("split", detail, cause, _WAY_OUT_OF_SPLIT)
    # Values of the row, and the same as ranks hold them: shifted if they belong to targets.
    fields_of_row: dict[str, tuple[AnyArray, AnyArray]] = {
        name: (getattr(row, name),) * 2
        for name in ("position_ids", "segment_index", "padding_mask")
    }
    fields_of_row["targets"] = row.labels, _shifted(row.labels, IGNORE_INDEX, row)
    fields_of_row["target_weights"] = row.target_weights, _shifted(row.target_weights, 0, row)
    for column in row.columns:
        values = column.values
        is_target = column.place is ColumnPlace.TARGET
        truth = _shifted(values, column.fill, row) if is_target else values
        fields_of_row[column.name] = values, truth
    if row.rope_positions is not None:
        fields_of_row["rope_positions"] = (row.rope_positions.T,) * 2
    whole = np.append(row.cu_seqlens, row.max_seqlen)
    for rank, (shard, due) in enumerate(zip(shards, right, strict=True)):
        if not same_values(np.append(shard.cu_seqlens, shard.max_seqlen), whole):
            return failed(
                "split",
                f"rank {rank} of {cp_size}: cu_seqlens or max_seqlen are not the row's",
                "boundaries are split, or counted on a rank",
                "give kernels the boundaries of the whole row on every rank",
            )
        columns = {column.name: column.values for column in shard.columns}
        for name, (unshifted_values, truth) in fields_of_row.items():
            field = np.atleast_1d(getattr(shard, name, columns.get(name, ())))
            field = field.T if name == "rope_positions" else field
            if not same_values(field, truth[due]):
                return failed(
                    "split",
                    f"rank {rank} of {cp_size}: {name} do not belong to its tokens",
                    *_misheld(name, field, truth, unshifted_values[due]),
                )
    return passed("split", f"{cp_size} ranks of {len(right[0])} tokens")


def _misheld(name: str, result: AnyArray, truth: AnyArray, unshifted_values: AnyArray) -> Diagnosis:
    """Name the mistake in one array of a rank.

    Args:
        name: of the array.
        result: as the rank has it.
        truth: of the whole row.
        unshifted_values: of the rank's tokens, before values of targets were shifted.
    """
    way_out = "split columns as tokens are split"
    if same_values(result, truth):
        return Diagnosis(f"{name}: not split: every rank has the whole row's", way_out)
    if same_values(result, truth[: len(unshifted_values)]):
        return Diagnosis(f"{name}: every rank has the first part of the row", way_out)
    if name == "position_ids":
        cause = "position_ids start again on each rank, or are places in the row"
        return Diagnosis(cause, "split the positions of the row; a rank counts nothing")
    if same_values(result, unshifted_values):
        cause = f"{name}: at the predicted tokens: nothing was shifted"
        return Diagnosis(cause, "shift over the whole row, before the split")
    if values_agree(result[:-1], unshifted_values[1:]):
        return Diagnosis(
            f"{name}: shifted after the split: the last token of a slice has the first of another "
            "slice for its target",
            "shift over the whole row, before the split",
        )
    if name == "target_weights" and len(np.unique(result[result != 0])) <= 1:
        return ONE_WEIGHT
    return Diagnosis(f"{name}: lost, or other values than its tokens have", way_out)


def _name_split(
    places_of_ranks: list[list[int]], cu_seqlens: CuSeqlens, layout: ContextParallelLayout
) -> str:
    """Name the split that was made instead, from the places that each rank holds."""
    cp_size = len(places_of_ranks)
    segments, row = cu_seqlens.tolist(), [0, int(cu_seqlens[-1])]
    bounds = segments if layout is ContextParallelLayout.ZIGZAG_SEGMENTS else row
    zigzag = _zigzag(cp_size)
    mistakes = {
        "zigzag of every segment (zigzag_segments)": _dealt(segments, zigzag),
        "zigzag of the whole row, across segments (zigzag_row)": _dealt(row, zigzag),
        "equal parts in order (contiguous)": _dealt(row, _in_order(cp_size)),
        "the halves of the zigzag are swapped: the late slice comes before the early one": _dealt(
            bounds, [pair[::-1] for pair in zigzag]
        ),
        "the second half is not a mirror: slices r and cp + r instead of r and 2·cp − "
        "1 − r": _dealt(bounds, [(rank, cp_size + rank) for rank in range(cp_size)]),
        "ranks are numbered backwards": _reference_places(cu_seqlens, cp_size, layout)[::-1],
    }
    for name, places in mistakes.items():
        if places_of_ranks == places:
            return f"the split is another one: {name}"
    num_holders = np.bincount(np.concatenate(places_of_ranks).astype(np.int64), minlength=row[1])
    if (num_holders != 1).any():
        return (
            f"{int((num_holders == 0).sum())} tokens are on no rank and "
            f"{int((num_holders > 1).sum())} on several"
        )
    return f"every token is on one rank, but not as {layout.value} has it"


def _zigzag(cp_size: int) -> list[tuple[int, int]]:
    return [(rank, 2 * cp_size - 1 - rank) for rank in range(cp_size)]


def _in_order(cp_size: int) -> list[tuple[int, int]]:
    return [(2 * rank, 2 * rank + 1) for rank in range(cp_size)]


def _reference_places(
    cu_seqlens: CuSeqlens, cp_size: int, layout: ContextParallelLayout
) -> list[list[int]]:
    """Return where the tokens of each rank lie in the row.

    >>> _reference_places(np.array([0, 4, 8]), 2, ContextParallelLayout.ZIGZAG_SEGMENTS)
    [[0, 3, 4, 7], [1, 2, 5, 6]]
    """
    if layout is ContextParallelLayout.ZIGZAG_SEGMENTS:
        return _dealt(cu_seqlens.tolist(), _zigzag(cp_size))
    is_zigzag = layout is ContextParallelLayout.ZIGZAG_ROW
    return _dealt([0, int(cu_seqlens[-1])], (_zigzag if is_zigzag else _in_order)(cp_size))


def _dealt(bounds: Sequence[int], slices: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Cut every part between two bounds into 2·cp slices and give each rank its own."""
    places: list[list[int]] = [[] for _ in slices]
    for begin, end in pairwise(bounds):
        size = (end - begin) // (2 * len(slices))
        for rank, numbers in enumerate(slices):
            for number in numbers:
                places[rank] += range(begin + number * size, begin + (number + 1) * size)
    return places


def check_gathering(
    batch: PackedBatch, cp_size: int, layout: ContextParallelLayout, gather: Gather
) -> CheckResult:
    """Gather parts that were cut one by one, and compare the result with the row."""
    row = np.stack([np.arange(len(batch.input_ids)), -np.arange(len(batch.input_ids))], axis=1)
    parts = [row[places] for places in _reference_places(batch.cu_seqlens, cp_size, layout)]
    result = np.asarray(gather(parts, batch.cu_seqlens, layout=layout))
    if same_values(result, row):
        return passed("gathering")
    if same_values(result, np.concatenate(parts)):
        cause = (
            "parts of the ranks are concatenated as they are: the order of the row is not restored"
        )
    elif same_values(np.sort(result, axis=0), np.sort(row, axis=0)):
        cause = (
            "all tokens are there in a wrong order: the places of another layout, or the "
            "permutation instead of its inverse"
        )
    else:
        cause = "tokens are lost or repeated"
    way_out = "gather with gather_from_context_parallel, in the layout of the split"
    return failed(
        "gathering", f"values of {cp_size} ranks do not come back to their tokens", cause, way_out
    )


def check_simulated(
    model: Any,
    batch: PackedBatch,
    cp_size: int,
    layout: ContextParallelLayout,
    split: Split,
    gather: Gather,
    limit: float,
) -> list[CheckResult]:
    """Compute a row as its ranks would, in one process, and compare logits and loss with the row as
    a whole.

    Attention on real ranks assumes where each token lies: it follows the layout, not the split. So
    the mask here follows the layout's places, and tokens and positions come from the split::

        row        a b c d        the kernel on rank 0 holds places 0 and 3 and lets the second see all of the row
        rank 0     a d | a b      right, or wrong: b would see c and d

    Args:
        model: called with ``input_ids``, ``position_ids`` and a mask of four dimensions, as models
            of Transformers are.
        limit: largest relative difference.
    """
    shards = [split(batch, cp_rank=rank, cp_size=cp_size, layout=layout) for rank in range(cp_size)]
    right = _reference_places(batch.cu_seqlens, cp_size, layout)
    places = np.concatenate(right).astype(np.int64)
    try:
        truth = _logits(model, [batch], np.arange(len(places)), batch)
        simulation = _logits(model, shards, places, batch)
        parts = np.split(simulation.numpy(), np.cumsum([len(part) for part in right])[:-1])
        logits = torch.from_numpy(gather(parts, batch.cu_seqlens, layout=layout))
        real = torch.from_numpy(~batch.padding_mask)
        size = difference(truth[real], logits[real])
    except Exception as error:  # a model may refuse in any way it likes
        reason = f"the model refuses a row with a mask of four dimensions: {first_sentence(error)}"
        return [
            not_supported("parallel", reason, "verify with a model whose layers are all attention")
        ]
    targets = np.concatenate([np.asarray(shard.targets) for shard in shards])
    loss = float(targets_loss(simulation, targets))
    due = float(targets_loss(truth, _shifted(batch.labels, IGNORE_INDEX, batch)))
    return [
        compared(
            "parallel",
            size,
            limit,
            passed=f"logits of {cp_size} ranks equal the row's",
            failed=f"logits of {cp_size} ranks differ from the row's",
            diagnosis=(
                "a rank holds other tokens or positions than its attention assumes",
                _WAY_OUT_OF_SPLIT,
            ),
        ),
        compared(
            "parallel",
            loss_difference(due, loss),
            limit,
            passed=f"the losses of {cp_size} ranks add up to the row's loss",
            failed=f"the losses of {cp_size} ranks add up to {loss:.6g} and the row's loss is "
            f"{due:.6g}",
            diagnosis=(
                "targets do not lie at the tokens that predict them",
                "shift labels over the whole row, before the split",
            ),
        ),
    ]


def _logits(
    model: Any,
    parts: Sequence[PackedBatch | ContextParallelShard],
    places: Int64Array,
    batch: PackedBatch,
) -> torch.Tensor:
    """Return ``float[T, V]`` of the tokens of some parts, whose attention assumes them at
    ``places`` of the row.
    """
    parameter = next(model.parameters())
    segment = batch.segment_index[places]
    is_hidden = (segment[:, None] != segment) | (places[:, None] < places)
    mask = torch.zeros(is_hidden.shape, dtype=parameter.dtype)
    mask.masked_fill_(torch.from_numpy(is_hidden), torch.finfo(parameter.dtype).min)
    ids = np.concatenate([part.input_ids for part in parts])
    # A row of text positions, and of mRoPE three more.
    positions = np.concatenate(
        [
            np.vstack(
                [part.position_ids, *(() if part.rope_positions is None else part.rope_positions)]
            )
            for part in parts
        ],
        axis=1,
    )
    if len(positions) > 1:
        positions = positions[:, None]
    with torch.no_grad():
        output = model(
            input_ids=torch.tensor(ids[None], device=parameter.device),
            position_ids=torch.tensor(positions, device=parameter.device),
            attention_mask=mask[None, None].to(parameter.device),
            use_cache=False,
        )
    logits: torch.Tensor = output.logits[0].float().cpu()
    return logits


def _shifted(values: AnyArray, fill: float, row: PackedBatch) -> AnyArray:
    """Return the value of the next token of each segment; the fill at the end of a segment."""
    shifted_values = np.full_like(values, fill)
    for begin, end in pairwise(row.cu_seqlens.tolist()):
        shifted_values[begin : end - 1] = values[begin + 1 : end]
    return shifted_values
