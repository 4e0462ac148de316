"""NumPy arrays of a batch as tensors that share their memory, in the shapes that dialects ask for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from brimful.collate.batch import PackedBatch
from brimful.collate.media import Float32Array, join_media
from brimful.collate.shift import shift_labels, shift_left
from brimful.typing import Int64Array, Labels

__all__ = [
    "beside_tokens",
    "divisor_if_no_target",
    "join_rows",
    "media_tensors",
    "row",
    "shifted_labels",
    "shifted_weights",
    "stack",
    "text_or_mrope",
]


def row(values: npt.NDArray[Any]) -> torch.Tensor:
    """``(T,)`` as ``(1, T)``."""
    return torch.from_numpy(values[None])


def stack(rows: Sequence[npt.NDArray[Any]]) -> torch.Tensor:
    """Rows of one length as ``(B, S)``."""
    return torch.from_numpy(np.stack(rows))


def shifted_labels(batch: PackedBatch) -> Labels:
    """``int64[T]``: what each token has to predict."""
    return shift_labels(batch.labels, batch.cu_seqlens)


def shifted_weights(batch: PackedBatch) -> Float32Array:
    """``float32[T]``: what each shifted label counts; 0 where there is none."""
    return shift_left(batch.target_weights, batch.cu_seqlens, by=1, fill=0.0)


def text_or_mrope(batch: PackedBatch) -> Int64Array:
    """``int64[1, T]``, or ``int64[4, 1, T]`` (text, time, height, width) where the batch has mRoPE.

    Transformers isolates segments by the text row, and only if there are four.
    """
    if batch.rope_positions is None:
        return batch.position_ids[None]
    return batch.position_rows(4)[:, None]


def media_tensors(batch: PackedBatch) -> dict[str, torch.Tensor]:
    """Arrays of images, videos and audio under the names that the model knows; copied, as packs are read-only."""
    if not batch.media:
        return {}
    return {name: torch.tensor(array) for item in batch.media for name, array in item.arrays.items()}


def divisor_if_no_target(batch: PackedBatch) -> dict[str, int]:
    """``num_items_in_batch`` of 1 for a batch without a target, as ranks get at the tail of an epoch.

    Models of Transformers then divide a sum of nothing by 1: the loss is 0 where their mean of nothing is NaN. A
    ``Trainer`` puts the targets of all ranks in its place.
    """
    return {} if batch.num_loss_tokens else {"num_items_in_batch": 1}


def join_rows(rows: Sequence[PackedBatch], *, mrope_rows: int, shifted: bool = False) -> dict[str, torch.Tensor]:
    """What rows of B packs have beside tokens and labels.

    ``position_ids`` are ``int64[B, S]``, or ``int64[mrope_rows, B, S]`` if any row has mRoPE; ``loss_weights``
    ``float32[B, S]`` if any row has some; arrays of media lie behind each other on their first axis.
    """
    mrope = any(batch.rope_positions is not None for batch in rows)
    positions = np.stack([batch.position_rows(mrope_rows if mrope else 1) for batch in rows], axis=1)
    joined = {"position_ids": torch.from_numpy(positions if mrope else positions[0])}
    if any(batch.loss_weights is not None for batch in rows):
        joined["loss_weights"] = stack([shifted_weights(b) if shifted else b.target_weights for b in rows])
    media = join_media([(0, batch.media) for batch in rows])
    return {**joined, **{name: torch.tensor(array) for item in media for name, array in item.arrays.items()}}


def beside_tokens(batch: PackedBatch) -> dict[str, torch.Tensor]:
    """``loss_weights: float32[1, T]``, aligned with the labels, if the batch has any but 1; and its media, if any."""
    if batch.loss_weights is None:
        return media_tensors(batch)
    return {"loss_weights": row(batch.target_weights), **media_tensors(batch)}
