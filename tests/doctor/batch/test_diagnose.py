"""Diagnosis of batches: nothing right is accused, and each check sees the fault that it looks for."""

from itertools import accumulate

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("trl")

from transformers import DataCollatorWithFlattening  # noqa: E402
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling  # noqa: E402

from brimful.doctor.batch.diagnose import diagnose  # noqa: E402
from tests.doctor.batch.strategies import LENGTHS, made  # noqa: E402
from tests.library import work_of  # noqa: E402

IGNORE = -100


def alone(case):
    return [
        {"input_ids": sample, "labels": [t if f else IGNORE for t, f in zip(sample, trained, strict=True)]}
        for sample, trained in zip(case.samples, case.targets, strict=True)
    ]


@given(case=made())
def test_no_batch_of_the_project_is_accused(case):
    """A tool that accuses right runs is not asked twice."""
    report = diagnose(case.batch, samples=alone(case), num_items=sum(map(sum, case.targets)), is_whole=True)
    assert report.ok, str(report)
    assert all(line.evidence.value in ("seen", "unknown") for line in report.lines)


@st.composite
def rows(draw):
    """Samples with labels, as a dataset has them."""
    lengths = draw(LENGTHS)
    samples = []
    for size in lengths:
        ids = draw(st.lists(st.integers(1, 60), min_size=size, max_size=size))
        masks = draw(st.lists(st.booleans(), min_size=size, max_size=size))
        masks[-1] = True
        labels = [token if flag else IGNORE for token, flag in zip(ids, masks, strict=True)]
        samples.append({"input_ids": ids, "labels": labels})
    return samples


@given(
    samples=rows(),
    flags=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    start=st.sampled_from((0, 2)),
)
def test_flattening_of_transformers_is_not_accused(samples, flags, start):
    collate = DataCollatorWithFlattening(
        return_position_ids=flags[0],
        return_flash_attn_kwargs=flags[1],
        return_seq_idx=flags[2],
        position_ids_start=start,
    )
    report = diagnose(collate(samples))
    assert report.ok, str(report)


@given(
    samples=rows(),
    multiple=st.sampled_from((None, 8)),
    packed=st.booleans(),
    padding_free=st.booleans(),
    mask=st.sampled_from((None, "completion_mask", "assistant_masks")),
)
def test_collators_of_trl_are_not_accused(samples, multiple, packed, padding_free, mask):
    """Also with a mask of answers in place of labels."""
    if mask:
        samples = [
            {"input_ids": sample["input_ids"], mask: [int(label != IGNORE) for label in sample["labels"]]}
            for sample in samples
        ]
    collate = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=padding_free, pad_to_multiple_of=multiple)
    if packed and padding_free:
        lengths = [len(sample["input_ids"]) for sample in samples]
        whole = {name: [token for sample in samples for token in sample[name]] for name in samples[0]}
        samples = [{**whole, "seq_lengths": lengths}]
    report = diagnose(collate(samples))
    assert report.ok, str(report)


def padded(samples, side, extra, kind):
    """A row for each sample, with its padding on either side."""
    width = max(len(sample["input_ids"]) for sample in samples) + extra
    table = {"input_ids": 0, "labels": IGNORE, "attention_mask": 0, "position_ids": 1}
    batch = {key: torch.full((len(samples), width), fill, dtype=kind) for key, fill in table.items()}
    for row, sample in enumerate(samples):
        size = len(sample["input_ids"])
        place = slice(width - size, width) if side == "left" else slice(0, size)
        for key in ("input_ids", "labels"):
            batch[key][row, place] = torch.tensor(sample[key], dtype=kind)
        batch["attention_mask"][row, place] = 1
        batch["position_ids"][row, place] = torch.arange(size, dtype=kind)
    return batch


@given(
    samples=rows(),
    side=st.sampled_from(("left", "right")),
    extra=st.sampled_from((0, 5)),
    kind=st.sampled_from((torch.int32, torch.int64)),
    left_out=st.sets(st.sampled_from(("position_ids", "labels"))),
)
def test_padded_rows_are_not_accused(samples, side, extra, kind, left_out):
    """Positions in the padding of the left are 1, as generation of Transformers writes them."""
    batch = padded(samples, side, extra, kind)
    report = diagnose(
        {key: value for key, value in batch.items() if key not in left_out}, samples=samples, is_whole=True
    )
    assert report.ok, str(report)


def one_row(samples, kind, is_shifted):
    """Samples in one row; each trains its own tokens alone, so its first is never a target."""
    labels = [[IGNORE, *sample["labels"][1:]] for sample in samples]
    if is_shifted:
        labels = [[*row[1:], IGNORE] for row in labels]
    return {
        "input_ids": torch.tensor([[token for sample in samples for token in sample["input_ids"]]], dtype=kind),
        "labels": torch.tensor([[label for row in labels for label in row]], dtype=kind),
        "position_ids": torch.tensor([[i for sample in samples for i in range(len(sample["input_ids"]))]], dtype=kind),
    }


