"""Videos: their numbers of frames and sizes from headers, and chosen frames."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from brimful.media.reference import BadMediumError, Medium
from brimful.optional import optional

if TYPE_CHECKING:
    from av.container import InputContainer


class VideoHeader(NamedTuple):
    """Facts of a video.

    Attributes:
        num_frames: frames that decoding gives.
        fps: frames per second, on average.
        width, height: of the frames as they are stored, in pixels: of a file that a player turns, those before it does, as
            PyAV decodes it for Transformers.
    """

    num_frames: int
    fps: float
    width: int
    height: int


def video_header(medium: Medium) -> VideoHeader:
    """Return frames, rate and size of a video, without decoding it.

    The number of frames is that of the container where its index has an entry for each, none of them to be left out when
    it is played, and all within the file: MP4, MOV and AVI that are whole. Otherwise the packets are counted, which reads
    the file: Matroska, WebM, MPEG-TS, FLV and MP4 in fragments state no number, an AVI that was cut states that of the
    whole, and an MP4 that was trimmed by an edit list has frames that no reader sees. If a packet is damaged, as the last
    one of a file that was cut, nobody knows what a decoder makes of it, and the video is decoded to be counted.

    Source: ``transformers.video_utils.read_video_pyav``, which believes the number that the container states.

    Raises:
        BadMediumError: there is no such file, it is no video, it states no size or no rate, or it was cut.
        MissingExtraError: PyAV is not installed.
    """
    with _opened(medium) as container:
        stream = container.streams.video[0]
        rate, size = stream.average_rate, (stream.codec_context.width, stream.codec_context.height)
        if not rate or not min(size) > 0:
            raise BadMediumError("states no frame rate" if not rate else f"states frames of {size[0]} x {size[1]}")
        num_frames = stream.frames
        if not _index_has_all(stream, medium.num_bytes):
            packets = _count_packets(container)
            num_frames = _count_frames(container) if packets is None else packets
        if not num_frames:
            raise BadMediumError("has no frame")
        return VideoHeader(num_frames, float(rate), *size)


def load_frames(medium: Medium, indices: Sequence[int]) -> npt.NDArray[np.uint8]:
    """Return frames as RGB: ``uint8[len(indices), height, width, 3]``, as stored, not turned.

    Args:
        medium: the video.
        indices: numbers of frames, ascending; a frame may be asked for twice.

    Raises:
        BadMediumError: as ``video_header``, and frames that are damaged or not there.
        MissingExtraError: PyAV is not installed.
    """
    return np.stack(list(iterate_frames(medium, indices)))


def iterate_frames(medium: Medium, indices: Sequence[int]) -> Iterator[npt.NDArray[np.uint8]]:
    """Yield the frames of ``load_frames`` one by one, so that only one lies in memory: ``uint8[height, width, 3]``."""
    wanted = iter(indices)
    wish = next(wanted, None)
    with _opened(medium) as container:
        # From the beginning, as Transformers: to seek and to count from there is not exact in every container.
        for number, frame in enumerate(container.decode(video=0)):
            if number != wish:
                continue
            pixels = frame.to_ndarray(format="rgb24").astype(np.uint8, copy=False)
            while wish == number:
                yield pixels
                wish = next(wanted, None)
            if wish is None:
                return
    if wish is not None:
        raise BadMediumError(f"has no frame {wish}")


@contextlib.contextmanager
def _opened(medium: Medium) -> Iterator[InputContainer]:
    """Open a video, and turn all that PyAV raises into ``BadMediumError``."""
    with optional("av", "media", "a video"):
        import av
    if not medium.num_bytes:
        raise BadMediumError("is empty")
    with medium.open() as file:
        try:
            with av.open(file, "r") as container:
                if not container.streams.video:
                    raise BadMediumError("has no video stream")
                # A codec that this build cannot decode, or a stream whose kind was never found.
                if container.streams.video[0].codec_context is None:
                    raise BadMediumError("has a video stream of unknown kind")
                yield container
        except av.FFmpegError as error:
            raise BadMediumError(f"FFmpeg cannot read it: {' '.join(str(error.strerror).split())}") from error


def _index_has_all(stream: Any, num_bytes: int) -> bool:
    """Return whether the container's index has one entry for each frame that it states, all of them to be seen."""
    entries = getattr(stream, "index_entries", None)
    if not stream.frames or entries is None or len(entries) != stream.frames:
        return False
    return not any(entry.is_discard or entry.pos + entry.size > num_bytes for entry in entries)


def _count_packets(container: InputContainer) -> int | None:
    """Return the packets of the first video stream that become frames, without decoding; None if one is damaged."""
    num_packets = 0
    for packet in container.demux(container.streams.video[0]):
        # The last packet of all is empty; it only tells the decoder to give what it holds back.
        if not packet.size or packet.is_discard:
            continue
        if packet.is_corrupt:
            return None
        num_packets += 1
    return num_packets


def _count_frames(container: InputContainer) -> int:
    """Return the frames that decoding gives."""
    container.seek(0)
    return sum(1 for _ in container.decode(video=0))
