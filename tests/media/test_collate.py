"""Features of media: what is refused before a model runs, and positions of plain samples. ``tests/flow`` decodes media."""

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.base.blobs import LocalBlobStore
from brimful.errors import CollateError, SettingsError, WrongTypeError
from brimful.media import MediaKind, Medium, PlacedMedium
from brimful.media.collate import MediaFeatures
from brimful.media.families import open_family
from brimful.media.medium import MediaContainer
from brimful.media.rope_positions import QWEN2_VL, RopeMedium, rope_positions
from brimful.media.tokenized import read_media
from brimful.serve.tokenized import read_tokenized
from brimful.testing.toys import toy_pack, toy_tree


@pytest.fixture
def processor(tmp_path):
    (tmp_path / "preprocessor_config.json").write_text("{}")
    return tmp_path


def test_settings_that_contradict_each_other(processor):
    with pytest.raises(SettingsError, match="is none of error, no_loss"):
        MediaFeatures(processor, "qwen2-vl", on_bad_medium="skip")  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="needs processor, which knows the shape of what is missing"):
        MediaFeatures(None, "qwen2-vl", on_bad_medium="no_loss")
    family = open_family("qwen2-vl", str(processor))
    assert MediaFeatures(processor, family).family is family
    with pytest.raises(SettingsError, match="max_pixels: a family has its settings already"):
        MediaFeatures(processor, family, max_pixels=9)


def test_packs_say_how_their_media_were_encoded(processor):
    """Text, packs of earlier versions, and packs that hold no features each need another answer."""
    settings = open_family("qwen2.5-vl", str(processor)).settings
    packs = SimpleNamespace(attachment_settings=settings, attachment_features=None)
    assert MediaFeatures.of_packs(packs, processor).family.name == "qwen2.5-vl"
    with pytest.raises(SettingsError, match="these packs hold no features: give processor"):
        MediaFeatures.of_packs(packs)
    with pytest.raises(SettingsError, match="the packs do not say how media were encoded"):
        MediaFeatures.of_packs(SimpleNamespace(attachment_settings=None), processor)
    with pytest.raises(WrongTypeError, match="packs must be a PackedDataset or a PackStore"):
        MediaFeatures.of_packs(["packs"])
    maker = MediaFeatures(processor, "qwen2.5-vl")._settings
    stored = SimpleNamespace(
        attachment_settings=settings, attachment_features={"settings": maker, "tokens_per_second": 3.5}
    )
    features = MediaFeatures.of_packs(stored)
    assert (features.tokens_per_second, features._settings) == (3.5, maker)
    assert MediaFeatures.of_packs(stored, processor, tokens_per_second=4).tokens_per_second == 4
    for fingerprint in ("0", "z"):
        other = SimpleNamespace(
            attachment_settings=settings, attachment_features={**stored.attachment_features, "settings": fingerprint}
        )
        with pytest.raises(
            SettingsError, match="has other settings than the one that made the features in these packs"
        ):
            MediaFeatures.of_packs(other, processor)
    assert MediaFeatures(processor, "qwen2-audio").tokens_per_second is None


def pack_of(kind, **facts):
    """A pack of segments of 2 and 6 tokens; a medium of four tokens in the second, after its first token."""
    medium = Medium(kind, "a", "/nowhere/a", size=3)
    return replace(toy_pack([2, 6], first_sample=7), attachments=(PlacedMedium(medium, **facts),))


def test_media_that_cannot_be_had_are_named(processor):
    item = {"start": 3, "length": 4, "num_tokens": 4, "num_patches": 16, "grid": (1, 4, 4), "segment": 1}
    pack = pack_of(MediaKind.IMAGE, **item)
    with pytest.raises(
        CollateError, match="sample 8, image 'a': is not stored as features: give the collator the model"
    ):
        MediaFeatures(None, "qwen2-vl")(pack)
    with pytest.raises(
        CollateError, match=r"sample 8, image 'a': .*; on_bad_medium=\"no_loss\" continues without its loss"
    ):
        MediaFeatures(processor, "qwen2-vl")(pack)
    box = MediaContainer(LocalBlobStore("/nowhere"), "a", holds_features=True)
    stored = replace(pack.attachments[0], medium=replace(pack.attachments[0].medium, container=box))
    with pytest.raises(CollateError, match=r"settings of its features are unknown: use MediaFeatures.of_packs"):
        MediaFeatures(None, "qwen2-vl")(replace(pack, attachments=(stored,)))


