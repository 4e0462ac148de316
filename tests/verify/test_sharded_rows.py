"""Context parallelism is shown on a CPU, and planted faults are found by name."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from brimful import PackCollator  # noqa: E402
from brimful.collate import Padding, lay_out  # noqa: E402
from brimful.collate.extras import PackExtras  # noqa: E402
from brimful.collate.padding import shift_labels  # noqa: E402
from brimful.errors import CollateError, SettingsError  # noqa: E402
from brimful.rl import SampleColumn, pack_step, plan_step  # noqa: E402
from brimful.rl.context_parallel_split import (  # noqa: E402
    ContextParallelLayout,
    gather_from_context_parallel,
    split_for_context_parallel,
)
from brimful.rl.step_packs import RestoredTokens, restore_tokens  # noqa: E402
from brimful.testing.toys import toy_pack  # noqa: E402
from brimful.verify import verify_context_parallel  # noqa: E402
from brimful.verify.models import tiny_model  # noqa: E402

PADDING = Padding(segment_multiple_of=16)


@pytest.fixture(scope="module")
def model():
    return tiny_model("qwen2")


@pytest.fixture(scope="module")
def packs():
    """Micro-batches of a step with old log-probabilities, routes of two experts, advantages and weights."""
    generator = np.random.default_rng(0)
    lengths = generator.integers(3, 40, 12)
    ids = [generator.integers(3, 100, length) for length in lengths]
    step = plan_step(lengths, capacity=96, dp_world_size=1)
    columns = [
        SampleColumn("old_log_probs", [-generator.random(length).astype(np.float32) for length in lengths]),
        SampleColumn(
            "routes", [generator.integers(0, 8, (length, 2, 2)) for length in lengths], fill=-1, place="token"
        ),
        SampleColumn("advantages", generator.normal(size=12)),
    ]
    masks = [np.arange(length) >= length // 3 for length in lengths]
    return pack_step(step, ids, dp_rank=0, loss_masks=masks, columns=columns, weights=step.weights("token-mean"))


@pytest.mark.parametrize("layout", list(ContextParallelLayout))
def test_packs_of_a_step_pass(packs, model, layout):
    report = verify_context_parallel(packs, model=model, layout=layout)
    assert report.ok, str(report)
    assert report.verdict == "PASS: rows over 2 ranks, 4 ranks, 8 ranks hold what the whole row holds"
    assert {finding.check for finding in report.findings} == {"columns", "split", "gathering", "parallel", "restoring"}
    assert model.training is False


def test_a_collator_is_verified_with_its_padding(packs):
    """Rows of a real collator; weights that it makes of its own are not compared with the packs'."""
    for weights in (None, "sample"):
        report = verify_context_parallel(packs, collator=PackCollator(padding=PADDING, loss_weights=weights))
        assert report.ok, str(report)
        assert "NO MODEL" in report.verdict
    with pytest.raises(CollateError, match="segment_multiple_of=4"):
        verify_context_parallel(packs, collator=PackCollator())
    with pytest.raises(SettingsError, match="at least one pack"):
        verify_context_parallel([])


def test_a_model_that_cannot_be_simulated(packs):
    class Refusing(torch.nn.Linear):  # type: ignore[name-defined]
        def forward(self, **kwargs):
            raise ValueError("no masks here")

    report = verify_context_parallel(packs, model=Refusing(2, 2), cp_sizes=[2])
    assert any("no masks here" in finding.detail for finding in report.findings)
    assert "NO MODEL" in report.verdict


# Faults in what lays out.


def with_column(change):
    def collate(features):
        ((pack, extras),) = features
        batch = lay_out([pack], extras=[extras], padding=PADDING)
        return replace(batch, columns=tuple(change(column, batch, pack, extras) for column in batch.columns))

    return collate


def shifted_by_one(column, batch, pack, extras):
    return replace(column, values=np.roll(column.values, 1, axis=0))


def fill_at_the_end(column, batch, pack, extras):
    (values,) = (item.values for item in extras.columns if item.name == column.name)
    joined = np.full_like(column.values, column.fill)
    joined[: len(pack)] = values
    return replace(column, values=joined)


def another_fill(column, batch, pack, extras):
    values = column.values.copy()
    values[batch.padding_mask] = 7
    return replace(column, values=values)


def one_value_of_each_sample(column, batch, pack, extras):
    values = column.values.copy()
    for begin, length in zip(batch.cu_seqlens[:-1], batch.real_lengths, strict=True):
        values[begin + 1 : begin + length] = values[begin + 1 : begin + length].mean(axis=0)
    return replace(column, values=values)


