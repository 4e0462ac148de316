"""Members of a pack in a tar: two arrays, JSON of segments and media, and one member for each medium."""

import json
from collections.abc import Callable, Iterator

import numpy as np

from brimful.export.medium_bytes import place_as_json, read_medium
from brimful.export.tar import npy_bytes
from brimful.media import PlacedMedium
from brimful.shards import Pack


def members_of(pack: Pack, index: int, ending: Callable[[PlacedMedium], str]) -> Iterator[tuple[str, bytes]]:
    """Yield ending and content of each member of a pack.

    ===================  =======================================================================
    ``input_ids.npy``    ``int32[T]``
    ``loss_mask.npy``    ``uint8[T]``, 1 where the token is a target
    ``json``             ``cu_lengths``, ``sample_ids``, ``starts``, and ``media``: places of media
    ``000.…``            bytes of the first medium; equal bytes are one member
    ===================  =======================================================================

    Args:
        pack: to write.
        index: of the pack, for messages.
        ending: of a medium's member.

    Raises:
        StoreError: a medium cannot be read.
    """
    parts: dict[bytes, str] = {}
    media = []
    for item in pack.media:
        content = read_medium(pack, index, item)
        part = parts.setdefault(content, f"{len(parts):03d}.{ending(item)}")
        media.append(place_as_json(item, part))
    facts = {
        "cu_lengths": pack.cu_seqlens.tolist(),
        "sample_ids": pack.sample_ids.tolist(),
        "starts": pack.starts.tolist(),
        "media": media,
    }
    # Names of media may hold invalid Unicode: ASCII JSON keeps every character.
    yield "json", json.dumps(facts, ensure_ascii=True, separators=(",", ":")).encode()
    yield "input_ids.npy", npy_bytes(pack.input_ids.astype(np.int32, copy=False))
    yield "loss_mask.npy", npy_bytes(pack.loss_mask.astype(np.uint8))
    yield from ((part, content) for content, part in parts.items())
