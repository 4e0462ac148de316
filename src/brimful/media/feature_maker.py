"""Features of one medium for the tower of a model: pixels and spectrograms, by its own
processor.
"""

from __future__ import annotations

import abc
import os
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from brimful.base.fingerprint import fingerprint_of
from brimful.base.optional import optional
from brimful.base.typing import AnyArray, AnyPath, Fingerprint
from brimful.base.wording import setting
from brimful.errors import SettingsError
from brimful.media.audio import load_audio
from brimful.media.families import Family
from brimful.media.families.family import read_processor_files
from brimful.media.feature_block import (
    Features,
    block_bytes,
    metadata_of,
    restored,
    to_block,
    trimmed,
)
from brimful.media.images import load_image
from brimful.media.medium import MediaKind, Medium, PlacedMedium
from brimful.media.videos import iterate_frames, video_header

_LIMITS = ("min_pixels", "max_pixels", "max_patches")
"""Settings of the family that its image processor has by the same name."""


class KindFeatures(abc.ABC):
    """Maker of the features of one kind of media.

    Args:
        directory: of the model's processor.
        family: with the settings that the packs were encoded with.
    """

    def __init__(self, directory: str, family: Family) -> None:
        self._directory, self._family = directory, family

    @abc.abstractmethod
    def of(self, medium: Medium, item: PlacedMedium) -> Features:
        """Return the features of a medium."""

    @abc.abstractmethod
    def blank(self, item: PlacedMedium) -> Features:
        """Return zeros in the shapes and dtypes of a medium's features."""


class ImageFeatures(KindFeatures):
    """Pixels as the vision tower of a model takes them."""

    @cached_property
    def processor(self) -> Any:
        """Image processor of the model, with the limits of the family."""
        settings = self._family.settings["image"]
        options = {name: settings[name] for name in _LIMITS if name in settings}
        if "max_patches" in settings:
            options["crop_to_patches"] = (
                True  # the processor of the whole model asks for it, its file need not
            )
        with optional("transformers", "text", "pixels of images"):
            from transformers import AutoImageProcessor

            # Pillow's resampling, not torch's, which gives other pixels: the same on every machine.
            return AutoImageProcessor.from_pretrained(self._directory, backend="pil", **options)

    def of(self, medium: Medium, item: PlacedMedium) -> Features:
        """Return the pixels of an image; ``BadMediumError`` if it cannot be decoded."""
        return self._process(load_image(medium))

    def blank(self, item: PlacedMedium) -> Features:
        """Return zeros in the shape of an image's pixels."""
        probe = self._probe
        pixels = probe["pixel_values"]
        if "image_grid_thw" in probe:
            return {
                "pixel_values": np.zeros((item.num_patches, *pixels.shape[1:]), pixels.dtype),
                "image_grid_thw": np.array([item.grid], dtype=np.int64),
            }
        # Tiles, or one row.
        tokens_of_tile = self._family.settings["image"].get("image_seq_length", item.num_tokens)
        rows = item.num_tokens // int(tokens_of_tile)
        return {"pixel_values": np.zeros((rows, *pixels.shape[1:]), pixels.dtype)}

    @cached_property
    def _probe(self) -> Features:
        with optional("PIL", "media", "an image"):
            from PIL import Image
        return self._process(Image.new("RGB", (64, 64)))

    def _process(self, image: Any) -> Features:
        features = self.processor(images=[image], return_tensors="np")
        # The number of tiles is for the text; it is not an argument of the model.
        return {
            name: np.asarray(values) for name, values in features.items() if name != "num_patches"
        }


_BICUBIC = 3
"""Resampling of every published video processor, by Pillow's number."""


