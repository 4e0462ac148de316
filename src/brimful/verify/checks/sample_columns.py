"""Columns: the values of every token lie where the token is, and come back to its sample."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from brimful.base.ragged import ranges
from brimful.base.typing import IGNORE_INDEX, AnyArray, Int64Array
from brimful.collate.batch import PackedBatch
from brimful.collate.columns import ColumnPlace
from brimful.collate.extras import PackExtras
from brimful.rl.step_packs import RestoredTokens
from brimful.store.shards import Pack
from brimful.verify.verify_report import Diagnosis, Finding, failed, passed

PackWithExtras = tuple[Pack, PackExtras]

_WEIGHTS = "loss_weights"

_MIN_AGREEMENT = 0.7
"""Share of a row's places at which a named mistake must agree with the values found."""


def check_columns(batch: PackedBatch, feature: PackWithExtras, *, with_weights: bool) -> Finding:
    """Compare the columns and weights of a row with its pack, token by token.

    Args:
        batch: as the collator lays the pack out.
        feature: the pack with columns and weights.
        with_weights: false if the collator makes weights of its own.
    """
    pack, extras = feature
    # Laid out token by token, without the function under test.
    lengths = np.diff(pack.cu_seqlens)
    begins = batch.cu_seqlens[: len(lengths)].astype(np.int64)
    places = ranges(begins, lengths[: len(begins)])
    if len(places) != len(pack) or (batch.input_ids[places] != pack.input_ids).any():
        samples = ", ".join(map(str, pack.sample_ids[:3].tolist()))
        return failed(
            "columns",
            f"the row of samples {samples} has other tokens than its pack",
            "samples were reordered, cut or lost before they were laid out",
            "lay out packs whole, in their order",
        )
    # Name, values in the batch and in the pack, the fill, and the places that have the fill.
    columns: list[tuple[str, AnyArray | None, AnyArray, float, AnyArray]] = []
    batch_values = {column.name: column.values for column in batch.columns}
    for column in extras.columns:
        empty_places = begins if column.place is ColumnPlace.TARGET else begins[:0]
        columns.append(
            (column.name, batch_values.get(column.name), column.values, column.fill, empty_places)
        )
    if with_weights and extras.loss_weights is not None:
        untrained_places = np.flatnonzero(batch.labels == IGNORE_INDEX)
        columns.append((_WEIGHTS, batch.target_weights, extras.loss_weights, 0, untrained_places))
    for name, result, values, fill, empty_places in columns:
        if result is None:
            return failed(
                "columns",
                f"column {name!r} is not in the batch",
                "the collator drops columns",
                "pass on the extras of packs, as lay_out(extras=…) does",
            )
        row = np.full((len(batch.input_ids), *values.shape[1:]), fill, dtype=values.dtype)
        row[places] = values
        truth = row.copy()
        truth[empty_places] = fill
        if not same(result, truth):
            detail = f"{name!r} has the shape {result.shape} and {truth.shape} is due"
            if result.shape == truth.shape:
                is_equal = (result == truth) | (
                    (result != result) & (truth != truth)
                )  # NaN differs from itself
                place = int(np.argmax(~is_equal.reshape(len(result), -1).all(axis=1)))
                detail = (
                    f"{name!r} has {result[place].tolist()} at place {place} of the row and "
                    f"{truth[place].tolist()} is due"
                )
            return failed(
                "columns", detail, *_misplaced(name, result, truth, row, fill, places, pack)
            )
    return passed("columns")


