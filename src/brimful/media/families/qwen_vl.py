"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL: images and frames that are resized to whole patches."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, TypeVar

import numpy as np

from brimful.base.wording import setting
from brimful.errors import SettingsError
from brimful.media.families.family import (
    Expansion,
    Family,
    Piece,
    ProcessorFiles,
    check_positive,
)
from brimful.media.images import ImageSize
from brimful.media.medium import BadMediumError, MediaKind
from brimful.media.videos import VideoHeader

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
        check_positive(
            self, "patch_size", "temporal_patch_size", "merge_size", "min_pixels", "max_pixels"
        )

    @property
    def factor(self) -> int:
        """Pixels along one side of a token."""
        return self.patch_size * self.merge_size


def patch_settings(
    defaults: Settings, values: Mapping[str, Any], overrides: Mapping[str, Any]
) -> Settings:
    """Return settings with the values of a processor's file, which overrides that are not None
    replace.

    The limits of pixels are ``shortest_edge`` and ``longest_edge`` of ``size``, or ``min_pixels``
    and ``max_pixels``, which take precedence, as in the processor.

    Raises:
        SettingsError: the processor does not resize, or has a size without both limits.
    """
    if not values.get("do_resize", True):
        raise SettingsError(
            "do_resize of the processor is false: only images that are resized are measured"
        )
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


