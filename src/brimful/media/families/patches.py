"""Images and frames that are resized to whole patches: the arithmetic of Qwen-VL processors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, TypeVar

from brimful.errors import SettingsError
from brimful.media.families.family import Expansion, Piece
from brimful.media.images import ImageSize
from brimful.media.reference import BadMediumError
from brimful.messages import setting

Settings = TypeVar("Settings", bound="PatchSettings")

MAX_ASPECT_RATIO = 200
"""Longer side divided by shorter side, at most: the processors reject larger ratios."""


@dataclass(frozen=True)
class PatchSettings:
    """Settings of an image that is cut into patches.

    Attributes:
        patch_size: width and height of a patch in pixels.
        temporal_patch_size: frames in a patch.
        merge_size: patches along each side that become one token.
        min_pixels, max_pixels: bounds of width times height after resizing.
    """

    kind: ClassVar[str] = "image"

    patch_size: int = 14
    temporal_patch_size: int = 2
    merge_size: int = 2
    min_pixels: int = 56 * 56
    max_pixels: int = 28 * 28 * 1280

    def __post_init__(self) -> None:
        for name in ("patch_size", "temporal_patch_size", "merge_size", "min_pixels", "max_pixels"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                title = name
                if name.endswith("_pixels"):
                    title = setting(f"video_{name}" if self.kind == "video" else name)
                raise SettingsError(f"{title} of {self.kind}s has to be a positive whole number and is {value!r}")

    @property
    def factor(self) -> int:
        """Pixels along one side of a token."""
        return self.patch_size * self.merge_size


def patch_settings(defaults: Settings, values: Mapping[str, Any], overrides: Mapping[str, Any]) -> Settings:
    """Return settings with the values of a processor's file, which overrides that are not None replace.

    The limits of pixels are ``shortest_edge`` and ``longest_edge`` of ``size``, or ``min_pixels`` and ``max_pixels``,
    which take precedence, as in the processor.

    Raises:
        SettingsError: the processor does not resize, or has a size without both limits.
    """
    if not values.get("do_resize", True):
        raise SettingsError("do_resize of the processor is false: only images that are resized are measured")
    names = [field.name for field in fields(defaults)]
    settings = {name: values[name] for name in names if values.get(name) is not None}
    size = values.get("size")
    if isinstance(size, Mapping):
        for limit, edge in (("min_pixels", "shortest_edge"), ("max_pixels", "longest_edge")):
            if limit not in settings:
                if edge not in size:
                    raise SettingsError(f"size of the processor has neither {edge} nor {limit}")
                settings[limit] = size[edge]
    settings |= {name: value for name, value in overrides.items() if value is not None}
    # A requested way of choosing frames replaces the other one.
    for name, other in (("fps", "num_frames"), ("num_frames", "fps")):
        if overrides.get(name) is not None and overrides.get(other) is None:
            settings[other] = None
    return replace(defaults, **settings)


def expand_picture(size: ImageSize, settings: PatchSettings, token: str) -> Expansion:
    """Return the expansion of an image: a token for each square of ``merge_size`` patches."""
    width, height = smart_resize(*size, settings.factor, settings.min_pixels, settings.max_pixels)
    grid = (1, height // settings.patch_size, width // settings.patch_size)
    num_tokens = math.prod(grid) // settings.merge_size**2
    return Expansion((Piece(token, num_tokens),), num_tokens, num_patches=math.prod(grid), grid=grid, num_frames=1)


def smart_resize(width: int, height: int, factor: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """Return width and height that are multiples of ``factor``, of about the same shape, within limits of pixels.

    Raises:
        BadMediumError: one side is more than 200 times as long as the other.

    Source: ``smart_resize`` of Transformers, ``models/qwen2_vl``, to the last bit of its floats.

    >>> smart_resize(1000, 500, factor=28, min_pixels=56 * 56, max_pixels=28 * 28 * 100)
    (392, 196)
    """
    check_aspect_ratio(width, height)
    # Python's round goes to the even neighbor: 42 is 1.5 times 28 and becomes 56, 70 is 2.5 times 28 and becomes 56.
    new_height, new_width = round(height / factor) * factor, round(width / factor) * factor
    if new_height * new_width > max_pixels:
        scale = math.sqrt((height * width) / max_pixels)
        new_height = max(factor, math.floor(height / scale / factor) * factor)
        new_width = max(factor, math.floor(width / scale / factor) * factor)
    elif new_height * new_width < min_pixels:
        scale = math.sqrt(min_pixels / (height * width))
        new_height = math.ceil(height * scale / factor) * factor
        new_width = math.ceil(width * scale / factor) * factor
    return new_width, new_height


def check_aspect_ratio(width: int, height: int) -> None:
    """Raise ``BadMediumError`` if one side is more than 200 times as long as the other."""
    ratio = max(width, height) / min(width, height)
    if ratio > MAX_ASPECT_RATIO:
        raise BadMediumError(
            f"is {width} x {height}: one side is {ratio:.0f} times the other, {MAX_ASPECT_RATIO} at most"
        )
