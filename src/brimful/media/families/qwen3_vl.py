"""Qwen3-VL: patches of 16 pixels, and videos as frames between written timestamps."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from brimful.media.families.family import Piece
from brimful.media.families.patches import PatchSettings, check_aspect_ratio
from brimful.media.families.qwen2_vl import Qwen2VL, VideoSettings
from brimful.media.reference import BadMediumError, MediaKind
from brimful.media.videos import VideoHeader


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

    def _video_pieces(self, header: VideoHeader, indices: list[int], grid: tuple[int, int, int]) -> tuple[Piece, ...]:
        num_tokens = grid[1] * grid[2] // self._video.merge_size**2
        size = self._video.temporal_patch_size
        # A partial last group repeats its last frame; the time of a group is midway between its first and last frame.
        times = [index / header.fps for index in indices + indices[-1:] * (-len(indices) % size)]
        pieces = []
        for start in range(0, len(times), size):
            seconds = (times[start] + times[start + size - 1]) / 2
            pieces += [
                Piece(f"<{seconds:.1f} seconds>", is_token=False),
                Piece("<|vision_start|>"),
                Piece(self.placeholders[MediaKind.VIDEO].token, num_tokens),
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
        width, height = resize_video(num_frames, width, height, settings, max_pixels)
        num_groups = -(-num_frames // settings.temporal_patch_size)
        return num_groups, height // settings.patch_size, width // settings.patch_size


def resize_video(num_frames: int, width: int, height: int, settings: VideoSettings, max_pixels: int) -> tuple[int, int]:
    """Return the width and height of frames, whose pixels in all frames together are within limits.

    Raises:
        BadMediumError: fewer frames than one patch holds, or one side more than 200 times as long as the other.

    Source: ``smart_resize`` of Transformers, ``models/qwen3_vl``, to the last bit of its floats.
    """
    factor, pair = settings.factor, settings.temporal_patch_size
    if num_frames < pair:
        raise BadMediumError(f"has {num_frames} frames, and {pair} are needed")
    if min(width, height) < factor:
        scale = max(factor / height, factor / width)
        width, height = int(width * scale), int(height * scale)
    check_aspect_ratio(width, height)
    new_height, new_width = round(height / factor) * factor, round(width / factor) * factor
    pixels = round(num_frames / pair) * pair * new_height * new_width
    if pixels > max_pixels:
        scale = math.sqrt((num_frames * height * width) / max_pixels)
        new_height = max(factor, math.floor(height / scale / factor) * factor)
        new_width = max(factor, math.floor(width / scale / factor) * factor)
    elif pixels < settings.min_pixels:
        scale = math.sqrt(settings.min_pixels / (num_frames * height * width))
        new_height = math.ceil(height * scale / factor) * factor
        new_width = math.ceil(width * scale / factor) * factor
    return new_width, new_height
