"""What a loader may hand over, and what is refused with the name of the sample and the key."""

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from brimful import PackCollator  # noqa: E402
from brimful.collate import DIALECTS, PackExtras, Padding, lay_out  # noqa: E402
from brimful.errors import CollateError, SettingsError  # noqa: E402
from brimful.media import MediaKind, Medium, PlacedMedium  # noqa: E402
from brimful.media.collate import MediaFeatures  # noqa: E402
from brimful.serve.tokenized import read_tokenized  # noqa: E402
from brimful.testing.toys import toy_pack  # noqa: E402

PLAIN = {"input_ids": [1, 2], "labels": [1, 2]}


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ([], "at least one pack and got none"),
        ([PLAIN, {"labels": [1]}], "sample 1 of the batch has no 'input_ids'"),
        ([PLAIN, {"input_ids": [1.5, 2.0], "labels": [1, 2]}], "sample 1 of the batch has 'input_ids' of float64, which must hold whole"),
        ([PLAIN, [1, 2]], "sample 1 of the batch is a list"),
        ([{**PLAIN, "loss_weights": [1, 1]}, PLAIN], "sample 1… has no 'loss_weights' and others of the batch have"),
        ([PLAIN, {**PLAIN, "source_id": 3}], "sample 0… has no 'source_ids' and others of the batch have"),
        ([{**PLAIN, "loss_weights": [1]}], r"sample 0 of the batch has 'loss_weights' \(1,\), which must be one row as long as input_ids, 2"),
    ],
)  # fmt: skip
def test_what_cannot_be_collated(features, message):
    """One message names sample, key, and what to do."""
    with pytest.raises(CollateError, match=message):
        PackCollator()(features)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (50_000, "sample 8: 'input_ids' has 50000 at token 1, and the vocabulary is 0 … 999"),
        (1000, "sample 8: 'input_ids' has 1000 at token 1"),
        (-1, "sample 8: 'input_ids' has -1 at token 1"),
    ],
)
def test_ids_outside_of_the_vocabulary(bad, message):
    """On a device this is an assertion without a name, and later than the fault."""
    pack = toy_pack([3, 2, 2], first_sample=7)
    pack.input_ids[4] = bad
    with pytest.raises(CollateError, match=message):
        PackCollator(vocab_size=1000)([toy_pack([4]), pack])
    with pytest.raises(SettingsError, match="pad_token_id is 1000 and the vocabulary is 0 … 999"):
        PackCollator(vocab_size=1000, pad_token_id=1000)
    assert PackCollator(vocab_size=1000)([toy_pack([3, 2])])


def test_a_cut_sample_is_named_by_its_own_tokens():
    """The second part of a split sample begins at its start, not at 0."""
    import dataclasses

    pack = dataclasses.replace(toy_pack([3]), starts=np.array([100], dtype=np.int32))
    pack.input_ids[2] = 5000
    with pytest.raises(CollateError, match="sample 0: 'input_ids' has 5000 at token 102"):
        PackCollator(vocab_size=1000)([pack])


def test_weights_and_sources_of_plain_samples():
    """They follow their sample into the row, and none is read where no label is."""
    rows = [
        {"input_ids": [5, 6, 7], "labels": [-100, 6, 7], "loss_weights": [9, 0.5, 2], "source_id": 3},
        {"input_ids": [8, 9], "labels": [8, 9], "loss_weights": [9, 4], "source_id": 1},
    ]  # fmt: skip
    (batch,) = PackCollator(padding=Padding(to=8, segment_multiple_of=2)).rows(rows)
    assert batch.source_ids.tolist() == [3, 1]
    assert batch.target_weights.tolist() == [0, 0.5, 2, 0, 0, 4, 0, 0]
    assert batch.loss_weights.dtype == np.float32


def test_rows_of_other_packers_keep_their_samples_apart():
    """TRL's packed rows say seq_lengths, LLaMA-Factory's an indexed mask with padding, others positions."""
    labels = [-100, 6, 7, -100, 9]
    row = {"input_ids": [5, 6, 7, 8, 9], "labels": labels}
    rows = [
        {**row, "seq_lengths": [3, 2], "attention_mask": [1] * 5, "completion_mask": [0, 1, 1, 0, 1]},
        {**row, "position_ids": [0, 1, 2, 0, 1]},
        {"input_ids": [*row["input_ids"], 0], "labels": [*labels, -100], "attention_mask": [1, 1, 1, 2, 2, 0]},
    ]
    batch = PackCollator()(rows)
    assert batch["cu_seq_lens_q"].tolist() == [0, 3, 5, 8, 10, 13, 15]
    assert batch["input_ids"].tolist() == [row["input_ids"] * 3]
    assert batch["labels"].tolist() == [labels * 3]
    (laid,) = PackCollator().rows(rows)
    assert laid.sample_ids.tolist() == [0, 0, 1, 1, 2, 2]


