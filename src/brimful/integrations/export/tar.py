"""Tars of samples with keys, whose bytes depend on their members alone: no dates, no owners."""

import tarfile
from collections.abc import Iterable, Iterator

import numpy as np

from brimful.base.blobs import BlobStore
from brimful.integrations.export.export_layout import write_blob

END_OF_TAR = bytes(2 * tarfile.BLOCKSIZE)
"""Two empty blocks after the last member."""


def shard_name(shard: int, prefix: str = "packs") -> str:
    """Return the name of a tar.

    >>> shard_name(3)
    'packs-000003.tar'
    """
    return f"{prefix}-{shard:06d}.tar"


def write_tar(
    samples: Iterable[tuple[str, Iterable[tuple[str, bytes]]]],
    name: str,
    store: BlobStore,
    *,
    with_index: bool,
) -> dict[str, int]:
    """Write one tar, and its index; return the size of each file.

    Args:
        samples: key of each sample, with ending and content of its members. A name of a member
            has at most 100 bytes, and its content fewer than 8 GiB.
        name: of the tar.
        store: the directory.
        with_index: write ``….tar.idx`` too: where each sample begins, and the end, as
            ``uint64[samples + 1]``.
    """
    files = {}

    def blocks() -> Iterator[bytes]:
        offsets = [0]
        for key, members in samples:
            offset = offsets[-1]
            for ending, content in members:
                # Date, owner and group are 0 and nameless by default, so equal members give equal bytes.
                member = tarfile.TarInfo(f"{key}.{ending}")
                member.size = len(content)
                header = member.tobuf(tarfile.USTAR_FORMAT, "utf-8", "surrogateescape")
                padding = bytes(-len(content) % tarfile.BLOCKSIZE)
                yield from (header, content, padding)
                offset += len(header) + len(content) + len(padding)
            offsets.append(offset)
        yield END_OF_TAR
        # Before the tar is published: no reader could load a tar without its index.
        if with_index:
            index = np.array(offsets, dtype="<u8").tobytes()
            store.put_atomic(f"{name}.idx", index)
            files[f"{name}.idx"] = len(index)

    size = write_blob(store, name, blocks())
    return {**files, name: size}
