"""LLaVA 1.5, whose images all have the same number of tokens, and InternVL, which cuts an image
into tiles.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

from brimful.errors import SettingsError
from brimful.media.families.family import Expansion, Family, Piece, ProcessorFiles
from brimful.media.images import ImageSize
from brimful.media.medium import MediaKind


@dataclass(frozen=True)
class LlavaSettings:
    """Settings of an image of fixed size.

    Attributes:
        width, height: pixels after resizing and cropping.
        patch_size: width and height of a patch in pixels.
        num_additional_image_tokens: tokens of the encoder that are not patches, such as the class
            token.
        vision_feature_select_strategy: ``default`` drops the first token, ``full`` keeps it.
    """

    kind: ClassVar[str] = "image"

    width: int = 336
    height: int = 336
    patch_size: int = 14
    num_additional_image_tokens: int = 1
    vision_feature_select_strategy: str = "default"


class Llava(Family):
    """LLaVA 1.5 and others with its processor."""

    name = "llava"
    processor_class = "LlavaProcessor"
    placeholders = {MediaKind.IMAGE: "<image>"}

    _image: LlavaSettings

    @classmethod
    def from_files(cls, files: ProcessorFiles | None, overrides: Mapping[str, Any]) -> Llava:
        """Return the family with its settings, which cannot be overridden.

        Raises:
            SettingsError: no ``patch_size`` in the files, or images without a fixed size.
        """
        if files is None:
            return cls(LlavaSettings())
        patch_size = files.processor.get("patch_size")
        if not patch_size:
            raise SettingsError(
                "processor_config.json has no patch_size, without which no token is counted"
            )
        width, height = _fixed_size(files.image)
        return cls(
            LlavaSettings(
                width,
                height,
                patch_size,
                files.processor.get("num_additional_image_tokens", 0),
                files.processor.get("vision_feature_select_strategy") or "full",
            )
        )

    def image(self, size: ImageSize) -> Expansion:
        """Return the expansion of an image of any size.

        >>> from brimful.media.families import open_family
        >>> open_family("llava").image(ImageSize(640, 480)).num_tokens
        576
        """
        settings = self._image
        grid = (1, settings.height // settings.patch_size, settings.width // settings.patch_size)
        num_patches = grid[1] * grid[2]
        num_tokens = num_patches + settings.num_additional_image_tokens
        # Without additional tokens, the first patch is dropped, as in the processor.
        if settings.vision_feature_select_strategy == "default":
            num_tokens -= 1
        pieces = (Piece(self.placeholders[MediaKind.IMAGE], num_tokens),)
        return Expansion(pieces, num_tokens, num_patches=num_patches, grid=grid, num_frames=1)


def _fixed_size(values: Mapping[str, Any]) -> tuple[int, int]:
    """Return width and height that each image is cropped or resized to."""
    if values.get("do_center_crop", True):
        size = values.get("crop_size", 224)
    else:
        size = values.get("size") if values.get("do_resize", True) else None
        # A single number is the shorter side here.
        size = size if isinstance(size, Mapping) else None
    if isinstance(size, int):
        return size, size
    if isinstance(size, Mapping) and "width" in size and "height" in size:
        return size["width"], size["height"]
    raise SettingsError(
        "the processor gives images no fixed size: neither crop_size nor size has width and height"
    )


_PATCHES_OF_TOKEN = 4
"""Patches that become one token: published models halve both sides, which no processor file
states.
"""


@dataclass(frozen=True)
class InternVLSettings:
    """Settings of an image that is cut into tiles.

    Attributes:
        width, height: pixels of a tile.
        min_patches, max_patches: bounds of the number of tiles, which the processor calls patches.
        image_seq_length: tokens of a tile.
    """

    kind: ClassVar[str] = "image"

    width: int = 448
    height: int = 448
    min_patches: int = 1
    max_patches: int = 12
    image_seq_length: int = 256


class InternVL(Family):
    """InternVL 2.5 and 3 with the processor of Transformers: images. Videos are not measured
    yet.
    """

    name = "internvl"
    processor_class = "InternVLProcessor"
    placeholders = {MediaKind.IMAGE: "<IMG_CONTEXT>"}

    known_overrides = ("max_patches",)  # the maximum number of tiles
    _image: InternVLSettings

    @classmethod
    def from_files(cls, files: ProcessorFiles | None, overrides: Mapping[str, Any]) -> InternVL:
        """Return the family with its settings."""
        settings: dict[str, Any] = {}
        if files is not None:
            size = files.image.get("size", {"height": 384, "width": 384})
            # A single number is both sides.
            size = {"height": size, "width": size} if isinstance(size, int) else size
            if "height" not in size or "width" not in size:
                raise SettingsError("size of the processor has no height and width")
            settings = {
                "width": size["width"],
                "height": size["height"],
                "min_patches": files.image.get("min_patches", 1),
                "max_patches": files.image.get("max_patches", 12),
                "image_seq_length": files.processor.get("image_seq_length", 256),
            }
        return cls(InternVLSettings(**settings | dict(overrides)))

    def image(self, size: ImageSize) -> Expansion:
        """Return the expansion of an image of this size.

        >>> from brimful.media.families import open_family
        >>> open_family("internvl").image(ImageSize(1600, 800)).pieces[1]
        Piece(text='<IMG_CONTEXT>', repetitions=2304, is_token=True)
        """
        settings = self._image
        num_tiles = 1
        if settings.max_patches > 1:
            columns, rows = tiles(size, settings)
            # One tile is the whole already.
            num_tiles = columns * rows + (columns * rows > 1)
        num_tokens = num_tiles * settings.image_seq_length
        pieces = (
            Piece("<img>"),
            Piece(self.placeholders[MediaKind.IMAGE], num_tokens),
            Piece("</img>"),
        )
        return Expansion(
            pieces, num_tokens, num_patches=num_tokens * _PATCHES_OF_TOKEN, num_frames=1
        )

    def attention_groups(
        self, num_patches: int, grid: tuple[int, int, int] | None
    ) -> tuple[int, int]:
        """Return the number of tiles, and the patches of each.

        >>> from brimful.media.families import open_family
        >>> open_family("internvl").attention_groups(9 * 1024, None)
        (9, 1024)
        """
        patches_of_tile = self._image.image_seq_length * _PATCHES_OF_TOKEN
        return num_patches // patches_of_tile, patches_of_tile


def tiles(size: ImageSize, settings: InternVLSettings) -> tuple[int, int]:
    """Return the columns and rows of tiles whose shape is nearest to the image's.

    If two are equally near, the one with more tiles, unless the tiles have more than twice the
    image's pixels.

    Source: ``get_optimal_tiled_canvas`` of Transformers, ``models/got_ocr2``, to the last bit of
    its floats.

    >>> tiles(ImageSize(1600, 800), InternVLSettings())
    (4, 2)
    """
    ratio, area = size.width / size.height, size.width * size.height
    best, smallest_difference = (1, 1), float("inf")
    for columns, rows in _arrangements(settings.min_patches, settings.max_patches):
        difference = abs(ratio - columns / rows)
        if difference < smallest_difference:
            best, smallest_difference = (columns, rows), difference
        elif (
            difference == smallest_difference
            and area > 0.5 * settings.height * settings.width * columns * rows
        ):
            best = (columns, rows)
    return best


@cache
def _arrangements(min_tiles: int, max_tiles: int) -> tuple[tuple[int, int], ...]:
    """Return columns and rows of every allowed number of tiles, few tiles first."""
    sides = range(1, max_tiles + 1)
    pairs = [
        (columns, rows)
        for columns in sides
        for rows in sides
        if min_tiles <= columns * rows <= max_tiles
    ]
    return tuple(sorted(pairs, key=lambda pair: pair[0] * pair[1]))
