"""Tar files whose bytes depend on their members alone: no dates, no owners, one format."""

import io
import tarfile
from typing import Any

_BLOCK = tarfile.BLOCKSIZE

END_OF_TAR = bytes(2 * _BLOCK)
"""Two empty blocks after the last member."""


class TarWriter:
    """Writer of one tar, member by member.

    Attributes:
        offset: bytes written so far: where the header of the next member will lie.

    >>> sink = io.BytesIO()
    >>> writer = TarWriter(sink)
    >>> writer.add("a.txt", b"abc")
    >>> writer.close()
    >>> tarfile.open(fileobj=io.BytesIO(sink.getvalue())).getnames(), writer.offset
    (['a.txt'], 2048)
    """

    def __init__(self, sink: Any) -> None:
        self._sink = sink
        self.offset = 0

    def add(self, name: str, content: bytes) -> None:
        """Append a member.

        Args:
            name: at most 100 bytes.
            content: its bytes, fewer than 8 GiB.
        """
        member = tarfile.TarInfo(name)
        member.size = len(content)
        # Date, owner and group are 0 and nameless by default: the same members give the same bytes everywhere.
        header = member.tobuf(tarfile.USTAR_FORMAT, "utf-8", "surrogateescape")
        self._sink.write(header)
        self._sink.write(content)
        padding = -len(content) % _BLOCK
        self._sink.write(bytes(padding))
        self.offset += len(header) + len(content) + padding

    def close(self) -> None:
        """Write the end mark, which readers look for."""
        self._sink.write(END_OF_TAR)
        self.offset += len(END_OF_TAR)


def npy_bytes(array: Any) -> bytes:
    """Return an array as a ``.npy`` file.

    >>> import numpy as np
    >>> npy_bytes(np.zeros(2, np.int32))[:6]
    b'\\x93NUMPY'
    """
    import numpy as np

    sink = io.BytesIO()
    np.lib.format.write_array(sink, np.ascontiguousarray(array), version=(1, 0), allow_pickle=False)
    return sink.getvalue()
