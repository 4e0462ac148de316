"""Copies of a batch with other tokens in one segment, or with one segment alone in each row.

The probe runs a trainer's own forward on them, so a copy has the types, shapes and devices of the
batch, and its boundaries in the same words.
"""

import copy
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, is_dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from brimful.base.ragged import offsets_of
from brimful.base.typing import IGNORE_INDEX, AnyArray, BoolArray, Int64Array
from brimful.doctor.batch.claims import (
    counts_real_tokens,
    in_own_axes,
    is_boundary_mask,
    per_token,
    rows_of_boundaries,
    rows_of_lengths,
    visible_pairs,
)
from brimful.doctor.batch.targets import Labeling, labeling_of
from brimful.doctor.batch.view import BatchView, RowSegment
from brimful.doctor.batch.words import (
    MEDIA_NAMES,
    BatchWord,
    Path,
    Role,
    as_array,
    leaves_of,
    name_and_prefix_of,
    name_of,
)
from brimful.errors import CollateError


def next_tokens(
    ids: Int64Array, candidates: Int64Array, steps: int = 1, *, exclude: Collection[int] = ()
) -> Int64Array:
    """Replace each token by the one that comes ``steps`` later among others; the first follows the
    last.

    Only ids that occur are used, so that no special token comes in that would change more than
    content.

    Args:
        ids: ``int64[n]``.
        candidates: tokens that occur, in rising order.
        steps: at least 1.
        exclude: tokens that replace no other.

    >>> next_tokens(np.array([5, 9]), np.array([5, 7, 9])).tolist()
    [7, 5]
    """
    candidates = candidates[~np.isin(candidates, list(exclude))]
    return candidates[(np.searchsorted(candidates, ids) + steps) % len(candidates)]


def exchanged(batch: Any, view: BatchView, segment: RowSegment, new_ids: npt.ArrayLike) -> Any:
    """Return a copy of a batch with other tokens in one segment.

    ::

        tokens   a a a | b b b          tokens   a a a | x x x
        labels   - a a | - b b          labels   - a a | - x x

    Labels follow where they are tokens of the segment that the segment itself predicts. The target
    of the token before the segment stays, and so does everything that is not a token. The batch is
    not changed, and the copy shares all other values with it.

    Args:
        batch: the batch.
        view: of the same batch, from ``read_batch``.
        segment: one of ``view.segments``.
        new_ids: integers, ``[segment.length]``.

    Raises:
        CollateError: another number of tokens than the segment has.

    >>> from brimful.doctor.batch.view import read_batch
    >>> batch = {"input_ids": [[1, 2, 3, 4]], "labels": [[1, 2, -100, 4]], "seq_lengths": [[2, 2]]}
    >>> exchanged(batch, view := read_batch(batch), view.segments[1], [8, 9])
    {'input_ids': [[1, 2, 8, 9]], 'labels': [[1, 2, -100, 9]], 'seq_lengths': [[2, 2]]}
    """
    row, start, stop = segment
    tokens = np.asarray(new_ids, dtype=np.int64)
    if tokens.shape != (segment.length,):
        raise CollateError(
            f"new_ids has the shape {tokens.shape} and the segment {segment.length} tokens"
        )
    changes = []
    for word in view.words:
        if word is view.ids_word:
            values: AnyArray = view.ids.copy()
            values[row, start:stop] = tokens
        elif (labels := _labels(word, view)) is not None:
            # Labels of the tokens that the segment predicts: all but its first.
            first = start if _is_shifted(word, view) else start + 1
            places = np.s_[row, first : first + segment.length - 1]
            is_token = labels[places] == view.ids[row, start + 1 : stop]
            values = labels.copy()
            values[places] = np.where(is_token, tokens[1:], labels[places])
        else:
            continue
        changes.append((word, values))
    return _with_values(batch, changes, view.row_lengths)