def test_each_sample_whose_medium_is_bad_has_no_loss_and_is_in_the_log(processor, tmp_path):
    """The first of all too; one that fills an empty place has no loss anyway, and is counted at its training."""
    log = tmp_path / "bad.jsonl"
    features = MediaFeatures(processor, "qwen2-vl", on_bad_medium="no_loss", bad_media_log=log)
    (video,) = pack_of(MediaKind.VIDEO, start=0, length=2, num_tokens=2, num_patches=8, grid=(1, 4, 2)).attachments
    pack = toy_pack([2, 2, 2])
    videos = tuple(replace(video, start=2 * segment, segment=segment) for segment in range(3))
    with pytest.warns(RuntimeWarning, match="sample 0, video 'a': .*: it is trained without loss") as warned:
        extras = features(replace(pack, sample_ids=np.array([-1, 0, 7]), attachments=videos))
    assert (extras.no_loss.tolist(), features.num_bad_media, len(warned)) == ([1, 2], 2, 1)
    assert [json.loads(line)["sample_id"] for line in log.read_text().splitlines()] == [0, 7]
    (made,) = extras.attached
    assert (made.segments.tolist(), made.arrays["video_grid_thw"].tolist()) == ([0, 1, 2], [[1, 4, 2]] * 3)
    assert made.arrays["pixel_values_videos"].shape == (24, 3 * 2 * 14 * 14)
    assert not made.arrays["pixel_values_videos"].any()


def test_positions_of_a_pack_are_those_of_its_samples():
    """The medium lies one token after the beginning of its sample, not of the pack."""
    features = MediaFeatures(None, "qwen2.5-vl")
    item: dict[str, Any] = {"start": 3, "length": 4, "num_tokens": 4, "segment": 1}
    picture = pack_of(MediaKind.IMAGE, grid=(1, 4, 4), **item)
    assert features._positions(picture).tolist() == [
        [0, 1, 0, 1, 1, 1, 1, 3],
        [0, 1, 0, 1, 1, 2, 2, 3],
        [0, 1, 0, 1, 2, 1, 2, 3],
    ]
    video = pack_of(MediaKind.VIDEO, grid=(2, 4, 2), seconds_per_grid=1.5, **item)
    assert features._positions(video)[0].tolist() == [0, 1, 0, 1, 1, 4, 4, 3]
    sound = pack_of(MediaKind.AUDIO, num_mel_frames=8, **item)
    assert features._positions(sound).tolist() == [[0, 1, 0, 1, 2, 3, 4, 5]] * 3
    assert MediaFeatures(None, "qwen2-vl")._positions(pack_of(MediaKind.VIDEO, grid=(2, 4, 2), **item)).shape == (3, 8)
    with pytest.raises(CollateError, match="sample 8: a medium has 6 tokens at token 1, where"):
        features._positions(pack_of(MediaKind.IMAGE, grid=(1, 4, 6), **item))


def test_positions_of_a_branch_go_on_after_the_picture_of_its_trunk():
    """A picture of 4 tokens takes 2 positions in Qwen2-VL: the answers after it begin at 3, not at 0 nor at their depth 5."""
    pack = toy_tree([[1, 9, 9, 9, 9, 2, 3], [1, 9, 9, 9, 9, 4]])
    medium = Medium(MediaKind.IMAGE, "a.png")
    image = PlacedMedium(medium, start=1, length=4, num_tokens=4, segment=0, grid=(1, 4, 4))
    features = MediaFeatures(None, "qwen2-vl")
    positions = features._positions(replace(pack, attachments=(image,)))
    assert positions[:, 5:].tolist() == [[3, 4, 3]] * 3
    assert positions[1].tolist() == [0, 1, 1, 2, 2, 3, 4, 3]


def sample_of(types, **arrays):
    """A plain sample whose tokens are 1 of a picture, 2 of a video, 3 of a sound and 0 of text."""
    feature = {"input_ids": [7] * len(types), "mm_token_type_ids": types, **arrays}
    return read_tokenized(feature, "sample 0", token_ids={})


def video_of(frames, **arrays):
    return {
        "video_grid_thw": np.array([[frames, 4, 2]]),
        "pixel_values_videos": np.zeros((8 * frames, 3), np.float32),
        **arrays,
    }


def test_frames_of_a_video_lie_apart_where_the_family_says_so():
    """Two frames of two tokens: side by side for one family, with a time of text between for another."""
    apart = sample_of([0, 2, 2, 0, 2, 2, 0], **video_of(2))
    made = MediaFeatures(None, "qwen3-vl").of_sample(apart, "sample 0")
    assert made.positions.tolist() == [[0, 1, 1, 3, 4, 4, 6], [0, 1, 2, 3, 4, 5, 6], [0, 1, 1, 3, 4, 4, 6]]
    with pytest.raises(
        CollateError, match="sample 0: the placeholders for 'pixel_values_videos' of item 0 are not contiguous"
    ):
        MediaFeatures(None, "qwen2-vl").of_sample(apart, "sample 0")
    together = sample_of([0, 2, 2, 2, 2, 0], **video_of(2, second_per_grid_ts=np.array([1.5], np.float32)))
    made = MediaFeatures(None, "qwen2.5-vl").of_sample(together, "sample 0")
    assert made.positions[0].tolist() == [0, 1, 1, 4, 4, 3]
    for types in ([0, 2, 2, 2, 0, 2, 0], [0, 2, 0, 2, 2, 2, 0]):
        with pytest.raises(CollateError, match="of item 0 are not contiguous"):
            MediaFeatures(None, "qwen3-vl").of_sample(sample_of(types, **video_of(2)), "sample 0")