def test_positions_that_begin_elsewhere_must_be_what_the_batch_has():
    """A sample that says 2, 3, 4 would get 0, 1, 2."""
    row = {"input_ids": [5, 6, 7], "position_ids": [2, 3, 4]}
    assert PackCollator(position_start=2)([row])["position_ids"].tolist() == [[2, 3, 4]]
    with pytest.raises(
        CollateError, match=r"sample 0 of the batch has 'position_ids' that begin at 2.*position_start=2"
    ):
        PackCollator()([row])


def test_mrope_of_a_plain_sample_is_carried():
    """The row of text positions is added; padding is cut from all of them."""
    rope = [[0, 1, 1, 9], [0, 1, 2, 9], [0, 2, 1, 9]]
    sample = {"input_ids": [5, 6, 7, 0], "position_ids": rope, "attention_mask": [1, 1, 1, 0]}
    batch = PackCollator()([sample])
    assert batch["position_ids"][:, 0].tolist() == [[0, 1, 2], [0, 1, 1], [0, 1, 2], [0, 2, 1]]


def test_a_sample_without_labels_is_all_targets():
    """As in TRL and verify_packing."""
    assert PackCollator()([{"input_ids": [5, 6, 7]}])["labels"].tolist() == [[-100, 6, 7]]


@pytest.mark.parametrize("bad", [2**32 + 7, 2**31])
def test_ids_are_held_against_the_vocabulary_as_they_were_given(bad):
    """2**32 + 7 is 7 once it is an int32."""
    with pytest.raises(CollateError, match=f"sample 1 of the batch has {bad} in 'input_ids' at token 1"):
        PackCollator(vocab_size=1000)([PLAIN, {"input_ids": [1, bad], "labels": [1, bad]}])


def test_extras_of_the_wrong_length():
    """A row of weights that is one short would shift all that follow."""
    with pytest.raises(CollateError, match="sample 0, 1…: 'loss_weights' is for 4 tokens and the pack has 5"):
        lay_out([toy_pack([3, 2])], extras=[PackExtras(loss_weights=np.ones(4, np.float32))])
    with pytest.raises(CollateError, match="sample 4… has no 'rope_positions'"):
        lay_out(
            [toy_pack([2]), toy_pack([2], first_sample=4)],
            extras=[PackExtras(rope_positions=np.zeros((3, 2), np.int64)), None],
        )


def test_an_empty_pack_is_refused():
    """No tokens, no batch."""
    with pytest.raises(CollateError, match="hold no tokens"):
        lay_out([toy_pack([2]).__class__(*(np.zeros(0, np.int32), np.zeros(0, bool), np.zeros(1, np.int32), np.zeros(0, np.int64), np.zeros(0, np.int32)))])  # fmt: skip


GRIDS = [[[1, 2, 4]], [[1, 4, 4], [1, 2, 2]]]


