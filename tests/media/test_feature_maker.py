"""Frames of videos as patches: those of the models' own video processors, which need torchvision, without it."""

import json

import numpy as np
import pytest

pytest.importorskip("av", reason="videos need the extra brimful[media]")
pytest.importorskip("torch")
pytest.importorskip("transformers")

from brimful.errors import SettingsError
from brimful.media import MediaKind, Medium, PlacedMedium
from brimful.media.families import open_family
from brimful.media.feature_maker import VideoFeatures
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
