"""InternVL's pictures have the tiles that its processor cuts."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.errors import SettingsError
from brimful.media.families import Piece, open_family
from brimful.media.families.llava import InternVLSettings, tiles
from brimful.media.images import ImageSize


def test_tiles_and_a_copy_of_the_whole():
    """1,600 x 800 is 4 x 2 tiles and one more; a square is a single one or 2 x 2 or 3 x 3."""
    family = open_family("internvl")
    wide = family.image(ImageSize(1_600, 800))
    assert wide.pieces == (Piece("<img>"), Piece("<IMG_CONTEXT>", 9 * 256), Piece("</img>"))
    assert (wide.num_patches, wide.num_frames) == (9 * 32 * 32, 1)
    assert [family.image(ImageSize(side, side)).num_tokens // 256 for side in (100, 600, 700, 1_000)] == [1, 1, 5, 10]
    assert open_family("internvl", max_patches=1).image(ImageSize(1_600, 800)).num_tokens == 256


@given(
    st.integers(1, 4_000),
    st.integers(1, 4_000),
    st.integers(1, 3),
    st.integers(3, 14),
    st.sampled_from([(448, 448), (384, 300)]),
)
def test_tiles_equal_those_of_transformers(width, height, fewest, most, tile):
    """Ties between arrangements are broken by the area."""
    reference = pytest.importorskip(
        "transformers.models.got_ocr2.image_processing_pil_got_ocr2", reason="needs the extra brimful[text]"
    ).get_optimal_tiled_canvas
    settings = InternVLSettings(tile[0], tile[1], fewest, most)
    assert tiles(ImageSize(width, height), settings) == reference((height, width), tile[::-1], fewest, most)


@pytest.mark.parametrize(
    "values", [{"size": {"height": 56, "width": 56}}, {"size": 56, "min_patches": 3, "max_patches": 5}, {}]
)
def test_tiles_of_real_pixels(values, tmp_path):
    """From the settings file to the number of tiles that the image processor cuts."""
    image_module = pytest.importorskip("PIL.Image", reason="pictures need the extra brimful[media]")
    module = pytest.importorskip("transformers.models.got_ocr2.image_processing_pil_got_ocr2")
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(values))
    (tmp_path / "processor_config.json").write_text('{"image_seq_length": 10}')
    reference = module.GotOcr2ImageProcessorPil.from_pretrained(tmp_path)
    family = open_family("internvl", tmp_path)
    for size in ((10, 10), (100, 50), (33, 200), (120, 120), (500, 70), (170, 171), (700, 50)):
        made = reference(image_module.new("RGB", size), crop_to_patches=True)
        assert (
            family.image(ImageSize(*size)).num_tokens == 10 * made["num_patches"][0] == 10 * len(made["pixel_values"])
        )


def test_settings_that_cannot_be(tmp_path):
    (tmp_path / "preprocessor_config.json").write_text("{}")
    assert open_family("internvl", tmp_path).image(ImageSize(9, 9)).num_tokens == 256
    (tmp_path / "preprocessor_config.json").write_text('{"size": {"shortest_edge": 448}}')
    with pytest.raises(SettingsError, match="size of the processor has no height and width"):
        open_family("internvl", tmp_path)
    with pytest.raises(SettingsError, match="the family internvl has no setting fps"):
        open_family("internvl", fps=3)
