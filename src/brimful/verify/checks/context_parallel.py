"""Context parallelism: the ranks together hold the row, and a model computes the same from their parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from brimful.collate.batch import PackedBatch
from brimful.collate.columns import Column, ColumnPlace
from brimful.rl.context_parallel_split import ContextParallelLayout, ContextParallelShard
from brimful.typing import IGNORE_INDEX, Int64Array
from brimful.verify.attention import first_sentence
from brimful.verify.checks.columns import same
from brimful.verify.reference_split import reference_places, wrong_places
from brimful.verify.report import Finding, Status, compared, failed, not_supported
from brimful.verify.setup import difference, targets_loss

Split = Callable[..., ContextParallelShard]
Gather = Callable[..., npt.NDArray[Any]]

_WAY_OUT = "split with split_for_context_parallel, in the layout of the trainer's attention"


def marked(batch: PackedBatch) -> PackedBatch:
    """Return the row with tokens, targets, weights and columns of unique values, which show their origin."""
    places = np.arange(len(batch.input_ids), dtype=np.int64)
    is_target = batch.labels != IGNORE_INDEX
    numbers = places.astype(np.float32)
    columns = (
        Column("of_the_token", np.stack([numbers, -numbers], axis=1), fill=-1, place=ColumnPlace.TOKEN),
        Column("of_the_target", np.where(is_target, numbers, np.float32(-1)), fill=-1, place=ColumnPlace.TARGET),
    )
    return replace(
        batch,
        input_ids=places,
        labels=np.where(is_target, places, IGNORE_INDEX),
        loss_weights=np.where(is_target, numbers + 1, 0).astype(np.float32),
        columns=columns,
    )


def check_split(batch: PackedBatch, cp_size: int, layout: ContextParallelLayout, split: Split) -> Finding:
    """Compare the parts of every rank with slices cut one by one; name the mistake.

    Args:
        batch: a row that divides among the ranks.
        cp_size: ranks.
        layout: of the attention.
        split: the function under test.
    """
    row = marked(batch)
    shards = [split(row, cp_rank=rank, cp_size=cp_size, layout=layout) for rank in range(cp_size)]
    right = reference_places(batch.cu_seqlens, cp_size, layout)
    result = [np.asarray(shard.input_ids).tolist() for shard in shards]
    if result != right:
        return failed("split", _where(result, right), _named(result, batch, cp_size, layout), _WAY_OUT)
    for rank, (shard, places) in enumerate(zip(shards, right, strict=True)):
        for name, truth in _fields(row).items():
            cause, way_out = _wrong_field(name, _field(shard, name), truth, np.array(places), row)
            if cause:
                return failed("split", f"rank {rank} of {cp_size}: {name} do not belong to its tokens", cause, way_out)
    return Finding("split", Status.PASS, detail=f"{cp_size} ranks of {len(right[0])} tokens")


def check_gathering(batch: PackedBatch, cp_size: int, layout: ContextParallelLayout, gather: Gather) -> Finding:
    """Gather parts that were cut one by one, and compare the result with the row."""
    places = reference_places(batch.cu_seqlens, cp_size, layout)
    row = np.stack([np.arange(len(batch.input_ids)), -np.arange(len(batch.input_ids))], axis=1)
    result = np.asarray(gather([row[rank_places] for rank_places in places], batch.cu_seqlens, layout=layout))
    if same(result, row):
        return Finding("gathering", Status.PASS)
    if same(result, np.concatenate([row[rank_places] for rank_places in places])):
        cause = "parts of the ranks are concatenated as they are: the order of the row is not restored"
    elif result.shape == row.shape and sorted(result[:, 0].tolist()) == row[:, 0].tolist():
        cause = "all tokens are there in a wrong order: the places of another layout, or the permutation instead of its inverse"
    else:
        cause = "tokens are lost or repeated"
    way_out = "gather with gather_from_context_parallel, in the layout of the split"
    return failed("gathering", f"values of {cp_size} ranks do not come back to their tokens", cause, way_out)


def check_simulated(
    model: Any,
    batch: PackedBatch,
    cp_size: int,
    layout: ContextParallelLayout,
    split: Split,
    gather: Gather,
    limit: float,
) -> list[Finding]:
    """Compute a row as its ranks would, in one process, and compare logits and loss with the row as a whole.

    Attention on real ranks assumes where each token lies: it follows the layout, not the split. So the mask here
    follows the layout's places, and tokens and positions come from the split::

        row        a b c d        the kernel on rank 0 holds places 0 and 3 and lets the second see all of the row
        rank 0     a d | a b      right, or wrong: b would see c and d

    Args:
        model: called with ``input_ids``, ``position_ids`` and a mask of four dimensions, as models of Transformers are.
        limit: largest relative difference.
    """
    shards = [split(batch, cp_rank=rank, cp_size=cp_size, layout=layout) for rank in range(cp_size)]
    right = reference_places(batch.cu_seqlens, cp_size, layout)
    places = np.concatenate([np.array(part, dtype=np.int64) for part in right])
    names = ("input_ids", "position_ids", "targets", "target_weights")
    values = {name: np.concatenate([np.asarray(getattr(shard, name)) for shard in shards]) for name in names}
    if len(values["input_ids"]) != len(places):
        return [
            failed(
                "parallel",
                f"{cp_size} ranks hold {len(values['input_ids'])} tokens of {len(places)}",
                "follows from split",
                "",
            )
        ]
    rope = None
    if batch.rope_positions is not None:
        rope = np.concatenate([np.asarray(shard.rope_positions) for shard in shards], axis=1)
    whole_row = np.arange(len(places))
    try:
        truth = _logits(model, batch.input_ids, batch.position_ids, batch.rope_positions, whole_row, batch)
        simulation = _logits(model, values["input_ids"], values["position_ids"], rope, places, batch)
    except Exception as error:  # a model may refuse in any way it likes
        reason = f"the model refuses a row with a mask of four dimensions: {first_sentence(error)}"
        return [not_supported("parallel", reason, "verify with a model whose layers are all attention")]
    parts = np.split(simulation.numpy(), np.cumsum([len(part) for part in right])[:-1])
    logits = torch.from_numpy(gather(parts, batch.cu_seqlens, layout=layout))
    real = torch.from_numpy(~batch.padding_mask)
    movement = difference(truth[real], logits[real]) if logits.shape == truth.shape else float("inf")
    findings = [
        compared(
            "parallel",
            movement,
            limit,
            passed=f"logits of {cp_size} ranks equal the row's",
            failed=f"logits of {cp_size} ranks differ from the row's",
            diagnosis=("a rank holds other tokens or positions than its attention assumes", _WAY_OUT),
        )
    ]
    row = marked(batch)
    targets = _fields(row)["targets"]
    targets = np.where(targets == IGNORE_INDEX, IGNORE_INDEX, batch.input_ids[np.maximum(targets, 0)])
    loss, due = float(targets_loss(simulation, values["targets"])), float(targets_loss(truth, targets))
    findings.append(
        compared(
            "parallel",
            abs(loss - due) / max(1.0, abs(due)),
            limit,
            passed=f"the losses of {cp_size} ranks add up to the row's loss",
            failed=f"the losses of {cp_size} ranks add up to {loss:.6g} and the row's loss is {due:.6g}",
            diagnosis=(
                "targets do not lie at the tokens that predict them",
                "shift labels over the whole row, before the split",
            ),
        )
    )
    return findings


def _logits(
    model: Any,
    ids: Int64Array,
    positions: Int64Array,
    rope: Int64Array | None,
    places: Int64Array,
    batch: PackedBatch,
) -> torch.Tensor:
    """Return ``float[T, V]`` of tokens whose attention assumes them at ``places`` of the row."""
    parameter = next(model.parameters())
    segment = batch.segment_index[places]
    is_visible = (segment[:, None] == segment[None]) & (places[:, None] >= places[None])
    mask = torch.zeros(is_visible.shape, dtype=parameter.dtype)
    mask = mask.masked_fill_(torch.from_numpy(~is_visible), torch.finfo(parameter.dtype).min)[None, None]
    rows = positions[None] if rope is None else np.concatenate([positions[None], rope])[:, None]
    kwargs: Mapping[str, Any] = {
        "input_ids": torch.from_numpy(np.ascontiguousarray(ids[None])),
        "position_ids": torch.from_numpy(np.ascontiguousarray(rows)),
        "attention_mask": mask,
    }
    with torch.no_grad():
        output = model(**{name: value.to(parameter.device) for name, value in kwargs.items()}, use_cache=False)
    logits: torch.Tensor = output.logits[0].float().cpu()
    return logits


def _fields(row: PackedBatch) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays that ranks hold, for the whole row, shifted segment by segment and token by token."""
    fields: dict[str, npt.NDArray[Any]] = {
        "position_ids": row.position_ids,
        "segment_index": row.segment_index,
        "padding_mask": row.padding_mask,
    }
    labels_of_row: dict[str, tuple[npt.NDArray[Any], int]] = {
        "targets": (row.labels, IGNORE_INDEX),
        "target_weights": (row.target_weights, 0),
    }
    labels_of_row |= {column.name: (column.values, -1) for column in row.columns if column.place is ColumnPlace.TARGET}
    bounds = row.cu_seqlens.tolist()
    for name, (values, fill) in labels_of_row.items():
        shifted_values = np.full_like(values, fill)
        for begin, end in pairwise(bounds):
            for place in range(begin, end - 1):
                shifted_values[place] = values[place + 1]
        fields[name] = shifted_values
    fields |= {column.name: column.values for column in row.columns if column.place is ColumnPlace.TOKEN}
    return fields


