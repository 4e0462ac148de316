"""Videos: frame counts and sizes from headers, and chosen frames."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from brimful.base.optional import optional
from brimful.media.medium import BadMediumError, Medium

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.packet import Packet

_MAX_LEADING = 16
"""Most frames that a decoder of H.264 or HEVC holds, so that packets stored after a key frame and
shown before it are among as many packets after it.
"""

_COMPLETE: dict[str, tuple[int, Sequence[int]]] = {"h264": (31, (5,)), "hevc": (126, range(32, 44))}
"""For the first byte of a unit of a packet: bits of its kind, and kinds of pictures from which any
decoder can begin (H.264, table 7-1; H.265, table 7-1).
"""


class VideoHeader(NamedTuple):
    """Header of a video.

    Attributes:
        num_frames: frames that decoding gives.
        fps: frames per second, on average.
        width, height: of the stored frames, in pixels, before any rotation by a player, as
            PyAV decodes them for Transformers.
    """

    num_frames: int
    fps: float
    width: int
    height: int


def video_header(medium: Medium) -> VideoHeader:
    """Return the frames, rate and size of a video, without decoding it.

    The container's number of frames is used if its index has an entry for each, none is discarded
    in playback, and all lie within the file: complete MP4, MOV and AVI files. Otherwise the packets
    are counted, which reads the file: Matroska, WebM, MPEG-TS, FLV and fragmented MP4 state no
    number, a cut AVI states the number of the whole file, and an MP4 trimmed by an edit list has
    frames that no reader sees. A video is decoded to count its frames if a packet is damaged, such
    as the last one of a file that was cut, or if its first packets need frames that are not there:
    a recording or a segment that begins within a group of pictures.

    Source: ``transformers.video_utils.read_video_pyav``, which trusts the number that the container
    states.

    Raises:
        BadMediumError: the file does not exist, is not a video, states no size or rate, or was cut.
        MissingExtraError: PyAV is not installed.
    """
    with _opened(medium) as container:
        stream = container.streams.video[0]
        rate, size = stream.average_rate, (stream.codec_context.width, stream.codec_context.height)
        if not rate or not min(size) > 0:
            raise BadMediumError(
                "states no frame rate" if not rate else f"states frames of {size[0]} x {size[1]}"
            )
        packets = container.demux(stream)
        first = list(itertools.islice(packets, _MAX_LEADING + 1))
        num_frames: int | None = None
        if _become_frames(stream, first):
            num_frames = (
                stream.frames
                if _index_has_all(stream, medium.num_bytes)
                else _count_packets(itertools.chain(first, packets))
            )
    if num_frames is None:
        with _opened(medium) as container:
            num_frames = sum(1 for _ in container.decode(video=0))
    if not num_frames:
        raise BadMediumError("has no frame")
    return VideoHeader(num_frames, float(rate), *size)


def load_frames(medium: Medium, indices: Sequence[int]) -> npt.NDArray[np.uint8]:
    """Return frames as RGB: ``uint8[len(indices), height, width, 3]``, as stored, not rotated.

    Args:
        medium: the video.
        indices: numbers of frames, ascending; a frame may occur twice.

    Raises:
        BadMediumError: as ``video_header``, or a frame is damaged or missing.
        MissingExtraError: PyAV is not installed.
    """
    return np.stack(list(iterate_frames(medium, indices)))


def iterate_frames(medium: Medium, indices: Sequence[int]) -> Iterator[npt.NDArray[np.uint8]]:
    """Yield the frames of ``load_frames`` one by one, so that only one is in memory:
    ``uint8[height, width, 3]``.
    """
    wanted = iter(indices)
    wish = next(wanted, None)
    with _opened(medium) as container:
        # From the beginning, as in Transformers: seeking is not exact in every container.
        for index, frame in enumerate(container.decode(video=0)):
            if index != wish:
                continue
            pixels = frame.to_ndarray(format="rgb24").astype(np.uint8, copy=False)
            while wish == index:
                yield pixels
                wish = next(wanted, None)
            if wish is None:
                return
    if wish is not None:
        raise BadMediumError(f"has no frame {wish}")


@contextlib.contextmanager
def _opened(medium: Medium) -> Iterator[InputContainer]:
    """Open a video, and turn every error of PyAV into ``BadMediumError``."""
    with optional("av", "media", "a video"):
        import av
    if not medium.num_bytes:
        raise BadMediumError("is empty")
    with medium.open() as file:
        try:
            with av.open(file, "r") as container:
                if not container.streams.video:
                    raise BadMediumError("has no video stream")
                # A codec that this build cannot decode, or a stream of unknown kind.
                if container.streams.video[0].codec_context is None:
                    raise BadMediumError("has a video stream of unknown kind")
                yield container
        except av.FFmpegError as error:
            raise BadMediumError(
                f"FFmpeg cannot read it: {' '.join(str(error.strerror).split())}"
            ) from error


def _index_has_all(stream: Any, num_bytes: int) -> bool:
    """Return whether the container's index has one entry for each stated frame, all of them
    visible.
    """
    entries = getattr(stream, "index_entries", None)
    if not stream.frames or entries is None or len(entries) != stream.frames:
        return False
    return not any(entry.is_discard or entry.pos + entry.size > num_bytes for entry in entries)


def _become_frames(stream: Any, first: Sequence[Packet[Any]]) -> bool:
    """Return whether the first packets of a video become frames without any packet before them: the
    key frame, and packets that are stored after it and shown before it, which may need the group of
    pictures before.
    """
    key, *others = first
    if not key.is_keyframe:
        return False
    # Any of them may be shown before the key frame if no times are stored, as in AVI. What an edit
    # list leaves out is marked as a key frame, even if it is not one.
    leading = [
        packet
        for packet in others
        if packet.size and (key.is_discard or packet.pts is None or packet.pts < (key.pts or 0))
    ]
    if not leading and _is_complete(bytes(key), stream.codec.name):
        return True
    num_frames = sum(len(packet.decode()) for packet in [key, *leading]) + len(stream.decode(None))
    return num_frames == sum(not packet.is_discard for packet in [key, *leading])


def _is_complete(packet: bytes, codec: str) -> bool:
    """Return whether a packet of an MP4 has a picture from which any decoder can begin: an IDR
    picture of H.264, a random access picture of HEVC.

    A key frame of H.264 that is none may be complete only after a refresh of many frames, and a
    container may mark a packet that is not a key frame at all.
    """
    mask, unit_types = _COMPLETE.get(codec, (0, ()))
    offset = 0
    while offset + 4 < len(packet):
        if packet[offset + 4] & mask in unit_types:
            return True
        offset += 4 + int.from_bytes(packet[offset : offset + 4], "big")
    return False


def _count_packets(packets: Iterable[Packet[Any]]) -> int | None:
    """Return the packets that become frames, without decoding; None if one is damaged."""
    num_packets = 0
    for packet in packets:
        # The last packet is empty; it only tells the decoder to flush.
        if not packet.size or packet.is_discard:
            continue
        if packet.is_corrupt:
            return None
        num_packets += 1
    return num_packets