def check_restoring(
    batches: Sequence[PackedBatch],
    features: Sequence[PackWithExtras],
    restore: Callable[..., RestoredTokens],
    outputs: Sequence[AnyArray],
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
    counts = [pack.num_segments for pack, _ in features]
    numbers = np.roll(np.arange(sum(counts), dtype=np.int64), -1)
    numbers_of_packs = np.split(numbers, np.cumsum(counts)[:-1])
    batches = [
        replace(batch, sample_ids=ids) for batch, ids in zip(batches, numbers_of_packs, strict=True)
    ]
    expected: dict[int, AnyArray] = {}
    for (pack, extras), sample_ids in zip(features, numbers_of_packs, strict=True):
        (values,) = (item.values for item in extras.columns if item.name == column)
        expected |= zip(sample_ids.tolist(), np.split(values, pack.cu_seqlens[1:-1]), strict=True)
    restored_values = restore(batches, outputs)
    rows = [np.asarray(restored_values[index]) for index in range(len(restored_values))]
    ids = sorted(expected)
    if restored_values.sample_ids.tolist() == ids and _all_same(
        rows, [expected[sample] for sample in ids]
    ):
        return passed("restoring", f"{len(ids)} samples")
    way_out = "results[step.restore], or restore_tokens, is the order of arrival"
    if _all_same(rows, [expected[sample] for sample in numbers.tolist()]):
        cause = "samples are in the order of micro-batches, not of arrival: they were not restored"
    elif sorted(row.tobytes() for row in rows) == sorted(
        row.tobytes() for row in expected.values()
    ):
        cause = "samples come back whole and in a wrong order: the permutation was applied instead of undone"
    elif [len(row) for row in rows] == [len(expected[sample]) for sample in ids]:
        cause = "values come back to the right samples and to other tokens of them"
        way_out = "look for a shift before restoring"
    else:
        cause = "values of padding come back with the samples' values, or some values are lost"
        way_out = "leave padding out before samples are cut apart"
    return failed("restoring", f"{len(ids)} samples went in and others came back", cause, way_out)


def same(result: AnyArray, truth: AnyArray) -> bool:
    """Return true if arrays are equal in shape and values; NaN equals NaN."""
    return result.shape == truth.shape and bool(
        np.array_equal(result, truth, equal_nan=truth.dtype.kind == "f")
    )


def _all_same(rows: Sequence[AnyArray], truths: Sequence[AnyArray]) -> bool:
    return len(rows) == len(truths) and all(map(same, rows, truths))


def _misplaced(
    name: str,
    result: AnyArray,
    truth: AnyArray,
    row: AnyArray,
    fill: float,
    places: Int64Array,
    pack: Pack,
) -> Diagnosis:
    """Name the mistake that misplaced a column.

    Args:
        name: of the column.
        result, truth: as the batch has it, and as it should be.
        row: the truth, before places without a prediction were filled.
        fill: value of the other places.
        places: place in the row of each token of the pack.
        pack: the pack.
    """
    title = f"column {name!r}"
    if result.shape != truth.shape:
        return Diagnosis(
            f"{title} has the shape {result.shape} in a row of {len(truth):,} tokens",
            "give it one value for each token",
        )
    if name == _WEIGHTS and len(set(result[truth != 0].tolist())) == 1:
        return Diagnosis(
            "one weight for the whole row: weights are per row and not per token",
            "give each target its own weight",
        )
    for by, way in ((1, "right"), (-1, "left")):
        if _agrees(result, np.roll(row, by, axis=0)) or _agrees(result, np.roll(truth, by, axis=0)):
            if name == _WEIGHTS:
                return Diagnosis(
                    "weights are shifted by one token against their labels",
                    "shift weights where labels are shifted, and nowhere else",
                )
            return Diagnosis(
                f"{title} is shifted by one token to the {way}",
                "say place='token' or place='target', and shift nothing before",
            )
    if name == _WEIGHTS:
        return Diagnosis(
            "weights do not belong to their tokens",
            "give float32[tokens] of the pack as loss_weights",
        )
    unpadded_row = np.full_like(row, fill)
    unpadded_row[: len(pack)] = row[places]
    if _agrees(result, unpadded_row):
        return Diagnosis(
            f"the fill of {title} stands at the end of the row, not after each segment",
            "lay the values of each segment at its beginning",
        )
    if same(result[places], row[places]) or same(result[places], truth[places]):
        return Diagnosis(
            f"padding of {title} holds other values than its fill, {fill:g}",
            "fill before the values are laid",
        )
    for sample, begin, end in zip(
        pack.sample_ids, pack.cu_seqlens, pack.cu_seqlens[1:], strict=False
    ):
        inner_values = result[places[begin + 1 : end]]
        if len(inner_values) > 1 and (inner_values == inner_values[0]).all():
            return Diagnosis(
                f"{title} has one value for the row or the sample {sample} instead of one for each "
                "token",
                "give values of tokens, and no mean of them",
            )
    if same(np.sort(result, axis=0), np.sort(truth, axis=0)):
        return Diagnosis(
            f"{title} has the right values in another order of samples",
            "permute columns with their samples",
        )
    return Diagnosis(
        f"{title} has other values than the samples", "give the values of the samples of this pack"
    )


def _agrees(result: AnyArray, candidate: AnyArray) -> bool:
    """Return true if almost all values agree: mistakes differ at the ends of segments."""
    agreements = (result == candidate).reshape(len(result), -1).all(axis=1)
    return len(result) > 0 and float(agreements.mean()) >= _MIN_AGREEMENT
