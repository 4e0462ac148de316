"""Packs and plain samples in the place of VeOmni's collator."""

import pytest

torch = pytest.importorskip("torch")

from brimful import PackCollator  # noqa: E402
from brimful.testing.toys import ToyPacks, toy_pack  # noqa: E402
from brimful.trainers.veomni import VeomniPacks  # noqa: E402


def micro_batches(features, *, count, collate):
    """What MakeMicroBatchCollator does: the first of each item, then equal parts."""
    features = [feature[0] for feature in features]
    size = len(features) // count
    return [collate(features[start : start + size]) for start in range(0, len(features), size)]


def test_packs_go_through_the_micro_batch_collator():
    packs = VeomniPacks(ToyPacks([toy_pack([3, 2]), toy_pack([4], first_sample=2)]))
    found = micro_batches([packs[0], packs[1]], count=2, collate=PackCollator(dialect="veomni"))
    assert [batch["cu_seq_lens_q"].tolist() for batch in found] == [[0, 3, 5], [0, 4]]
    assert [batch["attention_mask"].tolist() for batch in found] == [[[1] * 5], [[1] * 4]]
    assert [len(item) for item in packs] == [1, 1]


def test_samples_of_its_transforms_are_packed_as_they_are():
    """dyn_bsz: what its batching gathers are dictionaries of tensors; other keys than tokens and labels are left out."""
    samples = [
        {"input_ids": torch.tensor([5, 6, 7]), "labels": torch.tensor([-100, 6, 7]), "attention_mask": torch.ones(3)},
        {"input_ids": torch.tensor([8, 9]), "labels": torch.tensor([8, 9]), "attention_mask": torch.ones(2)},
    ]
    batch = PackCollator(dialect="veomni", pad_to=8)(samples)
    assert batch["input_ids"].tolist() == [[5, 6, 7, 8, 9, 0, 0, 0]]
    assert batch["labels"].tolist() == [[-100, 6, 7, -100, 9, -100, -100, -100]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0, 1, 0, 1, 2]]
    assert int(batch["tail_padding_length"]) == 3
    assert samples[1]["labels"].tolist() == [8, 9], "VeOmni's own collator writes into the samples"
