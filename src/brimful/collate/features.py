"""What a loader hands to the collator, as packs; and what is wrong with it, by sample and key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from brimful.collate.media import PackExtras
from brimful.errors import CollateError
from brimful.shards import Pack
from brimful.typing import IGNORE_INDEX

__all__ = ["Feature", "as_packs", "check_vocabulary"]

Feature: TypeAlias = Pack | tuple[Pack, PackExtras] | Mapping[str, Any]
"""A pack, a pack with what it carries beside tokens, or a plain sample."""


def as_packs(features: Sequence[Feature]) -> tuple[list[Pack], list[PackExtras | None] | None]:
    """Packs, and what they carry; None for that if none carries anything.

    A plain sample is a pack of one segment whose id is its place in the batch. It has ``input_ids`` and ``labels``
    (not shifted), and may have ``loss_weights`` (one a token) and ``source_id``; other keys are left out.

    Raises:
        CollateError: a key is missing, or wrong; names the sample.
    """
    packs: list[Pack] = []
    extras: dict[int, PackExtras] = {}
    for place, feature in enumerate(features):
        if isinstance(feature, Pack):
            packs.append(feature)
        elif isinstance(feature, tuple):
            packs.append(feature[0])
            extras[place] = feature[1]
        elif isinstance(feature, Mapping):
            packs.append(_as_pack(feature, place))
            extra = _extras_of(feature, place)
            if extra is not None:
                extras[place] = extra
        else:
            raise CollateError(
                f"sample {place} of the batch is a {type(feature).__name__}: give packs, or mappings with 'input_ids' "
                f"and 'labels'"
            )
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


def _as_pack(sample: Mapping[str, Any], place: int) -> Pack:
    """A plain sample as a pack of one segment."""
    for key in ("input_ids", "labels"):
        if key not in sample:
            raise CollateError(f"sample {place} of the batch has no {key!r} (found {sorted(map(str, sample))})")
    ids, labels = np.asarray(sample["input_ids"]), np.asarray(sample["labels"])
    if ids.shape != labels.shape or ids.ndim != 1 or len(ids) == 0:
        raise CollateError(
            f"sample {place} of the batch: input_ids {ids.shape} and labels {labels.shape} must be two rows of one "
            f"length, at least 1"
        )
    for key, row in (("input_ids", ids), ("labels", labels)):
        if row.dtype.kind not in "iu":
            raise CollateError(f"sample {place} of the batch: {key!r} must hold whole numbers and holds {row.dtype}")
    mask = labels != IGNORE_INDEX
    if bool((mask & (labels != ids)).any()):
        raise CollateError(f"sample {place} of the batch: a label is not its own token; labels must not be shifted")
    return Pack(
        ids.astype(np.int32, copy=False),
        mask,
        np.array([0, len(ids)], dtype=np.int32),
        np.array([place], dtype=np.int64),
        np.zeros(1, dtype=np.int32),
    )


def _extras_of(sample: Mapping[str, Any], place: int) -> PackExtras | None:
    weights, source = sample.get("loss_weights"), sample.get("source_id")
    if weights is None and source is None:
        return None
    row = None if weights is None else np.asarray(weights, dtype=np.float32)
    if row is not None and row.shape != (len(sample["input_ids"]),):
        raise CollateError(
            f"sample {place} of the batch: 'loss_weights' {row.shape} must be one row as long as input_ids, "
            f"{len(sample['input_ids'])}"
        )
    return PackExtras(
        loss_weights=row,
        source_ids=None if source is None else np.array([source], dtype=np.int32),
    )
