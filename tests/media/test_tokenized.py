"""What a processor made of media: carried whole with its sample, held against grids and placeholders, or refused by name."""

import numpy as np
import pytest

from brimful.base.attachment import AttachedInputs
from brimful.collate import Column, PackExtras
from brimful.errors import CollateError
from brimful.media.tokenized import completed, join
from brimful.serve.tokenized import read_tokenized
from brimful.testing.toys import toy_pack

F32 = np.float32
PICTURE = {"pixel_values": np.arange(48, dtype=F32).reshape(16, 3), "image_grid_thw": np.array([[1, 2, 4], [1, 4, 2]])}
VIDEO = {"pixel_values_videos": np.ones((8, 3), F32), "video_grid_thw": [[2, 2, 2]], "second_per_grid_ts": [0.5]}
SOUND = {"input_features": np.ones((2, 4, 6), F32), "feature_attention_mask": np.ones((2, 6), np.int64)}
TYPES = [0, 1, 1, 0, 1, 1, 0, 0]
"""Two pictures of two tokens each: patches in squares of four."""


def read(**keys):
    return read_tokenized({"input_ids": np.arange(8), **keys}, "sample 3")


@pytest.mark.parametrize("make", ["torch", "numpy", "list"])
def test_features_of_any_library_are_the_same(make):
    convert = {
        "torch": lambda value: pytest.importorskip("torch").as_tensor(np.asarray(value)),
        "numpy": np.asarray,
        "list": lambda value: np.asarray(value).tolist(),
    }[make]
    sample = read(**{key: convert(value) for key, value in {**PICTURE, **VIDEO, **SOUND}.items()})
    pictures, videos, sounds = sample.attached
    assert [(item.kind, item.segments.tolist()) for item in sample.attached] == [
        ("image", [0, 0]),
        ("video", [0]),
        ("audio", [0, 0]),
    ]
    assert pictures.arrays["pixel_values"].tolist() == PICTURE["pixel_values"].tolist()
    assert pictures.arrays["pixel_values"].dtype == videos.arrays["second_per_grid_ts"].dtype == F32
    assert pictures.arrays["image_grid_thw"].dtype == np.int64
    assert list(sounds.arrays) == ["input_features", "feature_attention_mask"]


def test_numbers_that_numpy_lacks_keep_their_values():
    """Templates of ms-swift give pictures the type of the model."""
    torch = pytest.importorskip("torch")
    pixels = (torch.arange(48.0) / 7).reshape(16, 3).bfloat16()
    (pictures,) = read(**{**PICTURE, "pixel_values": pixels}).attached
    assert pictures.arrays["pixel_values"].dtype == F32
    assert torch.equal(torch.from_numpy(pictures.arrays["pixel_values"]).bfloat16(), pixels)


@pytest.mark.parametrize(
    ("cu_seqlens", "owners"), [([8], [0, 0]), ([4, 4], [0, 1]), ([1, 2, 1, 4], [1, 3])], ids=["one", "two", "four"]
)
def test_a_packed_row_says_by_its_placeholders_whose_pictures_they_are(cu_seqlens, owners):
    sample = read(**PICTURE, mm_token_type_ids=TYPES, seq_lengths=cu_seqlens)
    assert sample.attached[0].segments.tolist() == owners
    by_mask = read(**PICTURE, image_mask=np.array(TYPES, bool), seq_lengths=cu_seqlens)
    assert by_mask.attached[0].segments.tolist() == owners
    by_token = read_tokenized(
        {"input_ids": np.where(TYPES, 99, 5), **PICTURE, "seq_lengths": cu_seqlens}, "sample", token_ids={"image": 99}
    )
    assert by_token.attached[0].segments.tolist() == owners
    assert (list(by_mask.marks), list(by_token.marks)) == (["image_mask"], [])
    for patches in (2, 18, 32):  # squares of 1, 9 and 16
        grids = {"pixel_values": np.ones((2 * patches, 3), F32), "image_grid_thw": [[1, 1, patches]] * 2}
        assert read(**grids, mm_token_type_ids=TYPES, seq_lengths=cu_seqlens).attached[0].segments.tolist() == owners
    tiles = read(pixel_values=np.ones((2, 3, 5, 5), F32), mm_token_type_ids=TYPES, seq_lengths=cu_seqlens)
    assert tiles.attached[0].segments.tolist() == owners


