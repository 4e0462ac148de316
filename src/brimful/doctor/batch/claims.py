"""Claims of a batch about where samples begin and end, each by one of its words.

All claims have one form: the row of a batch, flattened to N = B·T tokens, cut into places::

    tokens        a a a . | b b . . | . .        . is padding
    starts        0         4         8          first token of each place
    stops         3         6         8          end of its real tokens: the last place has none
    ends          4         8         10
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from brimful.base.ragged import offsets_of, ranges
from brimful.base.typing import AnyArray, BoolArray, Int64Array
from brimful.doctor.batch.words import BatchWord, Role

Shape: TypeAlias = tuple[int, int]
"""Rows B and tokens T of each."""

_STRENGTH = (
    Role.BOUNDARIES,
    Role.MASK,
    Role.NUMBERS,
    Role.LENGTHS,
    Role.POSITIONS,
    Role.IDS,
)
"""Roles in the order in which attention obeys them: kernels read boundaries and masks first."""

_PADDED, _UNPADDED = "_padded", "_unpadded"
"""Ends of names that come in pairs: one has places with padding, the other counts real tokens."""

_ROWS_OF_POSITIONS = (1, 2, 3, 4)
"""Rows of positions for each row of tokens: text, or time, height and width, or all four."""


@dataclass(frozen=True, eq=False)
class Claim:
    """Places of samples in a batch as one of its words tells them.

    Attributes:
        word: the word, such as ``cu_seq_lens_q``.
        role: meaning of the word.
        shape: rows and tokens of the batch.
        starts: ``int64[n]``, rising: first token of each place in the flattened batch.
        stops: ``int64[n]``: end of the real tokens of each place; equal to its start in padding.
    """

    word: str
    role: Role
    shape: Shape
    starts: Int64Array
    stops: Int64Array

    @property
    def ends(self) -> Int64Array:
        """Ends of the places with their padding: ``int64[n]``."""
        return np.append(self.starts[1:], self.shape[0] * self.shape[1])

    @property
    def real(self) -> BoolArray:
        """Places that hold tokens of a sample: ``bool[n]``."""
        return self.stops > self.starts

    @cached_property
    def padding(self) -> BoolArray:
        """``bool[N]``: tokens that the word itself leaves out."""
        mask = np.zeros(self.shape[0] * self.shape[1], dtype=bool)
        mask[ranges(self.stops, self.ends - self.stops)] = True
        return mask

    def cut_at(self, places: Int64Array) -> "Claim":
        """Return the claim with more beginnings, such as the rows of the batch."""
        starts = np.union1d(self.starts, places)
        owner = np.searchsorted(self.starts, starts, side="right") - 1
        ends = np.append(starts[1:], self.shape[0] * self.shape[1])
        stops = np.clip(self.stops[owner], starts, ends)
        return Claim(self.word, self.role, self.shape, starts, stops)


def claim_of_rows(shape: Shape, lengths: Int64Array) -> Claim:
    """Return the claim that each row is one sample of its length."""
    starts = np.arange(shape[0], dtype=np.int64) * shape[1]
    return Claim("rows", Role.IDS, shape, starts, starts + lengths)


def claims_of(words: Sequence[BatchWord], shape: Shape) -> list[Claim]:
    """Return what each word says about the places of samples, the strongest first.

    A word that says nothing (a mask of ones), or nothing that can be read, has no claim.
    """
    claims = [claim for word in words if (claim := _claim_of(word, words, shape)) is not None]
    return sorted(claims, key=lambda claim: _STRENGTH.index(claim.role))


def _claim_of(word: BatchWord, words: Sequence[BatchWord], shape: Shape) -> Claim | None:
    if word.role in (Role.BOUNDARIES, Role.LENGTHS) or is_boundary_mask(word, shape):
        if counts_real_tokens(word, words):
            return None  # another word has the places
        return _claim_of_places(word, _partner(word, words), shape)
    if word.role in (Role.NUMBERS, Role.MASK):
        return _claim_of_mask(word, shape)
    return _claim_of_positions(word, shape) if word.role is Role.POSITIONS else None


def per_token(array: AnyArray | None, shape: Shape, fill: int = 0) -> AnyArray | None:
    """Return an array with one value for each token as ``[B, T]`` or ``[rows, B, T]``.

    ``[T]``, ``[1, T]`` and ``[B, T]`` are text, ``[rows, B, T]``, ``[B, rows, T]`` and
    ``[rows, T]`` positions of mRoPE. Rows of several lengths are filled at the end. None if the
    array does not fit.
    """
    if array is not None and array.dtype == object:
        array = filled_rows(array, shape[1], fill)
    rows, width = shape
    if array is None or not array.ndim or array.shape[-1] != width:
        return None
    if array.ndim == 1:
        array = array[None]
    if array.ndim == 2:
        if array.shape[0] == rows:
            return array
        if array.shape[0] == 1:
            return np.broadcast_to(array, (rows, width))
        return array[:, None] if rows == 1 and array.shape[0] in (3, 4) else None
    if array.ndim == 3:
        if array.shape[1] == rows and array.shape[0] in _ROWS_OF_POSITIONS:
            return array
        if array.shape[0] == rows and array.shape[1] in _ROWS_OF_POSITIONS:
            return array.swapaxes(0, 1)
        if array.shape[1] == 1:
            return np.broadcast_to(array, (array.shape[0], rows, width))
    return None


def in_own_axes(values: AnyArray, array: AnyArray, shape: Shape) -> AnyArray:
    """Return values in the shape of ``per_token`` with the axes that the array itself has.

    >>> array = np.zeros((2, 3, 7))
    >>> in_own_axes(per_token(array, (2, 7)), array, (2, 7)).shape
    (2, 3, 7)
    """
    is_batch_first = (
        array.dtype != object
        and array.ndim == 3
        and array.shape[0] == shape[0]
        and not (array.shape[1] == shape[0] and array.shape[0] in _ROWS_OF_POSITIONS)
    )
    return values.swapaxes(0, 1) if is_batch_first and values.ndim == 3 else values


def filled_rows(rows: AnyArray, width: int, fill: int = 0) -> AnyArray | None:
    """Return rows of several lengths as one array, filled at the end; None if they are longer."""
    if max(row.shape[-1] for row in rows) > width or len({row.ndim for row in rows}) > 1:
        return None
    table = np.full((*rows[0].shape[:-1], len(rows), width), fill, dtype=np.result_type(*rows))
    for index, row in enumerate(rows):
        table[..., index, : row.shape[-1]] = row
    return table


def is_boundary_mask(word: BatchWord, shape: Shape) -> bool:
    """Return whether a mask holds boundaries: one dimension, rising from 0, not a value a token."""
    array = word.array
    if word.role is not Role.MASK or array is None or array.ndim != 1:
        return False
    if array.dtype.kind not in "iu" or len(array) in (0, 1, shape[1]):
        return False
    return int(array[0]) == 0 and int(array[-1]) > 1 and bool((np.diff(array) >= 0).all())


def is_mask_of_pairs(word: BatchWord) -> bool:
    """Return whether a mask has a value for each pair of tokens."""
    return word.role is Role.MASK and word.array is not None and word.array.ndim in (3, 4)


def rows_of_boundaries(word: BatchWord) -> list[Int64Array] | None:
    """Return the boundaries of each row without what follows the end mark; None if unreadable.

    An array of one dimension is one list for the whole batch.
    """
    array = word.array
    if array is None or array.ndim not in (1, 2):
        return None
    rows = list(array) if array.ndim == 2 or array.dtype == object else [array]
    if any(row.ndim != 1 for row in rows):
        return None
    # Boundaries never fall: a number below 0 ends them.
    return [
        (row[: int(np.argmax(row < 0))] if (row < 0).any() else row).astype(np.int64)
        for row in rows
    ]


def rows_of_lengths(word: BatchWord, shape: Shape) -> list[Int64Array] | None:
    """Return the lengths of the segments of each row, 0 for fillers; None if they do not fit.

    An array of one dimension is one list for the whole batch, unless it has as many numbers as the
    batch has rows: then it has the length of each row.
    """
    array, (num_rows, width) = word.array, shape
    if array is None or array.ndim not in (1, 2):
        return None
    if array.dtype != object and array.ndim == 1:
        is_list = len(array) != num_rows or num_rows == 1 or int(array.sum()) == num_rows * width
        rows = [array] if is_list else list(array[:, None])
    else:
        rows = [np.asarray(row).reshape(-1) for row in array]
    # Fillers of rows with fewer segments are 0 or less.
    lengths = [np.maximum(row, 0).astype(np.int64) for row in rows]
    return lengths if len(lengths) in (1, num_rows) else None


def running_sums(word: BatchWord, shape: Shape) -> list[Int64Array] | None:
    """Return the boundaries of each row, or of the whole batch, also of a word with lengths; None
    if they are unreadable.
    """
    if word.role is not Role.LENGTHS:
        return rows_of_boundaries(word)
    lengths = rows_of_lengths(word, shape)
    return None if lengths is None else [offsets_of(row) for row in lengths]


def counts_real_tokens(word: BatchWord, words: Iterable[BatchWord]) -> bool:
    """Return whether a word counts tokens without padding, and another word has the places."""
    names = {item.name for item in words if item.array is not None}
    if word.name.endswith(_UNPADDED):
        return word.name.removesuffix(_UNPADDED) in names
    return word.name + _PADDED in names


def _partner(word: BatchWord, words: Sequence[BatchWord]) -> BatchWord | None:
    """Return the word that counts the real tokens of the places of this word; None without one."""
    name = word.name.removesuffix(_PADDED)
    if name == word.name:
        name += _UNPADDED
    for item in words:
        has_name = item.path[:-1] == word.path[:-1] and item.name == name
        if has_name and item.array is not None:
            return item
    return None


def _claim_of_places(word: BatchWord, partner: BatchWord | None, shape: Shape) -> Claim | None:
    """Return the claim of boundaries or lengths, limited to the tokens of the batch.

    Tokens before the first boundary and after the last one of a row are places without real tokens.
    """
    rows = running_sums(word, shape)
    if rows is None or not any(map(len, rows)) or any((np.diff(row) < 0).any() for row in rows):
        return None
    if len(rows) not in (1, shape[0]):
        return None
    reals = rows if partner is None else running_sums(partner, shape)
    if reals is None or [len(row) for row in rows] != [len(row) for row in reals]:
        reals = rows
    starts = np.zeros(1, dtype=np.int64)
    lengths = np.zeros(1, dtype=np.int64)
    for index, (row, real) in enumerate(zip(rows, reals, strict=True)):
        starts = np.append(starts, row + index * shape[1])
        # The last boundary of a row begins a place without a sample.
        sizes = np.append(np.minimum(np.diff(row), np.diff(real)), 0)
        lengths = np.append(lengths, sizes[: len(row)])
    # Of places that begin together all but the last are empty: the end of a row comes before the
    # beginning of the next one.
    order = np.argsort(starts, kind="stable")
    starts, lengths = starts[order], lengths[order]
    size = shape[0] * shape[1]
    is_place = (starts < np.append(starts[1:], size)) & (starts < size)
    if not is_place.any():
        return None
    starts, lengths = starts[is_place], lengths[is_place]
    ends = np.append(starts[1:], size)
    role = Role.LENGTHS if word.role is Role.LENGTHS else Role.BOUNDARIES
    return Claim(str(word), role, shape, starts, np.minimum(starts + lengths, ends))


def _claim_of_mask(word: BatchWord, shape: Shape) -> Claim | None:
    if hasattr(word.value, "mask_mod"):
        return _claim_of_block_mask(word, shape)
    if is_mask_of_pairs(word):
        return _claim_of_pairs(word, shape)
    numbers = per_token(word.array, shape)
    if numbers is None or numbers.ndim != 2:
        return None
    if word.role is Role.MASK and float(numbers.max()) <= 1:
        return None  # ones and zeros tell padding alone
    return _claim_of_numbers(word, numbers.astype(np.int64), shape)


def _claim_of_numbers(word: BatchWord, numbers: Int64Array, shape: Shape) -> Claim:
    """Return the claim of numbers of samples: a place begins at each change."""
    rows, width = shape
    changes = np.ones((rows, width), dtype=bool)
    changes[:, 1:] = numbers[:, 1:] != numbers[:, :-1]
    starts = np.flatnonzero(changes).astype(np.int64)
    first = numbers.reshape(-1)[starts]
    # -1 is padding, and so is 0 in numbers from 1: then no row begins with 0 and goes on.
    is_padding = first < 0
    begins = numbers[(numbers > 0).any(axis=1), 0]
    if word.role is Role.MASK or (len(begins) and (begins != 0).all()):
        is_padding |= first == 0
    ends = np.append(starts[1:], rows * width)
    return Claim(str(word), word.role, shape, starts, np.where(is_padding, starts, ends))


def visible_pairs(word: BatchWord, shape: Shape) -> BoolArray | None:
    """Return ``bool[B, T, T]`` of a mask of all pairs, true if the query sees the key; None if it
    has another shape.
    """
    array, (rows, width) = word.array, shape
    if array is None or array.shape[-2:] != (width, width):
        return None
    if array.ndim == 4:
        array = array[:, 0]
    if array.ndim != 3 or len(array) not in (1, rows):
        return None
    return np.broadcast_to(visible_of(array), (rows, width, width))


def visible_of(array: AnyArray) -> BoolArray:
    """Return the pairs that a mask of numbers shows: all but 0, or all above -1 if it is added."""
    is_added = array.dtype.kind == "f" and float(array.max(initial=0)) <= 0
    return np.asarray(array > -1.0 if is_added else array != 0)


def visible_in_blocks(mask: Any, row: int, queries: Any, keys: Any) -> BoolArray:
    """Return whether queries see keys by the function of a mask of FlexAttention.

    Args:
        mask: the mask.
        row: of the batch.
        queries, keys: tensors of columns, of shapes that can be broadcast.
    """
    zero = queries.new_zeros(())
    answer = mask.mask_mod(zero + row, zero, queries, keys)
    return np.asarray(answer.expand((queries + keys).shape).cpu())


def _claim_of_pairs(word: BatchWord, shape: Shape) -> Claim | None:
    visible = visible_pairs(word, shape)
    if visible is None:
        return None
    rows, width = shape
    # A token that does not see the one before it begins a place.
    index = np.arange(1, width)
    changes = np.ones((rows, width), dtype=bool)
    changes[:, 1:] = ~visible[:, index, index - 1]
    return _claim_of_begins(word, Role.MASK, shape, changes)


def _claim_of_block_mask(word: BatchWord, shape: Shape) -> Claim | None:
    """Return the claim of a mask of FlexAttention: its function is asked for neighboring tokens."""
    rows, width = shape
    changes = np.ones((rows, width), dtype=bool)
    try:
        import torch

        index = torch.arange(1, width, device=word.value.kv_num_blocks.device)
        for row in range(rows):
            changes[row, 1:] = ~visible_in_blocks(word.value, row, index, index - 1)
    except Exception:  # a function of the user may refuse such a question in any way
        return None
    return _claim_of_begins(word, Role.MASK, shape, changes)


def _claim_of_positions(word: BatchWord, shape: Shape) -> Claim | None:
    positions = per_token(word.array, shape)
    if positions is None:
        return None
    begins = begins_by_positions(positions, shape)
    if word.array is not None and word.array.dtype == object:
        # What fills the end of a row is one place.
        lengths = np.array([row.shape[-1] for row in word.array])
        begins &= np.arange(shape[1]) <= lengths[:, None]
    return _claim_of_begins(word, Role.POSITIONS, shape, begins)


def _claim_of_begins(word: BatchWord, role: Role, shape: Shape, begins: BoolArray) -> Claim:
    """Return the claim of places that end where the next begins; ``bool[rows, width]``."""
    starts = np.flatnonzero(begins).astype(np.int64)
    return Claim(str(word), role, shape, starts, np.append(starts[1:], begins.size))


def begins_by_positions(positions: AnyArray, shape: Shape) -> BoolArray:
    """Mark the tokens at which positions start again: ``bool[B, T]``.

    Positions of text begin where they do not go up by one. Positions of mRoPE without a row of
    text (3 rows) stand still in an image: they begin where time falls, or where all are 0.
    """
    begins = np.ones(shape, dtype=bool)
    if positions.ndim == 3 and len(positions) == 3:
        time = positions[0]
        begins[:, 1:] = (time[:, 1:] < time[:, :-1]) | (positions == 0).all(axis=0)[:, 1:]
        return begins
    text = positions[0] if positions.ndim == 3 else positions
    begins[:, 1:] = text[:, 1:] != text[:, :-1] + 1
    return begins
