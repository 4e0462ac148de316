"""Copies of a batch with other tokens in one segment, or with one segment alone in each row.

The probe runs a trainer's own forward on them, so a copy has the types, shapes and devices of the
batch, and its boundaries in the same words.
"""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, is_dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from brimful.base.ragged import offsets_of, ranges, starts_of
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
from brimful.doctor.batch.view import BatchView, Segment
from brimful.doctor.batch.words import (
    MEDIA_NAMES,
    Path,
    Role,
    Word,
    as_array,
    leaves_of,
    name_and_prefix_of,
    name_of,
)
from brimful.errors import CollateError


def exchanged(batch: Any, view: BatchView, segment: Segment, new_ids: npt.ArrayLike) -> Any:
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
    return _with_values(batch, changes, view, view.row_lengths)


def _labels(word: Word, view: BatchView) -> AnyArray | None:
    """Return labels as ``[B, T]``; None for other words, and for labels of another shape."""
    if word.role not in (Role.LABELS, Role.SHIFTED_LABELS):
        return None
    labels = per_token(word.array, view.shape, IGNORE_INDEX)
    return labels if labels is not None and labels.ndim == 2 else None


def alone(batch: Any, view: BatchView, segments: Sequence[Segment]) -> Any:
    """Return a copy of a batch in which each row holds one segment at its start.

    ::

        tokens       a a a | b b . | . .        segments  b        tokens       b b b | b b b | b b
        labels       - a a | - b - | - -                           labels       - b - | - - - | - -
        cu_seqlens   0       3       6   8                         cu_seqlens   0       3       6   8

    The segment keeps its padding and comes first; its last token fills the other places of the
    row, which are not trained. So the copy has as many segments as the batch, and segments as long.
    Positions begin again with each place.

    Args:
        batch: the batch.
        view: of the same batch, from ``read_batch``.
        segments: one for each row, from any row.

    Raises:
        CollateError: another number of segments than rows, or the batch has media, whose
            placeholders cannot move.

    >>> from brimful.doctor.batch.view import read_batch
    >>> batch = {"input_ids": [[1, 2, 3, 4, 5]], "position_ids": [[0, 1, 2, 0, 1]]}
    >>> alone(batch, view := read_batch(batch), [view.segments[1]])
    {'input_ids': [[4, 5, 5, 5, 5]], 'position_ids': [[0, 1, 0, 1, 2]]}
    """
    if len(segments) != len(view.ids):
        raise CollateError(
            f"{len(segments)} segments for {len(view.ids)} rows: give one for each row"
        )
    leaves = list(leaves_of(batch))
    for path, _ in leaves:
        if name_of(path).startswith(MEDIA_NAMES):
            raise CollateError(f"the batch has {name_of(path)}: media cannot be moved with tokens")
    layout = _Layout.of(view, segments)
    changes = []
    for word in (*view.words, *_other_words(leaves, view)):
        values = _moved_word(word, view, layout)
        if word is view.ids_word:
            last = view.ids[[item.row for item in segments], [item.stop - 1 for item in segments]]
            values = np.where(layout.is_segment, layout.moved(view.ids), last[:, None])
        if values is not None:
            changes.append((word, values))
    return _with_values(batch, changes, view, view.row_lengths[layout.source])


