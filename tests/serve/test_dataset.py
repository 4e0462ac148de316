"""Packs by index, of a store or encoded at access: the same, and refused where the data are others than were planned."""

from dataclasses import replace

import pytest

from brimful import PackedDataset, measure_lengths, open_packs, open_source, plan_packs
from brimful.errors import (
    AugmentationError,
    LengthChangedError,
    PlanMismatchError,
    SettingsError,
    WrongTypeError,
)
from brimful.plan import Alignment
from brimful.testing.toys import toy_chat_encoder
from tests.store.stores import texts, written

LENGTHS = (3, 9, 4, 7, 1, 5)


@pytest.fixture
def store(tmp_path):
    return written(tmp_path, LENGTHS, 12, alignment=Alignment(2))


def test_packs_of_a_plan_are_those_of_its_store(store, tmp_path):
    """One by one, several at once as a ``DataLoader`` asks, from the end, and in slices."""
    source, encoder, plan = store
    dataset, planned = PackedDataset(tmp_path), PackedDataset.from_plan(source, encoder, plan)
    assert len(dataset) == len(planned) == plan.num_packs >= 3
    for packs in (dataset, planned, PackedDataset(open_packs(tmp_path))):
        assert list(packs) == list(open_packs(tmp_path))
        assert packs.__getitems__([2, 0, -1]) == [packs[2], packs[0], packs[len(packs) - 1]]
        assert packs[1:] == list(packs)[1:]
        assert (packs.fingerprint, packs.alignment) == (plan.fingerprint, plan.alignment)
        assert (packs.attachment_settings, packs.attachment_features) == (None, None)
        assert packs.facts["packs"] == plan.num_packs
    assert [segment.sample_id for segment in plan.pack(1)] == planned[1].sample_ids.tolist()
    with pytest.raises(IndexError):
        planned[plan.num_packs]


def test_what_is_no_directory(store, tmp_path):
    source, encoder, plan = store
    with pytest.raises(WrongTypeError, match="use from_plan for a plan"):
        PackedDataset(plan)
    with pytest.raises(
        WrongTypeError, match=r"PackedDataset.wrap\(dataset, packing_length=…\) for a data set that encodes"
    ):
        PackedDataset([1, 2])  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="media_root belongs to a directory: give it to open_packs"):
        PackedDataset(open_packs(tmp_path), media_root=tmp_path)
    with pytest.raises(WrongTypeError, match=r"plan must be a Plan.*Plan\.open"):
        PackedDataset.from_plan(source, encoder, "plan.arrow")  # type: ignore[arg-type]


def test_a_plan_of_other_samples_is_refused(store):
    _, encoder, plan = store
    with pytest.raises(PlanMismatchError, match=r"the plan is for 6 samples and .* has 5: plan again"):
        PackedDataset.from_plan(open_source(texts(*LENGTHS[:5])), encoder, plan)


def test_a_sample_of_another_length_is_named(store):
    """Cut in the wrong place, it would be trained on to the end of another."""
    _, encoder, plan = store
    longer = open_source(texts(3, 9, 4, 8, 1, 5))
    dataset = PackedDataset.from_plan(longer, encoder, plan)
    index = next(number for number, pack in enumerate(plan) if 3 in [segment.sample_id for segment in pack])
    with pytest.raises(LengthChangedError, match="sample 3"):
        dataset[index]
    assert [number for number in range(len(plan)) if number != index and dataset[number]] == [
        number for number in range(len(plan)) if number != index
    ]


def test_a_transform_that_changes_the_length_is_named():
    def shorter(sample):
        return replace(sample, text=sample.text[1:])

    source, encoder = open_source(texts(*LENGTHS)), toy_chat_encoder()
    plan = plan_packs(measure_lengths(source, encoder, targets=False), capacity=12)
    with pytest.raises(
        AugmentationError, match=r"planned with 7: shorter changed its length, or the data changed since\. Measure with"
    ):
        PackedDataset.from_plan(source, encoder, plan, transforms=[shorter])[0]


def test_rows_that_are_wrapped_are_packed_whole():
    rows = [{"input_ids": [1] * length} for length in (3, 5, 2)]
    with pytest.raises(SettingsError, match='overflow="truncate": rows that a data set encodes are packed whole'):
        PackedDataset.wrap(rows, 4, overflow="truncate")
    assert [pack.sample_ids for pack in PackedDataset.wrap(rows, 4, overflow="drop", seed=None)] == [[0], [2]]
    with pytest.raises(SettingsError, match=r"2 lengths are given for 3 rows of .*: measure again"):
        PackedDataset.wrap(rows, 5, lengths=[3, 5])
    with pytest.raises(WrongTypeError, match="a stream goes to WindowBatches, which packs it"):
        PackedDataset.wrap(iter(rows), 5)
    packs = PackedDataset.wrap(rows, 5, seed=None)
    assert packs.facts["packs"] == len(packs) == 2
    assert packs.__getitems__([1, 0]) == [packs[1], packs[0]]
    assert packs.attachment_settings is packs.attachment_features is None
