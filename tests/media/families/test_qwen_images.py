"""Tokens of pictures from their headers are what the installed image processor makes of their pixels."""

import base64
import json
import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from brimful.errors import SettingsError
from brimful.media import BadMediumError, MediaKind, Medium
from brimful.media.families import Piece, open_family
from brimful.media.families.qwen_vl import smart_resize
from brimful.media.images import ImageSize
from brimful.media.tokenized import tokens_of_grids
from brimful.media.videos import VideoHeader
from tests.marks import long_but

LIMITS = [{}, {"min_pixels": 28 * 28, "max_pixels": 28 * 28 * 9}, {"min_pixels": 512 * 512, "max_pixels": 4096 * 4096}]


def processor(**settings):
    pytest.importorskip("PIL", reason="pictures need the extra brimful[media]")
    module = pytest.importorskip(
        "transformers.models.qwen2_vl.image_processing_pil_qwen2_vl", reason="needs the extra brimful[text]"
    )
    return module.Qwen2VLImageProcessorPil(**settings)


def test_one_placeholder_becomes_the_tokens_of_the_grid():
    """224 x 448 pixels are 16 x 32 patches; four of them are a token."""
    family = open_family("qwen2-vl")
    expansion = family.image(ImageSize(448, 224))
    assert expansion.pieces == (Piece("<|image_pad|>", 128),)
    assert (expansion.grid, expansion.num_patches, expansion.num_tokens) == ((1, 16, 32), 512, 128)
    assert family.placeholders[MediaKind.IMAGE] == "<|image_pad|>"


def test_qwen3_cuts_larger_patches():
    """16 pixels instead of 14, and at least 256 x 256 of them."""
    assert open_family("qwen3-vl").image(ImageSize(512, 256)).grid == (1, 16, 32)
    assert open_family("qwen3-vl").image(ImageSize(32, 32)).grid == (1, 16, 16)


@pytest.mark.parametrize("merge_size", [1, 3])
@pytest.mark.parametrize("name", ["qwen2-vl", "qwen3-vl", "qwen2.5-omni"])
def test_a_token_is_a_square_of_patches(name, merge_size, tmp_path):
    """Of 1 or 9 too: by the number that is due to 2 x 2, a model would get other embeddings than placeholders."""
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"patch_size": 16, "merge_size": merge_size}))
    family = open_family(name, tmp_path)
    expansions = [family.image(ImageSize(640, 480))]
    if MediaKind.VIDEO in family.placeholders:
        expansions.append(family.video(VideoHeader(16, 8.0, 160, 96)))
    for expansion in expansions:
        assert expansion.grid is not None
        assert math.prod(expansion.grid) == expansion.num_patches == expansion.num_tokens * merge_size**2
        assert tokens_of_grids(np.array([expansion.grid]), merge_size).tolist() == [expansion.num_tokens]


def test_an_aspect_ratio_that_the_processor_refuses():
    """A line of 201 x 1 pixels: the processor raises, hours into a run."""
    assert open_family("qwen2-vl").image(ImageSize(200, 1)).num_tokens > 0
    with pytest.raises(BadMediumError, match="201 x 1: one side is 201 times the other, 200 at most"):
        open_family("qwen2-vl").image(ImageSize(201, 1))


sides = st.one_of(st.integers(1, 300), st.integers(1, 20_000))


@example(15, 68, 28, 1, 1_568).via("as many pixels as may be")
@example(15, 16, 28, 784, 10_000).via("as many pixels as have to be")
@given(sides, sides, st.sampled_from([28, 32]), st.integers(1, 2_000_000), st.integers(1, 20_000_000))
def test_smart_resize_equals_transformers(width, height, factor, min_pixels, max_pixels):
    """Every rounding counts: one float that differs moves a picture by a row of tokens."""
    reference = pytest.importorskip(
        "transformers.models.qwen2_vl.image_processing_pil_qwen2_vl", reason="needs the extra brimful[text]"
    ).smart_resize
    try:
        due = reference(height, width, factor, min_pixels, max_pixels)
    except ValueError:
        with pytest.raises(BadMediumError):
            smart_resize(width, height, factor, min_pixels, max_pixels)
    else:
        assert smart_resize(width, height, factor, min_pixels, max_pixels) == due[::-1]


@pytest.mark.parametrize("limits", LIMITS, ids=["default", "small", "large"])
@pytest.mark.parametrize(("names", "patch"), [(("qwen2-vl", "qwen2.5-vl"), 14), (("qwen3-vl",), 16)])
def test_pictures_of_every_format(names, patch, limits, tmp_path):
    """From the file to the grid, by the processor and by us; orientations among them."""
    pytest.importorskip("PIL", minversion="13", reason="Pillow 12 finds files truncated that it wrote itself")
    pytest.importorskip("PIL", reason="pictures need the extra brimful[media]")
    from transformers.image_utils import load_image

    from tests.media.pictures import picture, plain_pictures, turned_pictures

    reference = processor(patch_size=patch, **limits)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"patch_size": patch}))
    families = {name: open_family(name, tmp_path, **limits) for name in names}
    sizes = [(3, 50), (50, 3), (1, 1), (30, 900), (29, 43), (640, 427), (1000, 70)]
    pictures = [*plain_pictures(), *turned_pictures(), *((str(size), picture(size=size)) for size in sizes)]
    for number, (label, data) in enumerate(pictures):
        # Large limits make half a million patches of each: a few pictures tell.
        if "max_pixels" in limits and limits["max_pixels"] > 1e7 and number % 25:
            continue
        path = tmp_path / "picture"
        path.write_bytes(data)
        # From text: of a path, Transformers leaves animations open.
        due = reference(load_image(base64.b64encode(data).decode()), return_tensors="np")
        for name, family in families.items():
            expansion = family.expand(Medium(MediaKind.IMAGE, label, str(path)))
            assert expansion.grid == tuple(due["image_grid_thw"][0]), (name, label)
            assert expansion.num_patches == len(due["pixel_values"]), (name, label)


