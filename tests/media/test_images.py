"""A picture's header has the size of its pixels, turned as the processor turns them; what is damaged says so in a line."""

import base64
import contextlib
import struct
import warnings

import pytest

PIL = pytest.importorskip("PIL", reason="pictures need the extra brimful[media]")

from PIL import Image  # noqa: E402

from brimful.media import BadMediumError, MediaKind, Medium  # noqa: E402
from brimful.media.images import image_size, load_image  # noqa: E402
from tests.media.pictures import (  # noqa: E402
    animation,
    behind_the_pixels,
    exif,
    picture,
    plain_pictures,
    png_chunk,
    turned_pictures,
)

PICTURES = dict([*plain_pictures(), *turned_pictures()])


def of(data):
    return Medium(MediaKind.IMAGE, "a picture", data=data)


@pytest.mark.parametrize("name", PICTURES)
def test_a_header_tells_the_size_that_transformers_loads(name):
    """Turned pictures of telephones have another grid: 6 x 4 becomes 4 x 6."""
    if name in ("BMP-P", "ICO-RGBA"):
        pytest.importorskip("PIL", minversion="13", reason="Pillow 12 finds files truncated that it wrote itself")
    transformers = pytest.importorskip("transformers.image_utils", reason="needs the extra brimful[text]")
    data = PICTURES[name]
    reference = transformers.load_image(base64.b64encode(data).decode())
    assert image_size(of(data)) == reference.size
    image = load_image(of(data))
    assert (image.mode, image.tobytes()) == ("RGB", reference.tobytes())


def test_pictures_are_turned_in_every_place_of_an_orientation():
    """The test above would pass if all pictures were upright."""
    turned = {name for name, data in turned_pictures() if image_size(of(data)) == (4, 6)}
    for place in (
        *(
            "JPEG-exif",
            "PNG-exif",
            "WEBP-exif",
            "TIFF-exif",
            "MPO-exif",
            "JPEG-xmp",
            "WEBP-xmp",
            "TIFF-xmp",
            "TIFF-lzw",
        ),
        *("PNG-behind-eXIf", "PNG-behind-iTXt", "PNG-behind-tEXt", "PNG-behind-zTXt", "PNG-both"),
    ):
        assert {name for name in turned if name.startswith(f"{place}-")} == {f"{place}-{n}" for n in (5, 6, 7, 8)}


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP", "GIF", "TIFF", "BMP"])
def test_pixels_are_not_decoded(format, monkeypatch):
    """Decoding costs a hundred times as much. PNG decodes at once when it is asked for its EXIF."""
    data = picture(format, "P" if format == "GIF" else "RGB")
    if format == "PNG":
        data = behind_the_pixels(data, png_chunk(b"tEXt", b"date\0today"), png_chunk(b"eXIf", exif(6)[6:]))
    opened = Image.open(of(data).open())
    monkeypatch.setattr(type(opened), "load", lambda self: pytest.fail("decoded"))
    assert image_size(of(data)) == ((4, 6) if format == "PNG" else (6, 4))


def test_a_header_that_does_not_bind_its_pixels():
    """An icon that states 16 x 16 and holds another picture: Pillow decodes what it holds."""
    png = picture("PNG", size=(6, 4))
    icon = struct.pack("<HHHBBBBHHII", 0, 1, 1, 16, 16, 0, 0, 1, 32, len(png), 22) + png
    assert image_size(of(icon)) == load_image(of(icon)).size == (6, 4)


def test_pixels_that_are_cut_are_found_by_loading():
    """The header is whole: the size is known, and the picture is not."""
    data = picture("PNG", size=(300, 200))
    assert image_size(of(data[:-100])) == (300, 200)
    with pytest.raises(BadMediumError):
        load_image(of(data[:-100]))


def test_a_png_cut_anywhere_has_the_size_that_loads():
    """Where its pixels are whole and what follows them is not: Pillow takes what is there, and so does the header."""
    data = behind_the_pixels(picture("PNG"), png_chunk(b"tEXt", b"date\0today"), png_chunk(b"eXIf", exif(6)[6:]))
    loaded = []
    for cut in range(len(data) + 1):
        with contextlib.suppress(BadMediumError):
            loaded.append(load_image(of(data[:cut])).size)
            assert image_size(of(data[:cut])) == loaded[-1], cut
    assert (set(loaded), loaded[-1]) == ({(4, 6), (6, 4)}, (4, 6))


def impossible_png(width, height):
    return b"\x89PNG\r\n\x1a\n" + png_chunk(
        b"IHDR", width.to_bytes(4, "big") + height.to_bytes(4, "big") + b"\x08\2\0\0\0"
    )


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "is empty"),
        (b"GIF", "is not an image that Pillow can read, or its header is cut"),
        (b"<html>404</html>", "is not an image that Pillow can read, or its header is cut"),
        (picture("PNG")[:20], "Truncated File Read"),
        (picture("JPEG")[:100], "Pillow cannot read it|is not an image"),
        (impossible_png(30_000, 30_000) + png_chunk(b"IDAT", b""), "decompression bomb"),
        (impossible_png(0, 4) + png_chunk(b"IDAT", b""), "is not an image"),
    ],
    ids=["empty", "three bytes", "a page", "cut PNG", "cut JPEG", "bomb", "no width"],
)
def test_what_is_damaged_says_so_in_a_line(data, reason):
    """A traceback from the depth of Pillow does not tell which sample to repair."""
    for use in (image_size, load_image):
        with pytest.raises(BadMediumError, match=reason) as raised:
            use(of(data))
        assert "\n" not in str(raised.value)


def test_warnings_of_pillow_stay_inside():
    """A picture of 100 million pixels is only large: the processor reads it. A million warnings say nothing."""
    data = impossible_png(10_000, 10_000) + png_chunk(b"IDAT", b"")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert image_size(of(data)) == (10_000, 10_000)
        assert image_size(of(picture("JPEG", exif=b"Exif\0\0garbage"))) == (6, 4)


def test_the_first_frame_counts():
    """As for every processor that is given an animation as a picture."""
    for format in ("GIF", "PNG", "WEBP"):
        assert image_size(of(animation(format))) == (6, 4)


@pytest.mark.parametrize("folder", ["mathvision/images", "coco/images", "llama_factory_demo/mllm_demo_data"])
def test_shipped_pictures(folder, data_dir):
    """Real files of three sources."""
    transformers = pytest.importorskip("transformers.image_utils", reason="needs the extra brimful[text]")
    paths = sorted((data_dir / "multimodal" / folder).glob("*.jpg"))
    assert paths
    for path in paths:
        assert image_size(Medium(MediaKind.IMAGE, path.name, str(path))) == transformers.load_image(str(path)).size
