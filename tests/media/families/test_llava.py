"""LLaVA's pictures have the tokens that its processor counts of the cropped pixels."""

import json

import pytest

from brimful.errors import SettingsError
from brimful.media.families import Piece, open_family
from brimful.media.images import ImageSize

PARTS = [
    {"crop_size": {"height": 336, "width": 336}, "size": {"shortest_edge": 336}},
    {"crop_size": 98, "size": 112},
    {"do_center_crop": False, "size": {"height": 140, "width": 70}},
    {},
]


def test_every_picture_has_the_same_tokens():
    """24 x 24 patches of 14 pixels; the token of the whole picture is left out."""
    family = open_family("llava")
    for size in (ImageSize(640, 480), ImageSize(1, 1_000)):
        made = family.image(size)
        assert (made.pieces, made.grid, made.num_patches) == ((Piece("<image>", 576),), (1, 24, 24), 576)
        assert made.num_frames == 1


@pytest.mark.parametrize("strategy", ["default", "full"])
@pytest.mark.parametrize("additional", [0, 1])
@pytest.mark.parametrize("values", PARTS, ids=str)
@pytest.mark.parametrize("kind", ["llava", "clip"])
def test_tokens_equal_those_of_the_processor(kind, values, additional, strategy, tmp_path, small_qwen):
    """Both image processors that such models are published with."""
    image_module = pytest.importorskip("PIL.Image", reason="pictures need the extra brimful[media]")
    from transformers import AutoTokenizer, LlavaProcessor
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
    from transformers.models.llava.image_processing_pil_llava import LlavaImageProcessorPil

    processor = {
        "patch_size": 14,
        "num_additional_image_tokens": additional,
        "vision_feature_select_strategy": strategy,
    }
    (tmp_path / "processor_config.json").write_text(json.dumps(processor))
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(values))
    images = {"llava": LlavaImageProcessorPil, "clip": CLIPImageProcessorPil}[kind].from_pretrained(tmp_path)
    family = open_family("llava", tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(small_qwen)
    tokenizer.add_tokens(["<image>"], special_tokens=True)
    reference = LlavaProcessor(images, tokenizer, **processor)
    for size in ((200, 100), (50, 400)):
        made = reference(text="a<image>b", images=image_module.new("RGB", size))
        expansion = family.image(ImageSize(*size))
        assert list(made["input_ids"][0]).count(reference.image_token_id) == expansion.num_tokens


def test_settings_that_cannot_be(tmp_path):
    (tmp_path / "preprocessor_config.json").write_text("{}")
    with pytest.raises(SettingsError, match=r"processor_config\.json has no patch_size"):
        open_family("llava", tmp_path)
    (tmp_path / "processor_config.json").write_text('{"patch_size": 14}')
    assert open_family("llava", tmp_path).image(ImageSize(9, 9)).num_tokens == (224 // 14) ** 2
    (tmp_path / "preprocessor_config.json").write_text('{"do_center_crop": false}')
    with pytest.raises(SettingsError, match="no fixed size"):
        open_family("llava", tmp_path)
    with pytest.raises(SettingsError, match="the family llava has no setting max_pixels"):
        open_family("llava", max_pixels=3)
