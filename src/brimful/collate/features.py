"""Conversion of a loader's features to packs; an error names the sample and the key that cannot be
collated.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from brimful.base.attachment import attachment_inputs
from brimful.base.wording import setting
from brimful.collate.columns import Column, ColumnPlace
from brimful.collate.extras import PackExtras
from brimful.errors import CollateError
from brimful.serve.tokenized import TokenizedSample, read_tokenized
from brimful.store.shards import Pack

Feature: TypeAlias = Pack | tuple[Pack, PackExtras] | Mapping[str, Any] | TokenizedSample
"""A pack, a pack with its extras, or a plain sample (``read_tokenized``), already read or not."""


def as_packs(
    features: Sequence[Feature],
    *,
    position_start: int = 0,
    maker: Callable[[Pack], PackExtras] | None = None,
) -> tuple[list[Pack], list[PackExtras] | None]:
    """Turn features into packs and their extras; the extras are None if no feature has any.

    A plain sample becomes a pack whose sample id is its index in the batch. If its row holds
    several samples, ``starts`` holds the index of each in that row.

    Args:
        features: packs or plain samples.
        position_start: first position that a sample's own positions may have, in addition to 0.
        maker: function that makes the inputs for a pack's attachments; None refuses packs with any.

    Raises:
        CollateError: a sample cannot be read or collated; names the sample and the key.
    """
    packs: list[Pack] = []
    extras: dict[int, PackExtras] = {}
    for index, feature in enumerate(features):
        if isinstance(feature, Pack):
            packs.append(feature)
            if maker is not None:
                extras[index] = maker(feature)
            elif feature.attachments:
                raise CollateError(
                    f"a pack holds {feature.attachments[0].title} and the collator makes no "
                    "features of media: give it PackCollator(media=MediaFeatures(…)) with the "
                    "processor of the model"
                )
        elif isinstance(feature, tuple):
            packs.append(feature[0])
            extras[index] = feature[1] or PackExtras()
        else:
            sample = read_sample(feature, f"sample {index} of the batch", maker)
            # The collator computes positions itself, so a sample's own positions are only checked.
            if sample.position_start not in (0, position_start):
                raise CollateError(
                    f"sample {index} of the batch has 'position_ids' that begin at "
                    f"{sample.position_start}, and the batch would have {position_start} there: "
                    f"choose {setting('position_start', sample.position_start)}, or leave them out"
                )
            sample_id = index if sample.sample_id is None else sample.sample_id
            sample_ids = np.full(sample.num_segments, sample_id, dtype=np.int64)
            starts = sample.indices[sample.cu_seqlens[:-1]].astype(np.int32)
            packs.append(
                Pack(sample.input_ids, sample.loss_mask, sample.cu_seqlens, sample_ids, starts)
            )
            if not sample.is_pack:
                columns = [
                    Column(key, values, place=ColumnPlace.TOKEN)
                    for key, values in sample.marks.items()
                ]
                extras[index] = PackExtras(
                    *(sample.loss_weights, sample.source_ids, sample.rope_positions),
                    attached=sample.attached,
                    columns=tuple(columns),
                )
    if not extras:
        return packs, None
    all_extras = [extras.get(index, PackExtras()) for index in range(len(packs))]
    if any(extra.rope_positions is not None or extra.columns for extra in all_extras):
        is_plain = [not isinstance(feature, tuple) for feature in features]
        all_extras = attachment_inputs().completed(all_extras, packs, is_plain)
    return packs, all_extras


def read_sample(feature: Any, name: str, maker: Any) -> TokenizedSample:
    """Read a plain sample; a maker with ``of_sample`` makes the positions that it lacks, and checks
    its placeholders.

    Args:
        feature: see ``read_tokenized``.
        name: name of the sample in messages.
        maker: of the inputs for attachments, of the collator.

    Raises:
        CollateError: see ``read_tokenized``; or the sample has patches and no positions, and
            positions cannot be made.
    """
    if hasattr(maker, "of_sample"):
        sample = read_tokenized(feature, name, token_ids=maker.token_ids)
        return maker.of_sample(sample, name)  # type: ignore[no-any-return]
    sample = read_tokenized(feature, name)
    if sample.attached:
        attachment_inputs().check_positions(sample, name)
    return sample


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