def test_pictures_and_videos_go_by_the_order_of_their_tokens():
    """Features come by kind: a picture after a video has later positions all the same."""
    picture = {"image_grid_thw": np.array([[1, 2, 2]]), "pixel_values": np.zeros((4, 3), np.float32)}
    sample = sample_of([2, 2, 0, 1, 0], **video_of(1), **picture)
    made = MediaFeatures(None, "qwen2-vl").of_sample(sample, "sample 0")
    assert made.positions.tolist() == [[0, 0, 2, 3, 4], [0, 1, 2, 3, 4], [0, 0, 2, 3, 4]]


@given(parts=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3), st.integers(1, 2)), min_size=1, max_size=6))
def test_each_of_several_media_lies_at_its_own_tokens(parts):
    """Without it the second picture of a sample would be read as lying where the first one does."""
    types: list[int] = []
    media: list[RopeMedium] = []
    grids: dict[int, list[tuple[int, int, int]]] = {1: [], 2: []}
    for kind, size, height in parts:
        grid = (1 if kind == 1 else size, 2 * height, 2 * size)
        if kind:
            grids[kind].append(grid)
            media.append(RopeMedium((MediaKind.IMAGE, MediaKind.VIDEO)[kind - 1], [len(types)], grid))
        types += [kind] * (grid[0] * height * size if kind else size)
    names = {1: ("image_grid_thw", "pixel_values"), 2: ("video_grid_thw", "pixel_values_videos")}
    arrays: dict[str, Any] = {}
    for kind, (name, features) in names.items():
        if grids[kind]:
            num_patches = int(np.prod(grids[kind], axis=1).sum())
            arrays |= {name: np.array(grids[kind]), features: np.zeros((num_patches, 3), np.float32)}
    made = MediaFeatures(None, "qwen2-vl").of_sample(sample_of(types, **arrays), "sample 0")
    assert made.positions.tolist() == rope_positions(len(types), media, QWEN2_VL).tolist()


@pytest.mark.parametrize("num_tokens", [1, 2])
def test_sounds_have_the_tokens_of_their_columns(num_tokens):
    """Clips of eight and of four columns are two tokens and one: others are the tokens of other clips."""
    mask = np.arange(8) < np.array([[8], [4]])
    clips = {"input_features": np.zeros((2, 3, 8), np.float32), "feature_attention_mask": mask.astype(np.int64)}
    sample = sample_of([3, 3, 0, *[3] * num_tokens, 0], **clips)
    features = MediaFeatures(None, "qwen2-audio")
    if num_tokens == 1:
        assert features.of_sample(sample, "sample 0") is sample
    else:
        with pytest.raises(
            CollateError, match="has 4 placeholders for 'input_features', and qwen2-audio has 3 for these 2"
        ):
            features.of_sample(sample, "sample 0")
        picture = {"image_grid_thw": np.array([[1, 2, 2]]), "pixel_values": np.zeros((4, 3), np.float32)}
        both = sample_of([1, 3, 3, 0, 3, 3, 0], **clips, **picture, position_ids=np.zeros((3, 7), np.int64))
        with pytest.raises(CollateError, match="has 4 placeholders for 'input_features'"):
            MediaFeatures(None, "qwen2.5-omni").of_sample(both, "sample 0")


def test_a_grid_that_tokens_do_not_fill():
    grid = {"image_grid_thw": np.array([[1, 4, 1]]), "pixel_values": np.zeros((4, 3), np.float32)}
    with pytest.raises(
        CollateError, match=r"sample 0: a medium has the grid \(1, 4, 1\), which tokens of 2 · 2 do not"
    ):
        MediaFeatures(None, "qwen2-vl").of_sample(sample_of([0, 1, 0], **grid), "sample 0")
    for frames, height, width in ((3, 1, 6), (2, 1, 2), (2, 2, 5), (3, 2, 1)):
        arrays = {
            "video_grid_thw": np.array([[frames, height, width]]),
            "pixel_values_videos": np.zeros((frames * height * width, 3), np.float32),
        }
        sample = replace(sample_of([0] * 9), placeholders={"video": np.arange(frames * height * width // 4)})
        media = read_media(arrays, {}, sample.cu_seqlens, "sample 0")
        with pytest.raises(CollateError, match="sample 0"):
            MediaFeatures(None, "qwen3-vl").of_sample(replace(sample, attached=media), "sample 0")
    own = {**grid, "image_grid_thw": np.array([[1, 2, 2]]), "position_ids": np.arange(9).reshape(3, 3)}
    sample = sample_of([0, 1, 0], **own)
    assert MediaFeatures(None, "qwen2-vl").of_sample(sample, "sample 0") is sample
