"""Conversion of a loader's features to packs; an error names the sample and the key that cannot be
collated.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from brimful.base.ragged import ranges
from brimful.base.tokenized import TokenizedSample, read_tokenized
from brimful.base.tokenized_media import MARK_KEYS
from brimful.base.wording import setting
from brimful.collate.columns import Column, ColumnPlace
from brimful.collate.extras import PackExtras
from brimful.errors import CollateError
from brimful.store.shards import Pack

Feature: TypeAlias = Pack | tuple[Pack, PackExtras] | Mapping[str, Any] | TokenizedSample
"""A pack, a pack with its extras, or a plain sample (``read_tokenized``), already read or not."""


def as_packs(
    features: Sequence[Feature],
    *,
    position_start: int = 0,
    media: Callable[[Pack], PackExtras] | None = None,
) -> tuple[list[Pack], list[PackExtras | None] | None]:
    """Turn features into packs and their extras; the extras are None if no feature has any.

    A plain sample becomes a pack whose sample id is its index in the batch. If its row holds
    several samples, ``starts`` holds the index of each in that row.

    Args:
        features: packs or plain samples.
        position_start: first position that a sample's own positions may have, in addition to 0.
        media: function that makes the features of a pack's media; None refuses packs with media.

    Raises:
        CollateError: a sample cannot be read or collated; names the sample and the key.
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
                    f"a pack holds {feature.media[0].title} and the collator makes no features of "
                    "media: give it PackCollator(media=MediaFeatures(…)) with the processor of "
                    "the model"
                )
        elif isinstance(feature, tuple):
            packs.append(feature[0])
            extras[index] = feature[1] or PackExtras()
        else:
            sample = read_sample(feature, f"sample {index} of the batch", media)
            # The collator computes positions itself, so a sample's own positions are only checked.
            if sample.position_start not in (0, position_start):
                raise CollateError(
                    f"sample {index} of the batch has 'position_ids' that begin at "
                    f"{sample.position_start}, and the batch would have {position_start} there: "
                    f"choose {setting('position_start', sample.position_start)}, or leave them out"
                )
            sample_id = index if sample.sample_id is None else sample.sample_id
            sample_ids = np.full(sample.num_segments, sample_id, dtype=np.int64)
            starts = sample.places[sample.cu_seqlens[:-1]].astype(np.int32)
            packs.append(
                Pack(sample.input_ids, sample.loss_mask, sample.cu_seqlens, sample_ids, starts)
            )
            if not sample.is_pack:
                columns = [
                    Column(key, values, place=ColumnPlace.TOKEN)
                    for key, values in sample.marks.items()
                ]
                extras[index] = PackExtras(
                    *(sample.loss_weights, sample.source_ids, sample.rope_positions, sample.media),
                    columns=tuple(columns),
                )
    if not extras:
        return packs, None
    has_positions = any(extra.rope_positions is not None for extra in extras.values())
    marks = {
        column.name: column
        for extra in extras.values()
        for column in extra.columns
        if column.name in MARK_KEYS
    }
    for index, (feature, pack) in enumerate(zip(features, packs, strict=True)):
        # In a batch with media, a text sample gets the same position three times, and no
        # placeholders.
        if not isinstance(feature, tuple):
            extras[index] = _as_text(extras.get(index, PackExtras()), pack, has_positions, marks)
    return packs, [extras.get(index) for index in range(len(packs))]


def read_sample(feature: Any, name: str, media: Any) -> TokenizedSample:
    """Read a plain sample; ``MediaFeatures`` makes the positions that it lacks, and checks its
    placeholders.

    Args:
        feature: see ``read_tokenized``.
        name: name of the sample in messages.
        media: the ``media`` function of the collator.

    Raises:
        CollateError: see ``read_tokenized``; or the sample has patches and no positions, and
            positions cannot be made.
    """
    if hasattr(media, "of_sample"):
        sample = read_tokenized(feature, name, token_ids=media.token_ids)
        return media.of_sample(sample, name)  # type: ignore[no-any-return]
    sample = read_tokenized(feature, name)
    grids = [key for item in sample.media for key in item.arrays if key.endswith("grid_thw")]
    if grids and sample.positions is None:
        raise CollateError(
            f"{name} has {grids[0]!r} and no 'position_ids': give the model's own, as "
            "get_rope_index makes them, or PackCollator(media=MediaFeatures(…)), which makes "
            "them; 0, 1, 2, … for a model with positions of text"
        )
    return sample


def _as_text(
    extra: PackExtras, pack: Pack, has_positions: bool, marks: Mapping[str, Column]
) -> PackExtras:
    """Return the extras of a sample, completed with mRoPE positions and marks that other samples of
    its batch have.
    """
    own = {column.name for column in extra.columns}
    missing = [
        replace(column, values=np.zeros(len(pack), column.values.dtype))
        for name, column in marks.items()
        if name not in own
    ]
    positions = extra.rope_positions
    if has_positions and positions is None and not extra.media:
        lengths = np.diff(pack.cu_seqlens)
        positions = np.repeat(
            ranges(np.zeros_like(lengths), lengths)[None].astype(np.int64), 3, axis=0
        )
    return replace(extra, rope_positions=positions, columns=(*extra.columns, *missing))


def check_vocabulary(packs: Sequence[Pack], vocab_size: int) -> None:
    """Refuse token ids without an embedding; the error of a device would name neither sample nor
    id.

    Raises:
        CollateError: an id below 0 or not below ``vocab_size``; names the sample, the token and the
            id.
    """
    for pack in packs:
        ids = pack.input_ids
        # Two passes without a temporary array; the invalid token is only searched if one exists.
        if len(ids) and (int(ids.max()) >= vocab_size or int(ids.min()) < 0):
            index = int(np.argmax((ids >= vocab_size) | (ids < 0)))
            segment = int(np.searchsorted(pack.cu_seqlens, index, side="right")) - 1
            raise CollateError(
                f"sample {pack.sample_ids[segment]}: 'input_ids' has {ids[index]} at token "
                f"{index - int(pack.cu_seqlens[segment]) + int(pack.starts[segment])}, and the "
                f"vocabulary is 0 … {vocab_size - 1}: encode with the model's own tokenizer, or "
                "correct vocab_size"
            )
