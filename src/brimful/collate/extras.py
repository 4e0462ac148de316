"""Extras of a pack in addition to its tokens: images, audio, weights, mRoPE positions, columns."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from brimful.base.tokenized_media import Media
from brimful.base.typing import Float32Array, Int32Array, Int64Array
from brimful.collate.columns import Column
from brimful.errors import CollateError

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
        no_loss: ``int32[K]``: segments that are trained without loss because one of their media could not be decoded.
        columns: additional named values of each token, such as old log-probabilities.
    """

    loss_weights: Float32Array | None = None
    source_ids: Int32Array | None = None
    rope_positions: Int64Array | None = None
    media: tuple[Media, ...] = ()
    no_loss: Int32Array | None = None
    columns: tuple[Column, ...] = ()


def join_media(parts: Sequence[tuple[int, tuple[Media, ...]]]) -> tuple[Media, ...]:
    """Join media of several packs into media of one row: one for each kind, in order of first appearance.

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
            np.concatenate([item.segments + np.int32(first_segment) for first_segment, item in items]),
            _join_arrays(kind, items),
        )
        for kind, items in kinds.items()
    )


def _join_arrays(kind: str, items: Sequence[tuple[int, Media]]) -> dict[str, npt.NDArray[Any]]:
    """Concatenate arrays with the same name; audio clips get as many columns as the longest."""
    packs = [item.arrays for _, item in items]
    num_columns = {arrays[_MASK].shape[-1] for arrays in packs if _MASK in arrays}
    if len(num_columns) > 1:
        # Zeros follow each clip: a tower that takes clips of any length reads no column after the end of one.
        packs = [{name: _widened(array, max(num_columns)) for name, array in arrays.items()} for arrays in packs]
    # A dictionary, not a set: names keep the order of their first appearance.
    names = {name: None for arrays in packs for name in arrays}
    for name in names:
        for (first_segment, _), arrays in zip(items, packs, strict=True):
            if name not in arrays:
                raise CollateError(
                    f"media of kind {kind!r} of the pack at segment {first_segment} have no {name!r} (found "
                    f"{', '.join(map(repr, arrays))}) and others of the batch have: give all or none"
                )
        shapes = {arrays[name].shape[1:] for arrays in packs}
        if len(shapes) > 1:
            text = " and ".join(str((..., *shape)) for shape in sorted(shapes)).replace("Ellipsis", "…")
            raise CollateError(
                f"media of kind {kind!r}: {name!r} of the packs of the batch have the shapes {text}, which do not join"
            )
    return {name: np.concatenate([arrays[name] for arrays in packs]) for name in names}


def _widened(array: npt.NDArray[Any], num_columns: int) -> npt.NDArray[Any]:
    return np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, num_columns - array.shape[-1])])
