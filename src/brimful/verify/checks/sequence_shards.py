"""Context parallelism: the ranks together hold the row, and a model computes the same from their
parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from brimful.base.typing import IGNORE_INDEX, AnyArray, CuSeqlens, Int64Array
from brimful.collate.batch import PackedBatch
from brimful.collate.columns import ColumnPlace
from brimful.rl.context_parallel_split import ContextParallelLayout, ContextParallelShard
from brimful.verify.checks.sample_columns import same
from brimful.verify.modes import first_sentence
from brimful.verify.setup import difference, targets_loss
from brimful.verify.verify_report import Diagnosis, Finding, compared, failed, not_supported, passed


def reference_places(
    cu_seqlens: CuSeqlens, cp_size: int, layout: ContextParallelLayout
) -> list[list[int]]:
    """Return where the tokens of each rank lie in the row.

    >>> import numpy as np
    >>> reference_places(np.array([0, 4, 8]), 2, ContextParallelLayout.ZIGZAG_SEGMENTS)
    [[0, 3, 4, 7], [1, 2, 5, 6]]
    """
    if layout is ContextParallelLayout.CONTIGUOUS:
        return _dealt(cu_seqlens, cp_size, layout, lambda rank: (2 * rank, 2 * rank + 1))
    return _dealt(cu_seqlens, cp_size, layout, lambda rank: (rank, 2 * cp_size - 1 - rank))


def wrong_places(
    cu_seqlens: CuSeqlens, cp_size: int, layout: ContextParallelLayout
) -> list[tuple[str, list[list[int]]]]:
    """Return splits that are made by mistake, each with its name; layouts of other trainers
    first.
    """
    names = {
        ContextParallelLayout.ZIGZAG_SEGMENTS: "zigzag of every segment (zigzag_segments)",
        ContextParallelLayout.ZIGZAG_ROW: "zigzag of the whole row, across segments (zigzag_row)",
        ContextParallelLayout.CONTIGUOUS: "equal parts in order (contiguous)",
    }
    right = reference_places(cu_seqlens, cp_size, layout)
    swapped = _dealt(cu_seqlens, cp_size, layout, lambda rank: (2 * cp_size - 1 - rank, rank))
    without_mirror = _dealt(cu_seqlens, cp_size, layout, lambda rank: (rank, cp_size + rank))
    wrong = [
        (name, reference_places(cu_seqlens, cp_size, mistake))
        for mistake, name in names.items()
        if mistake != layout
    ]
    wrong += [
        ("the halves of the zigzag are swapped: the late slice comes before the early one", swapped),
        ("the second half is not a mirror: slices r and cp + r instead of r and 2·cp − 1 − r", without_mirror),
        ("ranks are numbered backwards", right[::-1]),
        ("every rank holds what its neighbor should", right[1:] + right[:1]),
    ]  # fmt: skip
    return [(name, places) for name, places in wrong if places != right]


def _dealt(
    cu_seqlens: CuSeqlens,
    cp_size: int,
    layout: ContextParallelLayout,
    slices_of: Callable[[int], tuple[int, int]],
) -> list[list[int]]:
    """Cut every segment, or the whole row, into 2·cp slices and give each rank its own."""
    bounds = cu_seqlens.tolist()
    if layout is not ContextParallelLayout.ZIGZAG_SEGMENTS:
        bounds = [0, bounds[-1]]
    places: list[list[int]] = [[] for _ in range(cp_size)]
    for begin, end in pairwise(bounds):
        size = (end - begin) // (2 * cp_size)
        for rank in range(cp_size):
            for number in slices_of(rank):
                places[rank] += range(begin + number * size, begin + (number + 1) * size)
    return places


Split = Callable[..., ContextParallelShard]
Gather = Callable[..., AnyArray]

_WAY_OUT = "split with split_for_context_parallel, in the layout of the trainer's attention"


def marked(batch: PackedBatch) -> PackedBatch:
    """Return the row with tokens, targets and weights of unique values, which show their origin."""
    places = np.arange(len(batch.input_ids), dtype=np.int64)
    labels = np.where(batch.labels != IGNORE_INDEX, places, IGNORE_INDEX)
    return replace(
        batch, input_ids=places, labels=labels, loss_weights=(places + 1).astype(np.float32)
    )


def check_split(
    batch: PackedBatch, cp_size: int, layout: ContextParallelLayout, split: Split
) -> Finding:
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
    for rank, (places, due) in enumerate(zip(result, right, strict=True)):
        if places != due:
            detail = f"rank {rank} of {cp_size} holds places {_some(places)} of the row and {_some(due)} are due"
            return failed("split", detail, _name_split(result, right, batch, layout), _WAY_OUT)
    whole = _fields(row)
    for rank, (shard, due) in enumerate(zip(shards, right, strict=True)):
        columns = {column.name: column.values for column in shard.columns}
        for name, truth in whole.items():
            field = getattr(shard, name, columns.get(name))
            places = np.array(due)
            if field is None or not same(np.asarray(field), truth[places]):
                diagnosis = _diagnose_field(name, field, truth, places, row)
                return failed(
                    "split",
                    f"rank {rank} of {cp_size}: {name} do not belong to its tokens",
                    *diagnosis,
                )
    return passed("split", f"{cp_size} ranks of {len(right[0])} tokens")


def check_gathering(
    batch: PackedBatch, cp_size: int, layout: ContextParallelLayout, gather: Gather
) -> Finding:
    """Gather parts that were cut one by one, and compare the result with the row."""
    places = reference_places(batch.cu_seqlens, cp_size, layout)
    row = np.stack([np.arange(len(batch.input_ids)), -np.arange(len(batch.input_ids))], axis=1)
    result = np.asarray(
        gather([row[rank_places] for rank_places in places], batch.cu_seqlens, layout=layout)
    )
    if same(result, row):
        return passed("gathering")
    if same(result, np.concatenate([row[rank_places] for rank_places in places])):
        cause = (
            "parts of the ranks are concatenated as they are: the order of the row is not restored"
        )
    elif result.shape == row.shape and sorted(result[:, 0].tolist()) == row[:, 0].tolist():
        cause = "all tokens are there in a wrong order: the places of another layout, or the permutation instead of its inverse"
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
) -> list[Finding]:
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
    right = reference_places(batch.cu_seqlens, cp_size, layout)
    places = np.concatenate(right).astype(np.int64)
    ids, positions, targets = (
        np.concatenate([np.asarray(getattr(shard, name)) for shard in shards])
        for name in ("input_ids", "position_ids", "targets")
    )
    if len(ids) != len(places):
        detail = f"{cp_size} ranks hold {len(ids)} tokens of {len(places)}"
        return [failed("parallel", detail, "follows from split", "")]
    rope = None
    if batch.rope_positions is not None:
        rope = np.concatenate([np.asarray(shard.rope_positions) for shard in shards], axis=1)
    whole_row = np.arange(len(places))
    try:
        truth = _logits(
            model, batch.input_ids, batch.position_ids, batch.rope_positions, whole_row, batch
        )
        simulation = _logits(model, ids, positions, rope, places, batch)
    except Exception as error:  # a model may refuse in any way it likes
        reason = f"the model refuses a row with a mask of four dimensions: {first_sentence(error)}"
        return [
            not_supported("parallel", reason, "verify with a model whose layers are all attention")
        ]
    parts = np.split(simulation.numpy(), np.cumsum([len(part) for part in right])[:-1])
    logits = torch.from_numpy(gather(parts, batch.cu_seqlens, layout=layout))
    real = torch.from_numpy(~batch.padding_mask)
    row_targets = _shifted(batch.labels, IGNORE_INDEX, batch)
    loss, due = float(targets_loss(simulation, targets)), float(targets_loss(truth, row_targets))
    return [
        compared(
            "parallel",
            difference(truth[real], logits[real]) if logits.shape == truth.shape else float("inf"),
            limit,
            passed=f"logits of {cp_size} ranks equal the row's",
            failed=f"logits of {cp_size} ranks differ from the row's",
            diagnosis=(
                "a rank holds other tokens or positions than its attention assumes",
                _WAY_OUT,
            ),
        ),
        compared(
            "parallel",
            abs(loss - due) / max(1.0, abs(due)),
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
    ids: Int64Array,
    positions: Int64Array,
    rope: Int64Array | None,
    places: Int64Array,
    batch: PackedBatch,
) -> torch.Tensor:
    """Return ``float[T, V]`` of tokens whose attention assumes them at ``places`` of the row."""
    parameter = next(model.parameters())
    segment = batch.segment_index[places]
    is_hidden = (segment[:, None] != segment) | (places[:, None] < places)
    mask = torch.zeros(is_hidden.shape, dtype=parameter.dtype)
    mask.masked_fill_(torch.from_numpy(is_hidden), torch.finfo(parameter.dtype).min)
    rows = positions[None] if rope is None else np.concatenate([positions[None], rope])[:, None]
    with torch.no_grad():
        output = model(
            input_ids=torch.tensor(ids[None], device=parameter.device),
            position_ids=torch.tensor(rows, device=parameter.device),
            attention_mask=mask[None, None].to(parameter.device),
            use_cache=False,
        )
    logits: torch.Tensor = output.logits[0].float().cpu()
    return logits


def _fields(row: PackedBatch) -> dict[str, AnyArray]:
    """Return the arrays that ranks hold, for the whole row, shifted segment by segment and token by
    token.
    """
    names = ("position_ids", "segment_index", "padding_mask")
    fields: dict[str, AnyArray] = {name: getattr(row, name) for name in names}
    fields["targets"] = _shifted(row.labels, IGNORE_INDEX, row)
    fields["target_weights"] = _shifted(row.target_weights, 0, row)
    for column in row.columns:
        is_target = column.place is ColumnPlace.TARGET
        fields[column.name] = (
            _shifted(column.values, column.fill, row) if is_target else column.values
        )
    return fields


def _shifted(values: AnyArray, fill: float, row: PackedBatch) -> AnyArray:
    """Return the value of the next token of each segment, token by token; the fill at the end of a
    segment.
    """
    shifted_values = np.full_like(values, fill)
    for begin, end in pairwise(row.cu_seqlens.tolist()):
        for place in range(begin, end - 1):
            shifted_values[place] = values[place + 1]
    return shifted_values


def _diagnose_field(
    name: str, field: AnyArray | None, whole: AnyArray, places: Int64Array, row: PackedBatch
) -> Diagnosis:
    """Name the mistake in one array of a rank."""
    as_tokens = "split columns as tokens are split"
    if field is None:
        return Diagnosis(f"{name}: lost by the split", as_tokens)
    result = np.asarray(field)
    if len(result) == len(whole) != len(places):
        return Diagnosis(f"{name}: not split: every rank has the whole row's", as_tokens)
    for mistake, diagnosis in _mistakes(name, result, whole, places, row):
        if same(result, mistake):
            return diagnosis
    if name == "target_weights" and len(set(result[result != 0].tolist())) <= 1:
        return Diagnosis(
            "one weight for the whole row: weights are per row and not per token",
            "split weights as tokens are split",
        )
    return Diagnosis(f"{name}: other values than its tokens have", as_tokens)


def _mistakes(
    name: str, result: AnyArray, whole: AnyArray, places: Int64Array, row: PackedBatch
) -> Iterator[tuple[AnyArray, Diagnosis]]:
    """Yield arrays of a rank that are made by mistake."""
    before_split = "shift over the whole row, before the split"
    labels_and_fills: dict[str, tuple[AnyArray, float]] = {
        column.name: (column.values, column.fill)
        for column in row.columns
        if column.place is ColumnPlace.TARGET
    }
    labels_and_fills |= {
        "targets": (row.labels, IGNORE_INDEX),
        "target_weights": (row.target_weights, 0),
    }
    segments = row.segment_index[places]
    if name in labels_and_fills:
        labels, fill = labels_and_fills[name]
        part = labels[places]
        after_split = Diagnosis(
            f"{name}: shifted after the split: the last token of a slice has the first of another "
            "slice for its target",
            before_split,
        )
        # The last token of a rank may have anything, as nothing follows it there.
        for end in (fill, *result[-1:]):
            yield np.append(part[1:], end).astype(result.dtype), after_split
        in_slices = np.append(part[1:], np.asarray(fill, dtype=part.dtype))
        in_slices[np.append(segments[1:] != segments[:-1], True)] = fill
        yield in_slices, after_split
        yield part, Diagnosis(f"{name}: at the predicted tokens: nothing was shifted", before_split)
    if name == "position_ids":
        way_out = "split the positions of the row"
        local = np.arange(len(places))
        starts = np.maximum.accumulate(
            np.where(np.append(True, segments[1:] != segments[:-1]), local, 0)
        )
        for positions in (local, local - starts):
            yield (
                positions,
                Diagnosis(
                    "position_ids start again on each rank", f"{way_out}; a rank counts nothing"
                ),
            )
        yield places, Diagnosis("position_ids are places in the row, not in the segment", way_out)
    yield (
        whole[: len(places)],
        Diagnosis(
            f"{name}: every rank has the first part of the row", "split columns as tokens are split"
        ),
    )
    for by, way in ((1, "right"), (-1, "left")):
        diagnosis = Diagnosis(
            f"{name}: shifted by one token to the {way}", "leave values at their tokens"
        )
        yield np.roll(whole, by, axis=0)[places], diagnosis
        yield np.roll(whole[places], by, axis=0), diagnosis


def _some(places: Sequence[int]) -> str:
    return " ".join(map(str, places[:8])) + (" …" if len(places) > 8 else "")


def _name_split(
    result: list[list[int]],
    right: list[list[int]],
    batch: PackedBatch,
    layout: ContextParallelLayout,
) -> str:
    """Name the split that was made instead."""
    for name, places in wrong_places(batch.cu_seqlens, len(result), layout):
        if result == places:
            return f"the split is another one: {name}"
    num_holders = np.bincount(
        np.concatenate(result).astype(np.int64), minlength=len(batch.input_ids)
    )
    if (num_holders != 1).any():
        return f"{int((num_holders == 0).sum())} tokens are on no rank and {int((num_holders > 1).sum())} on several"
    if list(map(sorted, result)) == list(map(sorted, right)):
        return "every rank has its tokens in another order than its attention assumes"
    return f"every token is on one rank, but not as {layout.value} has it"
