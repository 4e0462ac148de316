"""Pixels of one video: the frames that were counted, resized and cut as the video processors of Qwen-VL do."""

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from brimful.errors import SettingsError
from brimful.media.families import Family
from brimful.media.families.processor_files import read_processor_files
from brimful.media.features.block import Features
from brimful.media.placed import PlacedMedium
from brimful.media.reference import Medium
from brimful.media.videos import iterate_frames, video_header
from brimful.optional import optional

_BICUBIC = 3
"""Resampling of every published video processor, by Pillow's number."""


class VideoFeatures:
    """Patches of frames as the vision tower of Qwen2-VL, Qwen2.5-VL and Qwen3-VL takes them.

    The video processors of Transformers need torchvision. Here the frames are resized by the function of
    torch that torchvision calls for them, to the same pixels, and cut by the image processor of Transformers, one
    frame at a time; the frames of a patch are joined afterwards. So a batch is the same with and without torchvision.

    Args:
        directory: of the model's processor.
        family: with the settings that the packs were encoded with.
    """

    def __init__(self, directory: str, family: Family) -> None:
        self._directory, self._family = directory, family

    def of(self, medium: Medium, item: PlacedMedium) -> Features:
        """Return the patches of a video's frames, one of which is in memory at full size at a time.

        Raises:
            BadMediumError: it cannot be decoded.
            SettingsError: the packs were encoded with other settings.
        """
        header = video_header(medium)
        due = self._family.video(header)
        facts = (due.num_frames, due.grid, due.seconds_per_grid)
        packed_facts = (item.num_frames, item.grid, item.seconds_per_grid)
        if facts != packed_facts:
            raise SettingsError(
                f"frames, grid and seconds of a grid are {facts} and {packed_facts} were packed: the settings of the "
                f"processor differ from the job's"
            )
        assert item.grid is not None
        settings = self._family.settings["video"]
        size = (item.grid[1] * settings["patch_size"], item.grid[2] * settings["patch_size"])
        indices = self._family.frame_indices(header)
        frames = [_resized(frame, size) for frame in iterate_frames(medium, indices)]
        patches = np.asarray(self.processor(images=frames, return_tensors="np")["pixel_values"])
        patches = _joined(
            patches.reshape(len(frames), -1, 3, settings["patch_size"] ** 2), settings["temporal_patch_size"]
        )
        return self._named(patches, item)

    def blank(self, item: PlacedMedium) -> Features:
        """Return zeros in the shape of a video's patches."""
        settings = self._family.settings["video"]
        size = 3 * settings["temporal_patch_size"] * settings["patch_size"] ** 2
        return self._named(np.zeros((item.num_patches, size), dtype=np.float32), item)

    def _named(self, patches: npt.NDArray[Any], item: PlacedMedium) -> Features:
        features: Features = {
            "pixel_values_videos": patches,
            "video_grid_thw": np.array([item.grid], dtype=np.int64),
        }
        if item.seconds_per_grid is not None:
            features["second_per_grid_ts"] = np.array([item.seconds_per_grid], dtype=np.float32)
        return features

    @cached_property
    def processor(self) -> Any:
        """Image processor that has the settings of the model's video processor, for frames that are resized already."""
        with optional("transformers", "text", "frames of videos"):
            from transformers.image_utils import IMAGENET_STANDARD_MEAN, IMAGENET_STANDARD_STD
            from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
        values: dict[str, Any] = {}
        if self._family.name == "qwen3-vl":
            values = {"image_mean": IMAGENET_STANDARD_MEAN, "image_std": IMAGENET_STANDARD_STD}
        file = read_processor_files(self._directory).video
        if file.get("resample", _BICUBIC) != _BICUBIC:
            raise SettingsError(
                f"{self._directory}: frames of videos are resized bicubically (resample {_BICUBIC}) and not by "
                f"resample {file['resample']}"
            )
        names = ("do_rescale", "rescale_factor", "do_normalize", "image_mean", "image_std")
        values |= {name: file[name] for name in names if file.get(name) is not None}
        settings = self._family.settings["video"]
        sizes = {name: settings[name] for name in ("patch_size", "merge_size")}
        return Qwen2VLImageProcessorPil(**values, **sizes, temporal_patch_size=1, do_resize=False)


def _resized(frame: npt.NDArray[np.uint8], size: tuple[int, int]) -> npt.NDArray[np.uint8]:
    """Return ``uint8[3, height, width]`` of a frame ``uint8[h, w, 3]``."""
    with optional("torch", "torch", "frames of videos"):
        import torch
    tensor = torch.from_numpy(np.ascontiguousarray(frame.transpose(2, 0, 1)))[None]
    if tuple(tensor.shape[-2:]) != size:
        tensor = torch.nn.functional.interpolate(tensor, size, mode="bicubic", antialias=True)
    resized_frames: npt.NDArray[np.uint8] = tensor[0].numpy()
    return resized_frames


def _joined(patches: npt.NDArray[Any], frames_of_grid: int) -> npt.NDArray[Any]:
    """Put the frames of each grid in time side by side; the last frame is repeated until the last grid is full.

    ::

        [frames, patches, colors, pixels]  ->  [grids · patches, colors · frames of a grid · pixels]

    >>> _joined(np.arange(3).reshape(3, 1, 1, 1), 2).tolist()
    [[0, 1], [2, 2]]
    """
    num_frames, num_patches, num_colors, num_pixels = patches.shape
    num_grids = -(-num_frames // frames_of_grid)
    repeats = patches[-1:].repeat(num_grids * frames_of_grid - num_frames, axis=0)
    grids = np.concatenate([patches, repeats]).reshape(num_grids, frames_of_grid, num_patches, num_colors, num_pixels)
    return np.ascontiguousarray(grids.transpose(0, 2, 3, 1, 4)).reshape(num_grids * num_patches, -1)