def cut(batch: Any, view: BatchView, length: int) -> Any:
    """Return a copy of a batch with the first tokens of its first row, as the only sample.

    Args:
        batch: a batch of ``alone``.
        view: of the same batch, from ``read_batch``.
        length: tokens of the sample.

    Raises:
        CollateError: rows have lengths of their own, or the batch has a block mask.

    >>> from brimful.doctor.batch.view import read_batch
    >>> batch = {"input_ids": [[4, 5, 5, 5]], "cu_seqlens": [0, 2, 4], "max_seqlen": 2}
    >>> cut(batch, read_batch(batch), 2)
    {'input_ids': [[4, 5]], 'cu_seqlens': [0, 2], 'max_seqlen': 2}
    """
    changes = []
    for word in (*view.words, *_other_words(list(leaves_of(batch)), view)):
        array: Any = word.array
        values: Any = None
        if array is None or array.dtype == object:
            raise CollateError(f"{word} cannot be cut")
        if word.role in (Role.BOUNDARIES, Role.LENGTHS):
            numbers = [0, length][word.role is Role.LENGTHS :]
            values = np.array(numbers, ndmin=array.ndim)
        elif word.role is Role.LONGEST:
            values = np.full(array.shape, length) if array.ndim else length
        elif array.shape[-2:] == (view.shape[1],) * 2:
            values = array[:1, ..., :length, :length]
        elif (values := per_token(array, view.shape)) is not None:
            values = in_own_axes(values[..., :1, :length], array, view.shape)
            values = values.reshape(-1) if array.ndim == 1 else values
        if values is not None:
            changes.append((word, values))
    return _with_values(batch, changes, view, view.row_lengths)


def _other_words(leaves: Sequence[tuple[Path, Any]], view: BatchView) -> Iterator[Word]:
    """Yield arrays with a value for each token whose names are not known, such as weights."""
    paths = {word.path for word in view.words}
    prefix = name_and_prefix_of(view.ids_word.path)[1]
    for path, value in leaves:
        if path not in paths and name_and_prefix_of(path)[1] == prefix:
            array = as_array(value)
            if array is not None and array.size == view.ids.size:
                yield Word(path, Role.VALUES, value, array)


