"""One pack with its boundaries and its text."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from brimful.shards import Pack
from brimful.typing import LossMask, TokenIds

__all__ = ["pack_as_dict", "show_pack"]

_HEAD, _TAIL = 48, 24
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Characters that a terminal obeys; data must not."""


def show_pack(
    pack: Pack, index: int, capacity: int, decode: Callable[[TokenIds], str] | None, full: bool = False
) -> list[str]:
    """The segments of a pack; targets of the loss stand between ⟦ and ⟧.

    Args:
        pack: to show.
        index: its number, for the heading.
        capacity: of the plan.
        decode: tokens to text; None shows the boundaries alone.
        full: whole texts instead of their beginnings and ends.
    """
    share = 100 * len(pack) / capacity
    lines = [
        f"pack {index}: {len(pack):,} of {capacity:,} tokens ({share:.1f} %), {pack.num_segments} segments, "
        f"{pack.num_loss_tokens:,} loss tokens"
    ]
    for number in range(pack.num_segments):
        begin, end = int(pack.cu_seqlens[number]), int(pack.cu_seqlens[number + 1])
        start = int(pack.starts[number])
        cut = f" from its token {start:,}" if start else ""
        loss = int(np.count_nonzero(pack.loss_mask[begin:end]))
        lines.append(
            f"── tokens {begin:,} … {end - 1:,} · sample {pack.sample_ids[number]}{cut} · {end - begin:,} tokens, "
            f"{loss:,} loss"
        )
        if decode is not None:
            lines.append(_text(pack.input_ids[begin:end], pack.loss_mask[begin:end], decode, full))
    return lines


def pack_as_dict(pack: Pack, index: int, capacity: int, decode: Callable[[TokenIds], str] | None) -> dict[str, Any]:
    """The same for machines: each segment with its place, its sample, and its text where there is a tokenizer."""
    segments = []
    for number in range(pack.num_segments):
        begin, end = int(pack.cu_seqlens[number]), int(pack.cu_seqlens[number + 1])
        segments.append(
            {
                "sample_id": int(pack.sample_ids[number]),
                "first": begin,
                "start": int(pack.starts[number]),
                "tokens": end - begin,
                "loss_tokens": int(np.count_nonzero(pack.loss_mask[begin:end])),
                **({} if decode is None else {"text": decode(pack.input_ids[begin:end])}),
            }
        )
    return {"kind": "pack", "pack": index, "tokens": len(pack), "capacity": capacity, "segments": segments}


def _text(ids: TokenIds, mask: LossMask, decode: Callable[[TokenIds], str], full: bool) -> str:
    if full or len(ids) <= _HEAD + _TAIL:
        return _marked(ids, mask, decode)
    middle = len(ids) - _HEAD - _TAIL
    head, tail = _marked(ids[:_HEAD], mask[:_HEAD], decode), _marked(ids[-_TAIL:], mask[-_TAIL:], decode)
    return f"{head}\n   … {middle:,} tokens …\n{tail}"


def _marked(ids: TokenIds, mask: LossMask, decode: Callable[[TokenIds], str]) -> str:
    edges = [0, *(np.flatnonzero(mask[1:] != mask[:-1]) + 1).tolist(), len(ids)]
    pieces = []
    for begin, end in pairwise(edges):
        text = _CONTROLS.sub(lambda match: match.group().encode("unicode_escape").decode(), decode(ids[begin:end]))
        pieces.append(f"⟦{text}⟧" if mask[begin] else text)
    return "".join(pieces)
