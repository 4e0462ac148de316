"""Videos: their numbers of frames and sizes from headers, and chosen frames."""

from __future__ import annotations

from typing import NamedTuple

from brimful.media.reference import Medium


class VideoHeader(NamedTuple):
    """Facts of a video: frames, frames per second, stored width and height in pixels, degrees that a player turns it."""

    num_frames: int
    fps: float
    width: int
    height: int
    rotation: int


def video_header(medium: Medium) -> VideoHeader:
    """Return frames, rate and size of a video."""
    raise NotImplementedError
