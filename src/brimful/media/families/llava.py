"""LLaVA 1.5: every image becomes the same number of tokens, because it is resized and cropped to one size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from brimful.errors import SettingsError
from brimful.media.families.family import Expansion, Family, Piece, Placeholder, ProcessorFiles
from brimful.media.images import ImageSize
from brimful.media.medium import MediaKind


@dataclass(frozen=True)
class LlavaSettings:
    """Settings of an image of fixed size.

    Attributes:
        width, height: pixels after resizing and cropping.
        patch_size: width and height of a patch in pixels.
        num_additional_image_tokens: tokens of the encoder that are not patches, such as the class token.
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
    placeholders = {MediaKind.IMAGE: Placeholder("<image>", "<image>")}

    def __init__(self, image: LlavaSettings) -> None:
        self._image = image

    @classmethod
    def from_files(cls, files: ProcessorFiles | None, overrides: Mapping[str, Any]) -> Llava:
        """Return the family with its settings, which cannot be overridden.

        Raises:
            SettingsError: an override, no ``patch_size`` in the files, or images without a fixed size.
        """
        cls._check_known(overrides, ())
        if files is None:
            return cls(LlavaSettings())
        patch_size = files.processor.get("patch_size")
        if not patch_size:
            raise SettingsError("processor_config.json has no patch_size, without which no token is counted")
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

    @property
    def _settings(self) -> tuple[LlavaSettings]:
        return (self._image,)

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
        pieces = (Piece(self.placeholders[MediaKind.IMAGE].token, num_tokens),)
        return Expansion(pieces, num_tokens, num_patches=num_patches, grid=grid, num_frames=1)


def _fixed_size(values: Mapping[str, Any]) -> tuple[int, int]:
    """Return width and height that each image is cropped or resized to."""
    if values.get("do_center_crop", True):
        size = values.get("crop_size", 224)
    else:
        size = values.get("size", {"shortest_edge": 224}) if values.get("do_resize", True) else None
        # A single number is the shorter side here.
        size = size if isinstance(size, Mapping) else None
    if isinstance(size, int):
        return size, size
    if isinstance(size, Mapping) and "width" in size and "height" in size:
        return size["width"], size["height"]
    raise SettingsError("the processor gives images no fixed size: neither crop_size nor size has width and height")
