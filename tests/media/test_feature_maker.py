"""Frames of videos as patches: as from the models' own video processors, which need torchvision."""

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("av", reason="videos need the extra brimful[media]")
pytest.importorskip("torch")
pytest.importorskip("transformers")

from brimful.errors import SettingsError
from brimful.media import MediaKind, Medium, PlacedMedium, feature_maker
from brimful.media.families import open_family
from brimful.media.feature_maker import FeatureMaker, ImageFeatures, VideoFeatures
from brimful.media.videos import load_frames, video_header
from tests.media.clips import clip, transformers_frames

NAMES = ["qwen2-vl", "qwen2.5-vl", "qwen3-vl"]


def placed(family, medium):
    expansion = family.expand(medium)
    return PlacedMedium(
        medium,
        0,
        expansion.num_tokens,
        expansion.num_tokens,
        num_patches=expansion.num_patches,
        grid=expansion.grid,
        num_frames=expansion.num_frames,
        seconds_per_grid=expansion.seconds_per_grid,
    )


def media(data_dir):
    folder = data_dir / "multimodal/llama_factory_demo/mllm_demo_data"
    for name in ("1.mp4", "2.avi"):
        yield Medium(MediaKind.VIDEO, name, str(folder / name))
    for size in ((64, 48), (300, 20)):
        yield Medium(MediaKind.VIDEO, f"{size}", data=clip("h264", num_frames=25, size=size))


