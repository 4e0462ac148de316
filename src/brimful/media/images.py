"""Images: their sizes from headers, and their pixels."""

from __future__ import annotations

import contextlib
import struct
import warnings
import zlib
from collections.abc import Iterator
from io import SEEK_CUR, BytesIO
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from brimful.base.optional import optional
from brimful.media.medium import BadMediumError, Medium

if TYPE_CHECKING:
    from PIL import Image, ImageFile

_SIZE_IN_HEADER = frozenset({"BMP", "DIB", "GIF", "JPEG", "MPO", "PNG", "PPM", "TIFF", "WEBP"})
"""Formats whose decoded image has the size that the header states; any other format is decoded to
be sure.
"""

_SIDEWAYS = frozenset({5, 6, 7, 8})
"""Values of the EXIF tag Orientation that swap width and height."""

_ORIENTATION, _TIFF_WIDTH, _TIFF_HEIGHT = 0x0112, 0x0100, 0x0101
"""Tags of EXIF and TIFF."""

_PNG_TEXTS = frozenset({b"eXIf", b"iTXt", b"tEXt", b"zTXt"})
"""Chunks of a PNG that can hold an orientation: EXIF, XMP, and EXIF as text of ImageMagick."""


class ImageSize(NamedTuple):
    """Width and height in pixels, after the orientation is applied."""

    width: int
    height: int


def image_size(medium: Medium) -> ImageSize:
    """Return the size of the image that ``transformers.image_utils.load_image`` makes, without its
    pixels.

    The image is rotated by its EXIF or XMP orientation; an animation gives its first frame. Formats
    other than BMP, GIF, JPEG, PNG, PPM, TIFF and WebP are decoded, because their headers do not
    bind the decoder.

    Raises:
        BadMediumError: the file does not exist or is not an image, or its header is cut or states
            an impossible size.
        MissingExtraError: Pillow is not installed.
    """
    with _pillow_errors(), medium.open() as file, _opened(file) as image:
        if image.format not in _SIZE_IN_HEADER:
            size = _transposed(image).size
        else:
            size = image.size
            # Pillow swaps them when it opens a TIFF with the tag, but not when only the XMP has
            # the orientation.
            tags = getattr(image, "tag_v2", None)
            if image.format == "TIFF" and tags is not None:
                size = int(tags[_TIFF_WIDTH]), int(tags[_TIFF_HEIGHT])
            if _orientation(image) in _SIDEWAYS:
                size = size[::-1]
    return ImageSize(*size)


def load_image(medium: Medium) -> Image.Image:
    """Return the image as ``transformers.image_utils.load_image`` does: with its orientation
    applied, in RGB.

    Raises:
        BadMediumError: as ``image_size``, or the pixels are cut or damaged.
        MissingExtraError: Pillow is not installed.
    """
    with _pillow_errors(), medium.open() as file, _opened(file) as image:
        return _transposed(image).convert("RGB")


def _transposed(image: Image.Image) -> Image.Image:
    from PIL import ImageOps

    return ImageOps.exif_transpose(image)


@contextlib.contextmanager
def _opened(file: BinaryIO) -> Iterator[ImageFile.ImageFile]:
    """Open an image without decoding it."""
    with optional("PIL", "media", "an image"):
        from PIL import Image, UnidentifiedImageError
    if not file.read(1):
        raise BadMediumError("is empty")
    file.seek(0)
    try:
        image = Image.open(file)  # which accepts no image without width or height
    except UnidentifiedImageError as error:
        raise BadMediumError(
            "is not an image that Pillow can read, or its header is cut"
        ) from error
    with image:
        yield image


@contextlib.contextmanager
def _pillow_errors() -> Iterator[None]:
    """Turn every error of Pillow into ``BadMediumError``, and suppress its warnings."""
    with warnings.catch_warnings():
        # About images of more than 89 million pixels, and damaged metadata: the processor goes on,
        # and so do we.
        warnings.simplefilter("ignore")
        try:
            yield
        except (BadMediumError, ImportError, MemoryError):
            raise
        except Exception as error:  # its readers raise OSError, SyntaxError, struct.error, KeyError, DecompressionBombError
            raise BadMediumError(
                f"Pillow cannot read it: {' '.join(str(error).split())[:200]}"
            ) from error


def _orientation(image: ImageFile.ImageFile) -> Any:
    """Return the orientation that ``exif_transpose`` obeys: 1 to 8, or anything else that damaged
    metadata holds.
    """
    from PIL import Image

    if image.format == "PNG":
        image = _with_texts_before_pixels(image)
    # The method of the PNG class decodes the pixels to reach the chunks after them.
    return Image.Image.getexif(image).get(_ORIENTATION, 1)


def _with_texts_before_pixels(image: ImageFile.ImageFile) -> ImageFile.ImageFile:
    """Return the image, or, if metadata follows its pixels, one without pixels that has all
    metadata in its header.
    """
    from PIL import Image

    file = image.fp
    assert file is not None
    start_of_pixels = image.tile[0][2] - 8
    file.seek(0)
    header = file.read(start_of_pixels)
    chunks = []
    # Invariant: the file is at the length of a chunk. Chunks of pixels are skipped, never read.
    while len(start := file.read(8)) == 8:
        length, chunk_type = struct.unpack(">I4s", start)
        # The first image of an animation ends at the control chunk of the second, and so does
        # Pillow's reading.
        if chunk_type == b"IEND" or (
            chunk_type == b"fcTL" and getattr(image, "is_animated", False)
        ):
            break
        if chunk_type in _PNG_TEXTS:
            chunks.append(_png_chunk(chunk_type, file.read(length)))
            file.seek(4, SEEK_CUR)
        else:
            file.seek(length + 4, SEEK_CUR)
    if not chunks:
        return image
    return Image.open(BytesIO(header + b"".join(chunks) + _png_chunk(b"IDAT", b"")))


def _png_chunk(chunk_type: bytes, data: bytes) -> bytes:
    return (
        struct.pack(">I", len(data))
        + chunk_type
        + data
        + struct.pack(">I", zlib.crc32(chunk_type + data))
    )
