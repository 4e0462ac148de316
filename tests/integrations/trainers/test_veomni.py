"""Packs and plain samples in the place of VeOmni's collator."""

import pytest

torch = pytest.importorskip("torch")

from brimful import PackCollator  # noqa: E402
from brimful.collate import Padding  # noqa: E402
from brimful.errors import SettingsError  # noqa: E402
from brimful.integrations.trainers.veomni import SlicingCollator, VeomniPacks  # noqa: E402
from brimful.testing.toys import ToyPacks, toy_pack  # noqa: E402


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
    """dyn_bsz: what its batching gathers are dictionaries of tensors, with masks of ones."""
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


class HalfOfTheRow:
    """What VeOmni's SequenceParallelCollator does to a text row that is a multiple of the ranks: a shift, and cuts."""

    sp_size = 2

    def __init__(self, sp_rank):
        self.sp_rank = sp_rank

    def __call__(self, batch):
        assert "loss_weights" not in batch
        labels = torch.nn.functional.pad(batch["labels"][:, 1:], (0, 1), value=-100)
        half = slice(self.sp_rank * labels.shape[1] // 2, (self.sp_rank + 1) * labels.shape[1] // 2)
        cut = {key: batch[key][:, half] for key in ("input_ids", "position_ids")}
        return {**batch, **cut, "labels": labels[:, half], "cu_seq_lens_q": "found where positions are 0"}


def test_rows_are_cut_with_their_weights_and_boundaries():
    """Uncut, weights would stand beside other labels; unshifted, each would count for the token before."""
    samples = [
        {"input_ids": [5, 6, 7], "loss_weights": [9, 0.5, 2], "ds_idx": 4},
        {"input_ids": [8, 9], "loss_weights": [9, 4], "ds_idx": 1},
    ]
    collate = PackCollator(dialect="veomni", padding=Padding(multiple_of=2))
    parts = [SlicingCollator(collate, HalfOfTheRow(rank))(samples) for rank in (0, 1)]
    assert [part["labels"].tolist() for part in parts] == [[[6, 7, -100]], [[9, -100, -100]]]
    assert [part["loss_weights"].tolist() for part in parts] == [[[0.5, 2, 0]], [[4, 0, 0]]]
    for part in parts:
        assert part["cu_seq_lens_q"].tolist() == [0, 3, 5, 6]
        assert int(part["tail_padding_length"]) == 1, "VeOmni's meter would count the padding as a sample"
        assert part["ds_idx"].tolist() == [4, 1]


def test_rows_that_do_not_divide_among_the_ranks_are_refused():
    """VeOmni pads them by itself, and takes the padding that was there before for a sample."""
    for padding in (Padding(), Padding(to=11), Padding(multiple_of=3)):
        with pytest.raises(SettingsError, match=r"are cut for 2 ranks .* padding=Padding\(multiple_of=2\)"):
            SlicingCollator(PackCollator(dialect="veomni", padding=padding), HalfOfTheRow(0))
    SlicingCollator(PackCollator(dialect="veomni", pad_to=12), HalfOfTheRow(0))
    with pytest.raises(SettingsError, match='choose dialect="veomni"'):
        SlicingCollator(PackCollator(pad_to=12), HalfOfTheRow(0))


def test_samples_of_several_sources():
    """VeOmni's multi-source data sets put ds_idx and the source's name beside the tokens; its meter takes the first."""
    samples = [
        {"input_ids": torch.tensor([5, 6]), "labels": torch.tensor([5, 6]), "ds_idx": 2, "source_name": "books"},
        {"input_ids": torch.tensor([7]), "labels": torch.tensor([7]), "ds_idx": torch.tensor(0), "source_name": "code"},
    ]
    assert PackCollator(dialect="veomni")(samples)["ds_idx"].tolist() == [2, 0]
