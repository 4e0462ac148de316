"""Targets, lost samples and padding: each fault has its own cause and its own numbers, without a run of the model."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from brimful import PackCollator  # noqa: E402
from tests.verify import faults  # noqa: E402
from tests.verify.toys import IDS, NeverRun, arrays, samples, setup_of  # noqa: E402

PROMPTS = [2, 1, 0, 0]


def with_prompts():
    return [
        {"input_ids": list(ids), "labels": [-100] * prompt + ids[prompt:]}
        for ids, prompt in zip(IDS, PROMPTS, strict=True)
    ]


@pytest.mark.parametrize(
    ("fault", "detail", "cause"),
    [
        (faults.whole_pack_label_shift, "2 differ; 18 targets in the batch, 16 one by one", "whole-pack label shift: the last token of 2 samples"),
        (faults.first_label_kept, "2 differ; 18 targets in the batch, 16 one by one", "first label kept: 2 samples"),
        (faults.double_shift, "differ; 16 targets in the batch, 16 one by one", "double shift"),
        (faults.not_shifted, "differ; 16 targets in the batch, 16 one by one", "not shifted: under shift_labels "),
        (faults.prompts_trained_on, "1 differ; 17 targets in the batch, 16 one by one", "1 tokens without a label in their sample"),
        (faults.pad_told_by_token, "3 differ; 13 targets in the batch, 16 one by one", "3 targets are lost, all of them token 5"),
        (faults.labels_dropped, "the samples have labels, and the batch has neither", "the collator drops the labels"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)  # fmt: skip
def test_wrong_targets_are_counted_and_explained(fault, detail, cause):
    """The cause is told by the pattern alone, and it decides what is to be changed."""
    finding = arrays(fault, with_prompts())["labels"]
    assert detail in finding.detail
    assert finding.cause.startswith(cause)


def changed(change, rows=None):
    """The findings for a right batch whose labels are changed in place."""

    def collate(features):
        batch = faults.right(features)
        change(batch["labels"][0], batch["input_ids"][0])
        return batch

    return arrays(collate, with_prompts() if rows is None else rows)


def test_labels_that_are_lost_or_foreign_are_counted():
    """One token alone tells of a pad token; several do not."""

    def lose(labels, ids):
        labels[9:12] = -100

    assert changed(lose)["labels"].cause == "3 targets of the samples have no label in the batch"

    def replace(labels, ids):
        labels[9:12] = 40

    assert changed(replace)["labels"].cause == "targets are other tokens than in the samples"

    def train_prompts(labels, ids):
        labels[1], labels[7:9] = ids[1], torch.tensor([-100, 50])

    finding = changed(train_prompts)["labels"]
    assert finding.detail.startswith("2 differ; 17 targets in the batch, 16 one by one")

    def itself(labels, ids):
        labels[2:] = ids[1:-1]
        labels[[7, 16, 17]], labels[-4:] = -100, -100

    assert changed(itself)["labels"].cause.startswith("not shifted: under labels ")


def test_a_pattern_that_few_follow_is_not_the_cause():
    """Half of the labels follow no pattern: then the shift is not to blame."""

    def half(labels, ids):
        labels[1:16] = ids[2:17]
        labels[1:16:2] = 50
        labels[7] = -100

    assert changed(half, samples())["labels"].cause == "targets are other tokens than in the samples"

    def few(labels, ids):
        labels[2:6] = ids[3:7]

    assert changed(few, samples())["labels"].cause == "targets are other tokens than in the samples"

    def most(labels, ids):
        labels[2:7], labels[8:14] = ids[3:8], ids[9:15]

    assert changed(most, samples())["labels"].cause.startswith("double shift")

    def small(labels, ids):
        labels[labels != -100] = 1

    assert changed(small, samples())["labels"].cause == "targets are other tokens than in the samples"

    def first(labels, ids):
        labels[7] = 60

    assert not changed(first, samples())["labels"].cause.startswith("first label kept")


def test_a_label_of_the_next_sample_at_the_end_of_one():
    """With labels that are shifted already it comes from the shift of the row, with others from a first label that is kept."""

    def collate(features):
        batch = faults.right(features)
        labels = batch.pop("labels")[0]
        shifted = torch.cat([labels[1:], torch.tensor([-100])])
        shifted[15] = 21
        return {**batch, "shift_labels": shifted[None]}

    assert arrays(collate)["labels"].cause.startswith("whole-pack label shift: the last token of 1 samples")


def test_padding_and_its_neighbor_belong_to_another_check():
    """The last token may be trained on the padding: the padding is at fault, and the labels of samples are right."""

    def train_padding(labels, ids):
        labels[-4:] = ids[-4:]

    found = changed(train_padding)
    assert found["labels"].passed
    assert found["padding"].detail == "4 targets are padding, of 4 padding tokens"
    assert found["padding"].cause == "labels are copied from the padded tokens"

    def before(labels, ids):
        labels[20] = -100

    assert changed(before)["labels"].failed


def positions(*places):
    def collate(features):
        batch = faults.right(features)
        batch["position_ids"][0, -len(places) :] = torch.tensor(places)
        return batch

    return collate


@pytest.mark.parametrize(
    ("places", "detail"),
    [
        ((0, 1, 2, 3), ""),
        ((3, 2, 1, 0), ""),
        ((0, 1, 0, 1), ""),
        ((0, 0, 0, 0), "4 of 4 padding tokens stand at position 0"),
        ((0, 1, 1, 2), "2 of 4 padding tokens stand at position 0"),
        ((9, 9, 9, 10), "3 of 4 padding tokens stand at position 9"),
    ],
)
def test_padding_that_is_many_samples_of_one_token(places, detail):
    """Kernels allocate for each; padding in one segment or in several costs nothing."""
    finding = arrays(positions(*places))["padding"]
    assert finding.passed == (not detail)
    assert (detail or "4 tokens, no label among them") == finding.detail


def test_padding_at_one_position_is_right_where_nothing_reads_boundaries_there():
    """With a mask, and with a row for each sample."""
    flat = positions(0, 0, 0, 0)
    masked = arrays(lambda features: {**flat(features), "attention_mask": torch.ones(1, 25, dtype=torch.long)})
    assert masked["padding"].passed
    assert arrays(flat, samples([5, 6, 7]))["padding"].passed
    assert arrays(PackCollator())["padding"].detail == "no padding in the batch"
    rows = arrays(lambda features: {
        key: torch.cat([torch.nn.functional.pad(faults.right([one])[key], (0, 9 - len(one["input_ids"])), value=fill) for one in features])
        for key, fill in (("input_ids", 0), ("labels", -100), ("position_ids", 0))
    })["padding"]  # fmt: skip
    assert rows.passed
    assert rows.detail.startswith("31 tokens")


@pytest.mark.parametrize(
    ("order", "detail", "cause"),
    [
        ([0, 1, 2, 3], "4 samples, each once", ""),
        ([3, 1, 0, 2], "4 samples, each once", ""),
        ([0, 1, 2, 0], "1 of 4 samples are not in the batch as a whole: sample 3 (4 tokens); 7 tokens belong to no sample", "sample 0 is repeated and sample 3 is lost"),
        ([0, 1, 2, 3, 1], "9 tokens belong to no sample and are not padding", "sample 1 is repeated"),
        ([0, 1, 0], "2 of 4 samples are not in the batch as a whole: sample 2 (1 tokens), sample 3", "sample 0 is repeated and sample 2 is lost"),
        ([1], "3 of 4 samples are not in the batch as a whole: sample 0 (7 tokens), sample 2 (1 tokens), sample 3 (4 tokens)", "sample 0 is lost, truncated or split by the collator"),
    ],
)  # fmt: skip
def test_samples_are_in_the_batch_once(order, detail, cause):
    """Lost and repeated ones are named, and a count of tokens that are left over."""
    finding = arrays(lambda features: faults.right([features[one] for one in order if one < len(features)]))["complete"]
    assert finding.detail.startswith(detail)
    assert finding.cause == cause


def test_few_of_many_lost_samples_are_named():
    """A message of one line holds four of them."""
    rows = samples(*[[5 + number] * 2 for number in range(7)])
    finding = arrays(lambda features: faults.right(features[:1]), rows)["complete"]
    assert finding.detail.startswith("6 of 7 samples are not in the batch")
    assert finding.detail.count("(2 tokens)") == 4


def test_tokens_between_samples_are_foreign():
    """A separator of the collator's own, which no sample has, is trained on by every pack."""

    def collate(features):
        parts = [feature["input_ids"] for feature in features]
        return {
            "input_ids": torch.tensor([[token for number, ids in enumerate(parts) for token in [*ids, 50 + number]]])
        }

    finding = arrays(collate)["complete"]
    assert finding.detail == "4 tokens belong to no sample and are not padding"
    assert finding.cause.startswith("the collator adds tokens of its own")


def test_fields_that_a_collator_writes_into_are_counted():
    """Also a key that it adds, or takes out: the sample is collated again in the next epoch."""
    from brimful.verify.checks.labels import check_inputs_unmodified

    def collate(features):
        batch = faults.right(features)
        features[1]["labels"][0] = -100
        features[1]["length"] = 9
        features[3].pop("labels")
        return batch

    finding = check_inputs_unmodified(setup_of(collate))
    assert finding.detail == "3 fields of 2 samples changed: 'labels' of 1"
    assert check_inputs_unmodified(setup_of()).passed


def test_arrays_of_packs_are_compared_too():
    from brimful.testing.toys import toy_pack
    from brimful.verify.checks.labels import check_inputs_unmodified

    def collate(packs):
        packs[0].loss_mask[1] = False
        return PackCollator()(packs)

    rows = [toy_pack([3, 2]), toy_pack([4], first_sample=2)]
    assert (
        check_inputs_unmodified(setup_of(collate, NeverRun(), rows)).detail
        == "1 fields of 1 samples changed: 'loss_mask' of 0"
    )
    assert np.all(rows[0].loss_mask[1:2] == toy_pack([3, 2]).loss_mask[1:2])