def _labels(word: BatchWord, view: BatchView) -> AnyArray | None:
    """Return labels as ``[B, T]``; None for other words, and for labels of another shape."""
    if word.role not in (Role.LABELS, Role.SHIFTED_LABELS):
        return None
    labels = per_token(word.array, view.shape, IGNORE_INDEX)
    return labels if labels is not None and labels.ndim == 2 else None


def alone(
    batch: Any, view: BatchView, segments: Sequence[RowSegment], *, is_cut: bool = False
) -> Any:
    """Return a copy of a batch in which each row holds one segment at its start.

    ::

        tokens       a a a | b b . | . .        segments  b        tokens       b b b | b b b b b
        labels       - a a | - b - | - -                           labels       - b - | - - - - -
        cu_seqlens   0       3       6   8                         cu_seqlens   0       3         8 8

    The segment keeps its padding and comes first. Its last token fills the other places of the
    row, which are one more segment, and not trained; boundaries have as many numbers as before.
    Positions begin again with each place.

    Args:
        batch: the batch.
        view: of the same batch, from ``read_batch``.
        segments: one for each row, from any row.
        is_cut: the copy has one row, as long as its segment.

    Raises:
        CollateError: another number of segments than rows, or the batch has media, whose
            placeholders cannot move.

    >>> from brimful.doctor.batch.view import read_batch
    >>> batch = {"input_ids": [[1, 2, 3, 4, 5]], "position_ids": [[0, 1, 2, 0, 1]]}
    >>> alone(batch, view := read_batch(batch), [view.segments[1]])
    {'input_ids': [[4, 5, 5, 5, 5]], 'position_ids': [[0, 1, 0, 1, 2]]}
    >>> alone(batch, view, [view.segments[1]], is_cut=True)
    {'input_ids': [[4, 5]], 'position_ids': [[0, 1]]}
    """
    num_rows = 1 if is_cut else len(view.ids)
    if len(segments) != num_rows:
        raise CollateError(f"{len(segments)} segments for {num_rows} rows: give one for each row")
    leaves = list(leaves_of(batch))
    for path, _ in leaves:
        if name_of(path).startswith(MEDIA_NAMES):
            raise CollateError(f"the batch has {name_of(path)}: media cannot be moved with tokens")
    layout = _Layout.of(view, segments, is_cut=is_cut)
    changes = []
    for word in (*view.words, *_other_words(leaves, view)):
        values = _moved_word(word, view, layout)
        if values is not None:
            changes.append((word, values))
    row_lengths = layout.sizes[:, 0] if is_cut else view.row_lengths[layout.source]
    return _with_values(batch, changes, row_lengths)


def _other_words(leaves: Sequence[tuple[Path, Any]], view: BatchView) -> Iterator[BatchWord]:
    """Yield arrays with a value for each token whose names are not known, such as weights."""
    paths = {word.path for word in view.words}
    prefix = name_and_prefix_of(view.ids_word.path)[1]
    for path, value in leaves:
        if path not in paths and name_and_prefix_of(path)[1] == prefix:
            array = as_array(value)
            if array is not None and array.size == view.ids.size:
                yield BatchWord(path, Role.VALUES, value, array)


