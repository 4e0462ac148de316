"""Audio: sample counts from headers, and waveforms."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from brimful.base.optional import optional
from brimful.base.typing import Float32Array
from brimful.media.medium import BadMediumError, Medium

if TYPE_CHECKING:
    from soundfile import SoundFile

_BLOCK = 1 << 20
"""Samples of each channel that are decoded at a time to be counted."""

_LOWEST_RATE, _HIGHEST_RATE = 200, 10_000_000
"""Samples a second of sound: fewer are resampled to a multiple of their bytes."""


class AudioHeader(NamedTuple):
    """Header of an audio clip: samples of each channel, samples per second, channels."""

    num_frames: int
    sampling_rate: int
    channels: int


def audio_header(medium: Medium) -> AudioHeader:
    """Return the samples, rate and channels that decoding would give, without decoding.

    ``libsndfile`` counts the samples of most formats from the file's contents, but trusts the
    header of an MP3 or a FLAC, and estimates an MP3 without one from its first frames. So the last
    promised sample is read; an MP3 is scanned frame by frame for it. If it is missing, the file was
    cut or its header is wrong, and the clip is decoded to count its samples, which fails for a
    FLAC. If the header promises too few, decoding stops there too, and so does the count.

    Raises:
        BadMediumError: the file does not exist, is not audio, is damaged, or states a rate below
            200 or above 10 million samples a second: a second of it may become hours.
        MissingExtraError: soundfile is not installed.
    """
    with _opened(medium) as sound:
        if not _LOWEST_RATE <= sound.samplerate <= _HIGHEST_RATE:
            raise BadMediumError(f"states {sound.samplerate:,} samples a second")
        num_frames = sound.frames
        # The samples of an Ogg are counted already, and finding the last one costs ten times as
        # much as opening the file.
        if num_frames and sound.format != "OGG" and not _has_last_frame(sound):
            num_frames = _count_frames(sound)
        return AudioHeader(num_frames, sound.samplerate, sound.channels)


def num_samples_after_resampling(header: AudioHeader, sampling_rate: int) -> int:
    """Return the number of samples that ``load_audio`` gives at a rate.

    >>> num_samples_after_resampling(AudioHeader(44_101, 44_100, 2), 16_000)
    16001
    """
    if header.sampling_rate == sampling_rate:
        return header.num_frames
    # In floats, in this order, as ``transformers.audio_utils``.
    return math.ceil(header.num_frames * sampling_rate / header.sampling_rate)


def load_audio(medium: Medium, sampling_rate: int) -> Float32Array:
    """Return the waveform: the mean of all channels at a rate, as float32 of ``[num_samples]``.

    Source: ``transformers.audio_utils.load_audio(backend="soundfile")``, bit by bit.

    Raises:
        BadMediumError: as ``audio_header``.
        MissingExtraError: soundfile is not installed, or soxr if the rate differs.
    """
    header = audio_header(medium)
    with _opened(medium) as sound:
        # The counted number: a header may promise terabytes.
        channels = sound.read(header.num_frames, dtype="float32", always_2d=True).T
    waveform = channels.mean(axis=0) if len(channels) > 1 else channels[0]
    if header.sampling_rate != sampling_rate:
        with optional("soxr", "media", f"an audio clip at {sampling_rate} samples a second"):
            import soxr
        num_samples = num_samples_after_resampling(header, sampling_rate)
        waveform = soxr.resample(waveform, header.sampling_rate, sampling_rate, quality="soxr_hq")
        # soxr rounds to the nearest number of samples, and librosa rounds up: add one zero, or drop
        # one sample.
        waveform = np.pad(waveform, (0, max(0, num_samples - len(waveform))))[:num_samples]
    return np.ascontiguousarray(waveform, dtype=np.float32)


@contextlib.contextmanager
def _opened(medium: Medium) -> Iterator[SoundFile]:
    """Open an audio clip, and turn every error of soundfile into ``BadMediumError``."""
    with optional("soundfile", "media", "an audio clip"):
        import soundfile
    if not medium.num_bytes:
        raise BadMediumError("is empty")
    is_file = medium.data is None and medium.size is None and not medium.offset
    # A whole file is read by libsndfile itself, which is several times as fast as through a Python
    # file.
    with contextlib.nullcontext(medium.path) if is_file else medium.open() as file:
        try:
            with soundfile.SoundFile(file) as sound:
                yield sound
        except (
            soundfile.SoundFileError,
            TypeError,
        ) as error:  # TypeError: raw samples without a rate
            # In one line, without the name of a buffer in memory.
            reason = " ".join(str(getattr(error, "error_string", error)).split())
            raise BadMediumError(
                f"libsndfile cannot read it: {reason or 'it is damaged'}"
            ) from error


def _has_last_frame(sound: SoundFile) -> bool:
    """Return whether the last sample that the header promises exists; afterwards the clip is at its
    beginning.
    """
    import soundfile

    try:
        sound.seek(sound.frames - 1)
        is_there = len(sound.read(1, dtype="float32", always_2d=True)) == 1
        sound.seek(0)
    except soundfile.SoundFileError:
        return False
    return is_there


def _count_frames(sound: SoundFile) -> int:
    """Return the samples of each channel that decoding gives, up to the number that the header
    promises.
    """
    import soundfile

    # Opened again: after a failed seek the decoder may not find the beginning again.
    file = sound.name
    if not isinstance(file, str):
        file.seek(0)
    with soundfile.SoundFile(file) as sound_again:
        # Not through ``SoundFile.read``, which asks for the promised number at once: a header may
        # promise terabytes.
        num_frames = 0
        while num_frames < sound_again.frames:
            block = sound_again.read(
                min(_BLOCK, sound_again.frames - num_frames), dtype="float32", always_2d=True
            )
            if not len(block):
                break
            num_frames += len(block)
        return num_frames