def expand_image(size: ImageSize, settings: PatchSettings, token: str) -> Expansion:
    """Return the expansion of an image: a token for each square of ``merge_size`` patches."""
    width, height = smart_resize(*size, settings.factor, settings.min_pixels, settings.max_pixels)
    grid = (1, height // settings.patch_size, width // settings.patch_size)
    num_tokens = math.prod(grid) // settings.merge_size**2
    return Expansion(
        (Piece(token, num_tokens),),
        num_tokens,
        num_patches=math.prod(grid),
        grid=grid,
        num_frames=1,
    )


def smart_resize(
    width: int,
    height: int,
    factor: int,
    min_pixels: int,
    max_pixels: int,
    num_frames: int = 1,
    pair: int = 1,
) -> tuple[int, int]:
    """Return width and height that are multiples of ``factor``, of about the same shape, within
    limits of pixels.

    Args:
        width, height: of an image or of each frame.
        factor: pixels along one side of a token.
        min_pixels, max_pixels: limits of the pixels of all frames together.
        num_frames: frames of a video, if the limits apply to all of them together.
        pair: frames of a patch.

    Raises:
        BadMediumError: one side is more than 200 times as long as the other.

    Source: ``smart_resize`` of Transformers, ``models/qwen2_vl`` and, with frames,
    ``models/qwen3_vl``, to the last bit of their floats.

    >>> smart_resize(1000, 500, factor=28, min_pixels=56 * 56, max_pixels=28 * 28 * 100)
    (392, 196)
    """
    ratio = max(width, height) / min(width, height)
    if ratio > MAX_ASPECT_RATIO:
        raise BadMediumError(
            f"is {width} x {height}: one side is {ratio:.0f} times the other, {MAX_ASPECT_RATIO} "
            "at most"
        )
    # Python's round goes to the even neighbor: 42 is 1.5 times 28 and becomes 56, 70 is 2.5 times
    # 28 and becomes 56.
    new_height, new_width = round(height / factor) * factor, round(width / factor) * factor
    pixels = round(num_frames / pair) * pair * new_height * new_width
    if pixels > max_pixels:
        scale = math.sqrt((num_frames * height * width) / max_pixels)
        new_height = max(factor, math.floor(height / scale / factor) * factor)
        new_width = max(factor, math.floor(width / scale / factor) * factor)
    elif pixels < min_pixels:
        scale = math.sqrt(min_pixels / (num_frames * height * width))
        new_height = math.ceil(height * scale / factor) * factor
        new_width = math.ceil(width * scale / factor) * factor
    return new_width, new_height


@dataclass(frozen=True)
class VideoSettings(PatchSettings):
    """Settings of a video: which frames are taken, and how each is cut into patches.

    Attributes:
        do_sample_frames: frames are chosen by ``fps`` or ``num_frames``; otherwise all are taken.
        fps: frames taken of each second.
        num_frames: frames taken, however long the video is.
        min_frames, max_frames: bounds of the frames that ``fps`` takes.
        cap_pixels_per_frame: long videos have smaller frames, so that they share
            ``max_video_tokens``.
        max_video_tokens: tokens of this bound: of the whole video in Qwen2-VL, of one frame in
            Qwen3-VL.
    """

    kind: ClassVar[str] = "video"

    min_pixels: int = 128 * 28 * 28
    max_pixels: int = 28 * 28 * 768
    do_sample_frames: bool = False
    fps: float | None = None
    num_frames: int | None = None
    min_frames: int = 4
    max_frames: int = 768
    cap_pixels_per_frame: bool = False
    max_video_tokens: int = 128_000

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fps is not None and not self.fps > 0:
            raise SettingsError(f"{setting('fps')} of videos has to be above 0 and is {self.fps}")
        check_positive(self, "min_frames", "max_frames", "num_frames")
        if self.do_sample_frames and self.fps is not None and self.num_frames is not None:
            raise SettingsError(
                f"{setting('fps')} and {setting('num_frames')} of videos contradict each other: "
                "keep one"
            )


_SAMPLING = ("fps", "num_frames", "min_frames", "max_frames", "cap_pixels_per_frame")
"""Settings that choose the frames of a video, and their size."""


class Qwen2VL(Family):
    """Qwen2-VL: images, and videos whose frames are paired."""

    name = "qwen2-vl"
    processor_class = "Qwen2VLProcessor"
    placeholders = {
        MediaKind.IMAGE: "<|image_pad|>",
        MediaKind.VIDEO: "<|video_pad|>",
    }
    # Not ``num_frames``: a video with fewer frames is rejected.
    remedies = {
        MediaKind.IMAGE: ("max_pixels",),
        MediaKind.VIDEO: ("fps", "max_frames", "video_max_pixels"),
    }

    published_image: ClassVar[PatchSettings] = PatchSettings(max_pixels=12_845_056)
    """Settings of the published model, for a family without a processor's files."""

    default_image: ClassVar[PatchSettings] = PatchSettings()
    """Settings that the processor uses for what its files omit."""

    published_video: ClassVar[VideoSettings] = VideoSettings(min_pixels=3136, max_pixels=12_845_056)
    default_video: ClassVar[VideoSettings] = VideoSettings()

    known_overrides = (
        *("min_pixels", "max_pixels", "video_min_pixels", "video_max_pixels"),
        *_SAMPLING,
    )
    _image: PatchSettings
    _video: VideoSettings

    @classmethod
    def from_files(cls, files: ProcessorFiles | None, overrides: Mapping[str, Any]) -> Qwen2VL:
        """Return the family with its settings; ``fps`` and ``num_frames`` make the processor sample
        frames.
        """
        limits = ("min_pixels", "max_pixels")
        image = {name: overrides.get(name) for name in limits}
        video = {name: overrides.get(f"video_{name}") for name in limits}
        video |= {name: overrides.get(name) for name in _SAMPLING}
        # A requested way of choosing frames replaces the one in the file.
        if video["fps"] is not None or video["num_frames"] is not None:
            video["do_sample_frames"] = True
        if files is None:
            image_settings = patch_settings(cls.published_image, {}, image)
            video_settings = patch_settings(cls.published_video, {}, video)
        else:
            image_settings = patch_settings(cls.default_image, files.image, image)
            video_settings = patch_settings(cls.default_video, files.video, video)
        # A processor that takes all frames, the default of Qwen2-VL, would ignore a bound of their
        # number.
        bounds = [
            setting(name, video[name])
            for name in ("min_frames", "max_frames")
            if video[name] is not None
        ]
        if bounds and not (video_settings.do_sample_frames and video_settings.num_frames is None):
            raise SettingsError(
                f"{' and '.join(bounds)}: a bound of the frames that {setting('fps')} takes, and "
                f"this processor takes others: add {setting('fps', 2)}, or name their number with "
                f"{setting('num_frames')}"
            )
        return cls(image_settings, video_settings)

    def image(self, size: ImageSize) -> Expansion:
        """Return the expansion of an image of this size.

        >>> from brimful.media.families import open_family
        >>> expansion = open_family("qwen2-vl").image(ImageSize(640, 480))
        >>> expansion.grid, expansion.num_patches, expansion.pieces
        ((1, 34, 46), 1564, (Piece(text='<|image_pad|>', repetitions=391, is_token=True),))
        """
        return expand_image(size, self._image, self.placeholders[MediaKind.IMAGE])

    def video(self, header: VideoHeader) -> Expansion:
        """Return the expansion of a video of this header.

        Raises:
            BadMediumError: too few frames, or an aspect ratio that is too large.
        """
        indices = self.frame_indices(header)
        grid = self._video_grid(len(indices), header.width, header.height)
        num_patches = math.prod(grid)
        num_tokens = num_patches // self._video.merge_size**2
        pieces = self._video_pieces(header, indices, num_tokens)
        return Expansion(
            pieces, num_tokens, num_patches=num_patches, grid=grid, num_frames=len(indices)
        )

    def _video_pieces(
        self, header: VideoHeader, indices: list[int], num_tokens: int
    ) -> tuple[Piece, ...]:
        """Return what replaces the placeholder's token."""
        return (Piece(self.placeholders[MediaKind.VIDEO], num_tokens),)

    def frame_indices(self, header: VideoHeader) -> list[int]:
        """Return the numbers of the frames that the processor takes from a video, ascending.

        >>> from brimful.media.families import open_family
        >>> open_family("qwen2-vl", fps=1).frame_indices(VideoHeader(100, 25.0, 640, 480))
        [0, 25, 50, 75]
        """
        settings, total = self._video, header.num_frames
        if not settings.do_sample_frames:
            return list(range(total))
        pair = settings.temporal_patch_size
        if settings.num_frames is not None:
            num_frames = round(settings.num_frames / pair) * pair
        elif settings.fps is not None:
            max_frames = math.floor(min(settings.max_frames, total) / pair) * pair
            wish = min(
                max(total / header.fps * settings.fps, settings.min_frames), max_frames, total
            )
            num_frames = math.floor(wish / pair) * pair
        else:
            raise SettingsError(
                f"do_sample_frames of the processor is true: choose {setting('fps')} or "
                f"{setting('num_frames')}"
            )
        if not 0 < num_frames <= total:
            raise BadMediumError(f"has {total} frames, and {num_frames} are to be taken")
        # As ``torch.arange`` of two integers and a float: float32, then truncated; it can have one
        # more number than asked.
        step = total / num_frames
        steps = np.arange(math.ceil(total / step), dtype=np.float64)
        return [int(index) for index in (steps * step).astype(np.float32)]

    def _video_grid(self, num_frames: int, width: int, height: int) -> tuple[int, int, int]:
        """Return patches along time, height and width of frames of this size."""
        settings = self._video
        max_pixels = settings.max_pixels
        if settings.cap_pixels_per_frame:
            total_pixels = int(settings.max_video_tokens * settings.factor * settings.factor * 0.9)
            share = total_pixels * settings.temporal_patch_size // num_frames
            max_pixels = max(min(max_pixels, share), int(settings.min_pixels * 1.05))
        width, height = smart_resize(
            width, height, settings.factor, settings.min_pixels, max_pixels
        )
        # The last frame is repeated until the last patch is full.
        num_pairs = -(-num_frames // settings.temporal_patch_size)
        return num_pairs, height // settings.patch_size, width // settings.patch_size


class Qwen25VL(Qwen2VL):
    """Qwen2.5-VL: its processor cuts images and videos like the Qwen2-VL processor."""

    name = "qwen2.5-vl"
    processor_class = "Qwen2_5_VLProcessor"

    def video(self, header: VideoHeader) -> Expansion:
        """Return the expansion of a video of this header, with the seconds of a grid.

        >>> from brimful.media.families import open_family
        >>> open_family("qwen2.5-vl", fps=2).video(VideoHeader(100, 25.0, 140, 84)).seconds_per_grid
        1.0
        """
        expansion = super().video(header)
        # Source: ``VideoMetadata.sampled_fps`` and ``Qwen2_5_VLProcessor``, in the order of their
        # floats.
        sampled_fps = expansion.num_frames / header.num_frames * header.fps
        return replace(expansion, seconds_per_grid=self._video.temporal_patch_size / sampled_fps)


@dataclass(frozen=True)
class Qwen3VideoSettings(VideoSettings):
    """Settings of a video: the pixel limits apply to all frames together."""

    patch_size: int = 16
    min_pixels: int = 128 * 32 * 32
    max_pixels: int = 32 * 32 * 768
    do_sample_frames: bool = True
    fps: float | None = 2
    max_video_tokens: int = 768


class Qwen3VL(Qwen2VL):
    """Qwen3-VL: each pair of frames is a separate image after a text ``<1.5 seconds>``."""

    name = "qwen3-vl"
    processor_class = "Qwen3VLProcessor"
    published_image = PatchSettings(patch_size=16, min_pixels=65_536, max_pixels=16_777_216)
    published_video = Qwen3VideoSettings(min_pixels=4_096, max_pixels=25_165_824)
    default_video = Qwen3VideoSettings()

    def frame_indices(self, header: VideoHeader) -> list[int]:
        """Return the numbers of the frames that the processor takes from a video, ascending."""
        settings, total = self._video, header.num_frames
        if not settings.do_sample_frames:
            return list(range(total))
        if settings.num_frames is not None:
            num_frames = settings.num_frames
        elif settings.fps is not None:
            wish = int(total / header.fps * settings.fps)
            num_frames = min(max(wish, settings.min_frames), settings.max_frames, total)
        else:
            num_frames = min(max(total, settings.min_frames), settings.max_frames)
        # If a video has fewer frames than asked, some are taken twice.
        return [int(index) for index in np.linspace(0, total - 1, num_frames).round()]

    def _video_pieces(
        self, header: VideoHeader, indices: list[int], num_tokens: int
    ) -> tuple[Piece, ...]:
        size = self._video.temporal_patch_size
        # A partial last group repeats its last frame; the time of a group is midway between its
        # first and last frame.
        times = [index / header.fps for index in indices + indices[-1:] * (-len(indices) % size)]
        tokens_of_group = num_tokens // (len(times) // size)
        pieces = []
        for start in range(0, len(times), size):
            seconds = (times[start] + times[start + size - 1]) / 2
            pieces += [
                Piece(f"<{seconds:.1f} seconds>", is_token=False),
                Piece("<|vision_start|>"),
                Piece(self.placeholders[MediaKind.VIDEO], tokens_of_group),
                Piece("<|vision_end|>"),
            ]
        return tuple(pieces)

    def _video_grid(self, num_frames: int, width: int, height: int) -> tuple[int, int, int]:
        settings = self._video
        max_pixels = settings.max_pixels
        if settings.cap_pixels_per_frame:
            frame_cap = settings.max_video_tokens * settings.factor * settings.factor
            share = max(min(frame_cap, max_pixels // num_frames), int(settings.min_pixels * 1.05))
            max_pixels = share * num_frames
        factor, pair = settings.factor, settings.temporal_patch_size
        if num_frames < pair:
            raise BadMediumError(f"has {num_frames} frames, and {pair} are needed")
        if min(width, height) < factor:
            scale = max(factor / height, factor / width)
            width, height = int(width * scale), int(height * scale)
        width, height = smart_resize(
            width, height, factor, settings.min_pixels, max_pixels, num_frames, pair
        )
        num_groups = -(-num_frames // pair)
        return num_groups, height // settings.patch_size, width // settings.patch_size