@dataclass(frozen=True, eq=False)
class _Layout:
    """Places of a copy, R rows of W tokens: the place of a segment in each row, and the rest.

    Attributes:
        source: ``int64[R]``: row of each segment.
        columns: ``int64[R, W]``: column in that row of each token of the copy; of the last token of
            the segment in the rest.
        lengths: ``int64[R, 1]``: tokens of each segment.
        sizes: ``int64[R, 1]``: the same with the padding that follows it.
        is_cut: the copy has no rest.
    """

    source: Int64Array
    columns: Int64Array
    lengths: Int64Array
    sizes: Int64Array
    is_cut: bool

    @classmethod
    def of(cls, view: BatchView, segments: Sequence[RowSegment], *, is_cut: bool) -> "_Layout":
        claim = view.believed
        rows, starts, stops = np.array(segments, dtype=np.int64).T
        # Padding before the segment (rows padded on the left) is a part of its place.
        number = np.searchsorted(claim.starts, rows * view.shape[1] + starts, side="right") - 1
        sizes = stops - starts if is_cut else (claim.ends - claim.starts)[number]
        ends = claim.ends[number] - rows * view.shape[1]
        tokens = starts[:, None] + np.arange(int(sizes[0]) if is_cut else view.shape[1])
        columns = np.where(tokens < ends[:, None], tokens, stops[:, None] - 1)
        return cls(rows, columns, (stops - starts)[:, None], sizes[:, None], is_cut)

    @property
    def index(self) -> Int64Array:
        """Number of each token of a row: ``int64[W]``."""
        return np.arange(self.columns.shape[1])

    @property
    def is_segment(self) -> BoolArray:
        """``bool[R, W]``: tokens of the segments."""
        return np.asarray(self.index < self.lengths)

    @property
    def is_rest(self) -> BoolArray:
        """``bool[R, W]``: tokens after the places of the segments."""
        return np.asarray(self.index >= self.sizes)

    def moved(self, values: AnyArray) -> AnyArray:
        """Return values ``[…, B, T]`` with each token's value at its place in the copy."""
        return np.asarray(values[..., self.source[:, None], self.columns])


def _is_shifted(word: BatchWord, view: BatchView) -> bool:
    """Return whether labels are the next tokens."""
    if word is view.labels_word:
        return view.labeling is Labeling.SHIFTED
    labels = _labels(word, view)
    if word.role is Role.SHIFTED_LABELS or labels is None:
        return True
    return labeling_of(labels, view.ids, view.believed.starts) is Labeling.SHIFTED


def _moved_word(word: BatchWord, view: BatchView, layout: _Layout) -> Any:
    """Return the values of a word in the new layout; None if they stay."""
    if word.role in (Role.BOUNDARIES, Role.LENGTHS) or is_boundary_mask(word, view.shape):
        return _moved_boundaries(word, view, layout)
    if word.role is Role.LONGEST and word.array is not None:
        longest = max(int(layout.sizes.max()), len(layout.index) - int(layout.sizes.min()))
        fits = not layout.is_cut and int(word.array.max(initial=0)) >= longest
        return None if fits else np.full(word.array.shape, longest)
    if word.role is Role.MASK and hasattr(word.value, "mask_mod"):
        return _block_mask(word.value, layout)
    if word.role is Role.MASK and (visible := visible_pairs(word, view.shape)) is not None:
        return _moved_pairs(word, visible, layout)
    is_labels = word.role in (Role.LABELS, Role.SHIFTED_LABELS)
    values = per_token(word.array, view.shape, IGNORE_INDEX if is_labels else 0)
    if values is None or word.array is None:
        return None
    return in_own_axes(_moved_values(word, values, view, layout), word.array, view.shape)


def _moved_values(word: BatchWord, values: AnyArray, view: BatchView, layout: _Layout) -> AnyArray:
    """Return the values of tokens in the new layout: ``[R, W]``, or ``[rows, R, W]``."""
    moved_values, is_segment = layout.moved(values), layout.is_segment
    if word is view.ids_word:
        last = np.take_along_axis(moved_values, layout.lengths - 1, axis=-1)
        return np.where(is_segment, moved_values, last)
    if word.role is Role.POSITIONS:
        # Both places begin with the same number.
        starts, _ = view.bounds
        first = values.reshape(-1, view.ids.size)[:, starts].min()
        in_place = layout.index - layout.sizes * layout.is_rest
        moved_values = moved_values - moved_values[..., :1]
        return np.asarray(first + np.where(is_segment, moved_values, in_place))
    if word.role in (Role.LABELS, Role.SHIFTED_LABELS):
        # With a mask of targets, labels without one may be any token.
        has_ignored = bool((values == IGNORE_INDEX).any()) or not view.words_with(Role.LOSS_MASK)
        return np.where(is_segment, moved_values, IGNORE_INDEX if has_ignored else 0)
    if word.role in (Role.LOSS_MASK, Role.VALUES):
        return np.where(is_segment, moved_values, 0)
    if word.role is Role.MASK and values.max() <= 1:
        # Ones at all tokens of packed rows stay; a mask of padding marks the rest of the row.
        is_packed = len(view.segments) > len(view.ids) and bool((values != 0).all())
        return moved_values if is_packed else is_segment
    if word.role in (Role.NUMBERS, Role.MASK):
        from_one = word.role is Role.MASK or int(values[:, 0].min()) > 0
        is_padding = (moved_values < from_one) & ~is_segment
        return np.where(is_padding, moved_values, layout.is_rest + np.int64(from_one))
    return moved_values


