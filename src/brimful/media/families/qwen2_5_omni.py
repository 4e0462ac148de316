"""Qwen2.5-Omni: the audio of Qwen2-Audio, up to 300 seconds, and the images of Qwen2-VL, with its own placeholders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from brimful.media.audio import AudioHeader
from brimful.media.families.family import Expansion, Family, Placeholder
from brimful.media.families.patches import PatchSettings, expand_picture, patch_settings
from brimful.media.families.processor_files import ProcessorFiles
from brimful.media.families.qwen2_audio import SpectrogramSettings, expand_sound, spectrogram_settings
from brimful.media.images import ImageSize
from brimful.media.reference import MediaKind


class Qwen25Omni(Family):
    """Qwen2.5-Omni: audio and images. Videos, whose audio is interleaved with their frames, are not measured yet."""

    name = "qwen2.5-omni"
    processor_class = "Qwen2_5OmniProcessor"
    placeholders = {
        MediaKind.AUDIO: Placeholder("<|audio_bos|><|AUDIO|><|audio_eos|>", "<|AUDIO|>"),
        MediaKind.IMAGE: Placeholder("<|vision_bos|><|IMAGE|><|vision_eos|>", "<|IMAGE|>"),
    }
    remedies = {MediaKind.IMAGE: ("max_pixels",)}
    # ``get_audio_features`` takes the columns of the mask and concatenates the clips.
    needs_full_spectrograms = False

    def __init__(self, image: PatchSettings, audio: SpectrogramSettings) -> None:
        self._image, self._audio = image, audio

    @classmethod
    def from_files(cls, files: ProcessorFiles | None, overrides: Mapping[str, Any]) -> Qwen25Omni:
        """Return the family with its settings; overrides are ``min_pixels``, ``max_pixels`` and ``sampling_rate``."""
        cls._check_known(overrides, ("min_pixels", "max_pixels", "sampling_rate"))
        published = PatchSettings(max_pixels=12_845_056)
        limits = {name: overrides[name] for name in ("min_pixels", "max_pixels") if name in overrides}
        return cls(
            patch_settings(published, {}, limits)
            if files is None
            else patch_settings(PatchSettings(), files.image, limits),
            spectrogram_settings(SpectrogramSettings(chunk_length=300), files, overrides),
        )

    @property
    def _settings(self) -> tuple[PatchSettings, SpectrogramSettings]:
        return self._image, self._audio

    def image(self, size: ImageSize) -> Expansion:
        """Return the expansion of an image of this size."""
        return expand_picture(size, self._image, self.placeholders[MediaKind.IMAGE].token)

    def audio(self, header: AudioHeader) -> Expansion:
        """Return the expansion of an audio clip of this header."""
        return expand_sound(header, self._audio, self.placeholders[MediaKind.AUDIO].token)
