"""The rotation in the header of an MP4 or MOV, which FFmpeg tells with decoded frames only."""

import math
import struct
from collections.abc import Iterator
from io import SEEK_END
from typing import BinaryIO

_MAX_HEADER = 1 << 28
"""Bytes of a ``moov`` box, at most: that of a video of a day has a few million."""


def display_rotation(file: BinaryIO) -> int:
    """Return degrees counter-clockwise that a player turns the first video track; 0 for other containers.

    An MP4 has boxes of a length and a name; ``moov/trak/tkhd`` ends with a matrix of nine numbers, of which the first
    two are the picture's new x direction, and ``moov/trak/mdia/hdlr`` says that a track is a video.
    """
    header = _moov(file)
    for name, track in _boxes(header):
        if name != b"trak":
            continue
        inner = dict(_boxes(track))
        handler = dict(_boxes(inner.get(b"mdia", b""))).get(b"hdlr", b"")
        if handler[8:12] == b"vide":
            return _rotation(inner.get(b"tkhd", b""))
    return 0


def _moov(file: BinaryIO) -> bytes:
    """Return the content of the box that has all metadata; empty if there is none."""
    num_bytes = file.seek(0, SEEK_END)
    place = 0
    # Invariant: a box of the top level begins at ``place``. Those of pictures and sounds are passed over.
    while place + 8 <= num_bytes:
        file.seek(place)
        length, name = struct.unpack(">I4s", file.read(8))
        start = place + 8
        if length == 1:
            length = int.from_bytes(file.read(8), "big")
            start += 8
        elif length == 0:
            length = num_bytes - place
        if name == b"moov":
            return file.read(min(place + length - start, _MAX_HEADER))
        # The first box of any other container is no box: its name is no word.
        if length < 8 or (place == 0 and name not in (b"ftyp", b"mdat", b"wide", b"free", b"skip", b"pnot")):
            break
        place += length
    return b""


def _boxes(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield name and content of each box inside of another."""
    place = 0
    while place + 8 <= len(data):
        length, name = struct.unpack_from(">I4s", data, place)
        if length < 8:
            return
        yield name, data[place + 8 : place + length]
        place += length


def _rotation(track_header: bytes) -> int:
    """Return the degrees of the matrix of a ``tkhd`` box, whose first byte is its version."""
    place = 52 if track_header[:1] == b"\1" else 40
    if len(track_header) < place + 36:
        return 0
    # Fixed point, 16 bits behind the point; the sign is FFmpeg's: counter-clockwise is positive.
    a, b, _, c, d = struct.unpack_from(">5i", track_header, place)
    scale_x, scale_y = math.hypot(a, c), math.hypot(b, d)
    if not scale_x or not scale_y:
        return 0
    return round(-math.degrees(math.atan2(b / scale_y, a / scale_x)))
