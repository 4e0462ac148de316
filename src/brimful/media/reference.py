"""One image, video or audio clip of a sample: a reference to its bytes, which are read when needed."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, BinaryIO

from brimful.attachment import BadAttachmentError
from brimful.checks import special_file
from brimful.fingerprint import fingerprint_stream, short_digest
from brimful.typing import Fingerprint

if TYPE_CHECKING:
    from brimful.media.container import MediaContainer

_PIECE_BYTES = 1 << 20
"""Bytes of a file that are in memory while it is fingerprinted: a video need not fit."""


class MediaKind(str, Enum):
    """Kind of a medium."""

    IMAGE = "image"
    VIDEO = "video"
    AUDIO = "audio"


class BadMediumError(BadAttachmentError):
    """A medium that cannot be used; gives the reason without its name, which the caller adds."""


@dataclass(frozen=True)
class Medium:
    """One medium of a sample: a whole file, a part of one (a member of a tar), or bytes that came with the row.

    Attributes:
        kind: image, video or audio.
        name: as the row has it, for messages and for exports; any text.
        path: absolute path of the file; empty if the bytes came with the row.
        offset: first byte in the file.
        size: bytes; None for all after ``offset``.
        data: the bytes themselves, if they came with the row.
        container: file of a pack store that holds the bytes, at ``offset``; ``path`` is its path or URL.

    >>> medium = Medium(MediaKind.IMAGE, "a.png", data=b"abc")
    >>> medium.read(), medium.num_bytes
    (b'abc', 3)
    """

    kind: MediaKind
    name: str
    path: str = ""
    offset: int = 0
    size: int | None = None
    data: bytes | None = None
    container: MediaContainer | None = field(default=None, repr=False, compare=False)

    def open(self) -> BinaryIO:
        """Return a binary file of the medium's bytes alone.

        Raises:
            BadMediumError: the file does not exist or cannot be read.
        """
        if self.data is not None:
            return io.BytesIO(self.data)
        if self.offset or self.size is not None:
            return io.BytesIO(self.read())
        self._state()
        try:
            return open(self.path, "rb")
        except OSError as error:
            raise _unreadable(error) from error

    def read(self) -> bytes:
        """Return the medium's bytes.

        Raises:
            BadMediumError: the file does not exist, cannot be read, or is shorter than it was.
        """
        if self.data is not None:
            return self.data
        if self.container is not None:
            assert self.size is not None
            return self.container.read(self.offset, self.size)
        return b"".join(self._pieces(-1))

    def _pieces(self, piece_bytes: int) -> Iterator[bytes]:
        """Yield the bytes of a file in pieces, or all at once if ``piece_bytes`` is -1."""
        self._state()
        try:
            with open(self.path, "rb") as file:
                # Checked before anything is read: the size shows whether a file was cut short.
                self._check_length(os.fstat(file.fileno()).st_size - self.offset)
                file.seek(self.offset)
                num_bytes = 0
                while self.size is None or num_bytes < self.size:
                    rest = -1 if self.size is None else self.size - num_bytes
                    piece = file.read(rest if piece_bytes < 0 else piece_bytes if rest < 0 else min(piece_bytes, rest))
                    if not piece:
                        break
                    num_bytes += len(piece)
                    yield piece
        except OSError as error:
            raise _unreadable(error) from error
        self._check_length(num_bytes)

    def _check_length(self, num_bytes: int) -> None:
        if self.size is not None and num_bytes < self.size:
            raise BadMediumError(f"has {max(0, num_bytes):,} bytes and {self.size:,} are due: the file was cut short")

    @cached_property
    def num_bytes(self) -> int:
        """Bytes of the medium; ``BadMediumError`` if the file does not exist."""
        if self.data is not None:
            return len(self.data)
        if self.size is not None:
            return self.size
        return self._state().st_size - self.offset

    def fingerprint(self) -> Fingerprint:
        """Return the fingerprint of its bytes; reads all of them, a piece at a time.

        Raises:
            BadMediumError: as for ``read``.
        """
        if self.data is not None or self.container is not None:
            return fingerprint_stream([self.read()])
        return fingerprint_stream(self._pieces(_PIECE_BYTES))

    def state(self) -> bytes:
        """Return what identifies its bytes without reading them: size and time of the file, offset and size in it.

        A copy that keeps times (``cp -p``, ``rsync -a``) has the same state. Empty for bytes that came with the row.

        Raises:
            BadMediumError: the file does not exist.
        """
        if not self.path:
            return b""
        state = self._state()
        return f"{state.st_size} {state.st_mtime_ns} {self.offset} {self.size};".encode()

    def stamp(self) -> int:
        """Return a number for the current state of its file (size, times, inode); 0 for bytes that are not in a file.

        Equal numbers mean that the file was not written in between: the number includes the time that the system sets
        at each write, not only the time of the last change, which a copying tool may set back.

        Raises:
            BadMediumError: the file does not exist.
        """
        if not self.path:
            return 0
        state = self._state()
        return short_digest(f"{state.st_size} {state.st_mtime_ns} {state.st_ctime_ns} {state.st_ino}".encode())

    def seconds_since_change(self) -> float:
        """Return the age of the current state of its file; ``BadMediumError`` if it does not exist."""
        return time.time() - self._state().st_ctime

    def _state(self) -> os.stat_result:
        """Return the state of its file, checked before opening: a pipe would block, and a device has no end."""
        try:
            state = os.stat(self.path)
        except OSError as error:
            raise _unreadable(error) from error
        kind = special_file(state.st_mode)
        if kind:
            raise BadMediumError(f"is {kind} and not a file: {self.path!r}")
        return state


def _unreadable(error: OSError) -> BadMediumError:
    # The whole path: the name in the row is often right, and the directory wrong.
    if isinstance(error, FileNotFoundError):
        return BadMediumError(f"does not exist, looked for at {str(error.filename)!r}")
    return BadMediumError(f"{error.strerror}: {str(error.filename)!r}")