def with_pictures(number, convert=torch.as_tensor):
    """A row as a processor makes it: a token for each square of four patches, between two of text."""
    grids = np.array(GRIDS[number])
    patches = int(grids.prod(axis=1).sum())
    types = [0]
    for _, height, width in GRIDS[number]:
        types += [1] * (height * width // 4) + [0]
    row = {
        "input_ids": np.where(types, 151_655, 7),
        "labels": np.full(len(types), -100),
        "mm_token_type_ids": np.array(types),
        "pixel_values": np.full((patches, 12), number, np.float32),
        "image_grid_thw": grids,
    }
    return {key: convert(value) for key, value in row.items()}


@pytest.mark.parametrize("make", ["torch", "numpy", "list"])
@pytest.mark.parametrize("dialect", [name for name, dialect in DIALECTS.items() if "mRoPE" in dialect.table])
def test_pictures_of_plain_samples_are_in_the_batch_of_every_dialect(dialect, make):
    """In the order of their segments, text between them; each token of a picture has its place in the picture."""
    convert = {"torch": torch.as_tensor, "numpy": np.asarray, "list": lambda value: value.tolist()}[make]
    collate = PackCollator(dialect=dialect, media=MediaFeatures(None, "qwen2-vl"))
    rows = [with_pictures(0, convert), {"input_ids": [5, 6]}, with_pictures(1, convert)]
    batch = collate(rows)
    assert batch["image_grid_thw"].tolist() == GRIDS[0] + GRIDS[1]
    assert batch["pixel_values"][:, 0].tolist() == [0] * 8 + [1] * 20
    assert (batch["pixel_values"].dtype, batch["image_grid_thw"].dtype) == (torch.float32, torch.int64)
    joined = collate.rows(rows)
    assert np.concatenate([row.rope_positions[:, ~row.padding_mask] for row in joined], axis=1).tolist() == [
        [0, 1, 1, 3, 0, 1, 0, 1, 1, 1, 1, 3, 4, 5],
        [0, 1, 1, 3, 0, 1, 0, 1, 1, 2, 2, 3, 4, 5],
        [0, 1, 2, 3, 0, 1, 0, 1, 2, 1, 2, 3, 4, 5],
    ]
    types = np.concatenate([row.column("mm_token_type_ids").values[~row.padding_mask] for row in joined])
    assert types.tolist() == [0, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1, 0, 1, 0]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_pictures_of_a_model_with_positions_of_text(dialect):
    """Who says 0, 1, 2, … says that; three dialects have no word for others."""
    row = {**with_pictures(0), "position_ids": torch.arange(4)}
    assert PackCollator(dialect=dialect)([row, row])["pixel_values"].shape == (16, 12)


def test_grids_without_positions_are_refused_unless_something_makes_them():
    """A model of Qwen-VL with positions of text is another model."""
    row = with_pictures(0)
    with pytest.raises(
        CollateError, match="sample 0 of the batch has 'image_grid_thw' and no 'position_ids': give the model's"
    ):
        PackCollator()([row])


def test_what_the_family_knows_of_its_placeholders(tmp_path):
    """Their token, from the tokenizer next to the processor, and how many patches are one."""
    (tmp_path / "preprocessor_config.json").write_text("{}")
    (tmp_path / "tokenizer.json").write_text('{"added_tokens": [{"id": 151655, "content": "<|image_pad|>"}]}')
    row = with_pictures(1)
    del row["mm_token_type_ids"]
    collate = PackCollator(media=MediaFeatures(tmp_path, "qwen2-vl"))
    (batch,) = collate.rows([row])
    assert batch.rope_positions[2].tolist() == [0, 1, 2, 1, 2, 3, 4, 5]
    other = {"pixel_values": row["pixel_values"][:16], "image_grid_thw": row["image_grid_thw"][:1]}
    for bad, message in (
        ({**row, **other}, "has 5 placeholders for 'pixel_values' of 1 items"),
        ({**row, "input_ids": row["input_ids"][:-2], "labels": None}, "has 4 placeholders"),
        ({"input_ids": row["input_ids"]}, "has 5 tokens that stand for media of kind 'image', and no 'pixel_values'"),
    ):
        with pytest.raises(CollateError, match=message):
            collate([bad])
    # A loader reads rows before the collator does, and knows no tokens of media.
    (batch,) = collate.rows([read_tokenized(row, "sample")])
    assert batch.rope_positions[2].tolist() == [0, 1, 2, 1, 2, 3, 4, 5]
    with pytest.raises(CollateError, match="has 5 placeholders for 'pixel_values' of 1 items"):
        collate([read_tokenized({**row, **other}, "sample")])
    with pytest.raises(CollateError, match="the placeholder tokens are unknown"):
        PackCollator(media=MediaFeatures(None, "qwen2-vl"))([row])
    sound = {"input_features": torch.ones(1, 4, 9), "feature_attention_mask": torch.ones(1, 9, dtype=torch.int64)}
    sound |= {"input_ids": [1, 2, 3], "mm_token_type_ids": torch.tensor([0, 3, 0])}
    with pytest.raises(
        CollateError, match="has 1 placeholders for 'input_features', and qwen2-audio has 2 for these 1 items"
    ):
        PackCollator(media=MediaFeatures(None, "qwen2-audio"))([sound])


def test_a_pack_with_media_needs_their_features():
    """Its placeholders alone would train a model on pictures that are not there."""
    medium = PlacedMedium(Medium(MediaKind.IMAGE, "a", "/data/a", size=3), start=0, length=1, num_tokens=1)
    with pytest.raises(CollateError, match="a pack holds image 'a' and the collator makes no features of media"):
        PackCollator()([replace(toy_pack([2]), attachments=(medium,))])
    extras = PackExtras(loss_weights=np.array([0, 3], np.float32))
    assert PackCollator(media=lambda pack: extras)([toy_pack([2])])["loss_weights"].tolist() == [[0, 3]]


def test_text_beside_a_sample_in_space_counts_alike_in_all_rows():
    """Two segments of text: each counts from 0, in time, height and width."""
    picture = {"input_ids": [1, 2], "labels": [1, 2], "position_ids": [[0, 1], [0, 5], [0, 7]]}
    batch = PackCollator()([picture, toy_pack([3, 2])])
    assert batch["position_ids"][1:, 0].tolist() == [
        [0, 1, 0, 1, 2, 0, 1],
        [0, 5, 0, 1, 2, 0, 1],
        [0, 7, 0, 1, 2, 0, 1],
    ]
