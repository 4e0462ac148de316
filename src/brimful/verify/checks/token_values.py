"""Values of tokens in a row: they lie where the token is, and come back to their sample."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from brimful.base.ragged import ranges
from brimful.base.typing import IGNORE_INDEX, AnyArray, Int64Array
from brimful.collate.batch import PackedBatch
from brimful.collate.extras import PackExtras
from brimful.errors import CollateError
from brimful.rl.step_packs import RestoredTokens, restore_tokens
from brimful.store.shards import Pack
from brimful.verify.setup import PackingSetup
from brimful.verify.verify_report import CheckResult, Diagnosis, failed, passed

PackWithExtras = tuple[Pack, PackExtras]

_WEIGHTS = "loss_weights"

_MIN_AGREEMENT = 0.7
"""Share of a row's places at which a named mistake must agree with the values found."""

ONE_WEIGHT = Diagnosis(
    "one weight for the whole row: weights are per row and not per token",
    "give each target its own weight",
)


def check_columns(batch: PackedBatch, feature: PackWithExtras) -> CheckResult:
    """Compare the columns and weights of a row with its pack, token by token.

    Args:
        batch: as the collator lays the pack out.
        feature: the pack with columns, and with weights if the collator makes none of its own.
    """
    pack, extras = feature
    lengths = np.diff(pack.cu_seqlens)
    begins = batch.cu_seqlens[: len(lengths)].astype(np.int64)
    places = ranges(begins, lengths[: len(begins)])
    if not np.array_equal(batch.input_ids[places], pack.input_ids):
        return failed(
            "columns",
            f"the row of samples {pack.sample_ids[:3].tolist()} has other tokens than its pack",
            "samples were reordered, cut or lost before they were laid out",
            "lay out packs whole, in their order",
        )
    results = {column.name: column.values for column in batch.columns}
    results[_WEIGHTS] = batch.target_weights
    # Name, values in the pack, the fill, and the places of the row's tokens that have the fill.
    columns = [
        (item.name, item.values, item.fill, begins[: len(begins) * (item.place == "target")])
        for item in extras.columns
    ]
    if extras.loss_weights is not None:
        untrained_places = np.flatnonzero(batch.labels == IGNORE_INDEX)
        columns.append((_WEIGHTS, extras.loss_weights, 0, untrained_places))
    for name, values, fill, empty_places in columns:
        if (result := results.get(name)) is None:
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
        if not same_values(result, truth):
            diagnosis = _misplaced(name, result, truth, row, fill, places, pack)
            return failed("columns", f"{name!r} is {result} and {truth} is due", *diagnosis)
    return passed("columns")


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
        return Diagnosis(f"{title} has another shape", "give it one value for each token")
    if name == _WEIGHTS and len(np.unique(result[truth != 0])) == 1:
        return ONE_WEIGHT
    for by, way in ((1, "right"), (-1, "left")):
        if any(values_agree(result, np.roll(values, by, axis=0)) for values in (row, truth)):
            return Diagnosis(
                f"{title} is shifted by one token to the {way}",
                "say place='token' or place='target', and shift nothing before",
            )
    unpadded_row = np.full_like(row, fill)
    unpadded_row[: len(pack)] = row[places]
    if values_agree(result, unpadded_row):
        return Diagnosis(
            f"the fill of {title} stands at the end of the row, not after each segment",
            "lay the values of each segment at its beginning",
        )
    if same_values(result[places], row[places]) or same_values(result[places], truth[places]):
        return Diagnosis(
            f"padding of {title} holds other values than its fill, {fill:g}",
            "fill before the values are laid",
        )
    for begin, end in pairwise(pack.cu_seqlens):
        inner_values = result[places[begin + 1 : end]]
        if len(inner_values) > 1 and (inner_values == inner_values[0]).all():
            return Diagnosis(
                f"{title} has one value for the row or the sample instead of one for each token",
                "give values of tokens, and no mean of them",
            )
    if same_values(np.sort(result, axis=0), np.sort(truth, axis=0)):
        return Diagnosis(
            f"{title} has the right values in another order of samples",
            "permute columns with their samples",
        )
    return Diagnosis(
        f"{title} has other values than the samples", "give the values of the samples of this pack"
    )