def _moved_boundaries(word: BatchWord, view: BatchView, layout: _Layout) -> Any:
    """Return boundaries or lengths of the new places in the form of a word; None if unreadable."""
    is_lengths = word.role is Role.LENGTHS
    rows = rows_of_lengths(word, view.shape) if is_lengths else rows_of_boundaries(word)
    if rows is None or word.array is None:
        return None
    sizes = layout.lengths if counts_real_tokens(word, view.words) else layout.sizes
    sizes = np.hstack([sizes, len(layout.index) - layout.sizes])
    lists = [row[row > 0] for row in (sizes if len(rows) > 1 else sizes.reshape(1, -1))]
    if not is_lengths:
        lists = [offsets_of(row) for row in lists]
    if layout.is_cut:
        return lists if word.array.dtype == object else np.array(lists[0], ndmin=word.array.ndim)
    # One list for all rows, or a list for each, as long as the one of the row that it is from.
    sources = layout.source if len(rows) > 1 else [0]
    tables = word.array if word.array.dtype == object else word.array.reshape(len(rows), -1)
    copies = []
    for source, numbers in zip(sources, lists, strict=True):
        copied_row = np.array(tables[source])
        count = int((rows[source] > 0).sum()) if is_lengths else len(rows[source])
        numbers = numbers[:count]
        copied_row[:count] = 0 if is_lengths else numbers.max(initial=0)
        copied_row[: len(numbers)] = numbers
        copies.append(copied_row)
    return copies if word.array.dtype == object else np.stack(copies)


def _moved_pairs(word: BatchWord, visible: BoolArray, layout: _Layout) -> AnyArray:
    """Return a mask of all pairs for the new places: causal, unless the batch's was not."""
    assert word.array is not None
    is_visible = layout.is_rest[:, :, None] == layout.is_rest[:, None]
    if not np.triu(visible[0], 1).any():
        is_visible &= layout.index[:, None] >= layout.index
    values: AnyArray = is_visible
    if word.array.dtype.kind == "f" and float(word.array.max()) <= 0:
        values = np.where(is_visible, word.array.max(), word.array.min())
    if word.array.ndim == 4:
        return np.repeat(values[:, None], word.array.shape[1], axis=1)
    return values


def _block_mask(mask: Any, layout: _Layout) -> Any:
    """Return a mask of FlexAttention for the new places."""
    import torch
    from torch.nn.attention.flex_attention import create_block_mask

    device = mask.kv_num_blocks.device
    is_rest = torch.from_numpy(layout.is_rest).to(device)

    def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (is_rest[b, q_idx] == is_rest[b, kv_idx]) & (q_idx >= kv_idx)

    rows, width = layout.columns.shape
    return create_block_mask(
        mask_mod, rows, None, width, width, device=str(device), BLOCK_SIZE=mask.BLOCK_SIZE
    )


