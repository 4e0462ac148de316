"""Copies of a batch with other tokens in one segment, or with one segment alone in each row.

The probe runs a trainer's own forward on them, so a copy has the types, shapes and devices of the
batch, and its boundaries in the same words.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from brimful.base.ragged import offsets_of
from brimful.base.typing import IGNORE_INDEX, AnyArray, Int64Array
from brimful.doctor.batch.claims import (
    counts_real_tokens,
    in_own_axes,
    is_boundary_mask,
    per_token,
    rows_of_boundaries,
    rows_of_lengths,
    visible_pairs,
)
from brimful.doctor.batch.view import BatchView, Labeling, Segment, labeling_of
from brimful.doctor.batch.words import MEDIA_NAMES, Path, Role, Word, name_of, paths_of
from brimful.errors import CollateError

__all__ = ["alone", "exchanged"]


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
    new = np.asarray(new_ids, dtype=np.int64)
    if new.shape != (segment.length,):
        raise CollateError(
            f"new_ids has the shape {new.shape} and the segment {segment.length} tokens"
        )
    ids = view.ids.copy()
    ids[row, start:stop] = new
    changes = {view.ids_word: ids}
    for word in view.words_with(Role.LABELS, Role.SHIFTED_LABELS):
        labels = per_token(word.array, view.shape, IGNORE_INDEX)
        if labels is None or labels.ndim != 2:
            continue
        labels = labels.copy()
        # Labels at the tokens that the segment predicts: all but its first.
        places = slice(start, stop - 1) if _is_shifted(word, view) else slice(start + 1, stop)
        old = view.ids[row, start + 1 : stop]
        labels[row, places] = np.where(labels[row, places] == old, new[1:], labels[row, places])
        changes[word.path] = labels
    return _with_arrays(batch, view, changes, view.row_lengths)


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
    names = {name_of(path) for path in paths_of(batch)}
    if media := sorted(name for name in names if name.startswith(MEDIA_NAMES)):
        raise CollateError(f"the batch has {media[0]}: a segment with media cannot be moved")
    layout = _Layout.of(view, segments)
    changes: dict[Path, Any] = {}
    for word in view.words:
        if word.path == view.ids_word:
            last = view.ids[[item.row for item in segments], [item.stop - 1 for item in segments]]
            changes[word.path] = np.where(layout.is_segment, layout.moved(view.ids), last[:, None])
        elif (value := _moved_word(word, view, layout)) is not None:
            changes[word.path] = value
    return _with_arrays(batch, view, changes, view.row_lengths[layout.source])


class _Layout:
    """Places of a copy: each row has the places of the row its segment is from, segment first.

    Attributes:
        shape: rows and tokens.
        source: ``int64[B]``: row of each segment.
        order: ``int64[B, T]``: column in that row of each token of the copy.
        is_segment: ``bool[B, T]``: tokens of the segments.
        places: lengths of the places of each row, and of their real tokens.
    """

    def __init__(
        self,
        shape: tuple[int, int],
        source: Int64Array,
        order: Int64Array,
        lengths: Int64Array,
        places: list[tuple[Int64Array, Int64Array]],
    ) -> None:
        self.shape, self.source, self.order, self.places = shape, source, order, places
        self.is_segment = np.arange(shape[1]) < lengths[:, None]

    @classmethod
    def of(cls, view: BatchView, segments: Sequence[Segment]) -> "_Layout":
        width = view.shape[1]
        claim = view.believed
        owners = claim.starts // width
        orders, places = [], []
        for segment in segments:
            in_row = owners == segment.row
            starts = claim.starts[in_row] - segment.row * width
            ends = claim.ends[in_row] - segment.row * width
            stops = claim.stops[in_row] - segment.row * width
            number = int(np.searchsorted(starts, segment.start, side="right")) - 1
            # Padding before the segment (rows padded on the left) moves to the end of its place.
            columns = [
                np.r_[segment.start : int(ends[number]), int(starts[number]) : segment.start],
                *(
                    np.arange(start, end)
                    for index, (start, end) in enumerate(zip(starts, ends, strict=True))
                    if index != number
                ),
            ]
            orders.append(np.concatenate(columns))
            first = np.r_[number, np.delete(np.arange(len(starts)), number)]
            places.append(((ends - starts)[first], (stops - starts)[first]))
        return cls(
            view.shape,
            np.array([segment.row for segment in segments], dtype=np.int64),
            np.stack(orders).astype(np.int64),
            np.array([segment.length for segment in segments], dtype=np.int64),
            places,
        )

    def moved(self, values: AnyArray) -> AnyArray:
        """Return values ``[…, B, T]`` with each token's value where the token is now."""
        return np.asarray(values[..., self.source[:, None], self.order])

    def numbers(self) -> Int64Array:
        """Return the number of the place of each token in its row, from 0: ``int64[B, T]``."""
        return np.stack([np.repeat(np.arange(len(sizes)), sizes) for sizes, _ in self.places])

    def place_starts(self) -> Int64Array:
        """Return the column at which the place of each token begins: ``int64[B, T]``."""
        return np.stack([np.repeat(np.cumsum(sizes) - sizes, sizes) for sizes, _ in self.places])


