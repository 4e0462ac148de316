"""One pack with its boundaries and its text."""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from brimful.report.analysis.media_facts import MediumFacts
from brimful.report.analysis.shown_packs import without_controls
from brimful.shards import Pack
from brimful.typing import LossMask, TokenIds

_HEAD, _TAIL = 48, 24
"""Tokens that are shown of a long segment, at its beginning and at its end."""


def show_pack(
    pack: Pack, index: int, capacity: int, decode: Callable[[TokenIds], str] | None, full: bool = False
) -> list[str]:
    """Describe the segments of a pack; targets of the loss stand between ⟦ and ⟧.

    Args:
        pack: to show.
        index: its number, for the heading.
        capacity: of the plan.
        decode: tokens to text; None shows the boundaries alone.
        full: true shows whole texts instead of their beginnings and ends.
    """
    share = 100 * len(pack) / capacity
    lines = [
        f"pack {index}: {len(pack):,} of {capacity:,} tokens ({share:.1f} %), {pack.num_segments} segments, "
        f"{pack.num_loss_tokens:,} loss tokens"
    ]
    for span, segment in _segments(pack):
        start = f" from its token {segment['start']:,}" if segment["start"] else ""
        lines.append(
            f"── tokens {span.start:,} … {span.stop - 1:,} · sample {segment['sample_id']}{start} · "
            f"{segment['tokens']:,} tokens, {segment['loss_tokens']:,} loss"
        )
        media = [MediumFacts.of(item) for item in pack.media if item.segment == segment["number"]]
        if decode is not None:
            lines.append(_segment_text(pack, span, media, decode, full))
        else:
            lines += [medium.describe() for medium in media]
    return lines


def pack_as_dict(pack: Pack, index: int, capacity: int, decode: Callable[[TokenIds], str] | None) -> dict[str, Any]:
    """Return a pack for JSON: its segments, with their texts if a tokenizer is given."""
    segments = []
    for span, facts in _segments(pack):
        segment = {name: value for name, value in facts.items() if name != "number"}
        if decode is not None:
            segment["text"] = decode(pack.input_ids[span])
        media = [MediumFacts.of(item).as_dict() for item in pack.media if item.segment == facts["number"]]
        segments.append(segment | ({"media": media} if media else {}))
    return {"kind": "pack", "pack": index, "tokens": len(pack), "capacity": capacity, "segments": segments}


def _segments(pack: Pack) -> Iterator[tuple[slice, dict[str, Any]]]:
    """Yield the positions of each segment, and its sample, place and counts as JSON names them."""
    spans = pairwise(pack.cu_seqlens.tolist())
    rows = zip(spans, pack.sample_ids.tolist(), pack.starts.tolist(), strict=True)
    for number, ((begin, end), sample_id, start) in enumerate(rows):
        num_targets = int(np.count_nonzero(pack.loss_mask[begin:end]))
        counts = {"tokens": end - begin, "loss_tokens": num_targets}
        yield slice(begin, end), {"number": number, "sample_id": sample_id, "first": begin, "start": start, **counts}


def _segment_text(
    pack: Pack, span: slice, media: list[MediumFacts], decode: Callable[[TokenIds], str], full: bool
) -> str:
    """Return the text of a segment, with each medium in place of its tokens, which are one token repeated."""
    texts = []
    begin = span.start
    for medium in media:
        if begin < medium.start:
            part = slice(begin, medium.start)
            texts.append(_text(pack.input_ids[part], pack.loss_mask[part], decode, full))
        texts.append(medium.describe())
        begin = medium.start + medium.length
    if begin < span.stop:
        part = slice(begin, span.stop)
        texts.append(_text(pack.input_ids[part], pack.loss_mask[part], decode, full))
    return "".join(texts)


def _text(ids: TokenIds, mask: LossMask, decode: Callable[[TokenIds], str], full: bool) -> str:
    """Return a text, without the middle of a long one."""
    if full or len(ids) <= _HEAD + _TAIL:
        return _marked_text(ids, mask, decode)
    head = _marked_text(ids[:_HEAD], mask[:_HEAD], decode)
    tail = _marked_text(ids[-_TAIL:], mask[-_TAIL:], decode)
    return f"{head}\n   … {len(ids) - _HEAD - _TAIL:,} tokens …\n{tail}"


def _marked_text(ids: TokenIds, mask: LossMask, decode: Callable[[TokenIds], str]) -> str:
    """Return the text with marks around runs of targets; control characters are escaped."""
    # Runs end where the mask changes.
    edges = [0, *(np.flatnonzero(mask[1:] != mask[:-1]) + 1).tolist(), len(ids)]
    pieces = []
    for begin, end in pairwise(edges):
        text = without_controls(decode(ids[begin:end]))
        pieces.append(f"⟦{text}⟧" if mask[begin] else text)
    return "".join(pieces)