def _with_values(
    batch: Any, changes: Sequence[tuple[BatchWord, Any]], row_lengths: Int64Array
) -> Any:
    """Return a copy of a batch with other values of some words, in the types that they had.

    Args:
        batch: the batch.
        changes: words with their new values: an array, a list of arrays for a word with a value for
            each row, or any other object as it is.
        row_lengths: ``int64[B]``, lengths of the rows of the copy.
    """
    for word, values in changes:
        copied_value = values
        if isinstance(values, np.ndarray):
            copied_value = _like(word, values, row_lengths)
        elif isinstance(values, list):
            rows = [BatchWord(word.path, word.role, value, None) for value in word.value]
            copied_value = [_like(*pair, row_lengths) for pair in zip(rows, values, strict=False)]
        batch = _with_value(batch, word.path, copied_value)
    return batch


def _with_value(container: Any, path: Path, value: Any) -> Any:
    """Return a shallow copy of a container with another value at the end of a path."""
    if not path:
        return value
    key, inner_path = path[0], path[1:]
    if isinstance(container, list) and isinstance(key, str):
        # One mapping for each row; a copy that is cut has fewer rows.
        return [
            _with_value(item, path, item_value)
            for item, item_value in zip(container, value, strict=False)
        ]
    if isinstance(key, int):
        items = list(container)
        items[key] = _with_value(items[key], inner_path, value)
        return tuple(items) if isinstance(container, tuple) else items
    if hasattr(container, "keys"):
        item = _with_value(container[key], inner_path, value)
        try:
            copied_mapping = copy.copy(container)
            copied_mapping[key] = item
        except TypeError:  # a mapping that cannot be copied or written
            return {**container, key: item}
        return copied_mapping
    item = _with_value(getattr(container, key), inner_path, value)
    if hasattr(container, "_replace"):
        return container._replace(**{key: item})
    if is_dataclass(container) and not isinstance(container, type):
        return replace(container, **{key: item})
    copied_object = copy.copy(container)
    setattr(copied_object, key, item)
    return copied_object


def _like(word: BatchWord, values: AnyArray, row_lengths: Int64Array) -> Any:
    """Return numbers as the kind of object that a word has, with its shape, dtype and device.

    Args:
        word: the word.
        values: numbers; for rows of several lengths ``[…, B, T]``.
        row_lengths: ``int64[B]``, lengths of such rows.
    """
    model, array = word.value, word.array
    if array is not None and array.dtype == object:
        return _nested_like(model, values, row_lengths)
    if array is not None:
        if values.size == array.size:
            values = values.reshape(array.shape)
        elif array.ndim == 1:
            values = values.reshape(-1)
    if hasattr(model, "detach"):
        import torch

        return torch.from_numpy(np.array(values)).to(device=model.device, dtype=model.dtype)
    if isinstance(model, (list, tuple)):
        dtype = values.dtype if array is None else array.dtype
        return type(model)(values.astype(dtype).tolist())
    return int(values) if isinstance(model, int) else values.astype(model.dtype)


def _nested_like(model: Any, values: AnyArray, row_lengths: Int64Array) -> Any:
    """Return rows of several lengths as a nested tensor, or as lists."""
    rows = [values[..., row, :length] for row, length in enumerate(row_lengths.tolist())]
    if not hasattr(model, "detach"):
        return type(model)(
            type(item)(row.tolist()) if isinstance(item, (list, tuple)) else row.astype(item.dtype)
            for item, row in zip(model, rows, strict=False)
        )
    import torch

    tensors = [
        torch.from_numpy(np.array(row)).to(device=model.device, dtype=model.dtype) for row in rows
    ]
    if model.layout is not torch.jagged or model.dim() != 2:
        return torch.nested.as_nested_tensor(tensors, layout=model.layout)
    offsets = torch.from_numpy(offsets_of(row_lengths)).to(model.offsets())
    # Tensors with the very same offsets can be combined.
    offsets = model.offsets() if torch.equal(offsets, model.offsets()) else offsets
    return torch.nested.nested_tensor_from_jagged(torch.cat(tensors), offsets)
