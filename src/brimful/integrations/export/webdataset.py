"""WebDataset: tars with one sample a pack, for ``webdataset`` and other readers of its tars."""

import io
import json
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from brimful.base.blobs import BlobStore
from brimful.integrations.export.export_layout import (
    Layout,
    ReadPack,
    Shard,
    ShardOutcome,
    location_as_json,
    read_medium,
    suffix_of,
    tree_as_lists,
    write_blob,
)
from brimful.store.shards import Pack
from brimful.trees.pack_tree import SHARD_COLUMNS


class WebDatasetLayout(Layout):
    """Tars of packs; media end as their files do, so that ``decode("pil")`` recognizes them."""

    name = "webdataset"
    takes_media = True
    takes_trees = True
    reader = ("webdataset", "webdataset")

    def write_shard(self, shard: Shard) -> ShardOutcome:
        return write_pack_tar(shard, kinds_as_endings=False)

    def advice(self, directory: str) -> str:
        return (
            f"webdataset.WebDataset(sorted(glob({directory + '/packs-*.tar'!r})), "
            "shardshuffle=False)"
        )

    def read(self, directory: str, num_shards: int) -> Iterator[ReadPack]:
        from webdataset.autodecode import npy_loads

        for sample in read_tars(directory, num_shards):
            facts = json.loads(sample["json"])
            yield ReadPack(
                input_ids=npy_loads(sample["input_ids.npy"]).tolist(),
                loss_mask=npy_loads(sample["loss_mask.npy"]).astype(bool).tolist(),
                cu_seqlens=facts["cu_lengths"],
                sample_ids=facts["sample_ids"],
                starts=facts["starts"],
                **{name: facts.get(name) for name in SHARD_COLUMNS},
                media=[sample[item["part"]] for item in facts["media"]],
            )


def read_tars(directory: str, num_tars: int) -> Iterator[dict[str, Any]]:
    """Return the samples of the tars of an export, in order, as ``webdataset`` reads them."""
    import webdataset

    tars = [str(Path(directory) / shard_name(index)) for index in range(num_tars)]
    return iter(webdataset.WebDataset(tars, shardshuffle=False))


def write_pack_tar(shard: Shard, *, kinds_as_endings: bool) -> ShardOutcome:
    """Write a tar of packs as they are.

    Args:
        shard: to write.
        kinds_as_endings: media end in ``.image``, which no reader decodes; else as their files do,
            without an index.
    """
    samples = (
        (shard.plan.key(index), _members(pack, index, kinds_as_endings)) for index, pack in shard
    )
    name = shard_name(shard.index)
    return shard.outcome(write_tar(samples, name, shard.store, with_index=kinds_as_endings))


def _members(pack: Pack, index: int, modalities_as_endings: bool) -> Iterator[tuple[str, bytes]]:
    """Yield ending and content of each member of a pack.

    ===================  =======================================================================
    ``input_ids.npy``    ``int32[T]``
    ``loss_mask.npy``    ``uint8[T]``, 1 where the token is a target
    ``json``             ``cu_lengths``, ``sample_ids``, ``starts``, and ``media``: places of media;
                         of trees also ``parents``, ``spans``, ``span_sizes``
    ``000.…``            bytes of the first medium; equal bytes are one member
    ===================  =======================================================================

    Raises:
        StoreError: a medium cannot be read.
    """
    members: dict[bytes, str] = {}
    media = []
    for item in pack.attachments:
        content = read_medium(pack, index, item)
        modality = item.medium.kind.value
        ending = modality if modalities_as_endings else suffix_of(item.medium.name, modality)
        member = members.setdefault(content, f"{len(members):03d}.{ending}")
        media.append(location_as_json(item, member))
    facts = {
        "cu_lengths": pack.cu_seqlens.tolist(),
        "sample_ids": pack.sample_ids.tolist(),
        "starts": pack.starts.tolist(),
        **tree_as_lists(pack),
        "media": media,
    }
    # Names of media may hold invalid Unicode: ASCII JSON keeps every character.
    yield "json", json.dumps(facts, ensure_ascii=True, separators=(",", ":")).encode()
    yield "input_ids.npy", _npy_bytes(pack.input_ids.astype(np.int32, copy=False))
    yield "loss_mask.npy", _npy_bytes(pack.loss_mask.astype(np.uint8))
    yield from ((member, content) for content, member in members.items())


def _npy_bytes(array: Any) -> bytes:
    """Return an array as a ``.npy`` file.

    >>> _npy_bytes(np.zeros(2, np.int32))[:8]
    b'\\x93NUMPY\\x01\\x00'
    """
    sink = io.BytesIO()
    np.lib.format.write_array(sink, np.ascontiguousarray(array), (1, 0), allow_pickle=False)
    return sink.getvalue()


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
                # Date, owner and group are 0 and nameless by default, so equal members give equal
                # bytes.
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