def test_sounds_of_a_packed_row_are_told_apart_by_runs():
    sample = read(**SOUND, mm_token_type_ids=[0, 3, 3, 3, 0, 0, 3, 0], seq_lengths=[5, 3])
    assert sample.attached[0].segments.tolist() == [0, 1]


def test_padding_is_cut_off_the_marks_too():
    sample = read(**PICTURE, mm_token_type_ids=TYPES, attention_mask=[1] * 7 + [0])
    assert sample.marks["mm_token_type_ids"].tolist() == TYPES[:7]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({**PICTURE, "pixel_values": np.ones((15, 3), F32)}, r"'pixel_values' of shape \(15, 3\), and 'image_grid_thw' says 16 rows"),
        ({**PICTURE, "pixel_values": [np.ones((8, 3), F32)] * 2}, r"'pixel_values' of shape \(2, 8, 3\)"),
        ({**PICTURE, "pixel_values": [np.ones((8, 3)), np.ones((9, 3))]}, "'pixel_values' that is not an array of numbers"),
        ({**PICTURE, "pixel_values": np.array([["a"]])}, "'pixel_values' of <U1, which must hold numbers"),
        ({**PICTURE, "image_grid_thw": [1, 4, 4]}, r"'image_grid_thw' of shape \(3,\): give time, height and width"),
        ({**PICTURE, "image_grid_thw": [[1.0, 2, 4], [1, 4, 2]]}, r"'image_grid_thw' of shape \(2, 3\): give time, height and width"),
        ({**PICTURE, "image_grid_thw": [[0, 2, 4], [1, 4, 4]]}, r"'image_grid_thw' of shape \(2, 3\): give time, height and width"),
        ({**PICTURE, "image_grid_thw": [[2, 4], [4, 2]]}, r"'image_grid_thw' of shape \(2, 2\): give time, height and width"),
        ({"pixel_values": np.ones((4, 3), F32), "image_grid_thw": [[1, 2, 2]], "mm_token_type_ids": [1] * 8}, "has 8 placeholders for 'pixel_values' of 1 items with 4 patches"),
        ({**VIDEO, "second_per_grid_ts": [1.0, 2.0]}, r"'second_per_grid_ts' of shape \(2,\) for 1 items"),
        ({**SOUND, "feature_attention_mask": np.ones((1, 6))}, r"'feature_attention_mask' of shape \(1, 6\) for 2 items"),
        ({"input_features": np.ones((4, 6), F32)}, r"'input_features' of shape \(4, 6\), and it must be \[n, bins, columns\]"),
        ({"second_per_grid_ts": [1.0]}, "has 'second_per_grid_ts' and no 'pixel_values_videos'"),
        ({**PICTURE, "mm_token_type_ids": [0, 1, 1, 0, 1, 0, 0, 0]}, "has 3 placeholders for 'pixel_values' of 2 items with 16 patches"),
        ({**PICTURE, "mm_token_type_ids": [2] * 8}, "has 0 placeholders for 'pixel_values'"),
        ({"pixel_values": np.ones((3, 3, 2, 2)), "mm_token_type_ids": TYPES}, "has 4 placeholders for 'pixel_values' of 3 items"),
        ({**SOUND, "mm_token_type_ids": [3] + [0] * 7}, "has 1 placeholders for 'input_features' of 2 items"),
        ({"mm_token_type_ids": TYPES}, "has 4 tokens that stand for media of kind 'image', and no 'pixel_values'"),
        ({**PICTURE, "mm_token_type_ids": TYPES[:4]}, r"'mm_token_type_ids' \(4,\), which must be one row as long as input_ids"),
        ({**PICTURE, "seq_lengths": [4, 4]}, "is a row of 2 samples with 'pixel_values', and nothing assigns them to samples"),
    ],
)  # fmt: skip
def test_features_that_are_not_those_of_the_tokens_are_refused(keys, message):
    """A picture too many shifts all others of the batch by one."""
    with pytest.raises(CollateError, match=f"^sample 3 .*{message}"):
        read(**keys)


