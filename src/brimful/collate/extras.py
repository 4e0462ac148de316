"""Extras of a pack in addition to its tokens: images, audio, weights, mRoPE positions, columns."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from brimful.base.ragged import starts_of
from brimful.base.sharing import wing_of
from brimful.base.tokenized_media import Media
from brimful.base.typing import IGNORE_INDEX, AnyArray, Float32Array, Int32Array, Int64Array
from brimful.collate.batch import PackedBatch
from brimful.collate.columns import Column, join_columns
from brimful.errors import CollateError
from brimful.store.shards import Pack

_MASK = "feature_attention_mask"
"""Array of the columns of audio clips that hold sound."""


@dataclass(frozen=True, slots=True)
class PackExtras:
    """Extras of one pack of T tokens in S segments.

    Attributes:
        loss_weights: ``float32[T]``, used at targets only; None for 1 at every target.
        source_ids: ``int32[S]``: source of each segment in a mixture.
        rope_positions: ``int64[3, T]``: time, height and width of mRoPE, made sample by sample.
        media: one entry for each kind.
        no_loss: ``int32[K]``: segments that are trained without loss because one of their media
            could not be decoded.
        columns: additional named values of each token, such as old log-probabilities.
    """

    loss_weights: Float32Array | None = None
    source_ids: Int32Array | None = None
    rope_positions: Int64Array | None = None
    media: tuple[Media, ...] = ()
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
    media = join_media(
        [(first, extra.media) for first, extra in zip(first_segments, pack_extras, strict=True)]
    )
    columns: tuple[Column, ...] = ()
    if any(extra.columns for extra in pack_extras):
        titles = [f"the pack with samples {names_of([pack])}" for pack in packs]
        parts = zip((extra.columns for extra in pack_extras), map(len, packs), titles, strict=True)
        columns = join_columns(list(parts), batch.boundaries, is_token)
    return replace(
        batch,
        no_loss=no_loss,
        loss_weights=loss_weights,
        source_ids=None if sources is None else sources.astype(np.int32, copy=False),
        rope_positions=rope_positions,
        media=media,
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


def join_media(parts: Sequence[tuple[int, tuple[Media, ...]]]) -> tuple[Media, ...]:
    """Join media of several packs into media of one row: one for each kind, in order of first
    appearance.

    Args:
        parts: number of the first segment in the row, and media, for each pack.

    Raises:
        CollateError: items of one kind have different arrays, or arrays whose shapes do not join.

    >>> one = Media("image", np.array([1], dtype=np.int32), {"image_grid_thw": np.array([[1, 2, 2]])})
    >>> (joined,) = join_media([(0, (one,)), (4, (one,))])
    >>> joined.segments.tolist(), joined.arrays["image_grid_thw"].tolist()
    ([1, 5], [[1, 2, 2], [1, 2, 2]])
    """
    kinds: dict[str, list[tuple[int, Media]]] = {}
    for first_segment, media in parts:
        for item in media:
            kinds.setdefault(item.kind, []).append((first_segment, item))
    return tuple(
        Media(
            kind,
            np.concatenate(
                [item.segments + np.int32(first_segment) for first_segment, item in items]
            ),
            _join_arrays(kind, items),
        )
        for kind, items in kinds.items()
    )


def _join_arrays(kind: str, items: Sequence[tuple[int, Media]]) -> dict[str, AnyArray]:
    """Concatenate arrays with the same name; audio clips get as many columns as the longest."""
    packs = [item.arrays for _, item in items]
    num_columns = {arrays[_MASK].shape[-1] for arrays in packs if _MASK in arrays}
    if len(num_columns) > 1:
        # Zeros follow each clip: a tower that takes clips of any length reads no column after the
        # end of one.
        packs = [
            {name: _widened(array, max(num_columns)) for name, array in arrays.items()}
            for arrays in packs
        ]
    # A dictionary, not a set: names keep the order of their first appearance.
    names = {name: None for arrays in packs for name in arrays}
    for name in names:
        for (first_segment, _), arrays in zip(items, packs, strict=True):
            if name not in arrays:
                raise CollateError(
                    f"media of kind {kind!r} of the pack at segment {first_segment} have no "
                    f"{name!r} and others of the batch have: give all or none"
                )
        shapes = {arrays[name].shape[1:] for arrays in packs}
        if len(shapes) > 1:
            text = " and ".join(str((..., *shape)) for shape in sorted(shapes)).replace(
                "Ellipsis", "…"
            )
            raise CollateError(
                f"media of kind {kind!r}: {name!r} of the packs of the batch have the shapes "
                f"{text}, which do not join"
            )
    return {name: np.concatenate([arrays[name] for arrays in packs]) for name in names}


def _widened(array: AnyArray, num_columns: int) -> AnyArray:
    return np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, num_columns - array.shape[-1])])