def of_other_samples(column, batch, pack, extras):
    return replace(column, values=column.values[np.random.default_rng(0).permutation(len(column.values))])


def without_columns(features):
    ((pack, extras),) = features
    return lay_out([pack], extras=[replace(extras, columns=extras.columns[:1])], padding=PADDING)


def weights_of_the_row(features):
    ((pack, extras),) = features
    batch = lay_out([pack], extras=[extras], padding=PADDING)
    return replace(batch, loss_weights=np.full(len(batch.input_ids), 0.25, dtype=np.float32))


@pytest.mark.parametrize(("collator", "words"), [
    (with_column(shifted_by_one), "shifted by one token to the right"),
    (with_column(fill_at_the_end), "stands at the end of the row, not after each segment"),
    (with_column(another_fill), "padding of column 'old_log_probs' holds other values than its fill"),
    (with_column(one_value_of_each_sample), "one value for the row or the sample"),
    (with_column(of_other_samples), "in another order of samples"),
    (without_columns, "the collator drops columns"),
    (weights_of_the_row, "weights are per row and not per token"),
])  # fmt: skip
def test_faults_of_laying_out(packs, collator, words):
    if collator is weights_of_the_row:  # weights that differ, so that a mean of them shows
        packs = [
            (pack, replace(extras, loss_weights=np.arange(1, len(pack) + 1, dtype=np.float32)))
            for pack, extras in packs
        ]
    report = verify_context_parallel(packs, collator=collator, cp_sizes=[2])
    assert words in failure(report, "columns").cause, str(report)


def failure(report, check):
    assert not report.ok
    found = [finding for finding in report.failures if finding.check == check]
    assert found, str(report)
    return found[0]


# Faults in what splits.


def places_by(slices_of, of_row=False):
    """A split by slices; the fields follow the places."""

    def split(batch, *, cp_rank, cp_size, layout):
        right = split_for_context_parallel(batch, cp_rank=cp_rank, cp_size=cp_size, layout="zigzag_segments")
        bounds = [0, len(batch.input_ids)] if of_row else batch.cu_seqlens.tolist()
        places = []
        for begin, end in pairwise(bounds):
            size = (end - begin) // (2 * cp_size)
            for number in slices_of(cp_rank, cp_size):
                places += range(begin + number * size, begin + (number + 1) * size)
        return taken(batch, right, np.array(places))

    return split


def taken(batch, shard, places):
    weights = np.append(batch.target_weights[1:], np.float32(0))
    return replace(
        shard,
        indices=places,
        input_ids=batch.input_ids[places],
        position_ids=batch.position_ids[places],
        segment_index=batch.segment_index[places],
        padding_mask=batch.padding_mask[places],
        targets=shift_labels(batch.labels, batch.cu_seqlens)[places],
        target_weights=weights[places],
        columns=tuple(
            replace(column, values=column.shifted(batch.cu_seqlens).values[places]) for column in batch.columns
        ),
    )


def changed(change):
    def split(batch, **options):
        shard = split_for_context_parallel(batch, **options)
        return replace(shard, **change(shard, batch))

    return split


def columns_whole(shard, batch):
    return {"columns": tuple(column.shifted(batch.cu_seqlens) for column in batch.columns)}


def shifted_after_the_split(shard, batch):
    part = batch.labels[shard.indices]
    return {"targets": np.append(part[1:], -100)}


def not_shifted(shard, batch):
    return {"targets": batch.labels[shard.indices]}


def columns_shifted_after_the_split(shard, batch):
    def moved(column):
        part = column.values[shard.indices]
        return (
            replace(column, values=np.append(part[1:], np.float32(-1)))
            if column.place == "target"
            else replace(column, values=part)
        )

    return {"columns": tuple(moved(column) for column in batch.columns)}


def positions_counted_anew(shard, batch):
    return {"position_ids": np.arange(len(shard.indices))}


def weights_per_row(shard, batch):
    weights = shard.target_weights
    return {"target_weights": np.where(weights > 0, weights.sum() / max(1, (weights > 0).sum()), 0).astype(np.float32)}


def first_part_of_columns(shard, batch):
    return {
        "columns": tuple(
            replace(column, values=column.shifted(batch.cu_seqlens).values[: len(shard.indices)])
            for column in batch.columns
        )
    }