def _field(shard: ContextParallelShard, name: str) -> npt.NDArray[Any] | None:
    if hasattr(shard, name):
        return np.asarray(getattr(shard, name))
    return next((np.asarray(column.values) for column in shard.columns if column.name == name), None)


def _wrong_field(
    name: str, result: npt.NDArray[Any] | None, whole: npt.NDArray[Any], places: Int64Array, row: PackedBatch
) -> tuple[str, str]:
    """Name the mistake in one array of a rank; empty texts if it is right."""
    title = f"the column {name[3:].replace('_', ' ')}" if name.startswith("of_the") else name
    if result is None:
        return f"{title} is lost by the split", "split columns as tokens are split"
    if same(result, whole[places]):
        return "", ""
    if len(result) == len(whole) != len(places):
        return f"{title} is not split: every rank has the whole row's", "split columns as tokens are split"
    of_targets: dict[str, npt.NDArray[Any]] = {
        "targets": row.labels,
        "target_weights": row.target_weights,
        "of_the_target": row.columns[1].values,
    }
    labels_of_row = of_targets.get(name)
    shifted_after = "shifted after the split: the last token of a slice has the first of another slice for its target"
    if labels_of_row is not None and len(result) == len(places):
        fill = IGNORE_INDEX if name == "targets" else 0 if name == "target_weights" else -1
        for boundary_fill in (fill, result[-1]):
            if same(result, np.append(labels_of_row[places][1:], boundary_fill).astype(result.dtype)) or same(
                result, _shifted_in_slices(labels_of_row, places, row, fill)
            ):
                return f"{title} {'are' if name.startswith('target') else 'is'} {shifted_after}", (
                    "shift over the whole row, before the split"
                )
        if same(result, labels_of_row[places]):
            return (
                f"{title} lie at the predicted tokens: nothing was shifted",
                "shift over the whole row, before the split",
            )
    if name == "position_ids" and len(result) == len(places):
        local = np.arange(len(places))
        segments = row.segment_index[places]
        starts = np.maximum.accumulate(np.where(np.append(True, segments[1:] != segments[:-1]), local, 0))
        if same(result, local) or same(result, local - starts):
            return "position_ids start again on each rank", "split the positions of the row; a rank counts nothing"
        if same(result, places):
            return "position_ids are places in the row, not in the segment", "split the positions of the row"
    if name == "target_weights" and len(set(result[result != 0].tolist())) <= 1:
        return (
            "one weight for the whole row: weights are per row and not per token",
            "split weights as tokens are split",
        )
    if len(result) == len(places) and same(result, whole[: len(places)]):
        return f"{title}: every rank has the first part of the row", "split columns as tokens are split"
    if result.shape == whole[places].shape:
        for by, way in ((1, "right"), (-1, "left")):
            if same(result, np.roll(whole, by, axis=0)[places]) or same(result, np.roll(whole[places], by, axis=0)):
                return f"{title} is shifted by one token to the {way}", "leave values at their tokens"
    return f"{title} has other values than its tokens", "split columns as tokens are split"


