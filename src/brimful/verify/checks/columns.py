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
from brimful.collate.media import PackExtras
from brimful.collate.step_packs import RestoredTokens
from brimful.shards import Pack
from brimful.typing import IGNORE_INDEX
from brimful.verify.report import Finding, Status, failed

PackWithExtras = tuple[Pack, PackExtras]


def check_columns(batch: PackedBatch, feature: PackWithExtras, *, with_weights: bool) -> Finding:
    """Compare columns and weights of a row with those of its pack, token by token.

    Args:
        batch: as the collator lays the pack out.
        feature: the pack with columns and weights.
        with_weights: false if the collator makes weights of its own.
    """
    pack, extras = feature
    begins = batch.cu_seqlens[:-1].tolist()
    # Written token by token, and not by the function that is looked at.
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
        expected = np.full((len(batch.input_ids), *column.values.shape[1:]), column.fill, dtype=column.values.dtype)
        expected[place_of] = column.values
        if column.place is ColumnPlace.TARGET:
            expected[firsts] = column.fill
        found = next((other.values for other in batch.columns if other.name == column.name), None)
        if found is None:
            return failed(
                "columns",
                f"column {column.name!r} is not in the batch",
                "the collator drops columns",
                "pass on the extras of packs, as lay_out(extras=…) does",
            )
        if not same(found, expected):
            named = _misplaced(found, expected, column, place_of, pack)
            return failed("columns", _first_difference(found, expected, column.name), *named)
    if with_weights and extras.loss_weights is not None:
        weights = np.zeros(len(batch.input_ids), dtype=np.float32)
        weights[place_of] = extras.loss_weights
        weights[batch.labels == IGNORE_INDEX] = 0
        if not same(batch.target_weights, weights):
            named = _wrong_weights(batch.target_weights, weights)
            return failed("columns", _first_difference(batch.target_weights, weights, "loss_weights"), *named)
    return Finding("columns", Status.PASS)


def check_restoring(
    batches: Sequence[PackedBatch],
    features: Sequence[PackWithExtras],
    restore: Callable[..., RestoredTokens],
    outputs: Sequence[npt.NDArray[Any]],
    column: str,
) -> Finding:
    """Compare the values that come back to each sample with those that went in.

    Args:
        batches: rows of all micro-batches.
        features: their packs.
        restore: ``restore_tokens``, or one that is looked at.
        outputs: ``[T]`` of each row, made of the column.
        column: name of a column of tokens, all of whose values differ.
    """
    # Numbered anew, each sample one behind its place: a permutation that differs from its inverse.
    num_samples = sum(pack.num_segments for pack, _ in features)
    numbers = (np.arange(num_samples, dtype=np.int64) + 1) % num_samples
    bounds = np.cumsum([pack.num_segments for pack, _ in features])[:-1]
    packed = np.split(numbers, bounds)
    batches = [replace(batch, sample_ids=ids) for batch, ids in zip(batches, packed, strict=True)]
    due: dict[int, npt.NDArray[Any]] = {}
    for (pack, extras), sample_ids in zip(features, packed, strict=True):
        (values,) = (item.values for item in extras.columns if item.name == column)
        for sample, (begin, end) in zip(sample_ids.tolist(), pairwise(pack.cu_seqlens.tolist()), strict=True):
            due[sample] = values[begin:end]
    restored = restore(batches, outputs)
    rows = [np.asarray(restored[index]) for index in range(len(restored))]
    ids = sorted(due)
    if restored.sample_ids.tolist() == ids and all(
        same(row, due[sample]) for row, sample in zip(rows, ids, strict=True)
    ):
        return Finding("restoring", Status.PASS, detail=f"{len(ids)} samples")
    return failed(
        "restoring", f"{len(ids)} samples went in and others came back", *_misordered(rows, due, numbers.tolist())
    )


def same(found: npt.NDArray[Any], expected: npt.NDArray[Any]) -> bool:
    """Return true if arrays are equal in shape and values; NaN equals NaN."""
    return found.shape == expected.shape and bool(np.array_equal(found, expected, equal_nan=expected.dtype.kind == "f"))