@pytest.mark.parametrize("limits", LIMITS[:2], ids=["default", "small"])
@pytest.mark.parametrize(
    "folder",
    long_but(
        {"llama_factory_demo/mllm_demo_data"}, ["mathvision/images", "coco/images", "llama_factory_demo/mllm_demo_data"]
    ),
)
def test_shipped_pictures(folder, limits, data_dir):
    """All real pictures, with the settings of the real processor's file."""
    pytest.importorskip("transformers.image_utils", reason="needs the extra brimful[text]")
    from transformers.image_utils import load_image

    directory = data_dir / "tokenizers" / "qwen2.5"
    module = pytest.importorskip("transformers.models.qwen2_vl.image_processing_pil_qwen2_vl")
    reference = module.Qwen2VLImageProcessorPil.from_pretrained(directory, **limits)
    family = open_family("qwen2.5-vl", directory, **limits)
    paths = sorted((data_dir / "multimodal" / folder).glob("*.jpg"))
    assert paths
    for path in paths:
        due = reference(load_image(str(path)), return_tensors="np")
        expansion = family.expand(Medium(MediaKind.IMAGE, path.name, str(path)))
        assert expansion.grid == tuple(due["image_grid_thw"][0]), path.name
        assert expansion.num_tokens * 4 == len(due["pixel_values"])


CONFIGURATIONS = [
    {},
    {"min_pixels": 784, "max_pixels": 7840},
    {"size": {"shortest_edge": 784, "longest_edge": 7840}},
    {"size": {"shortest_edge": 784, "longest_edge": 7840}, "max_pixels": 78400},
    {"size": {"min_pixels": 784, "max_pixels": 7840}, "min_pixels": 3136, "max_pixels": 78400},
    {"patch_size": 16, "merge_size": 4, "temporal_patch_size": 1},
]


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("values", CONFIGURATIONS, ids=str)
def test_a_file_is_read_as_transformers_reads_it(values, nested, tmp_path):
    """Limits have two names in the files, and two places; a setting that is absent is the processor's default."""
    pytest.importorskip("PIL", reason="pictures need the extra brimful[media]")
    module = pytest.importorskip("transformers.models.qwen2_vl.image_processing_pil_qwen2_vl")
    if nested:
        (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": values}))
        (tmp_path / "preprocessor_config.json").write_text('{"max_pixels": 1000}')
    else:
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(values))
    reference = module.Qwen2VLImageProcessorPil.from_pretrained(tmp_path)
    settings = open_family("qwen2-vl", tmp_path).settings["image"]
    assert settings == {
        "patch_size": reference.patch_size,
        "temporal_patch_size": reference.temporal_patch_size,
        "merge_size": reference.merge_size,
        "min_pixels": reference.size["shortest_edge"],
        "max_pixels": reference.size["longest_edge"],
    }


def test_settings_are_what_a_fingerprint_needs():
    """Another limit is another length: what was measured with the first must not be found with the second."""
    assert open_family("qwen2-vl").settings != open_family("qwen2-vl", max_pixels=7840).settings
    assert open_family("qwen2-vl", max_pixels=7840).settings["image"]["max_pixels"] == 7840
    assert open_family("qwen2-vl").settings != open_family("qwen2.5-vl").settings
    assert json.loads(json.dumps(open_family("qwen3-vl").settings)) == open_family("qwen3-vl").settings


def test_settings_that_cannot_be(tmp_path):
    """Each in one line that names the setting."""
    with pytest.raises(SettingsError, match="no family is called 'qwen9': choose one of qwen2-vl, "):
        open_family("qwen9")
    with pytest.raises(SettingsError, match="the family qwen2-vl has no setting sampling_rate"):
        open_family("qwen2-vl", sampling_rate=16_000)
    with pytest.raises(SettingsError, match="max_pixels of image has to be a positive whole number and is 0"):
        open_family("qwen2-vl", max_pixels=0)
    with pytest.raises(SettingsError, match=r"has no preprocessor_config\.json and no processor_config\.json"):
        open_family("qwen2-vl", tmp_path)
    (tmp_path / "preprocessor_config.json").write_text("[]")
    with pytest.raises(SettingsError, match="is not a JSON object"):
        open_family("qwen2-vl", tmp_path)
    (tmp_path / "preprocessor_config.json").write_text('{"do_resize": false}')
    with pytest.raises(SettingsError, match="do_resize"):
        open_family("qwen2-vl", tmp_path)
    with pytest.raises(SettingsError, match="the family qwen2-vl has no placeholder for audio: it knows image, video"):
        open_family("qwen2-vl").expand(Medium(MediaKind.AUDIO, "a"))