FAULTS_OF_SPLITS = [
    (places_by(lambda rank, size: (2 * size - 1 - rank, rank)), "halves of the zigzag are swapped", True),
    (places_by(lambda rank, size: (rank, size + rank)), "not a mirror", True),
    (places_by(lambda rank, size: (rank, 2 * size - 1 - rank), of_row=True), "zigzag of the whole row", True),
    (places_by(lambda rank, size: (2 * rank, 2 * rank + 1), of_row=True), "equal parts in order", True),
    (places_by(lambda rank, size: (size - 1 - rank, size + rank)), "ranks are numbered backwards", True),
    (places_by(lambda rank, size: (0, 2 * size - 1)), "tokens are on no rank", True),
    (changed(columns_whole), "not split: every rank has the whole row's", False),
    (changed(first_part_of_columns), "first part of the row", False),
    (changed(shifted_after_the_split), "targets: shifted after the split", True),
    (changed(columns_shifted_after_the_split), "old_log_probs: shifted after the split", False),
    (changed(not_shifted), "targets: at the predicted tokens", True),
    (changed(positions_counted_anew), "start again on each rank", True),
    (changed(weights_per_row), "weights are per row and not per token", False),
    (changed(lambda shard, _: {"cu_seqlens": shard.cu_seqlens // 2}), "boundaries are split", False),
    (changed(lambda shard, _: {"max_seqlen": shard.max_seqlen // 2}), "boundaries are split", False),
]


@pytest.mark.parametrize(("split", "words", "seen_by_model"), FAULTS_OF_SPLITS)
def test_faults_of_splitting(packs, model, split, words, seen_by_model):
    """Named from the arrays; where tokens, positions or targets are wrong, logits or loss of the model move too."""
    report = verify_context_parallel(packs, model=model, split=split, cp_sizes=[2])
    assert words in failure(report, "split").cause, str(report)
    assert any(finding.check == "parallel" for finding in report.failures) is seen_by_model, str(report)


@pytest.mark.parametrize(
    ("positions", "words"),
    [
        (lambda shard, batch: batch.rope_positions, "every rank has the whole row's"),
        (lambda shard, batch: batch.rope_positions[:, : len(shard.indices)], "first part of the row"),
        (lambda shard, _: np.zeros_like(shard.rope_positions), "lost, or other values"),
        (lambda *_: None, "lost, or other values"),
    ],
)
def test_positions_of_media_are_compared_without_a_model(positions, words):
    """Time, height and width of another token: no text shows it."""
    row = toy_pack([8, 8]), PackExtras(rope_positions=np.arange(48).reshape(3, 16))
    assert verify_context_parallel([row], cp_sizes=(2,)).ok
    wrong = changed(lambda *parts: {"rope_positions": positions(*parts)})
    assert words in failure(verify_context_parallel([row], cp_sizes=(2,), split=wrong), "split").cause


# Faults in what gathers and restores.


def joined_one_behind_the_other(parts, cu_seqlens, *, layout):
    return np.concatenate(parts)


def gathered_by_another_layout(parts, cu_seqlens, *, layout):
    return gather_from_context_parallel(parts, cu_seqlens, layout="zigzag_row")


@pytest.mark.parametrize(("gather", "words"), [
    (joined_one_behind_the_other, "concatenated as they are"),
    (gathered_by_another_layout, "in a wrong order"),
])  # fmt: skip
def test_faults_of_gathering(packs, model, gather, words):
    report = verify_context_parallel(packs, model=model, gather=gather, cp_sizes=[4])
    assert words in failure(report, "gathering").cause
    failure(report, "parallel")


def rows_of(restored, order):
    rows = [restored[index] for index in order]
    return RestoredTokens(restored.sample_ids, np.cumsum([0, *map(len, rows)]), np.concatenate(rows))


def in_order_of_micro_batches(batches, outputs):
    """Nothing is restored."""
    return rows_of(restore_tokens(batches, outputs), np.concatenate([batch.sample_ids for batch in batches]))


def permuted_once_more(batches, outputs):
    """The permutation itself where its inverse is due."""
    restored = restore_tokens(batches, outputs)
    ids = np.concatenate([batch.sample_ids for batch in batches])
    return rows_of(restored, ids[ids])


def shifted_within_samples(batches, outputs):
    return restore_tokens(batches, outputs, predicted=True)


def with_padding(batches, outputs):
    restored = restore_tokens(batches, outputs)
    sizes = np.full(len(restored), len(restored.values) // len(restored))
    return RestoredTokens(restored.sample_ids, np.cumsum([0, *sizes]), np.concatenate(outputs))


@pytest.mark.parametrize(("restore", "words"), [
    (in_order_of_micro_batches, "in the order of micro-batches, not of arrival"),
    (permuted_once_more, "in a wrong order"),
    (shifted_within_samples, "to other tokens of them"),
    (with_padding, "values of padding come back"),
])  # fmt: skip
def test_faults_of_restoring(packs, restore, words):
    report = verify_context_parallel(packs, restore=restore, cp_sizes=[2])
    assert words in failure(report, "restoring").cause