class VideoFeatures(KindFeatures):
    """Patches of frames as the vision tower of Qwen2-VL, Qwen2.5-VL and Qwen3-VL takes them.

    The video processors of Transformers need torchvision. Here the frames are resized by the
    function of torch that torchvision calls for them, to the same pixels, and cut by the image
    processor of Transformers, one frame at a time; the frames of a patch are joined afterwards. So
    a batch is the same with and without torchvision.
    """

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
                f"frames, grid and seconds of a grid are {facts} and {packed_facts} were packed: "
                "the settings of the processor differ from the job's"
            )
        assert item.grid is not None
        settings = self._family.settings["video"]
        size = (item.grid[1] * settings["patch_size"], item.grid[2] * settings["patch_size"])
        indices = self._family.frame_indices(header)
        frames = [_resized(frame, size) for frame in iterate_frames(medium, indices)]
        patches = np.asarray(self.processor(images=frames, return_tensors="np")["pixel_values"])
        patches = _joined(
            patches.reshape(len(frames), -1, 3, settings["patch_size"] ** 2),
            settings["temporal_patch_size"],
        )
        return self._named(patches, item)

    def blank(self, item: PlacedMedium) -> Features:
        """Return zeros in the shape of a video's patches."""
        settings = self._family.settings["video"]
        size = 3 * settings["temporal_patch_size"] * settings["patch_size"] ** 2
        return self._named(np.zeros((item.num_patches, size), dtype=np.float32), item)

    def _named(self, patches: AnyArray, item: PlacedMedium) -> Features:
        features: Features = {
            "pixel_values_videos": patches,
            "video_grid_thw": np.array([item.grid], dtype=np.int64),
        }
        if item.seconds_per_grid is not None:
            features["second_per_grid_ts"] = np.array([item.seconds_per_grid], dtype=np.float32)
        return features

    @cached_property
    def processor(self) -> Any:
        """Image processor that has the settings of the model's video processor, for frames that are
        resized already.
        """
        with optional("transformers", "text", "frames of videos"):
            from transformers.image_utils import IMAGENET_STANDARD_MEAN, IMAGENET_STANDARD_STD
            from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (
                Qwen2VLImageProcessorPil,
            )
        values: dict[str, Any] = {}
        if self._family.name == "qwen3-vl":
            values = {"image_mean": IMAGENET_STANDARD_MEAN, "image_std": IMAGENET_STANDARD_STD}
        file = read_processor_files(self._directory).video
        if file.get("resample", _BICUBIC) != _BICUBIC:
            raise SettingsError(
                f"{self._directory}: frames of videos are resized bicubically (resample "
                f"{_BICUBIC}) and not by resample {file['resample']}"
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


def _joined(patches: AnyArray, frames_of_grid: int) -> AnyArray:
    """Put the frames of each grid in time side by side; the last frame is repeated until the last
    grid is full.

    ::

        [frames, patches, colors, pixels]  ->  [grids · patches, colors · frames of a grid · pixels]

    >>> [_joined(np.arange(count).reshape(count, 1, 1, 1), 2).tolist() for count in (1, 3)]
    [[[0, 0]], [[0, 1], [2, 2]]]
    """
    num_frames, num_patches, num_colors, num_pixels = patches.shape
    num_grids = -(-num_frames // frames_of_grid)
    repeats = patches[-1:].repeat(num_grids * frames_of_grid - num_frames, axis=0)
    grids = np.concatenate([patches, repeats]).reshape(
        num_grids, frames_of_grid, num_patches, num_colors, num_pixels
    )
    return np.ascontiguousarray(grids.transpose(0, 2, 3, 1, 4)).reshape(num_grids * num_patches, -1)


class AudioFeatures(KindFeatures):
    """Spectrograms as the audio tower of a model takes them, padded to the longest clip that it
    takes.
    """

    @cached_property
    def processor(self) -> Any:
        """Feature extractor of the model."""
        with optional("transformers", "text", "spectrograms of audio"):
            from transformers import AutoFeatureExtractor

            return AutoFeatureExtractor.from_pretrained(
                self._directory, **self._family.settings["audio"]
            )

    def of(self, medium: Medium, item: PlacedMedium) -> Features:
        """Return the spectrogram of an audio clip, and a mask of its columns; ``BadMediumError`` if
        it cannot be decoded.
        """
        rate = self.processor.sampling_rate
        sound = load_audio(medium, sampling_rate=rate)
        features = self.processor(
            [sound],
            sampling_rate=rate,
            padding="max_length",
            return_attention_mask=True,
            return_tensors="np",
        )
        return {
            "input_features": np.asarray(features["input_features"]),
            "feature_attention_mask": np.asarray(features["attention_mask"], dtype=np.int32),
        }

    def blank(self, item: PlacedMedium) -> Features:
        """Return zeros in the shape of a clip's spectrogram, and the mask of its columns."""
        shape = (1, self.processor.feature_size, self.processor.nb_max_frames)
        mask = np.zeros((1, shape[2]), dtype=np.int32)
        mask[0, : item.num_mel_frames] = 1
        return {"input_features": np.zeros(shape, dtype=np.float32), "feature_attention_mask": mask}


class FeatureMaker:
    """Maker of features as the towers of a model take them. Picklable: each process loads the
    processors at first use.

    Args:
        directory: of the model's processor.
        family: with the settings that the packs are encoded with.
    """

    def __init__(self, directory: AnyPath, family: Family) -> None:
        self.directory, self.family = os.fspath(directory), family

    def of(self, medium: Medium, item: PlacedMedium) -> Features:
        """Return the features of a medium.

        Raises:
            BadMediumError: it cannot be decoded.
            SettingsError: the packs were encoded with other settings.
        """
        features = self._makers[item.medium.kind].of(medium, item)
        for name, due in self.blank(item).items():
            array = features[name]
            # Integers are facts, such as grids and the columns of a clip; floats are its content.
            is_due = array.shape == due.shape and array.dtype == due.dtype
            if not is_due or (due.dtype.kind == "i" and (array != due).any()):
                raise SettingsError(
                    f"the processor makes {name} {_described(array)} and {_described(due)} was "
                    "packed: its settings differ from the job's"
                )
        return features

    def blank(self, item: PlacedMedium) -> Features:
        """Return zeros in the shapes and dtypes of a medium's features."""
        return self._makers[item.medium.kind].blank(item)

    def block(self, medium: Medium, item: PlacedMedium, fingerprint: Fingerprint) -> bytes:
        """Return the features of a medium as a block.

        Raises:
            BadMediumError: it cannot be decoded.
            SettingsError: the processor makes shapes or dtypes that its settings do not predict.
        """
        features = self.of(medium, item)
        stored = trimmed(features, item)
        if stored is not features and not _are_same(restored(stored, item), features):
            raise SettingsError(
                "its spectrogram is not constant after its end, as when the feature extractor "
                f"adds noise (dither): choose {setting('media_storage', 'bytes')}"
            )
        return to_block(stored, metadata_of(item, fingerprint, self.fingerprint))

    def block_bytes(self, item: PlacedMedium) -> int:
        """Return the size of the block of a medium, from its header alone."""
        stored = trimmed(self.blank(item), item)
        return block_bytes(stored, metadata_of(item, "0" * 32, self.fingerprint))

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """Fingerprint of all settings that decide features: the family's, and the processor
        files'.
        """
        files = read_processor_files(self.directory)
        return fingerprint_of(
            [self.family.settings, dict(files.image), dict(files.video), dict(files.audio)]
        )

    @cached_property
    def _makers(self) -> dict[MediaKind, KindFeatures]:
        return {
            MediaKind.IMAGE: ImageFeatures(self.directory, self.family),
            MediaKind.VIDEO: VideoFeatures(self.directory, self.family),
            MediaKind.AUDIO: AudioFeatures(self.directory, self.family),
        }

    def __reduce__(self) -> tuple[object, ...]:
        # Each process loads the processors from their files: they may not be picklable.
        return FeatureMaker, (self.directory, self.family)


def _described(array: AnyArray) -> str:
    return f"{array.dtype}{list(array.shape)} ({int(array.sum())})"


def _are_same(one: Features, other: Features) -> bool:
    """Return true for the same arrays, bit for bit."""
    return one.keys() == other.keys() and all(
        array.dtype == other[name].dtype and array.tobytes() == other[name].tobytes()
        for name, array in one.items()
    )