def _is_shifted(word: Word, view: BatchView) -> bool:
    if word.path == view.labels_word:
        return view.labeling is Labeling.SHIFTED
    if word.role is Role.SHIFTED_LABELS:
        return True
    labels = per_token(word.array, view.shape, IGNORE_INDEX)
    return (
        labels is not None
        and labeling_of(labels, view.ids, view.believed.starts) is Labeling.SHIFTED
    )


def _moved_word(word: Word, view: BatchView, layout: _Layout) -> Any:
    """Return the values of a word in the new layout; None if they stay."""
    if word.role in (Role.BOUNDARIES, Role.LENGTHS) or is_boundary_mask(word, view.shape):
        return _moved_boundaries(word, view, layout)
    if word.role is Role.MASK and hasattr(word.value, "mask_mod"):
        return _block_mask(word.value, layout)
    if word.role is Role.MASK and (visible := visible_pairs(word, view.shape)) is not None:
        return _moved_pairs(word, visible, layout)
    values = per_token(word.array, view.shape, _fill_of(word))
    if values is None:
        return None
    moved = layout.moved(values)
    if word.role is Role.POSITIONS:
        # The same number at the beginning of each place, and from there on as it was.
        first = np.take_along_axis(
            moved, np.broadcast_to(layout.place_starts(), moved.shape), axis=-1
        )
        starts, _ = view.bounds
        return moved - first + values.reshape(-1, view.ids.size)[:, starts].min()
    if word.role in (Role.LABELS, Role.SHIFTED_LABELS):
        # With a mask of targets, labels without one may be any token.
        has_ignored = bool((values == IGNORE_INDEX).any()) or not view.words_with(Role.LOSS_MASK)
        return np.where(layout.is_segment, moved, IGNORE_INDEX if has_ignored else 0)
    if word.role is Role.LOSS_MASK:
        return np.where(layout.is_segment, moved, 0)
    if word.role is Role.MASK and values.max() <= 1:
        # Ones at all tokens of packed rows stay; a mask of padding marks the rest of the row.
        is_packed = len(layout.places[0][0]) > 1 and bool((values != 0).all())
        return moved if is_packed else layout.is_segment
    if word.role in (Role.NUMBERS, Role.MASK):
        from_one = word.role is Role.MASK or int(values[:, 0].min()) > 0
        is_padding = (moved < from_one) & ~layout.is_segment
        return np.where(is_padding, moved, layout.numbers() + from_one)
    return moved if word.role is Role.PADDING_MASK else None


def _fill_of(word: Word) -> int:
    """Return what fills the end of rows of several lengths."""
    return IGNORE_INDEX if word.role in (Role.LABELS, Role.SHIFTED_LABELS) else 0


def _moved_boundaries(word: Word, view: BatchView, layout: _Layout) -> Any:
    """Return boundaries or lengths of the new places in the form of a word; None if unreadable."""
    is_real = counts_real_tokens(word, view.words)
    new = [real if is_real else sizes for sizes, real in layout.places]
    is_lengths = word.role is Role.LENGTHS
    old = rows_of_lengths(word, view.shape) if is_lengths else rows_of_boundaries(word)
    if old is None or word.array is None:
        return None
    # One list for all rows, or a list for each, which has the numbers of the row it is from.
    if len(old) == 1:
        new = [np.concatenate(new)]
        counts = [len(old[0])]
    else:
        counts = [len(old[row]) for row in layout.source.tolist()]
    if not is_lengths:
        new = [offsets_of(row) for row in new]
    # Words that leave out the padding at the end have fewer numbers than there are places.
    new = [row[:count] for row, count in zip(new, counts, strict=True)]
    if word.array.dtype == object:
        return new
    return _filled_table(np.atleast_2d(word.array), new, is_lengths=is_lengths)


def _filled_table(old: AnyArray, rows: list[Int64Array], *, is_lengths: bool) -> Int64Array:
    """Return rows of numbers as a table, with the filler of the old one at their ends.

    Boundaries without a filler repeat the last one: segments without tokens.
    """
    fillers = old[old < (1 if is_lengths else 0)]
    width = max(old.shape[1], *map(len, rows))
    table = np.zeros((len(rows), width), dtype=np.int64)
    for target, row in zip(table, rows, strict=True):
        target[: len(row)] = row
        target[len(row) :] = fillers[0] if len(fillers) else 0 if is_lengths else row[-1]
    return table