@pytest.mark.parametrize("settings", [{"fps": 1}, {"fps": 2.5, "max_frames": 7, "max_pixels": 30_000}], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_patches_are_those_of_the_video_processor(name, settings, torchvision, tmp_path, data_dir):
    """Frame for frame; the same with and without torchvision, as no part of it is used."""
    import torch
    from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor
    from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor

    values = {"do_sample_frames": True, **settings}
    if name == "qwen3-vl":
        values["size"] = {"shortest_edge": 4_096, "longest_edge": values.pop("max_pixels", 200_000)}
    (tmp_path / "video_preprocessor_config.json").write_text(json.dumps(values))
    reference = (Qwen3VLVideoProcessor if name == "qwen3-vl" else Qwen2VLVideoProcessor).from_pretrained(tmp_path)
    family = open_family(name, tmp_path)
    features = VideoFeatures(str(tmp_path), family)
    for medium in media(data_dir):
        item = placed(family, medium)
        frames = load_frames(medium, family.frame_indices(video_header(medium)))
        made = reference(videos=[torch.from_numpy(frames).permute(0, 3, 1, 2)], do_sample_frames=False)
        arrays = features.of(medium, item)
        assert arrays["video_grid_thw"].tolist() == made["video_grid_thw"].tolist()
        # The same bytes after resizing; normalised in another order of float32, which rounds the last bit.
        np.testing.assert_allclose(arrays["pixel_values_videos"], made["pixel_values_videos"].numpy(), atol=2e-6)
        assert arrays["pixel_values_videos"].dtype == np.float32
        assert features.blank(item)["pixel_values_videos"].shape == arrays["pixel_values_videos"].shape


def test_seconds_of_a_grid_are_those_of_the_processor(data_dir):
    """Positions in time follow from them; a third of a second at 29.97 rounds here or there."""
    family = open_family("qwen2.5-vl", fps=2)
    folder = data_dir / "multimodal/llama_factory_demo/mllm_demo_data"
    for name in ("1.mp4", "2.avi", "3.mp4"):
        medium = Medium(MediaKind.VIDEO, name, str(folder / name))
        indices = family.frame_indices(video_header(medium))
        _, metadata = transformers_frames(folder / name, indices)
        assert family.expand(medium).seconds_per_grid == 2 / metadata.sampled_fps


def test_a_frame_without_a_partner_is_its_own(tmp_path):
    """Patches hold two frames: the last of an odd number is there twice."""
    (tmp_path / "preprocessor_config.json").write_text("{}")
    family = open_family("qwen2-vl", tmp_path)
    medium = Medium(MediaKind.VIDEO, "a", data=clip(num_frames=3, size=(56, 56)))
    item = placed(family, medium)
    assert (item.num_frames, item.grid[0]) == (3, 2)
    patches = VideoFeatures(str(tmp_path), family).of(medium, item)["pixel_values_videos"]
    first, second = patches.reshape(2, -1, 3, 2, 14 * 14).transpose(3, 0, 1, 2, 4)
    assert not np.array_equal(first[0], second[0])
    np.testing.assert_array_equal(first[1], second[1])


def test_a_video_of_still_pairs_has_the_patches_of_its_pictures(tmp_path, monkeypatch):
    """With and without torchvision: a picture is two equal frames, so two pictures shown twice are their patches in turn."""
    (tmp_path / "preprocessor_config.json").write_text('{"image_processor_type": "Qwen2VLImageProcessor"}')
    family = open_family("qwen2-vl", tmp_path)
    medium = Medium(MediaKind.VIDEO, "a", data=clip(num_frames=4, size=(84, 56)))
    item = placed(family, medium)
    shape = (2, 14 * item.grid[1], 14 * item.grid[2], 3)
    pictures = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    frames = np.repeat(pictures, 2, axis=0)
    monkeypatch.setattr(feature_maker, "iterate_frames", lambda medium, indices: iter(frames[indices]))
    maker = FeatureMaker(tmp_path, family)
    made = maker.of(medium, item)["pixel_values_videos"]
    processor = ImageFeatures(str(tmp_path), family).processor
    images = processor(images=list(pictures), do_resize=False, return_tensors="np")
    np.testing.assert_array_equal(made, images["pixel_values"])


@pytest.mark.parametrize("size", [(24, 40), (60, 30)])
def test_frames_are_resized_as_pictures_are(size):
    """By torch within two greys of Pillow: enlarged, made smaller without lines that beat, and never turned."""
    image_module = pytest.importorskip("PIL.Image")
    frame = np.random.default_rng(0).integers(0, 256, (48, 80, 3), np.uint8)
    resized = feature_maker._resized(frame, size)
    due = np.asarray(image_module.fromarray(frame).resize(size[::-1], image_module.Resampling.BICUBIC))
    assert np.abs(resized.astype(int) - due.transpose(2, 0, 1).astype(int)).max() <= 2
    assert (feature_maker._resized(frame, (48, 80)) == frame.transpose(2, 0, 1)).all()


@pytest.mark.parametrize(
    ("name", "array", "is_taken"),
    [
        ("pixels", np.ones((2, 3), np.float32), True),
        ("pixels", np.ones((3, 2), np.float32), False),
        ("pixels", np.ones((2, 3)), False),
        ("grid", np.array([[1, 6, 4]]), False),
    ],
)
def test_features_that_settings_do_not_predict_are_refused(name, array, is_taken, tmp_path):
    """Grids of the same shape count; of floats the values are what is made."""
    (tmp_path / "preprocessor_config.json").write_text("{}")
    maker, picture = FeatureMaker(tmp_path, open_family("qwen2-vl", tmp_path)), Medium(MediaKind.IMAGE, "a")
    item = PlacedMedium(picture, 0, 6, 6)
    blank = {"pixels": np.zeros((2, 3), np.float32), "grid": np.array([[1, 4, 6]])}
    made = {**blank, name: array}
    kind: Any = SimpleNamespace(of=lambda *_: made, blank=lambda _: blank)
    maker._makers = {MediaKind.IMAGE: kind}
    if is_taken:
        assert maker.of(picture, item) is made
    else:
        with pytest.raises(SettingsError, match=f"makes {name} .* was packed: its settings differ from the job's"):
            maker.of(picture, item)


def test_other_settings_are_refused(tmp_path):
    """Frames of another rate have another number, or are at other times."""
    (tmp_path / "preprocessor_config.json").write_text("{}")
    medium = Medium(MediaKind.VIDEO, "a", data=clip())
    item = placed(open_family("qwen2.5-vl", tmp_path, fps=2), medium)
    features = VideoFeatures(str(tmp_path), open_family("qwen2.5-vl", tmp_path, fps=4))
    with pytest.raises(SettingsError, match="were packed: the settings of the processor differ"):
        features.of(medium, item)
    (tmp_path / "preprocessor_config.json").write_text('{"resample": 2}')
    features = VideoFeatures(str(tmp_path), open_family("qwen2.5-vl", tmp_path, fps=2))
    with pytest.raises(SettingsError, match=r"resized bicubically .resample 3. and not by resample 2"):
        features.of(medium, item)
