"""Shards as tars of samples with keys, each with an index of the offsets of its samples."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack

import numpy as np

from brimful.blobs import BlobStore
from brimful.export.tar import TarWriter


def shard_name(shard: int, prefix: str = "packs") -> str:
    """Return the name of a tar.

    >>> shard_name(3)
    'packs-000003.tar'
    """
    return f"{prefix}-{shard:06d}.tar"


def write_tar(
    samples: Iterable[tuple[str, Iterator[tuple[str, bytes]]]], name: str, store: BlobStore, *, with_index: bool
) -> dict[str, int]:
    """Write one tar, and its index; return the size of each file.

    Args:
        samples: key of each sample, with ending and content of its members.
        name: of the tar.
        store: the directory.
        with_index: write ``….tar.idx`` too: where each sample begins, and the end, as ``uint64[samples + 1]``.
    """
    offsets = []
    files = {}
    with ExitStack() as stack:
        blob = stack.enter_context(store.blob(name))
        writer = TarWriter(blob)
        for key, members in samples:
            offsets.append(writer.offset)
            for ending, content in members:
                writer.add(f"{key}.{ending}", content)
        offsets.append(writer.offset)
        writer.close()
        # The index first: no reader could load a tar without one.
        if with_index:
            index = np.array(offsets, dtype="<u8").tobytes()
            store.put_atomic(f"{name}.idx", index)
            files[f"{name}.idx"] = len(index)
        blob.publish(name)
        files[name] = blob.size
    return files