def _moved_pairs(word: Word, visible: AnyArray, layout: _Layout) -> AnyArray:
    """Return a mask of all pairs for the new places: causal, unless the batch's was not."""
    assert word.array is not None
    numbers = layout.numbers()
    new = numbers[:, :, None] == numbers[:, None, :]
    width = layout.shape[1]
    if not np.triu(visible[0], 1).any():
        new &= np.tri(width, dtype=bool)
    if word.array.dtype.kind == "f" and float(word.array.max()) <= 0:
        lowest = word.array.min()
        values: AnyArray = np.where(new, word.array.dtype.type(0), lowest)
    else:
        values = new.astype(word.array.dtype)
    return np.broadcast_to(values[:, None] if word.array.ndim == 4 else values, word.array.shape)


def _block_mask(mask: Any, layout: _Layout) -> Any:
    """Return a mask of FlexAttention for the new places."""
    import torch
    from torch.nn.attention.flex_attention import create_block_mask

    device = mask.kv_num_blocks.device
    numbers = torch.from_numpy(layout.numbers()).to(device)

    def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (numbers[b, q_idx] == numbers[b, kv_idx]) & (q_idx >= kv_idx)

    rows, width = layout.shape
    return create_block_mask(
        mask_mod, rows, None, width, width, device=str(device), BLOCK_SIZE=mask.BLOCK_SIZE
    )


def _with_arrays(
    batch: Any, view: BatchView, changes: Mapping[Path, Any], row_lengths: Int64Array
) -> Any:
    """Return a copy of a batch with other values at some paths, of the types that it had."""
    words = {word.path: word for word in view.words}
    for path, value in changes.items():
        word = words[path]
        if isinstance(value, np.ndarray):
            if word.array is not None and value.shape[-2:] == view.shape:
                value = in_own_axes(value, word.array, view.shape)
            value = _like(word, value, row_lengths)
        elif isinstance(value, list):
            rows = [Word(path, word.role, item, None) for item in word.value]
            value = [_like(*pair, row_lengths) for pair in zip(rows, value, strict=True)]
        batch = _with_value(batch, path, value)
    return batch


def _with_value(container: Any, path: Path, value: Any) -> Any:
    """Return a shallow copy of a container with another value at the end of a path."""
    if not path:
        return value
    key, rest = path[0], path[1:]
    if isinstance(container, list) and isinstance(key, str):
        # One mapping for each row.
        return [_with_value(item, path, own) for item, own in zip(container, value, strict=True)]
    if hasattr(container, "keys"):
        inner = _with_value(container[key], rest, value)
        try:
            changed: Any = copy.copy(container)
            changed[key] = inner
        except TypeError:  # a mapping that cannot be copied or written
            changed = {**container, key: inner}
        return changed
    if isinstance(key, int):
        items = list(container)
        items[key] = _with_value(items[key], rest, value)
        return tuple(items) if isinstance(container, tuple) else items
    inner = _with_value(getattr(container, key), rest, value)
    if hasattr(container, "_replace"):
        return container._replace(**{key: inner})
    if is_dataclass(container) and not isinstance(container, type):
        return replace(container, **{key: inner})
    changed = copy.copy(container)
    setattr(changed, key, inner)
    return changed


def _like(word: Word, new: AnyArray, row_lengths: Int64Array) -> Any:
    """Return numbers as the kind of object that a word has, with its shape, dtype and device.

    Args:
        word: the word.
        new: numbers; for rows of several lengths ``[…, B, T]``.
        row_lengths: ``int64[B]``, lengths of such rows.
    """
    old, array = word.value, word.array
    if array is not None and array.dtype == object:
        return _nested_like(old, new, row_lengths)
    if hasattr(old, "detach"):
        import torch

        tensor = torch.from_numpy(np.array(new)).to(device=old.device, dtype=old.dtype)
        return tensor.reshape(old.shape) if tensor.numel() == old.numel() else tensor
    if isinstance(old, (list, tuple)):
        if array is not None:
            new = new.reshape(array.shape) if new.size == array.size else new
            new = new.astype(array.dtype)
        return type(old)(new.tolist())
    new = new.astype(getattr(old, "dtype", new.dtype))
    return new.reshape(old.shape) if new.size == getattr(old, "size", -1) else new


def _nested_like(old: Any, new: AnyArray, row_lengths: Int64Array) -> Any:
    """Return rows of several lengths as a nested tensor, or as lists."""
    rows = [new[..., row, :length] for row, length in enumerate(row_lengths.tolist())]
    if not hasattr(old, "detach"):
        return type(old)(
            type(item)(row.tolist()) if isinstance(item, (list, tuple)) else row.astype(item.dtype)
            for item, row in zip(old, rows, strict=True)
        )
    import torch

    tensors = [
        torch.from_numpy(np.array(row)).to(device=old.device, dtype=old.dtype) for row in rows
    ]
    if old.layout is torch.jagged and old.dim() == 2:
        lengths = torch.tensor([0, *row_lengths.cumsum().tolist()], device=old.device)
        offsets = lengths.to(old.offsets().dtype)
        if torch.equal(offsets, old.offsets()):
            offsets = old.offsets()  # tensors with the same offsets can be combined
        return torch.nested.nested_tensor_from_jagged(torch.cat(tensors), offsets)
    return torch.nested.as_nested_tensor(tensors, layout=old.layout)