def check_restoring(
    batches: Sequence[PackedBatch],
    features: Sequence[PackWithExtras],
    restore: Callable[..., RestoredTokens],
    outputs: Sequence[AnyArray],
    column: str,
) -> CheckResult:
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
    sent_values = [
        values
        for pack, extras in features
        for item in extras.columns
        if item.name == column
        for values in np.split(item.values, pack.cu_seqlens[1:-1])
    ]
    expected = [sent_values[place] for place in np.argsort(numbers)]
    restored_values = restore(batches, outputs)
    rows = [np.asarray(restored_values[index]) for index in range(len(restored_values))]
    if restored_values.sample_ids.tolist() == sorted(numbers) and _all_same(rows, expected):
        return passed("restoring", f"{len(numbers)} samples")
    if _all_same(rows, [expected[number] for number in numbers]):
        cause = "samples are in the order of micro-batches, not of arrival: they were not restored"
    elif sorted(map(bytes, rows)) == sorted(map(bytes, expected)):
        cause = (
            "samples come back whole and in a wrong order: the permutation was applied "
            "instead of undone"
        )
    elif list(map(len, rows)) == list(map(len, expected)):
        cause = "values come back to the right samples and to other tokens of them"
    else:
        cause = "values of padding come back with the samples' values, or some values are lost"
    return failed(
        "restoring",
        f"{len(numbers)} samples went in and others came back",
        cause,
        "results[step.restore], or restore_tokens, is the order of arrival",
    )


def check_restored_paths(setup: PackingSetup) -> CheckResult | None:
    """Number the tokens of a row where the samples were found, and bring the numbers back.

    None if the samples are not packs of trees, or the collator does not give its rows.
    """
    rows_of = getattr(setup.collator, "rows", None)
    packs = setup.samples.packs()
    if rows_of is None or not setup.samples.has_trees or not packs or len(setup.batch.ids) > 1:
        return None
    sample_ids = np.concatenate([pack.flat().sample_ids for pack in packs])
    if len(np.unique(sample_ids)) < len(sample_ids):
        return None
    # A token that a branch repeats is the same token, and has the same number.
    first_numbers = np.cumsum([0, *map(len, setup.samples.parts)])
    numbers = np.full(setup.batch.ids.shape[1], -1, dtype=np.int64)
    for sample, place in setup.batch.located:
        numbers[place.columns] = np.concatenate(
            [
                first_numbers[part] + np.arange(len(setup.samples.parts[part]))
                for part in sample.parts
            ]
        )
    try:
        restored = restore_tokens(rows_of(packs), [numbers])
    except CollateError as error:
        return failed("restoring", str(error), "the rows and the batch differ", "")
    values = dict(zip(restored.sample_ids.tolist(), restored, strict=True))
    for sample, place in setup.batch.located:
        value = values.get(int(sample_ids[sample.index]))
        if value is None or not np.array_equal(value, numbers[place.columns]):
            return failed(
                "restoring",
                f"{sample.name} gets back values that are not of its tokens",
                "values of a row are cut by segments, and a sample of a tree is a path",
                "restore_tokens, or restore_index, with the rows of PackCollator.rows",
            )
    return passed("restoring", f"{len(sample_ids)} samples")


def same_values(result: AnyArray, truth: AnyArray) -> bool:
    """Return true if arrays are equal in shape and values; NaN equals NaN."""
    return bool(np.array_equal(result, truth, equal_nan=truth.dtype.kind == "f"))


def _all_same(rows: Sequence[AnyArray], truths: Sequence[AnyArray]) -> bool:
    return len(rows) == len(truths) and all(map(same_values, rows, truths))


def values_agree(result: AnyArray, candidate: AnyArray) -> bool:
    """Return true if almost all values agree: mistakes differ at the ends of segments."""
    if result.shape != candidate.shape or not len(result):
        return False
    agreements = (result == candidate).reshape(len(result), -1).all(axis=1)
    return float(agreements.mean()) >= _MIN_AGREEMENT
