"""Features of a loader as packs; features that cannot be collated are refused by sample and key."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from brimful.collate.media import PackExtras
from brimful.errors import CollateError
from brimful.messages import setting
from brimful.shards import Pack
from brimful.tokenised import read_tokenised

Feature: TypeAlias = Pack | tuple[Pack, PackExtras] | Mapping[str, Any]
"""A pack, a pack with its extras, or a plain sample (``read_tokenised``)."""


def as_packs(
    features: Sequence[Feature], *, position_start: int = 0, media: Callable[[Pack], PackExtras] | None = None
) -> tuple[list[Pack], list[PackExtras | None] | None]:
    """Turn features into packs and their extras; the extras are None if no feature has any.

    A plain sample becomes a pack whose sample id is its index in the batch. If its row holds several samples,
    ``starts`` is the place of each in that row.

    Args:
        features: packs or plain samples.
        position_start: first position that a sample's own positions may have, beside 0.
        media: makes the features of a pack's media; None refuses packs that have some.

    Raises:
        CollateError: a sample cannot be read or carried; names the sample and the key.
    """
    packs: list[Pack] = []
    extras: dict[int, PackExtras] = {}
    for index, feature in enumerate(features):
        if isinstance(feature, Pack):
            packs.append(feature)
            if media is not None:
                extras[index] = media(feature)
            elif feature.media:
                raise CollateError(
                    f"a pack holds {feature.media[0].title} and the collator makes no features of media: give it "
                    f"PackCollator(media=MediaFeatures(…)) with the processor of the model"
                )
        elif isinstance(feature, tuple):
            packs.append(feature[0])
            extras[index] = feature[1]
        else:
            sample = read_tokenised(feature, f"sample {index} of the batch")
            # The collator counts positions itself, so a sample's own are only checked against it.
            if sample.position_start not in (0, position_start):
                raise CollateError(
                    f"sample {index} of the batch has 'position_ids' that begin at {sample.position_start}, and the "
                    f"batch would have {position_start} there: choose "
                    f"{setting('position_start', sample.position_start)}, or leave them out"
                )
            sample_ids = np.full(len(sample.cu_seqlens) - 1, index, dtype=np.int64)
            starts = sample.places[sample.cu_seqlens[:-1]].astype(np.int32)
            packs.append(Pack(sample.input_ids, sample.loss_mask, sample.cu_seqlens, sample_ids, starts))
            arrays = (sample.loss_weights, sample.source_ids, sample.rope_positions)
            if any(array is not None for array in arrays):
                extras[index] = PackExtras(*arrays)
    return packs, [extras.get(index) for index in range(len(packs))] if extras else None


def check_vocabulary(packs: Sequence[Pack], vocab_size: int) -> None:
    """Refuse token ids without an embedding: on a device the error names neither sample nor id.

    Raises:
        CollateError: an id below 0 or not below ``vocab_size``; names the sample, the place and the id.
    """
    for pack in packs:
        ids = pack.input_ids
        # Two passes without a temporary array; which token it is matters only if there is one.
        if len(ids) and (int(ids.max()) >= vocab_size or int(ids.min()) < 0):
            index = int(np.argmax((ids >= vocab_size) | (ids < 0)))
            segment = int(np.searchsorted(pack.cu_seqlens, index, side="right")) - 1
            raise CollateError(
                f"sample {pack.sample_ids[segment]}: 'input_ids' has {ids[index]} at token "
                f"{index - int(pack.cu_seqlens[segment]) + int(pack.starts[segment])}, and the vocabulary is "
                f"0 … {vocab_size - 1}: encode with the model's own tokenizer, or correct vocab_size"
            )
