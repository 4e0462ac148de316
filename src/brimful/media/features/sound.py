"""Spectrogram of one audio clip, by the feature extractor of Transformers."""

from functools import cached_property
from typing import Any

import numpy as np

from brimful.errors import SettingsError
from brimful.media.audio import load_audio
from brimful.media.families import Family
from brimful.media.features.block import Features
from brimful.media.placed import PlacedMedium
from brimful.media.reference import Medium
from brimful.optional import optional


class SoundFeatures:
    """Spectrograms as the audio tower of a model takes them, padded to the longest clip that it takes.

    Args:
        directory: of the model's processor.
        family: with the settings that the packs were encoded with.
    """

    def __init__(self, directory: str, family: Family) -> None:
        self._directory, self._family = directory, family

    @cached_property
    def processor(self) -> Any:
        """Feature extractor of the model."""
        with optional("transformers", "text", "spectrograms of audio"):
            from transformers import AutoFeatureExtractor
        return AutoFeatureExtractor.from_pretrained(self._directory, **self._family.settings["audio"])

    def of(self, medium: Medium, item: PlacedMedium) -> Features:
        """Return the spectrogram of an audio clip, and a mask of its columns.

        Raises:
            BadMediumError: it cannot be decoded.
            SettingsError: the packs were encoded with other settings.
        """
        rate = self.processor.sampling_rate
        sound = load_audio(medium, sampling_rate=rate)
        features = self.processor(
            [sound], sampling_rate=rate, padding="max_length", return_attention_mask=True, return_tensors="np"
        )
        mask = np.asarray(features["attention_mask"])
        if (num_columns := int(mask.sum())) != item.num_mel_frames:
            raise SettingsError(
                f"its spectrogram has {num_columns} columns and {item.num_mel_frames} were counted: the settings are "
                f"not the job's"
            )
        return {"input_features": np.asarray(features["input_features"]), "feature_attention_mask": mask}

    def blank(self, item: PlacedMedium) -> Features:
        """Return zeros in the shape of a clip's spectrogram, and the mask of its columns."""
        shape = (1, self.processor.feature_size, self.processor.nb_max_frames)
        mask = np.zeros((1, shape[2]), dtype=np.int32)
        mask[0, : item.num_mel_frames] = 1
        return {"input_features": np.zeros(shape, dtype=np.float32), "feature_attention_mask": mask}