def test_a_sample_is_cut_with_all_that_lies_at_its_tokens():
    sample = read(loss_weights=range(8), position_ids=np.tile(np.arange(8), (3, 1)), image_mask=np.zeros(8, bool))
    part = sample.segment(2, 3)
    assert (part.input_ids.tolist(), part.loss_mask.tolist(), part.indices.tolist()) == (
        [2, 3, 4],
        [False, True, True],
        [2, 3, 4],
    )
    assert (part.loss_weights.tolist(), part.rope_positions.tolist()) == ([2, 3, 4], [[0, 1, 2]] * 3)
    assert len(part.marks["image_mask"]) == 3
    with pytest.raises(CollateError, match="has media and 8 tokens, and is never cut: raise capacity"):
        read(**PICTURE).segment(0, 7)


def test_a_sample_without_loss_keeps_its_media():
    """A rank that only runs it in step with the others runs the tower too."""
    sample = read(**PICTURE, mm_token_type_ids=TYPES)
    empty = sample.without_loss()
    assert (empty.attached, empty.marks, empty.placeholders) == (sample.attached, sample.marks, sample.placeholders)
    assert (empty.sample_id, empty.loss_mask.any()) == (-1, False)


def test_texts_of_a_batch_get_the_positions_and_marks_of_its_pictures():
    """Text has one position three times, in each sample from 0; a medium without positions is not taken for text."""
    rope, mark = np.full((3, 2), 7), Column("image_mask", np.ones(2, np.int8))
    picture = PackExtras(rope_positions=rope, columns=(mark,))
    sound = PackExtras(attached=(AttachedInputs("audio", np.zeros(1, np.int32), {}),))
    extras, packs = [picture, PackExtras(), sound, PackExtras()], [toy_pack(sizes) for sizes in ([2], [2, 3], [2], [2])]
    first, text, medium, given = completed(extras, packs, [True, True, True, False])
    assert (first.rope_positions, first.columns) == (rope, (mark,))
    assert text.rope_positions.tolist() == [[0, 1, 0, 1, 2]] * 3
    assert [(column.name, column.values.tolist(), column.values.dtype) for column in text.columns] == [
        ("image_mask", [0] * 5, np.int8)
    ]
    assert (medium.rope_positions, len(medium.columns), given) == (None, 1, PackExtras())
    assert completed(extras[1:2], packs[1:2], [True])[0].rope_positions is None


def test_sounds_of_several_packs_are_as_wide_as_the_longest():
    """Zeros follow the others; their items belong to the segments after the first pack's."""
    parts = []
    for first_segment, num_columns in ((0, 3), (2, 5)):
        arrays = {"input_features": np.ones((1, 2, num_columns)), "feature_attention_mask": np.ones((1, num_columns))}
        parts.append((first_segment, (AttachedInputs("audio", np.array([1], np.int32), arrays),)))
    (sounds,) = join(parts)
    assert (sounds.segments.tolist(), sounds.segments.dtype) == ([1, 3], np.int32)
    widths = [[1, 1, 1, 0, 0], [1] * 5]
    assert sounds.arrays["feature_attention_mask"].tolist() == widths
    assert sounds.arrays["input_features"].tolist() == [[row] * 2 for row in widths]
