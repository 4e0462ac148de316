"""Qwen2-Audio and Qwen2.5-Omni: a token for every four columns of a spectrogram of 10 ms each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from brimful.media.audio import AudioHeader, num_samples_after_resampling
from brimful.media.families.family import (
    Expansion,
    Family,
    Piece,
    ProcessorFiles,
    check_positive,
)
from brimful.media.families.qwen_vl import PatchSettings, expand_image, patch_settings
from brimful.media.images import ImageSize
from brimful.media.medium import MediaKind


@dataclass(frozen=True)
class SpectrogramSettings:
    """Settings of the spectrogram of an audio clip, as in ``WhisperFeatureExtractor``.

    Attributes:
        sampling_rate: samples per second.
        hop_length: samples from one column to the next.
        chunk_length: maximum seconds: the rest is cut off.
    """

    kind: ClassVar[str] = "audio"

    sampling_rate: int = 16_000
    hop_length: int = 160
    chunk_length: int = 30

    def __post_init__(self) -> None:
        check_positive(self, "sampling_rate", "hop_length", "chunk_length")

    def num_columns(self, header: AudioHeader) -> int:
        """Return the columns of a clip's spectrogram, without padding.

        >>> SpectrogramSettings().num_columns(AudioHeader(16_001, 16_000, 1))
        101
        """
        longest = self.chunk_length * self.sampling_rate
        num_samples = min(num_samples_after_resampling(header, self.sampling_rate), longest)
        # A column begins at each hop; the one after the last whole hop of the longest clip is not
        # made.
        return min(-(-num_samples // self.hop_length), longest // self.hop_length)


def sound_tokens(num_columns: int) -> int:
    """Return the tokens of a spectrogram of this many columns."""
    return ((num_columns - 1) // 2 + 1 - 2) // 2 + 1


class Qwen2Audio(Family):
    """Qwen2-Audio: audio only."""

    name = "qwen2-audio"
    processor_class = "Qwen2AudioProcessor"
    placeholders = {MediaKind.AUDIO: "<|AUDIO|>"}

    known_overrides: ClassVar[tuple[str, ...]] = ("sampling_rate",)
    published_audio: ClassVar[SpectrogramSettings] = SpectrogramSettings()
    """Settings of the published model, for a family without a processor's files."""

    _audio: SpectrogramSettings

    @classmethod
    def audio_settings(
        cls, files: ProcessorFiles | None, overrides: Mapping[str, Any]
    ) -> SpectrogramSettings:
        """Return the settings of a processor's file, or the published ones without files; overrides
        replace both.
        """
        defaults = cls.published_audio if files is None else SpectrogramSettings()
        values = {**({} if files is None else files.audio), **overrides}
        names = ("sampling_rate", "hop_length", "chunk_length")
        return replace(defaults, **{name: values[name] for name in names if name in values})

    @classmethod
    def from_files(cls, files: ProcessorFiles | None, overrides: Mapping[str, Any]) -> Family:
        """Return the family with its settings."""
        return cls(cls.audio_settings(files, overrides))

    def audio(self, header: AudioHeader) -> Expansion:
        """Return the expansion of an audio clip of this header: two layers of the encoder each keep
        every other column.

        >>> from brimful.media.families import open_family
        >>> expansion = open_family("qwen2-audio").audio(AudioHeader(44_100, 44_100, 2))
        >>> expansion.num_mel_frames, expansion.num_tokens
        (100, 25)
        """
        num_columns = self._audio.num_columns(header)
        num_tokens = sound_tokens(num_columns)
        token = self.placeholders[MediaKind.AUDIO]
        return Expansion((Piece(token, num_tokens),), num_tokens, num_mel_frames=num_columns)


class Qwen25Omni(Qwen2Audio):
    """Qwen2.5-Omni: audio and images. Videos, whose audio is interleaved with their frames, are not
    measured yet.
    """

    name = "qwen2.5-omni"
    processor_class = "Qwen2_5OmniProcessor"
    placeholders = {
        MediaKind.AUDIO: "<|AUDIO|>",
        MediaKind.IMAGE: "<|IMAGE|>",
    }
    remedies = {MediaKind.IMAGE: ("max_pixels",)}
    # ``get_audio_features`` takes the columns of the mask and concatenates the clips.
    needs_full_spectrograms = False

    known_overrides = ("min_pixels", "max_pixels", "sampling_rate")
    published_audio = SpectrogramSettings(chunk_length=300)
    _image: PatchSettings

    @classmethod
    def from_files(cls, files: ProcessorFiles | None, overrides: Mapping[str, Any]) -> Family:
        """Return the family with its settings."""
        limits = {name: overrides.get(name) for name in ("min_pixels", "max_pixels")}
        defaults = PatchSettings(max_pixels=12_845_056) if files is None else PatchSettings()
        image = patch_settings(defaults, {} if files is None else files.image, limits)
        return cls(image, cls.audio_settings(files, overrides))

    def image(self, size: ImageSize) -> Expansion:
        """Return the expansion of an image of this size."""
        return expand_image(size, self._image, self.placeholders[MediaKind.IMAGE])
