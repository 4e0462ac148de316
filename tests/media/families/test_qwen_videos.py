"""Frames, grids and texts of videos from their headers are what the installed video processors make.

The processors need torchvision: one that is installed, or a copy in the folder that BRIMFUL_TORCHVISION names.
"""

import hashlib
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brimful.errors import SettingsError
from brimful.media import BadMediumError, MediaKind, Medium
from brimful.media.families import Piece, open_family
from brimful.media.families.qwen_vl import PatchSettings, Qwen3VideoSettings, Qwen3VL
from brimful.media.videos import VideoHeader, load_frames, video_header
from tests.media.clips import transformers_frames

NAMES = ["qwen2-vl", "qwen2.5-vl", "qwen3-vl"]

OVERRIDES: list[dict[str, Any]] = [
    {},
    {"fps": 1},
    {"fps": 2.5},
    {"num_frames": 6},
    {"fps": 2, "max_frames": 7},
    {"fps": 2, "cap_pixels_per_frame": True},
    {"fps": 4, "video_max_pixels": 28 * 28 * 40, "video_min_pixels": 28 * 28 * 4},
    {"fps": 4, "video_max_pixels": 200_000, "cap_pixels_per_frame": True},
    {"fps": 4, "video_max_pixels": 92_000, "video_min_pixels": 90_000, "cap_pixels_per_frame": True},
]


def text_of(expansion):
    """All pieces as the text that the processor hands to the tokenizer."""
    return "".join(piece.text * piece.repetitions for piece in expansion.pieces)


def test_frames_go_in_pairs():
    """Four seconds at 2 fps: 8 frames, 4 pairs, of 6 x 10 patches each."""
    family = open_family("qwen2-vl", fps=2)
    expansion = family.video(VideoHeader(100, 25.0, 140, 84))
    assert expansion.pieces == (Piece("<|video_pad|>", 60),)
    assert (expansion.grid, expansion.num_frames, expansion.num_patches) == ((4, 6, 10), 8, 240)


def test_qwen3_writes_the_time_of_each_pair():
    """The tokenizer cuts the texts: their tokens count too."""
    expansion = open_family("qwen3-vl").video(VideoHeader(100, 25.0, 64, 64))
    assert text_of(expansion).startswith("<0.3 seconds><|vision_start|><|video_pad|>")
    assert [piece for piece in expansion.pieces if not piece.is_token] == [
        Piece(f"<{seconds} seconds>", is_token=False) for seconds in ("0.3", "1.4", "2.6", "3.7")
    ]
    assert expansion.num_tokens == sum(piece.repetitions for piece in expansion.pieces if piece.text == "<|video_pad|>")


def test_videos_that_the_processor_refuses():
    """A single frame is not a pair."""
    with pytest.raises(BadMediumError, match="has 1 frames, and 0 are to be taken"):
        open_family("qwen2-vl", fps=2).video(VideoHeader(1, 25.0, 64, 64))
    with pytest.raises(BadMediumError, match="has 1 frames, and 2 are needed"):
        open_family("qwen3-vl").video(VideoHeader(1, 25.0, 64, 64))
    for name in NAMES:
        with pytest.raises(BadMediumError, match="one side is 300 times the other"):
            open_family(name).video(VideoHeader(50, 25.0, 9_000, 30))
    with pytest.raises(SettingsError, match="fps and num_frames of videos contradict each other"):
        open_family("qwen2-vl", fps=2, num_frames=4)


def processor(name, directory, torchvision):
    from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor
    from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor

    return (Qwen3VLVideoProcessor if name == "qwen3-vl" else Qwen2VLVideoProcessor).from_pretrained(directory)


