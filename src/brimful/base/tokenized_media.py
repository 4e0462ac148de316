"""Media of plain samples: the features from a processor, checked against the tokens that stand for
them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isqrt
from typing import NamedTuple

import numpy as np

from brimful.base.typing import AnyArray, CuSeqlens, Int32Array, Int64Array
from brimful.errors import CollateError


@dataclass(frozen=True, slots=True)
class Media:
    """All items of one kind in a pack or a batch, in the order of their tokens.

    Attributes:
        kind: ``image``, ``video`` or ``audio``.
        segments: ``int32[num_items]``: the segment that each item belongs to.
        arrays: by the name of the model's argument (``pixel_values``, ``image_grid_thw``). Arrays
            of several packs are joined on their first axis.
    """

    kind: str
    segments: Int32Array
    arrays: Mapping[str, AnyArray]


class _Keys(NamedTuple):
    """Arguments of a model for one kind of media.

    Attributes:
        features: rows of patches if there is a grid, else one row for each item.
        grid: patches of each item in time, height and width; empty for kinds without a grid.
        others: arrays with one row for each item.
        mask: key that marks the placeholders of this kind alone.
    """

    features: str
    grid: str
    others: tuple[str, ...]
    mask: str


MEDIA_KEYS = {
    "image": _Keys("pixel_values", "image_grid_thw", ("image_sizes",), "image_mask"),
    "video": _Keys(
        "pixel_values_videos",
        "video_grid_thw",
        ("second_per_grid_ts", "video_second_per_grid"),
        "video_mask",
    ),
    "audio": _Keys("input_features", "", ("feature_attention_mask",), "audio_mask"),
}
"""Keys of each kind, as named by processors and models of Transformers; the masks are named as in
VeOmni.
"""

TOKEN_TYPES = "mm_token_type_ids"
"""Key that numbers the placeholders of all kinds, from 1 in the order of ``MEDIA_KEYS``."""

MARK_KEYS = (TOKEN_TYPES, *(keys.mask for keys in MEDIA_KEYS.values()))
"""Keys that say for each token whether it stands for media."""

FEATURE_KEYS = {
    name
    for keys in MEDIA_KEYS.values()
    for name in (keys.features, keys.grid, *keys.others)
    if name
}
"""Keys of arrays that are passed to towers."""


def placeholders_of(
    input_ids: Int32Array, marks: Mapping[str, AnyArray], token_ids: Mapping[str, int]
) -> dict[str, Int64Array]:
    """Return the indices of the tokens that stand for each kind of media; kinds without such
    information are absent.

    Args:
        input_ids: ``int32[T]``.
        marks: ``[T]`` by ``MARK_KEYS``.
        token_ids: the token of each kind, if the model is known.

    >>> types = np.array([0, 1, 1, 0])
    >>> {kind: tokens.tolist() for kind, tokens in placeholders_of(np.arange(4), {"mm_token_type_ids": types}, {}).items()}
    {'image': [1, 2], 'video': [], 'audio': []}
    """
    result = {}
    for number, (kind, keys) in enumerate(MEDIA_KEYS.items(), 1):
        if TOKEN_TYPES in marks:
            result[kind] = np.flatnonzero(marks[TOKEN_TYPES] == number)
        elif keys.mask in marks:
            result[kind] = np.flatnonzero(marks[keys.mask])
        elif kind in token_ids:
            result[kind] = np.flatnonzero(input_ids == token_ids[kind])
    return result


def read_media(
    arrays: Mapping[str, AnyArray],
    placeholders: Mapping[str, Int64Array],
    cu_seqlens: CuSeqlens,
    name: str,
) -> tuple[Media, ...]:
    """Return the media of a sample, each kind checked against its grid and its placeholders.

    Args:
        arrays: by ``FEATURE_KEYS``.
        placeholders: ``placeholders_of`` the sample.
        cu_seqlens: of the sample; more than one segment if it is already packed.
        name: the sample's name in messages.

    Raises:
        CollateError: the number of rows does not match the grid or the items, the number of
            placeholders does not match the features, or a packed row has no placeholders; names the
            sample and the keys.
    """
    media = []
    for kind, keys in MEDIA_KEYS.items():
        item_arrays = {
            key: arrays[key] for key in (keys.features, keys.grid, *keys.others) if key in arrays
        }
        tokens = placeholders.get(kind)
        if item_arrays:
            sizes = _sizes(item_arrays, keys, name)
            segments = _segments(
                sizes, tokens, cu_seqlens, bool(keys.grid in item_arrays), keys, name
            )
            media.append(Media(kind, segments, item_arrays))
        elif tokens is not None and len(tokens):
            raise CollateError(
                f"{name} has {len(tokens):,} tokens that stand for media of kind {kind!r}, and no "
                f"{keys.features!r}"
            )
    return tuple(media)


def tokens_of_grids(grids: AnyArray, merge_size: int) -> Int64Array:
    """Return the number of placeholders of each item with a grid of patches:
    ``int64[num_items]``.
    """
    tokens: Int64Array = grids.astype(np.int64).prod(axis=1) // merge_size**2
    return tokens


def _sizes(own: Mapping[str, AnyArray], keys: _Keys, name: str) -> Int64Array:
    """Return the number of feature rows of each item: the patches of its grid, or one."""
    if keys.features not in own:
        raise CollateError(
            f"{name} has {next(iter(own))!r} and no {keys.features!r}, which it describes"
        )
    features = own[keys.features]
    grids = own.get(keys.grid)
    if grids is None:
        # Patches are rows of numbers; images, tiles and spectrograms have at least two axes each.
        if features.ndim < 3:
            raise CollateError(
                f"{name} has {keys.features!r} of shape {features.shape}"
                + (
                    f" and no {keys.grid!r}, which assigns the patches to items"
                    if keys.grid
                    else ", and it must be [n, bins, columns]"
                )
            )
        sizes = np.ones(len(features), dtype=np.int64)
    else:
        if (
            grids.ndim != 2
            or grids.shape[1] != 3
            or grids.dtype.kind not in "iu"
            or (grids < 1).any()
        ):
            raise CollateError(
                f"{name} has {keys.grid!r} of shape {grids.shape}: give time, height and width of "
                "each item"
            )
        sizes = grids.astype(np.int64).prod(axis=1)
        if features.ndim != 2 or len(features) != sizes.sum():
            raise CollateError(
                f"{name} has {keys.features!r} of shape {features.shape}, and {keys.grid!r} says "
                f"{int(sizes.sum()):,} rows of patches"
            )
    for key in keys.others:
        if key in own and (own[key].ndim == 0 or len(own[key]) != len(sizes)):
            raise CollateError(
                f"{name} has {key!r} of shape {own[key].shape} for {len(sizes):,} items of "
                f"{keys.features!r}"
            )
    return sizes


def _segments(
    sizes: Int64Array,
    tokens: Int64Array | None,
    cu_seqlens: CuSeqlens,
    has_grid: bool,
    keys: _Keys,
    name: str,
) -> Int32Array:
    """Return the segment of each item, ``int32[num_items]``; its placeholders, if known, must agree
    with its size.
    """
    if tokens is None:
        if len(cu_seqlens) > 2:
            raise CollateError(
                f"{name} is a row of {len(cu_seqlens) - 1} samples with {keys.features!r}, and "
                f"nothing assigns them to samples: add {TOKEN_TYPES!r}, or give samples that are "
                "not packed"
            )
        return np.zeros(len(sizes), dtype=np.int32)
    first = tokens[np.diff(tokens, prepend=-2) != 1]
    if has_grid:
        # A token is a square of patches, of the same size for all items.
        ratio = int(sizes.sum()) // max(len(tokens), 1)
        fits = (
            len(tokens) * ratio == sizes.sum()
            and isqrt(ratio) ** 2 == ratio
            and not (sizes % max(ratio, 1)).any()
        )
        counts = sizes // max(ratio, 1)
    elif keys.grid:
        # Images of one size, or tiles, have equally many tokens.
        fits = len(tokens) > 0 and len(tokens) % len(sizes) == 0
        counts = np.full(len(sizes), len(tokens) // len(sizes))
    else:
        # The tokens of an audio clip depend on its duration: only the runs of tokens separate the
        # clips.
        fits = len(tokens) >= len(sizes) and (len(cu_seqlens) == 2 or len(first) == len(sizes))
        counts = (
            np.diff(np.searchsorted(tokens, first), append=len(tokens))
            if len(first) == len(sizes)
            else sizes
        )
    if not fits:
        raise CollateError(
            f"{name} has {len(tokens):,} placeholders for {keys.features!r} of {len(sizes):,} items"
            + (f" with {int(sizes.sum()):,} patches" if has_grid else "")
            + ": these are not the features of its tokens, or the sample was cut"
        )
    starts = tokens[np.cumsum(counts) - counts]
    segments: Int32Array = (np.searchsorted(cu_seqlens, starts, side="right") - 1).astype(np.int32)
    return segments
