"""Qwen2.5-VL: Qwen2-VL with positions that follow seconds, which does not change lengths."""

from __future__ import annotations

from dataclasses import replace

from brimful.media.families.family import Expansion
from brimful.media.families.qwen2_vl import Qwen2VL
from brimful.media.videos import VideoHeader


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
        # Source: ``VideoMetadata.sampled_fps`` and ``Qwen2_5_VLProcessor``, in the order of their floats.
        sampled_fps = expansion.num_frames / header.num_frames * header.fps
        return replace(expansion, seconds_per_grid=self._video.temporal_patch_size / sampled_fps)
