"""What a loader hands to the collator, as packs; and what is wrong with it, by sample and key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from brimful.collate.media import PackExtras
from brimful.errors import CollateError
from brimful.messages import setting
from brimful.shards import Pack
from brimful.tokenised import TokenisedSample, read_tokenised

__all__ = ["Feature", "as_packs", "check_vocabulary"]

Feature: TypeAlias = Pack | tuple[Pack, PackExtras] | Mapping[str, Any]
"""A pack, a pack with what it carries beside tokens, or a plain sample (``read_tokenised``)."""


def as_packs(
    features: Sequence[Feature], *, position_start: int = 0
) -> tuple[list[Pack], list[PackExtras | None] | None]:
    """Packs, and what they carry; None for that if none carries anything.

    A plain sample is a pack whose sample id is its place in the batch; where the row holds several samples, ``starts``
    says where each begins in it.

    Args:
        features: packs or plain samples.
        position_start: what positions that a sample brings may begin with, beside 0.

    Raises:
        CollateError: a sample cannot be read or carried; names the sample and the key.
    """
    packs: list[Pack] = []
    extras: dict[int, PackExtras] = {}
    for place, feature in enumerate(features):
        if isinstance(feature, Pack):
            packs.append(feature)
        elif isinstance(feature, tuple):
            packs.append(feature[0])
            extras[place] = feature[1]
        else:
            read = read_tokenised(feature, f"sample {place} of the batch")
            if read.position_start not in (0, position_start):
                raise CollateError(
                    f"sample {place} of the batch has 'position_ids' that begin at {read.position_start}, and the batch "
                    f"would have {position_start} there: choose {setting('position_start', read.position_start)}, or leave "
                    f"them out"
                )
            packs.append(_as_pack(read, place))
            carried = (read.loss_weights, read.source_ids, read.rope_positions)
            if any(array is not None for array in carried):
                extras[place] = PackExtras(*carried)
    return packs, [extras.get(place) for place in range(len(packs))] if extras else None


def check_vocabulary(packs: Sequence[Pack], vocab_size: int) -> None:
    """Refuse token ids that the model has no embedding for: on a device the error names neither sample nor id.

    Raises:
        CollateError: an id below 0 or not below ``vocab_size``; names the sample, the place and the id.
    """
    for pack in packs:
        ids = pack.input_ids
        if len(ids) and (int(ids.max()) >= vocab_size or int(ids.min()) < 0):
            place = int(np.argmax((ids >= vocab_size) | (ids < 0)))
            segment = int(np.searchsorted(pack.cu_seqlens, place, side="right")) - 1
            raise CollateError(
                f"sample {pack.sample_ids[segment]}: 'input_ids' has {ids[place]} at token "
                f"{place - int(pack.cu_seqlens[segment]) + int(pack.starts[segment])}, and the vocabulary is "
                f"0 … {vocab_size - 1}: encode with the model's own tokenizer, or correct vocab_size"
            )


def _as_pack(read: TokenisedSample, place: int) -> Pack:
    segments = len(read.cu_seqlens) - 1
    return Pack(
        read.input_ids,
        read.loss_mask,
        read.cu_seqlens,
        np.full(segments, place, dtype=np.int64),
        read.places[read.cu_seqlens[:-1]].astype(np.int32),
    )
