"""Padding of a batch: tokens that a word marks, and tokens that nothing marks and nothing uses."""

from collections.abc import Iterable

import numpy as np

from brimful.base.typing import IGNORE_INDEX, BoolArray, Int64Array
from brimful.doctor.batch.claims import Claim, Shape, is_boundary_mask, per_token
from brimful.doctor.batch.words import Role, Word

_LEAST_TAIL = 2
"""Equal tokens at the end of a row that are padding although no boundary stands before them."""


def marked_padding(words: Iterable[Word], shape: Shape, row_lengths: Int64Array) -> BoolArray:
    """Mark the tokens that a word of the batch calls padding: ``bool[B, T]``.

    Args:
        words: of the batch.
        shape: rows and tokens of the batch.
        row_lengths: ``int64[B]``: tokens that each row has.
    """
    columns = np.arange(shape[1])
    mask: BoolArray = columns >= row_lengths[:, None]
    for word in words:
        values = per_token(word.array, shape)
        if word.role is Role.TAIL:
            if word.array is not None and word.array.size == shape[0]:
                mask = mask | (columns >= shape[1] - word.array.reshape(-1, 1))
        elif values is None or values.ndim != 2:
            continue
        elif word.role is Role.PADDING_MASK:
            mask = mask | (values != 0)
        # A mask of zeros alone tells nothing.
        elif word.role is Role.MASK and not is_boundary_mask(word, shape) and values.any():
            mask = mask | (values == 0)
    return mask


def unmarked_padding(
    claim: Claim, ids: Int64Array, targets: Int64Array | None, padding: BoolArray
) -> BoolArray:
    """Mark the padding at the end of rows that no word marks: ``bool[B, T]``.

    ::

        tokens     a a a | b b | 0 0 0      places after the samples: equal tokens, none trained
        tokens     a a a 0 0 0              a row without boundaries that ends in equal tokens

    The first place of a row is a sample, whatever its tokens.

    Args:
        claim: places of segments.
        ids: ``int64[B, T]``.
        targets: ``int64[B, T]``; None if nothing says what is trained.
        padding: ``bool[B, T]``: padding that is known.
    """
    width = ids.shape[1]
    is_target = np.zeros(ids.shape, dtype=bool) if targets is None else targets != IGNORE_INDEX
    is_idle = padding | ((ids == ids[:, -1:]) & ~is_target)
    tail = _at_the_end(is_idle)
    if targets is None:
        tail &= _is_long(tail & ~padding)
    # A place that begins in the tail lies in it as a whole.
    is_first = np.append(True, claim.starts[1:] // width != claim.starts[:-1] // width)
    is_last = np.append(is_first[1:], True)
    is_idle_place = tail.reshape(-1)[claim.starts] & ~is_first
    sizes = claim.ends - claim.starts
    mask = np.repeat(is_idle_place, sizes).reshape(ids.shape)
    # A batch that marks padding marks all of it: equal tokens at the end are of the sample.
    if claim.role in (Role.IDS, Role.POSITIONS) and not padding.any():
        # The last token of a sample may be the token of padding: then it is predicted.
        is_predicted = np.zeros(ids.shape, dtype=bool)
        is_predicted[:, 1:] = is_target[:, :-1]
        if targets is not None:
            is_predicted[:, 1:] &= targets[:, :-1] == ids[:, 1:]
        tail = _at_the_end(is_idle & ~is_predicted)
        has_more = (~tail).any(axis=1, keepdims=True)
        is_alone = np.repeat(is_first & is_last, sizes).reshape(ids.shape)
        mask |= tail & is_alone & has_more & _is_long(tail)
    return mask


def _is_long(tail: BoolArray) -> BoolArray:
    """Return whether the tail of each row has enough tokens: ``bool[B, 1]``."""
    return np.asarray(tail.sum(axis=1, keepdims=True) >= _LEAST_TAIL)


def _at_the_end(mask: BoolArray) -> BoolArray:
    """Return a mask with the true values of each row after which no false one comes.

    >>> _at_the_end(np.array([[True, False, True, True]])).tolist()
    [[False, False, True, True]]
    """
    return np.array(np.logical_and.accumulate(mask[:, ::-1], axis=1)[:, ::-1])
