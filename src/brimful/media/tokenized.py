"""Media of plain samples: the features from a processor, checked against the tokens that stand for
them.

The module is the ``attachment_inputs`` of ``brimful.base.attachment``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isqrt
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from brimful.base.attachment import AttachedInputs
from brimful.base.ragged import ranges
from brimful.base.typing import AnyArray, CuSeqlens, Int32Array, Int64Array
from brimful.errors import CollateError

if TYPE_CHECKING:
    from brimful.collate import Column, PackExtras
    from brimful.serve.tokenized import TokenizedSample
    from brimful.sources.tokenized_row import RowTokens, TokenizedRow
    from brimful.store.shards import Pack

_MASK = "feature_attention_mask"
"""Array of the columns of audio clips that hold sound."""


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

ARRAY_KEYS = {
    name
    for keys in MEDIA_KEYS.values()
    for name in (keys.features, keys.grid, *keys.others)
    if name
}
"""Keys of arrays that are passed to towers."""

KEYS = ARRAY_KEYS.union(MARK_KEYS)
"""Keys of a plain sample that are about media."""


def of_row(
    row: TokenizedRow, tokens: RowTokens, token_ids: Mapping[str, int]
) -> tuple[tuple[AttachedInputs, ...], dict[str, Int64Array], dict[str, AnyArray]]:
    """Return the media of a row, their placeholders, and the marks that say so.

    ``float64``, which no tower takes, becomes ``float32``; arrays that are empty are left out, and
    token types that are all 0.

    Raises:
        CollateError: an array is not of numbers, or see ``read_media``.
    """
    arrays = {key: row.array(key) for key in ARRAY_KEYS if row.sample.get(key) is not None}
    for key, array in arrays.items():
        if array.dtype.kind not in "biuf":
            raise row.error(f"has {key!r} of {array.dtype}, which must hold numbers")
        if array.dtype == np.float64:
            arrays[key] = array.astype(np.float32)
    arrays = {key: array for key, array in arrays.items() if array.size}
    marks = {
        key: values[tokens.places]
        for key in MARK_KEYS
        if (values := row.per_token(key)) is not None
    }
    marks = {key: values for key, values in marks.items() if key != TOKEN_TYPES or values.any()}
    placeholders = placeholders_of(tokens.input_ids, marks, token_ids)
    return read_media(arrays, placeholders, tokens.cu_seqlens, row.name), placeholders, marks


def check_positions(sample: TokenizedSample, name: str) -> None:
    """Refuse a sample with patches and no positions, which only ``MediaFeatures`` can make.

    Raises:
        CollateError: names the sample and the key.
    """
    grids = [key for item in sample.attached for key in item.arrays if key.endswith("grid_thw")]
    if grids and sample.positions is None:
        raise CollateError(
            f"{name} has {grids[0]!r} and no 'position_ids': give the model's own, as "
            "get_rope_index makes them, or PackCollator(media=MediaFeatures(…)), which makes "
            "them; 0, 1, 2, … for a model with positions of text"
        )


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
    for token_type, (kind, keys) in enumerate(MEDIA_KEYS.items(), 1):
        if TOKEN_TYPES in marks:
            result[kind] = np.flatnonzero(marks[TOKEN_TYPES] == token_type)
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
) -> tuple[AttachedInputs, ...]:
    """Return the media of a sample, each kind checked against its grid and its placeholders.

    Args:
        arrays: by ``ARRAY_KEYS``.
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
            media.append(AttachedInputs(kind, segments, item_arrays))
        elif tokens is not None and len(tokens):
            raise CollateError(
                f"{name} has {len(tokens):,} tokens that stand for media of kind {kind!r}, and no "
                f"{keys.features!r}"
            )
    return tuple(media)


def completed(
    extras: Sequence[PackExtras], packs: Sequence[Pack], is_plain: Sequence[bool]
) -> list[PackExtras]:
    """Return the extras of packs; texts of a batch with media get the same position three times,
    and no placeholders.
    """
    has_positions = any(extra.rope_positions is not None for extra in extras)
    marks = {
        column.name: column
        for extra in extras
        for column in extra.columns
        if column.name in MARK_KEYS
    }
    return [
        _as_text(extra, pack, has_positions, marks) if is_text else extra
        for extra, pack, is_text in zip(extras, packs, is_plain, strict=True)
    ]


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
    if has_positions and positions is None and not extra.attached:
        lengths = np.diff(pack.cu_seqlens)
        positions = np.repeat(
            ranges(np.zeros_like(lengths), lengths)[None].astype(np.int64), 3, axis=0
        )
    return replace(extra, rope_positions=positions, columns=(*extra.columns, *missing))


def join(packs: Sequence[tuple[int, tuple[AttachedInputs, ...]]]) -> tuple[AttachedInputs, ...]:
    """Join media of several packs into media of one row: one for each kind, in order of first
    appearance.

    Args:
        packs: number of the first segment in the row, and media, for each pack.

    Raises:
        CollateError: items of one kind have different arrays, or arrays whose shapes do not join.

    >>> one = AttachedInputs("image", np.array([1], dtype=np.int32), {"image_grid_thw": np.array([[1, 2, 2]])})
    >>> (joined,) = join([(0, (one,)), (4, (one,))])
    >>> joined.segments.tolist(), joined.arrays["image_grid_thw"].tolist()
    ([1, 5], [[1, 2, 2], [1, 2, 2]])
    """
    kinds: dict[str, list[tuple[int, AttachedInputs]]] = {}
    for first_segment, media in packs:
        for item in media:
            kinds.setdefault(item.kind, []).append((first_segment, item))
    return tuple(
        AttachedInputs(
            kind,
            np.concatenate(
                [item.segments + np.int32(first_segment) for first_segment, item in items]
            ),
            _join_arrays(kind, items),
        )
        for kind, items in kinds.items()
    )


def _join_arrays(kind: str, items: Sequence[tuple[int, AttachedInputs]]) -> dict[str, AnyArray]:
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