def _shifted_in_slices(values: npt.NDArray[Any], places: Int64Array, row: PackedBatch, fill: float) -> npt.NDArray[Any]:
    """Return values shifted within a rank's part of each segment: the mistake of shifting after the split."""
    part, segments = values[places], row.segment_index[places]
    shifted_values = np.append(part[1:], np.asarray(fill, dtype=part.dtype))
    shifted_values[np.append(segments[1:] != segments[:-1], True)] = fill
    return shifted_values.astype(values.dtype)


def _where(result: Sequence[Sequence[int]], right: Sequence[Sequence[int]]) -> str:
    rank = next(rank for rank, (ours, due) in enumerate(zip(result, right, strict=True)) if list(ours) != list(due))
    return f"rank {rank} of {len(right)} holds places {_some(result[rank])} of the row and {_some(right[rank])} are due"


def _some(places: Sequence[int]) -> str:
    return " ".join(map(str, places[:8])) + (" …" if len(places) > 8 else "")


def _named(result: list[list[int]], batch: PackedBatch, cp_size: int, layout: ContextParallelLayout) -> str:
    """Name the split that was made instead."""
    for name, places in wrong_places(batch.cu_seqlens, cp_size, layout):
        if result == places:
            return f"the split is another one: {name}"
    num_holders = np.bincount(
        np.concatenate([np.array(part, dtype=np.int64) for part in result]), minlength=len(batch.input_ids)
    )
    if (num_holders != 1).any():
        return f"{int((num_holders == 0).sum())} tokens are on no rank and {int((num_holders > 1).sum())} on several"
    if [sorted(part) for part in result] == [
        sorted(part) for part in reference_places(batch.cu_seqlens, cp_size, layout)
    ]:
        return "every rank has its tokens in another order than its attention assumes"
    return f"every token is on one rank, but not as {layout.value} has it"