def write_settings(directory, name, overrides):
    """The file that makes a processor as our overrides make it."""
    values = {key.removeprefix("video_"): value for key, value in overrides.items()}
    values.pop("num_frames", None)  # the processor cannot have it beside its default fps: it is given with each call
    if "fps" in overrides or "num_frames" in overrides:
        values["do_sample_frames"] = True
    if name == "qwen3-vl":
        limits = {
            "shortest_edge": values.pop("min_pixels", 4_096),
            "longest_edge": values.pop("max_pixels", 25_165_824),
        }
        values["size"] = limits
    (directory / "video_preprocessor_config.json").write_text(json.dumps(values))


def sampled(reference, metadata, overrides):
    """Numbers of the frames that the processor chooses."""
    num_frames = overrides.get("num_frames")
    return reference.sample_frames(
        metadata,
        fps=reference.fps if num_frames is None else None,
        num_frames=num_frames,
        min_frames=reference.min_frames,
        max_frames=reference.max_frames,
    )


@pytest.mark.parametrize("overrides", OVERRIDES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_shipped_videos(name, overrides, torchvision, tmp_path, data_dir, small_qwen):
    """From the file to the text and the patches, as the processor makes them of decoded frames."""
    import torch
    from transformers import AutoTokenizer
    from transformers.models.qwen2_vl.processing_qwen2_vl import Qwen2VLProcessor
    from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor

    write_settings(tmp_path, name, overrides)
    reference = processor(name, tmp_path, torchvision)
    family = open_family(name, tmp_path, num_frames=overrides.get("num_frames"))
    tokenizer = AutoTokenizer.from_pretrained(small_qwen)
    for clip in ("1.mp4", "2.avi", "3.mp4", "4.mp4"):
        path = data_dir / "multimodal/llama_factory_demo/mllm_demo_data" / clip
        medium = Medium(MediaKind.VIDEO, clip, str(path))
        expansion = family.expand(medium)
        # All frames of a clip at their own size are gigabytes: then the grid of small black frames is compared.
        if not overrides and name != "qwen3-vl":
            header = video_header(medium)._replace(width=160, height=120)
            video = torch.zeros((header.num_frames, 3, 120, 160), dtype=torch.uint8)
            made = reference(videos=[video], do_sample_frames=False, return_tensors="pt")
            assert family.video(header).grid == tuple(made["video_grid_thw"][0].tolist())
            continue

        def sample(metadata, **_):
            return sampled(reference, metadata, overrides)

        video, metadata = transformers_frames(path, sample)
        indices = family.frame_indices(video_header(medium))
        assert indices == [int(index) for index in metadata.frames_indices]
        np.testing.assert_array_equal(load_frames(medium, indices), video)
        made = reference(
            videos=[video], video_metadata=[metadata], do_sample_frames=False, return_metadata=True, return_tensors="pt"
        )
        assert expansion.grid == tuple(made["video_grid_thw"][0].tolist())
        assert (expansion.num_frames, expansion.num_patches) == (len(video), len(made["pixel_values_videos"]))
        kind = Qwen3VLProcessor if name == "qwen3-vl" else Qwen2VLProcessor
        whole = kind.__new__(kind)
        whole.video_processor, whole.video_token = reference, "<|video_pad|>"
        whole.vision_start_token, whole.vision_end_token = "<|vision_start|>", "<|vision_end|>"
        text = whole.replace_video_token(made, 0)
        assert text_of(expansion) == text
        assert (
            tokenizer(text)["input_ids"].count(tokenizer.convert_tokens_to_ids("<|video_pad|>")) == expansion.num_tokens
        )


facts = st.builds(
    VideoHeader,
    st.one_of(st.integers(2, 40), st.integers(2, 20_000)),
    st.sampled_from([1.0, 10.0, 24_000 / 1_001, 25.0, 29.97, 359 / 12, 60.0]),
    st.integers(1, 2_000),
    st.integers(1, 2_000),
)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("qwen2-vl", "8b82c341777eaee9"), ("qwen2.5-vl", "c32db30c6eddc785"), ("qwen3-vl", "c260309400694979")],
)
def test_random_videos_are_what_they_were(name, expected):
    """All facts of videos, which the tests around this one compare where torchvision is."""
    generator, digest = np.random.default_rng(22), hashlib.sha256()
    for number in range(400):
        family = open_family(name, **OVERRIDES[number % len(OVERRIDES)])
        fps = float(generator.choice([1, 10, 24_000 / 1_001, 25, 60]))
        sides = generator.integers(1, (60, 2_000)[number // 9 % 2], 2).tolist()
        header = VideoHeader(int(generator.integers(1, (12, 1_000)[number // 18 % 2])), fps, *sides)
        try:
            made = family.video(header)
        except BadMediumError:
            facts: list[Any] = []
        else:
            facts = [made.num_tokens, made.num_patches, made.grid, made.num_frames, made.seconds_per_grid]
            facts += [family.frame_indices(header), [tuple(piece) for piece in made.pieces]]
        digest.update(repr(facts).encode())
    assert digest.hexdigest()[:16] == expected


@settings(max_examples=300)
@given(facts, st.sampled_from(NAMES), st.sampled_from(OVERRIDES[1:]))
def test_any_header(torchvision, tmp_path_factory, header, name, overrides):
    """Frames and grid by the processor's own arithmetic, without pixels."""
    from transformers.models.qwen2_vl import video_processing_qwen2_vl as qwen2
    from transformers.models.qwen3_vl import video_processing_qwen3_vl as qwen3
    from transformers.video_utils import VideoMetadata

    directory = tmp_path_factory.mktemp("settings")
    write_settings(directory, name, overrides)
    reference = processor(name, directory, torchvision)
    family = open_family(name, directory, num_frames=overrides.get("num_frames"))
    metadata = VideoMetadata(total_num_frames=header.num_frames, fps=header.fps)

    class Resized(Exception):
        """The size that the processor resizes to."""

    class Shape:
        shape = None

    def resize(image, size, **_):
        raise Resized(size.height, size.width)

    due = None
    try:
        indices = [int(index) for index in sampled(reference, metadata, overrides)]
        Shape.shape = (1, len(indices), 3, header.height, header.width)
        module = qwen3 if name == "qwen3-vl" else qwen2
        original = module.BaseVideoProcessor.resize
        module.BaseVideoProcessor.resize = lambda self, image, size, resample: resize(image, size)
        try:
            reference.resize(
                Shape,
                size=reference._standardize_kwargs(size=reference.size)["size"],
                resample=None,
                factor=reference.patch_size * reference.merge_size,
                temporal_factor=reference.temporal_patch_size,
                cap_pixels_per_frame=reference.cap_pixels_per_frame,
            )
        finally:
            module.BaseVideoProcessor.resize = original
    except Resized as resized:
        due = (-(-len(indices) // 2), *(side // reference.patch_size for side in resized.args))
    except (ValueError, ZeroDivisionError, RuntimeError):
        with pytest.raises(BadMediumError):
            family.video(header)
        return
    assert family.frame_indices(header) == indices
    assert family.video(header).grid == due


@settings(max_examples=300)
@given(st.integers(2, 9), st.integers(1, 300), st.integers(1, 300), st.integers(1, 500_000), st.integers(1, 500_000))
def test_frames_are_resized_together(torchvision, num_frames, width, height, min_pixels, max_pixels):
    """An odd frame counts in the limit as none or as two, and not in the scale."""
    from transformers.models.qwen3_vl.video_processing_qwen3_vl import smart_resize

    family = Qwen3VL(PatchSettings(), Qwen3VideoSettings(min_pixels=min_pixels, max_pixels=max_pixels))
    try:
        due = smart_resize(num_frames, height, width, 2, 32, min_pixels, max_pixels)
    except ValueError:
        with pytest.raises(BadMediumError):
            family._video_grid(num_frames, width, height)
    else:
        assert family._video_grid(num_frames, width, height)[1:] == (due[0] // 16, due[1] // 16)