def _misplaced(
    found: npt.NDArray[Any], expected: npt.NDArray[Any], column: Column, place_of: list[int], pack: Pack
) -> tuple[str, str]:
    """Name the mistake by which a column got where it is, and the way out."""
    name = repr(column.name)
    if found.shape != expected.shape:
        return (
            f"column {name} has the shape {found.shape} in a row of {len(expected):,} tokens",
            "give it one value for each token",
        )
    raw = np.full_like(expected, column.fill)
    raw[place_of] = column.values
    for by in (1, -1):
        if _agrees(found, np.roll(raw, by, axis=0)) or _agrees(found, np.roll(expected, by, axis=0)):
            way = "right" if by > 0 else "left"
            return f"column {name} is shifted by one token to the {way}", (
                "say place='token' or place='target', and shift nothing before"
            )
    joined = np.full_like(expected, column.fill)
    joined[: len(pack)] = column.values
    if _agrees(found, joined):
        return f"the fill of column {name} stands at the end of the row, not behind each segment", (
            "lay the values of each segment at its beginning"
        )
    if same(found[place_of], raw[place_of]) or same(found[place_of], expected[place_of]):
        return (
            f"padding of column {name} holds other values than its fill, {column.fill:g}",
            "fill before the values are laid",
        )
    for segment, (a, b) in enumerate(pairwise(pack.cu_seqlens.tolist())):
        if b - a > 2 and (found[place_of[a + 1 : b]] == found[place_of[a + 1]]).all():
            sample = int(pack.sample_ids[segment])
            return f"column {name} has one value for the row or the sample {sample} instead of one for each token", (
                "give values of tokens, and no mean of them"
            )
    if same(np.sort(found, axis=0), np.sort(expected, axis=0)):
        return f"column {name} has the right values in another order of samples", "permute columns with their samples"
    return f"column {name} has other values than the samples", "give the values of the samples of this pack"


def _agrees(found: npt.NDArray[Any], candidate: npt.NDArray[Any]) -> bool:
    """Return true if almost all values agree: mistakes differ at the ends of segments."""
    agreeing = (found == candidate).reshape(len(found), -1).all(axis=1)
    return len(found) > 0 and float(agreeing.mean()) >= _MOST


_MOST = 0.7
"""Share of the places of a row in which a mistake that is named must agree with what was found."""


def _wrong_weights(found: npt.NDArray[Any], expected: npt.NDArray[Any]) -> tuple[str, str]:
    has_weight = expected != 0
    if len(set(found[has_weight].tolist())) == 1:
        return "one weight for the whole row: weights are per row and not per token", "give each target its own weight"
    if _agrees(found, np.roll(expected, 1)) or _agrees(found, np.roll(expected, -1)):
        return (
            "weights are shifted by one token against their labels",
            "shift weights where labels are shifted, and nowhere else",
        )
    return "weights are not those of the tokens", "give float32[tokens] of the pack as loss_weights"


def _misordered(rows: list[npt.NDArray[Any]], due: dict[int, npt.NDArray[Any]], packed: list[int]) -> tuple[str, str]:
    way_out = "results[step.restore], or restore_tokens, is the order of arrival"
    if len(rows) == len(packed) and all(same(row, due[sample]) for row, sample in zip(rows, packed, strict=True)):
        return "samples are in the order of micro-batches, not of arrival: they were not restored", way_out
    values = {row.tobytes() for row in rows}
    if len(rows) == len(due) and values == {row.tobytes() for row in due.values()}:
        return "samples come back whole and in a wrong order: the permutation was applied instead of undone", way_out
    ids = sorted(due)
    if len(rows) == len(ids) and all(len(row) == len(due[sample]) for row, sample in zip(rows, ids, strict=True)):
        return "values come back to the right samples and to other tokens of them", "look for a shift before restoring"
    return (
        "values of padding come back with those of samples, or some are lost",
        "leave padding out before samples are cut apart",
    )


def _first_difference(found: npt.NDArray[Any], expected: npt.NDArray[Any], name: str) -> str:
    if found.shape != expected.shape:
        return f"{name!r} has the shape {found.shape} and {expected.shape} is due"
    equal = (found == expected) | ((found != found) & (expected != expected))  # NaN is not itself
    place = int(np.argmax(~equal.reshape(len(found), -1).all(axis=1)))
    return f"{name!r} has {found[place].tolist()} at place {place} of the row and {expected[place].tolist()} is due"


def _names(pack: Pack) -> str:
    return ", ".join(map(str, pack.sample_ids[:3].tolist()))
