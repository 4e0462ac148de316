"""Columns: the values of every token lie where the token is, and come back to its sample."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from brimful.collate.batch import PackedBatch
from brimful.collate.columns import Column, ColumnPlace
from brimful.collate.extras import PackExtras
from brimful.rl.step_packs import RestoredTokens
from brimful.shards import Pack
from brimful.typing import IGNORE_INDEX
from brimful.verify.report import Finding, Status, failed

PackWithExtras = tuple[Pack, PackExtras]


def check_columns(batch: PackedBatch, feature: PackWithExtras, *, with_weights: bool) -> Finding:
    """Compare the columns and weights of a row with its pack, token by token.

    Args:
        batch: as the collator lays the pack out.
        feature: the pack with columns and weights.
        with_weights: false if the collator makes weights of its own.
    """
    pack, extras = feature
    begins = batch.cu_seqlens[:-1].tolist()
    # Laid out token by token, without the function under test.
    place_of: list[int] = []
    for begin, length in zip(begins, np.diff(pack.cu_seqlens).tolist(), strict=False):
        place_of += range(begin, begin + length)
    if len(place_of) != len(pack) or (batch.input_ids[place_of] != pack.input_ids).any():
        return failed(
            "columns",
            f"the row of samples {_names(pack)} has other tokens than its pack",
            "samples were reordered, cut or lost before they were laid out",
            "lay out packs whole, in their order",
        )
    firsts = [begins[segment] for segment in range(pack.num_segments)]
    for column in extras.columns:
        truth = np.full((len(batch.input_ids), *column.values.shape[1:]), column.fill, dtype=column.values.dtype)
        truth[place_of] = column.values
        if column.place is ColumnPlace.TARGET:
            truth[firsts] = column.fill
        result = next((batch_column.values for batch_column in batch.columns if batch_column.name == column.name), None)
        if result is None:
            return failed(
                "columns",
                f"column {column.name!r} is not in the batch",
                "the collator drops columns",
                "pass on the extras of packs, as lay_out(extras=…) does",
            )
        if not same(result, truth):
            diagnosis = _misplaced(result, truth, column, place_of, pack)
            return failed("columns", _first_difference(result, truth, column.name), *diagnosis)
    if with_weights and extras.loss_weights is not None:
        weights = np.zeros(len(batch.input_ids), dtype=np.float32)
        weights[place_of] = extras.loss_weights
        weights[batch.labels == IGNORE_INDEX] = 0
        if not same(batch.target_weights, weights):
            diagnosis = _wrong_weights(batch.target_weights, weights)
            return failed("columns", _first_difference(batch.target_weights, weights, "loss_weights"), *diagnosis)
    return Finding("columns", Status.PASS)


def check_restoring(
    batches: Sequence[PackedBatch],
    features: Sequence[PackWithExtras],
    restore: Callable[..., RestoredTokens],
    outputs: Sequence[npt.NDArray[Any]],
    column: str,
) -> Finding:
    """Compare the values that come back to each sample with the values that went in.

    Args:
        batches: rows of all micro-batches.
        features: their packs.
        restore: ``restore_tokens``, or another function under test.
        outputs: ``[T]`` of each row, made of the column.
        column: name of a column of tokens, all of whose values differ.
    """
    # Each sample gets the number of the next one: a permutation that differs from its inverse.
    num_samples = sum(pack.num_segments for pack, _ in features)
    numbers = (np.arange(num_samples, dtype=np.int64) + 1) % num_samples
    bounds = np.cumsum([pack.num_segments for pack, _ in features])[:-1]
    numbers_of_packs = np.split(numbers, bounds)
    batches = [replace(batch, sample_ids=ids) for batch, ids in zip(batches, numbers_of_packs, strict=True)]
    due: dict[int, npt.NDArray[Any]] = {}
    for (pack, extras), sample_ids in zip(features, numbers_of_packs, strict=True):
        (values,) = (item.values for item in extras.columns if item.name == column)
        for sample, (begin, end) in zip(sample_ids.tolist(), pairwise(pack.cu_seqlens.tolist()), strict=True):
            due[sample] = values[begin:end]
    restored_values = restore(batches, outputs)
    rows = [np.asarray(restored_values[index]) for index in range(len(restored_values))]
    ids = sorted(due)
    if restored_values.sample_ids.tolist() == ids and all(
        same(row, due[sample]) for row, sample in zip(rows, ids, strict=True)
    ):
        return Finding("restoring", Status.PASS, detail=f"{len(ids)} samples")
    return failed(
        "restoring", f"{len(ids)} samples went in and others came back", *_misordered(rows, due, numbers.tolist())
    )


def same(result: npt.NDArray[Any], truth: npt.NDArray[Any]) -> bool:
    """Return true if arrays are equal in shape and values; NaN equals NaN."""
    return result.shape == truth.shape and bool(np.array_equal(result, truth, equal_nan=truth.dtype.kind == "f"))


def _misplaced(
    result: npt.NDArray[Any], truth: npt.NDArray[Any], column: Column, place_of: list[int], pack: Pack
) -> tuple[str, str]:
    """Name the mistake that misplaced a column, and the way out."""
    name = repr(column.name)
    if result.shape != truth.shape:
        return (
            f"column {name} has the shape {result.shape} in a row of {len(truth):,} tokens",
            "give it one value for each token",
        )
    raw = np.full_like(truth, column.fill)
    raw[place_of] = column.values
    for by in (1, -1):
        if _agrees(result, np.roll(raw, by, axis=0)) or _agrees(result, np.roll(truth, by, axis=0)):
            way = "right" if by > 0 else "left"
            return f"column {name} is shifted by one token to the {way}", (
                "say place='token' or place='target', and shift nothing before"
            )
    row = np.full_like(truth, column.fill)
    row[: len(pack)] = column.values
    if _agrees(result, row):
        return f"the fill of column {name} stands at the end of the row, not after each segment", (
            "lay the values of each segment at its beginning"
        )
    if same(result[place_of], raw[place_of]) or same(result[place_of], truth[place_of]):
        return (
            f"padding of column {name} holds other values than its fill, {column.fill:g}",
            "fill before the values are laid",
        )
    for segment, (a, b) in enumerate(pairwise(pack.cu_seqlens.tolist())):
        if b - a > 2 and (result[place_of[a + 1 : b]] == result[place_of[a + 1]]).all():
            sample = int(pack.sample_ids[segment])
            return f"column {name} has one value for the row or the sample {sample} instead of one for each token", (
                "give values of tokens, and no mean of them"
            )
    if same(np.sort(result, axis=0), np.sort(truth, axis=0)):
        return f"column {name} has the right values in another order of samples", "permute columns with their samples"
    return f"column {name} has other values than the samples", "give the values of the samples of this pack"


def _agrees(result: npt.NDArray[Any], candidate: npt.NDArray[Any]) -> bool:
    """Return true if almost all values agree: mistakes differ at the ends of segments."""
    agreements = (result == candidate).reshape(len(result), -1).all(axis=1)
    return len(result) > 0 and float(agreements.mean()) >= _MOST


_MOST = 0.7
"""Share of a row's places at which a named mistake must agree with the values found."""


