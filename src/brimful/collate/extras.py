"""Extras of a pack in addition to its tokens: attachments, weights, positions, columns."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from brimful.base.attachment import AttachedInputs, attachment_inputs
from brimful.base.ragged import starts_of
from brimful.base.sharing import wing_of
from brimful.base.typing import IGNORE_INDEX, AnyArray, Float32Array, Int32Array, Int64Array
from brimful.collate.batch import PackedBatch
from brimful.collate.columns import Column, join_columns
from brimful.errors import CollateError
from brimful.store.shards import Pack


@dataclass(frozen=True, slots=True)
class PackExtras:
    """Extras of one pack of T tokens in S segments.

    Attributes:
        loss_weights: ``float32[T]``, used at targets only; None for 1 at every target.
        source_ids: ``int32[S]``: source of each segment in a mixture.
        rope_positions: ``int64[3, T]``: time, height and width of mRoPE, made sample by sample.
        attached: inputs of the model for the attachments, one entry for each kind.
        no_loss: ``int32[K]``: segments that are trained without loss because one of their
            attachments could not be decoded.
        columns: additional named values of each token, such as old log-probabilities.
    """

    loss_weights: Float32Array | None = None
    source_ids: Int32Array | None = None
    rope_positions: Int64Array | None = None
    attached: tuple[AttachedInputs, ...] = ()
    no_loss: Int32Array | None = None
    columns: tuple[Column, ...] = ()


def names_of(packs: Sequence[Pack]) -> str:
    """Return the first samples of packs, for messages."""
    return (
        ", ".join(str(sample_id) for pack in packs for sample_id in pack.sample_ids[:3].tolist())
        + "…"
    )


def with_extras(
    batch: PackedBatch, packs: Sequence[Pack], extras: Sequence[PackExtras | None]
) -> PackedBatch:
    """Return the batch with the extras of its packs."""
    assert len(extras) == len(packs)
    pack_extras = [extra if extra is not None else PackExtras() for extra in extras]
    weights = _join_extras(packs, pack_extras, "loss_weights", "tokens")
    sources = _join_extras(packs, pack_extras, "source_ids", "segments")
    rope = _join_extras(packs, pack_extras, "rope_positions", "tokens")
    # Arrays of the packs are joined without padding; this mask selects their tokens in the row.
    is_token = ~batch.padding_mask
    rope_positions: Int64Array | None = None
    if rope is not None:
        # Padding has no place in an image: its three rows count like text.
        rope_positions = np.repeat(batch.position_ids[None], 3, axis=0)
        rope_positions[:, is_token] = rope
    first_segments = starts_of(np.array([pack.num_segments for pack in packs])).tolist()
    no_loss = tuple(
        first + segment
        for first, extra in zip(first_segments, pack_extras, strict=True)
        if extra.no_loss is not None
        for segment in extra.no_loss.tolist()
    )
    if no_loss and batch.sharing is not None:
        batch, no_loss = wing_of(batch.sharing).without_loss(batch, no_loss)
    elif no_loss:
        # The labels are an array of the row, so no array of the packs is overwritten.
        for segment in no_loss:
            batch.labels[batch.cu_seqlens[segment] : batch.cu_seqlens[segment + 1]] = IGNORE_INDEX
        batch.num_loss_tokens = int(np.count_nonzero(batch.labels != IGNORE_INDEX))
    loss_weights = batch.loss_weights
    if weights is not None:
        counts = loss_weights
        loss_weights = np.zeros(len(batch.input_ids), dtype=np.float32)
        loss_weights[is_token] = weights
        # A target counts once for each sample that trains it.
        loss_weights = loss_weights if counts is None else loss_weights * counts
    inputs = join_attached(
        [(first, extra.attached) for first, extra in zip(first_segments, pack_extras, strict=True)]
    )
    columns: tuple[Column, ...] = ()
    if any(extra.columns for extra in pack_extras):
        titles = [f"the pack with samples {names_of([pack])}" for pack in packs]
        columns_of_packs = zip(
            (extra.columns for extra in pack_extras), map(len, packs), titles, strict=True
        )
        columns = join_columns(list(columns_of_packs), batch.boundaries, is_token)
    return replace(
        batch,
        no_loss=no_loss,
        loss_weights=loss_weights,
        source_ids=None if sources is None else sources.astype(np.int32, copy=False),
        rope_positions=rope_positions,
        attached=inputs,
        columns=columns,
    )


def _join_extras(
    packs: Sequence[Pack], extras: Sequence[PackExtras], key: str, unit: str
) -> AnyArray | None:
    """Concatenate one array of all packs, with one entry for each unit of a pack; return None if no
    pack has it.
    """
    arrays = [getattr(extra, key) for extra in extras]
    if all(array is None for array in arrays):
        return None
    for pack, array in zip(packs, arrays, strict=True):
        size = len(pack) if unit == "tokens" else pack.num_segments
        if array is None:
            raise CollateError(
                f"sample {names_of([pack])} has no {key!r} and others of the batch have: give all "
                "or none"
            )
        if array.shape[-1] != size:
            raise CollateError(
                f"sample {names_of([pack])}: {key!r} is for {array.shape[-1]:,} {unit} and the "
                f"pack has {size:,}"
            )
    return np.concatenate(arrays, axis=-1)


def join_attached(
    inputs_of_packs: Sequence[tuple[int, tuple[AttachedInputs, ...]]],
) -> tuple[AttachedInputs, ...]:
    """Join inputs for the attachments of several packs into inputs of one row.

    Args:
        parts: number of the first segment in the row, and inputs, for each pack.
    """
    return (
        attachment_inputs().join(inputs_of_packs)
        if any(items for _, items in inputs_of_packs)
        else ()
    )