@given(
    samples=rows(),
    kind=st.sampled_from((torch.int32, torch.int64)),
    is_shifted=st.booleans(),
    is_numpy=st.booleans(),
    words=st.sampled_from(("none", "cu_seqlens", "sequence_ids", "doc_lens")),
)
def test_rows_of_any_types_and_words_are_not_accused(samples, kind, is_shifted, is_numpy, words):
    # In a row of one token alone no reader can tell whether labels are shifted.
    assume(
        any(len(set(sample["input_ids"])) > 1 and sample["labels"][-1] != sample["input_ids"][-2] for sample in samples)
    )
    batch = one_row(samples, kind, is_shifted)
    lengths = [len(sample["input_ids"]) for sample in samples]
    told = {
        "none": None,
        "cu_seqlens": torch.tensor([0, *accumulate(lengths)], dtype=torch.int32),
        "sequence_ids": torch.tensor([[row for row, size in enumerate(lengths) for _ in range(size)]]),
        "doc_lens": torch.tensor([lengths]),
    }[words]
    if told is not None:
        batch[words] = told
    if is_numpy:
        batch = {key: value.numpy() for key, value in batch.items()}
    report = diagnose(batch, samples=samples, is_whole=True)
    assert report.ok, str(report)


@given(samples=rows(), image=st.integers(0, 6), with_text=st.booleans(), words=st.booleans())
def test_positions_of_images_are_not_accused(samples, image, with_text, words):
    """Time, height and width stand still or go on by themselves in an image, and begin again with each sample."""
    batch = one_row(samples, torch.int64, is_shifted=False)
    del batch["position_ids"]
    texts, axes = [], []
    for sample in samples:
        size = len(sample["input_ids"])
        texts.append(np.arange(size))
        image_end = min(1 + image, size)
        inside = np.arange(image_end - 1)
        grid = np.stack([np.zeros_like(inside), inside // 3, inside % 3]) + 1
        after = np.arange(size - image_end) + (grid.max(initial=0) + 1)
        axes.append(np.concatenate([np.zeros((3, 1), int), grid, np.tile(after, (3, 1))], axis=1))
    positions = np.concatenate(axes, axis=1)
    if with_text:
        positions = np.concatenate([np.concatenate(texts)[None], positions])
    batch["position_ids"] = torch.from_numpy(positions[:, None])
    if words:
        lengths = [len(sample["input_ids"]) for sample in samples]
        batch["cu_seq_lens_q"] = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
    report = diagnose(batch)
    assert report.ok, str(report)


def test_equal_tokens_at_the_end_of_a_sample_are_not_padding_where_a_mask_marks_it():
    """The two newlines or ends of a sample would be missing from it."""
    mask = [[0, 1, 1, 1], [1, 1, 1, 1]]
    batch = {"input_ids": [[0, 5, 6, 7], [5, 6, 2, 2]], "attention_mask": mask}
    assert diagnose(batch, samples=[[5, 6, 7], [5, 6, 2, 2]], is_whole=True).ok
    assert diagnose({"input_ids": [[5, 6, 2, 2]]}, samples=[[5, 6, 2, 2]], is_whole=True).ok
    assert not diagnose({"input_ids": [[5, 6, 2, 2]]}, samples=[[5, 6, 2, 2, 8]], is_whole=True).ok


def test_labels_of_another_shape_are_told():
    batch = {"input_ids": [[5, 6, 7, 8]], "labels": [[5, 6]]}
    (line,) = (line for line in diagnose(batch).lines if line.topic == "targets")
    assert line.text == "labels do not fit the tokens"


def test_parts_of_a_pair_have_names():
    report = diagnose((torch.tensor([[5, 6, 7, 8]]), torch.tensor([[5, 6, 7, 8]])))
    assert set(report.subject.removeprefix("1 batch of [1, 4]: ").split(", ")) == {"item 0", "item 1"}


def test_rows_of_several_lengths_are_a_sample_each():
    (line,) = (line for line in diagnose({"input_ids": [[5, 6, 7], [8, 9]]}).lines if line.topic == "isolation")
    assert line.text == "rows have lengths of their own: each is one sample"


def test_packs_of_long_samples_are_not_accused_of_padding():
    """Rows of one sample each, because no two of them fit into one."""
    batch = {"input_ids": [[5, 6, 7, 8, 9], [5, 6, 7, 0, 0]], "attention_mask": [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]}
    assert diagnose(batch, config={"packing": True}).ok
    assert diagnose(batch, config={"packing": True, "max_length": 7}).ok
    (finding,) = diagnose(batch, config={"packing": True, "max_length": 8}).findings
    assert finding.problem == "packing_off"
    (finding,) = diagnose(batch, config={"packing": True, "padding_free": True}).findings
    assert finding.problem == "packing_off"


def test_four_times_the_samples_take_four_times_the_work():
    """A search for each sample through all of the batch would take sixteen times as much."""

    def work(num_samples):
        shape, size = (2, 8 * num_samples), 16
        ids = np.random.default_rng(0).integers(5, 1000, shape)
        first = np.arange(shape[1]) % size == 0
        batch = {
            "input_ids": torch.from_numpy(ids),
            "labels": torch.from_numpy(np.where(first, IGNORE, ids)),
            "position_ids": torch.arange(shape[1]).remainder(size).expand(shape),
            "cu_seq_lens_q": torch.arange(0, ids.size + 1, size, dtype=torch.int32),
        }

        def examined():
            report = diagnose(batch, samples=ids.reshape(-1, size).tolist(), is_whole=True)
            assert report.ok, str(report)

        return work_of(examined, "brimful.doctor")

    fewest, most = work(100), work(400)
    assert most < 5 * fewest