def _wrong_weights(result: npt.NDArray[Any], truth: npt.NDArray[Any]) -> tuple[str, str]:
    has_weight = truth != 0
    if len(set(result[has_weight].tolist())) == 1:
        return "one weight for the whole row: weights are per row and not per token", "give each target its own weight"
    if _agrees(result, np.roll(truth, 1)) or _agrees(result, np.roll(truth, -1)):
        return (
            "weights are shifted by one token against their labels",
            "shift weights where labels are shifted, and nowhere else",
        )
    return "weights do not belong to their tokens", "give float32[tokens] of the pack as loss_weights"


def _misordered(
    rows: list[npt.NDArray[Any]], due: dict[int, npt.NDArray[Any]], numbers_of_packs: list[int]
) -> tuple[str, str]:
    way_out = "results[step.restore], or restore_tokens, is the order of arrival"
    if len(rows) == len(numbers_of_packs) and all(
        same(row, due[sample]) for row, sample in zip(rows, numbers_of_packs, strict=True)
    ):
        return "samples are in the order of micro-batches, not of arrival: they were not restored", way_out
    values = {row.tobytes() for row in rows}
    if len(rows) == len(due) and values == {row.tobytes() for row in due.values()}:
        return "samples come back whole and in a wrong order: the permutation was applied instead of undone", way_out
    ids = sorted(due)
    if len(rows) == len(ids) and all(len(row) == len(due[sample]) for row, sample in zip(rows, ids, strict=True)):
        return "values come back to the right samples and to other tokens of them", "look for a shift before restoring"
    return (
        "values of padding come back with the samples' values, or some values are lost",
        "leave padding out before samples are cut apart",
    )


def _first_difference(result: npt.NDArray[Any], truth: npt.NDArray[Any], name: str) -> str:
    if result.shape != truth.shape:
        return f"{name!r} has the shape {result.shape} and {truth.shape} is due"
    equal = (result == truth) | ((result != result) & (truth != truth))  # NaN differs from itself
    place = int(np.argmax(~equal.reshape(len(result), -1).all(axis=1)))
    return f"{name!r} has {result[place].tolist()} at place {place} of the row and {truth[place].tolist()} is due"


def _names(pack: Pack) -> str:
    return ", ".join(map(str, pack.sample_ids[:3].tolist()))
