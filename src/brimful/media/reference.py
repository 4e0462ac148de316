"""One picture, video or sound of a sample: where its bytes are, until somebody needs them."""

import io
import os
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import BinaryIO

from brimful.fingerprint import fingerprint_bytes
from brimful.typing import Fingerprint


class MediaKind(str, Enum):
    """Kind of a medium."""

    IMAGE = "image"
    VIDEO = "video"
    AUDIO = "audio"


class BadMediumError(ValueError):
    """A medium that cannot be used; says why, and does not name it: whoever knows its sample does."""


@dataclass(frozen=True)
class Medium:
    """One medium of a sample: a whole file, a part of one (a member of a tar), or bytes that came with the row.

    Attributes:
        kind: picture, video or sound.
        name: as the row has it, for messages and for exports; any text.
        path: absolute path of the file; empty if the bytes came with the row.
        offset: first byte in the file.
        size: bytes; None for all from the offset on.
        data: the bytes themselves, if they came with the row.

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

    def open(self) -> BinaryIO:
        """Return a binary file of the medium's bytes alone.

        Raises:
            BadMediumError: there is no such file, or it cannot be read.
        """
        if self.data is not None:
            return io.BytesIO(self.data)
        if self.offset or self.size is not None:
            return io.BytesIO(self.read())
        try:
            return open(self.path, "rb")
        except OSError as error:
            raise _unreadable(error) from error

    def read(self) -> bytes:
        """Return the medium's bytes.

        Raises:
            BadMediumError: there is no such file, it cannot be read, or it is shorter than it was.
        """
        if self.data is not None:
            return self.data
        try:
            with open(self.path, "rb") as file:
                file.seek(self.offset)
                content = file.read() if self.size is None else file.read(self.size)
        except OSError as error:
            raise _unreadable(error) from error
        if self.size is not None and len(content) != self.size:
            raise BadMediumError(f"has {len(content):,} bytes and {self.size:,} are due: the file was cut short")
        return content

    @cached_property
    def num_bytes(self) -> int:
        """Bytes of the medium; ``BadMediumError`` if there is no such file."""
        if self.data is not None:
            return len(self.data)
        if self.size is not None:
            return self.size
        try:
            return os.stat(self.path).st_size - self.offset
        except OSError as error:
            raise _unreadable(error) from error

    def fingerprint(self) -> Fingerprint:
        """Return the fingerprint of its bytes, which reads all of them."""
        return fingerprint_bytes(self.read())


def _unreadable(error: OSError) -> BadMediumError:
    # The whole path: a name of a row is often right, and the directory that it was looked for in is wrong.
    if isinstance(error, FileNotFoundError):
        return BadMediumError(f"there is no such file, looked for at {str(error.filename)!r}")
    return BadMediumError(f"{error.strerror}: {str(error.filename)!r}")
