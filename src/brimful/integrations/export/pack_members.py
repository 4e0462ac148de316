"""Tars of packs: two arrays, JSON of segments and media, and one member for each medium."""

import io
import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from brimful.integrations.export.export_layout import Shard, ShardOutcome
from brimful.integrations.export.medium_bytes import place_as_json, read_medium, suffix_of
from brimful.integrations.export.tar import shard_name, write_tar
from brimful.store.shards import Pack


def write_pack_tar(shard: Shard, *, kinds_as_endings: bool) -> ShardOutcome:
    """Write a tar of packs as they are.

    Args:
        shard: to write.
        kinds_as_endings: media end in ``.image``, which no reader decodes; else as their files do,
            without an index.
    """
    samples = ((shard.plan.key(index), _members(pack, index, kinds_as_endings)) for index, pack in shard)
    name = shard_name(shard.number)
    return shard.outcome(write_tar(samples, name, shard.store, with_index=kinds_as_endings))


def _members(pack: Pack, index: int, kinds_as_endings: bool) -> Iterator[tuple[str, bytes]]:
    """Yield ending and content of each member of a pack.

    ===================  =======================================================================
    ``input_ids.npy``    ``int32[T]``
    ``loss_mask.npy``    ``uint8[T]``, 1 where the token is a target
    ``json``             ``cu_lengths``, ``sample_ids``, ``starts``, and ``media``: places of media
    ``000.…``            bytes of the first medium; equal bytes are one member
    ===================  =======================================================================

    Raises:
        StoreError: a medium cannot be read.
    """
    parts: dict[bytes, str] = {}
    media = []
    for item in pack.media:
        content = read_medium(pack, index, item)
        kind = item.medium.kind.value
        ending = kind if kinds_as_endings else suffix_of(item.medium.name, kind)
        part = parts.setdefault(content, f"{len(parts):03d}.{ending}")
        media.append(place_as_json(item, part))
    facts = {
        "cu_lengths": pack.cu_seqlens.tolist(),
        "sample_ids": pack.sample_ids.tolist(),
        "starts": pack.starts.tolist(),
        "media": media,
    }
    # Names of media may hold invalid Unicode: ASCII JSON keeps every character.
    yield "json", json.dumps(facts, ensure_ascii=True, separators=(",", ":")).encode()
    yield "input_ids.npy", _npy_bytes(pack.input_ids.astype(np.int32, copy=False))
    yield "loss_mask.npy", _npy_bytes(pack.loss_mask.astype(np.uint8))
    yield from ((part, content) for content, part in parts.items())


def _npy_bytes(array: Any) -> bytes:
    """Return an array as a ``.npy`` file.

    >>> _npy_bytes(np.zeros(2, np.int32))[:6]
    b'\\x93NUMPY'
    """
    sink = io.BytesIO()
    np.lib.format.write_array(sink, np.ascontiguousarray(array), (1, 0), allow_pickle=False)
    return sink.getvalue()
