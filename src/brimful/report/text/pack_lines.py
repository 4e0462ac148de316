"""One pack with its boundaries and its text."""

from dataclasses import asdict
from typing import Any

from brimful.media import PlacedMedium
from brimful.report.analysis.shown_packs import (
    Decode,
    MediumFacts,
    segments_of,
    split_at_media,
    texts_of,
)
from brimful.store.shards import Pack

_HEAD, _TAIL = 48, 24
"""Tokens that are shown of a long segment, at its beginning and at its end."""


def show_pack(
    pack: Pack, index: int, capacity: int, decode: Decode | None, full: bool = False
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
        f"pack {index}: {len(pack):,} of {capacity:,} tokens ({share:.1f} %), {pack.num_segments} "
        f"segments, {pack.num_loss_tokens:,} loss tokens"
    ]
    for segment, media in segments_of(pack):
        start = f" from its token {segment.start:,}" if segment.start else ""
        last = segment.first + segment.tokens - 1
        lines.append(
            f"── tokens {segment.first:,} … {last:,} · sample {segment.sample_id}{start} · "
            f"{segment.tokens:,} tokens, {segment.loss_tokens:,} loss"
        )
        if decode is None:
            lines += [MediumFacts.of(item).describe() for item in media]
            continue
        # Each medium is in the place of its tokens, which are one token repeated.
        lines.append(
            "".join(
                MediumFacts.of(part).describe()
                if isinstance(part, PlacedMedium)
                else _text(pack, part, decode, full)
                for part in split_at_media(segment, media)
            )
        )
    return lines


def pack_as_dict(pack: Pack, index: int, capacity: int, decode: Decode | None) -> dict[str, Any]:
    """Return a pack for JSON: its segments, with their texts if a tokenizer is given."""
    segments = []
    for facts, media in segments_of(pack):
        segment = asdict(facts)
        if decode is not None:
            segment["text"] = decode(pack.input_ids[facts.first : facts.first + facts.tokens])
        if media:
            segment["media"] = [asdict(MediumFacts.of(item)) for item in media]
        segments.append(segment)
    return {
        "kind": "pack",
        "pack": index,
        "tokens": len(pack),
        "capacity": capacity,
        "segments": segments,
    }


def _text(pack: Pack, tokens: slice, decode: Decode, full: bool) -> str:
    """Return the text of some tokens with marks around targets, without the middle of a long
    one.
    """

    def marked(begin: int, end: int) -> str:
        texts = texts_of(pack, slice(begin, end), decode)
        return "".join(f"⟦{one.text}⟧" if one.is_target else one.text for one in texts)

    num_hidden = tokens.stop - tokens.start - _HEAD - _TAIL
    if full or num_hidden <= 0:
        return marked(tokens.start, tokens.stop)
    head, tail = (
        marked(tokens.start, tokens.start + _HEAD),
        marked(tokens.stop - _TAIL, tokens.stop),
    )
    return f"{head}\n   … {num_hidden:,} tokens …\n{tail}"
