"""Sounds: their numbers of samples from headers, and their waveforms."""

from __future__ import annotations

from typing import NamedTuple

from brimful.media.reference import Medium


class AudioHeader(NamedTuple):
    """Facts of a sound: samples of each channel, samples per second, channels."""

    num_frames: int
    sampling_rate: int
    channels: int


def audio_header(medium: Medium) -> AudioHeader:
    """Return samples, rate and channels of a sound."""
    raise NotImplementedError
