"""Qwen2-VL: a token for every 2 x 2 patches of an image, and of every two frames of a video."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from brimful.errors import SettingsError
from brimful.media.families.family import Expansion, Family, Piece, Placeholder
from brimful.media.families.patches import PatchSettings, expand_picture, patch_settings, smart_resize
from brimful.media.families.processor_files import ProcessorFiles
from brimful.media.images import ImageSize
from brimful.media.reference import BadMediumError, MediaKind
from brimful.media.videos import VideoHeader
from brimful.messages import setting


@dataclass(frozen=True)
class VideoSettings(PatchSettings):
    """Settings of a video: which frames are taken, and how each is cut into patches.

    Attributes:
        do_sample_frames: frames are chosen by ``fps`` or ``num_frames``; otherwise all are taken.
        fps: frames taken of each second.
        num_frames: frames taken, however long the video is.
        min_frames, max_frames: bounds of the frames that ``fps`` takes.
        cap_pixels_per_frame: long videos have smaller frames, so that they share ``max_video_tokens``.
        max_video_tokens: tokens of this bound: of the whole video in Qwen2-VL, of one frame in Qwen3-VL.
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
        if min(self.min_frames, self.max_frames) < 1:
            raise SettingsError(
                f"{setting('min_frames')} and {setting('max_frames')} have to be positive: {self.min_frames}, {self.max_frames}"
            )
        if self.num_frames is not None and self.num_frames < 1:
            raise SettingsError(f"{setting('num_frames')} of videos has to be positive and is {self.num_frames}")
        if self.do_sample_frames and self.fps is not None and self.num_frames is not None:
            raise SettingsError(
                f"{setting('fps')} and {setting('num_frames')} of videos contradict each other: keep one"
            )


class Qwen2VL(Family):
    """Qwen2-VL: images, and videos whose frames are paired."""

    name = "qwen2-vl"
    processor_class = "Qwen2VLProcessor"
    placeholders = {
        MediaKind.IMAGE: Placeholder("<|vision_start|><|image_pad|><|vision_end|>", "<|image_pad|>"),
        MediaKind.VIDEO: Placeholder("<|vision_start|><|video_pad|><|vision_end|>", "<|video_pad|>"),
    }
    # Not ``num_frames``: a video with fewer frames is rejected.
    remedies = {MediaKind.IMAGE: ("max_pixels",), MediaKind.VIDEO: ("fps", "max_frames", "video_max_pixels")}

    published_image: ClassVar[PatchSettings] = PatchSettings(max_pixels=12_845_056)
    """Settings of the published model, for a family without a processor's files."""

    default_image: ClassVar[PatchSettings] = PatchSettings()
    """Settings that the processor uses for what its files omit."""

    published_video: ClassVar[VideoSettings] = VideoSettings(min_pixels=3136, max_pixels=12_845_056)
    default_video: ClassVar[VideoSettings] = VideoSettings()

    def __init__(self, image: PatchSettings, video: VideoSettings) -> None:
        self._image, self._video = image, video

    @classmethod
    def from_files(cls, files: ProcessorFiles | None, overrides: Mapping[str, Any]) -> Qwen2VL:
        """Return the family with its settings.

        Overrides are ``min_pixels`` and ``max_pixels`` of images, ``video_min_pixels`` and ``video_max_pixels``, and
        ``fps``, ``num_frames``, ``min_frames``, ``max_frames`` and ``cap_pixels_per_frame`` of videos. ``fps`` and
        ``num_frames`` make the processor sample frames.
        """
        image = {name: overrides.get(name) for name in ("min_pixels", "max_pixels")}
        video = {name: overrides.get(f"video_{name}") for name in ("min_pixels", "max_pixels")}
        sampling = ("fps", "num_frames", "min_frames", "max_frames", "cap_pixels_per_frame")
        video |= {name: overrides.get(name) for name in sampling}
        limits = ("min_pixels", "max_pixels", "video_min_pixels", "video_max_pixels")
        cls._check_known(overrides, (*limits, *sampling))
        # A requested way of choosing frames replaces the one in the file.
        if video["fps"] is not None or video["num_frames"] is not None:
            video["do_sample_frames"] = True
        default_image, default_video = cls.default_image, cls.default_video
        image_file: Mapping[str, Any] = {}
        video_file: Mapping[str, Any] = {}
        if files is None:
            default_image, default_video = cls.published_image, cls.published_video
        else:
            image_file, video_file = files.image, files.video
        video_settings = patch_settings(default_video, video_file, video)
        # A processor that takes all frames, the default of Qwen2-VL, would ignore a bound of their number.
        bounds = [setting(name, video[name]) for name in ("min_frames", "max_frames") if video[name] is not None]
        if bounds and not (video_settings.do_sample_frames and video_settings.num_frames is None):
            raise SettingsError(
                f"{' and '.join(bounds)}: a bound of the frames that {setting('fps')} takes, and this processor takes "
                f"others: add {setting('fps', 2)}, or name their number with {setting('num_frames')}"
            )
        return cls(patch_settings(default_image, image_file, image), video_settings)

    @property
    def _settings(self) -> tuple[PatchSettings, VideoSettings]:
        return self._image, self._video

    def image(self, size: ImageSize) -> Expansion:
        """Return the expansion of an image of this size.

        >>> from brimful.media.families import open_family
        >>> expansion = open_family("qwen2-vl").image(ImageSize(640, 480))
        >>> expansion.grid, expansion.num_patches, expansion.pieces
        ((1, 34, 46), 1564, (Piece(text='<|image_pad|>', repetitions=391, is_token=True),))
        """
        return expand_picture(size, self._image, self.placeholders[MediaKind.IMAGE].token)

    def video(self, header: VideoHeader) -> Expansion:
        """Return the expansion of a video of this header.

        Raises:
            BadMediumError: too few frames, or an aspect ratio that is too large.
        """
        indices = self.frame_indices(header)
        grid = self._video_grid(len(indices), header.width, header.height)
        num_tokens = math.prod(grid) // self._video.merge_size**2
        pieces = self._video_pieces(header, indices, grid)
        return Expansion(pieces, num_tokens, num_patches=math.prod(grid), grid=grid, num_frames=len(indices))

    def _video_pieces(self, header: VideoHeader, indices: list[int], grid: tuple[int, int, int]) -> tuple[Piece, ...]:
        """Return what replaces the placeholder's token."""
        return (Piece(self.placeholders[MediaKind.VIDEO].token, math.prod(grid) // self._video.merge_size**2),)

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
            wish = min(max(total / header.fps * settings.fps, settings.min_frames), max_frames, total)
            num_frames = math.floor(wish / pair) * pair
        else:
            raise SettingsError(
                f"do_sample_frames of the processor is true: choose {setting('fps')} or {setting('num_frames')}"
            )
        if not 0 < num_frames <= total:
            raise BadMediumError(f"has {total} frames, and {num_frames} are to be taken")
        # As ``torch.arange`` of two integers and a float: float32, then truncated; it can have one more number than
        # asked.
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
        width, height = smart_resize(width, height, settings.factor, settings.min_pixels, max_pixels)
        # The last frame is repeated until the last patch is full.
        num_pairs = -(-num_frames // settings.temporal_patch_size)
        return num_pairs, height // settings.patch_size, width // settings.patch_size