@dataclass(frozen=True, eq=False)
class _Layout:
    """Places of a copy: each row has the places of the row its segment is from, segment first.

    Attributes:
        source: ``int64[B]``: row of each segment.
        columns: ``int64[B, T]``: column in that row of each token of the copy.
        is_segment: ``bool[B, T]``: tokens of the segments.
        sizes: tokens of each place of each row, its padding included.
        real_sizes: the same without padding.
    """

    source: Int64Array
    columns: Int64Array
    is_segment: BoolArray
    sizes: list[Int64Array]
    real_sizes: list[Int64Array]

    @classmethod
    def of(cls, view: BatchView, segments: Sequence[Segment]) -> "_Layout":
        claim, width = view.believed, view.shape[1]
        lengths = claim.ends - claim.starts
        columns, sizes, real_sizes = [], [], []
        for row, start, _ in segments:
            places = np.flatnonzero(claim.starts // width == row)
            own_place = np.searchsorted(claim.starts, row * width + start, side="right") - 1
            order = np.append(own_place, places[places != own_place])
            tokens = ranges(claim.starts[order] - row * width, lengths[order])
            # Padding before the segment (rows padded on the left) moves to the end of its place.
            lead = start - int(tokens[0])
            tokens[: lengths[own_place]] = np.roll(tokens[: lengths[own_place]], -lead)
            columns.append(tokens)
            sizes.append(lengths[order])
            real_sizes.append((claim.stops - claim.starts)[order])
        segment_lengths = np.array([segment.length for segment in segments])
        return cls(
            source=np.array([segment.row for segment in segments], dtype=np.int64),
            columns=np.stack(columns),
            is_segment=np.asarray(np.arange(width) < segment_lengths[:, None]),
            sizes=sizes,
            real_sizes=real_sizes,
        )

    def moved(self, values: AnyArray) -> AnyArray:
        """Return values ``[…, B, T]`` with each token's value at its place in the copy."""
        return np.asarray(values[..., self.source[:, None], self.columns])

    @property
    def numbers(self) -> Int64Array:
        """Number of the place of each token in its row, from 0: ``int64[B, T]``."""
        return np.stack([np.repeat(np.arange(len(sizes)), sizes) for sizes in self.sizes])


def _is_shifted(word: Word, view: BatchView) -> bool:
    """Return whether labels are the next tokens."""
    if word is view.labels_word:
        return view.labeling is Labeling.SHIFTED
    labels = _labels(word, view)
    if word.role is Role.SHIFTED_LABELS or labels is None:
        return True
    return labeling_of(labels, view.ids, view.believed.starts) is Labeling.SHIFTED


def _moved_word(word: Word, view: BatchView, layout: _Layout) -> Any:
    """Return the values of a word in the new layout; None if they stay."""
    if word.role in (Role.BOUNDARIES, Role.LENGTHS) or is_boundary_mask(word, view.shape):
        return _moved_boundaries(word, view, layout)
    if word.role is Role.MASK and hasattr(word.value, "mask_mod"):
        return _block_mask(word.value, layout)
    if word.role is Role.MASK and (visible := visible_pairs(word, view.shape)) is not None:
        return _moved_pairs(word, visible, layout)
    is_labels = word.role in (Role.LABELS, Role.SHIFTED_LABELS)
    values = per_token(word.array, view.shape, IGNORE_INDEX if is_labels else 0)
    if values is None:
        return None
    moved_values = layout.moved(values)
    if word.role is Role.POSITIONS:
        # The same number at the beginning of each place, and from there on as it was.
        begins = [np.repeat(starts_of(sizes), sizes) for sizes in layout.sizes]
        places = np.broadcast_to(begins, moved_values.shape)
        first = np.take_along_axis(moved_values, places, axis=-1)
        starts, _ = view.bounds
        return moved_values - first + values.reshape(-1, view.ids.size)[:, starts].min()
    if is_labels:
        # With a mask of targets, labels without one may be any token.
        has_ignored = bool((values == IGNORE_INDEX).any()) or not view.words_with(Role.LOSS_MASK)
        return np.where(layout.is_segment, moved_values, IGNORE_INDEX if has_ignored else 0)
    if word.role is Role.LOSS_MASK:
        return np.where(layout.is_segment, moved_values, 0)
    if word.role is Role.MASK and values.max() <= 1:
        # Ones at all tokens of packed rows stay; a mask of padding marks the rest of the row.
        is_packed = len(layout.sizes[0]) > 1 and bool((values != 0).all())
        return moved_values if is_packed else layout.is_segment
    if word.role in (Role.NUMBERS, Role.MASK):
        from_one = word.role is Role.MASK or int(values[:, 0].min()) > 0
        is_padding = (moved_values < from_one) & ~layout.is_segment
        return np.where(is_padding, moved_values, layout.numbers + from_one)
    return moved_values


def _moved_boundaries(word: Word, view: BatchView, layout: _Layout) -> Any:
    """Return boundaries or lengths of the new places in the form of a word; None if unreadable."""
    is_lengths = word.role is Role.LENGTHS
    rows = rows_of_lengths(word, view.shape) if is_lengths else rows_of_boundaries(word)
    if rows is None or word.array is None:
        return None
    sizes = layout.real_sizes if counts_real_tokens(word, view.words) else layout.sizes
    # One list for all rows, or a list for each, which has the numbers of the row it is from.
    counts = [len(rows[row]) for row in layout.source.tolist()] if len(rows) > 1 else [len(rows[0])]
    if len(rows) == 1:
        sizes = [np.concatenate(sizes)]
    lists = sizes if is_lengths else [offsets_of(row) for row in sizes]
    # Words that leave out the padding at the end have fewer numbers than the row has places.
    lists = [numbers[:count] for numbers, count in zip(lists, counts, strict=True)]
    if word.array.dtype == object:
        return lists
    return _filled_table(np.atleast_2d(word.array), lists, is_lengths=is_lengths)


def _filled_table(values: AnyArray, lists: list[Int64Array], *, is_lengths: bool) -> Int64Array:
    """Return lists as a table, with the filler that the values of the batch have at their ends.

    Boundaries without a filler repeat the last one: segments without tokens.
    """
    fillers = values[values < (1 if is_lengths else 0)]
    width = max(values.shape[1], *map(len, lists))
    table = np.zeros((len(lists), width), dtype=np.int64)
    for row, numbers in zip(table, lists, strict=True):
        row[: len(numbers)] = numbers
        row[len(numbers) :] = fillers[0] if len(fillers) else 0 if is_lengths else numbers[-1]
    return table


def _moved_pairs(word: Word, visible: BoolArray, layout: _Layout) -> AnyArray:
    """Return a mask of all pairs for the new places: causal, unless the batch's was not."""
    assert word.array is not None
    numbers = layout.numbers
    is_visible = numbers[:, :, None] == numbers[:, None, :]
    if not np.triu(visible[0], 1).any():
        is_visible &= np.tri(numbers.shape[1], dtype=bool)
    values: AnyArray = is_visible
    if word.array.dtype.kind == "f" and float(word.array.max()) <= 0:
        values = np.where(is_visible, word.array.max(), word.array.min())
    return np.broadcast_to(values[:, None] if word.array.ndim == 4 else values, word.array.shape)


def _block_mask(mask: Any, layout: _Layout) -> Any:
    """Return a mask of FlexAttention for the new places."""
    import torch
    from torch.nn.attention.flex_attention import create_block_mask

    device = mask.kv_num_blocks.device
    numbers = torch.from_numpy(layout.numbers).to(device)

    def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (numbers[b, q_idx] == numbers[b, kv_idx]) & (q_idx >= kv_idx)

    rows, width = layout.columns.shape
    return create_block_mask(
        mask_mod, rows, None, width, width, device=str(device), BLOCK_SIZE=mask.BLOCK_SIZE
    )


def _with_values(
    batch: Any,
    changes: Sequence[tuple[Word, Any]],
    view: BatchView,
    row_lengths: Int64Array,
) -> Any:
    """Return a copy of a batch with other values of some words, in the types that they had.

    Args:
        batch: the batch.
        changes: words with their new values: an array, a list of arrays for a word with a value for
            each row, or any other object as it is.
        view: of the batch.
        row_lengths: ``int64[B]``, lengths of the rows of the copy.
    """
    for word, values in changes:
        copied_value = values
        if isinstance(values, np.ndarray):
            if word.array is not None and values.shape[-2:] == view.shape:
                values = in_own_axes(values, word.array, view.shape)
            copied_value = _like(word, values, row_lengths)
        elif isinstance(values, list):
            rows = [Word(word.path, word.role, value, None) for value in word.value]
            copied_value = [_like(*pair, row_lengths) for pair in zip(rows, values, strict=True)]
        batch = _with_value(batch, word.path, copied_value)
    return batch


def _with_value(container: Any, path: Path, value: Any) -> Any:
    """Return a shallow copy of a container with another value at the end of a path."""
    if not path:
        return value
    key, inner_path = path[0], path[1:]
    if isinstance(container, list) and isinstance(key, str):
        # One mapping for each row.
        return [
            _with_value(item, path, item_value)
            for item, item_value in zip(container, value, strict=True)
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


def _like(word: Word, values: AnyArray, row_lengths: Int64Array) -> Any:
    """Return numbers as the kind of object that a word has, with its shape, dtype and device.

    Args:
        word: the word.
        values: numbers; for rows of several lengths ``[…, B, T]``.
        row_lengths: ``int64[B]``, lengths of such rows.
    """
    model, array = word.value, word.array
    if array is not None and array.dtype == object:
        return _nested_like(model, values, row_lengths)
    if hasattr(model, "detach"):
        import torch

        tensor = torch.from_numpy(np.array(values)).to(device=model.device, dtype=model.dtype)
        return tensor.reshape(model.shape) if tensor.numel() == model.numel() else tensor
    if isinstance(model, (list, tuple)):
        if array is not None:
            values = values.reshape(array.shape) if values.size == array.size else values
            values = values.astype(array.dtype)
        return type(model)(values.tolist())
    values = values.astype(getattr(model, "dtype", values.dtype))
    return values.reshape(model.shape) if values.size == getattr(model, "size", -1) else values


def _nested_like(model: Any, values: AnyArray, row_lengths: Int64Array) -> Any:
    """Return rows of several lengths as a nested tensor, or as lists."""
    rows = [values[..., row, :length] for row, length in enumerate(row_lengths.tolist())]
    if not hasattr(model, "detach"):
        return type(model)(
            type(item)(row.tolist()) if isinstance(item, (list, tuple)) else row.astype(item.dtype)
            for item, row in zip(model, rows, strict=True)
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
