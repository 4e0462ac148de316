"""Tars that others wrote, read within bounds."""

import contextlib
import tarfile
from collections.abc import Iterator
from typing import IO, Any

_MAX_EXTENDED = 1 << 16
"""Maximum bytes of an extended header, such as a long name: ``tarfile`` reads one at once, and older
versions of it search one in the square of its bytes.
"""


_EXTENDED = b"LKxgX"
"""Types of extended headers, of GNU and of POSIX."""


class _Header(tarfile.TarInfo):
    @classmethod
    def fromtarfile(cls, tar: tarfile.TarFile) -> Any:
        member = super().fromtarfile(tar)
        # It would replace the size of each member, and not the place of the next one.
        if "size" in tar.pax_headers:
            raise tarfile.ReadError("its global header states one size for all members")
        return member

    def _block(self, count: int) -> int:
        # A negative size leads back to a header that was read before, without end.
        if count < 0 or (count > _MAX_EXTENDED and self.type in _EXTENDED):
            raise tarfile.ReadError(f"its header states {count:,} bytes")
        return -(-count // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE

    def _proc_gnusparse_10(self, member: tarfile.TarInfo, *_: object) -> None:
        # The map of a sparse member is not read: such members are refused.
        member.sparse = b""


@contextlib.contextmanager
def open_tar(file: IO[bytes]) -> Iterator[tarfile.TarFile]:
    """Open an uncompressed tar; every fault of its headers is a ``tarfile.TarError``, whatever sizes
    they state.
    """
    try:
        with tarfile.open(fileobj=file, mode="r:", tarinfo=_Header) as tar:
            yield tar
    # Numbers of extended headers, headers that are cut, and chains of them.
    except (ValueError, LookupError, RecursionError) as error:
        raise tarfile.ReadError(f"its headers are damaged: {error}") from error
