"""One row of samples that are tokens already: each key read and checked against the others."""

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from brimful.base.ragged import starts_of
from brimful.base.typing import (
    IGNORE_INDEX,
    TARGET_MASKS,
    AnyArray,
    BoolArray,
    CuSeqlens,
    Int64Array,
    LossMask,
    TokenIds,
)
from brimful.errors import CollateError

_Indices: TypeAlias = Int64Array | slice
"""Indices of the tokens that are not padding, ascending; a slice of all tokens without padding."""
_INT32 = np.iinfo(np.int32)


class RowTokens(NamedTuple):
    """Tokens of one row without padding: T tokens in S segments.

    Attributes:
        input_ids: ``int32[T]``.
        loss_mask: ``bool[T]``, true where the token is a target; never on the first of a segment.
        cu_seqlens: ``int32[S + 1]``.
        places: ``int64[T]``: index of each token in the row.
        positions: ``int64[rows, T]`` of the row; None if it had none.
    """

    input_ids: TokenIds
    loss_mask: LossMask
    cu_seqlens: CuSeqlens
    places: Int64Array
    positions: Int64Array | None


class TokenizedRow:
    """The keys of one sample, each read and checked separately.

    Args:
        sample: rows of numbers by key, in host memory.
        name: the sample's name in messages.
    """

    def __init__(self, sample: Mapping[str, Any], name: str) -> None:
        self.sample, self.name = sample, name
        self._size = 0

    def tokens(self) -> RowTokens:
        """Return the tokens of the row, cut off its padding.

        Raises:
            CollateError: a key is missing, wrong, or contradicts another; names it.
        """
        ids = self.input_ids()
        mask = self.attention_mask()
        indices = slice(None) if mask is None or mask.all() else np.flatnonzero(mask)
        places = np.arange(len(ids))[indices]
        positions = self.positions(indices)
        cu_seqlens = self.boundaries(len(places), mask, positions)
        loss_mask = self.targets(ids, indices)
        # The first token of a segment has no predecessor that could predict it.
        loss_mask[cu_seqlens[:-1]] = False
        input_ids = ids[indices].astype(np.int32, copy=False)
        return RowTokens(input_ids, loss_mask, cu_seqlens, places, positions)

    def input_ids(self) -> AnyArray:
        """Return the tokens with padding, ``int[num_tokens]``; the other keys are as long."""
        if "input_ids" not in self.sample:
            raise self.error(f"has no 'input_ids' (found {sorted(map(str, self.sample))})")
        ids = self.integers("input_ids")
        if ids.ndim != 1 or len(ids) == 0:
            raise self.error(
                f"has 'input_ids' of shape {ids.shape}: they must be one row of at least 1 token"
            )
        self._size = len(ids)
        outside = (ids > _INT32.max) | (ids < _INT32.min)
        if outside.any():
            index = int(outside.argmax())
            raise self.error(
                f"has {int(ids[index])} in 'input_ids' at token {index}, which no vocabulary has: "
                "encode with the model's own tokenizer"
            )
        return ids

    def attention_mask(self) -> Int64Array | None:
        """Return ``int64[num_tokens]``: sample numbers, 0 at padding; None if all tokens belong to
        one sample.
        """
        row = self.per_token("attention_mask")
        if row is None or (row == 1).all():
            return None
        mask = row.astype(np.int64)
        if (mask != row).any() or (mask < 0).any():
            raise self.error(
                "has an 'attention_mask' with other numbers than 0 at padding and 1, 2, … at "
                "samples"
            )
        # One number for each run of equal numbers. They rise only if no padding interrupts a
        # sample.
        run_values = mask[np.flatnonzero(np.diff(mask, prepend=-1))]
        run_numbers = run_values[run_values > 0]
        if not len(run_numbers):
            raise self.error(
                "has an 'attention_mask' of only zeros: leave out samples without tokens"
            )
        if (np.diff(run_numbers) <= 0).any():
            raise self.error(
                "has an 'attention_mask' with zeros within a sample, or numbers that do not rise: "
                "it must be 1, 2, … for the samples of the row, and 0 at padding only"
            )
        return mask

    def positions(self, token_indices: _Indices) -> Int64Array | None:
        """Return ``int64[rows, T]``, of 1 row, or 3 or 4 of mRoPE; None if the sample has none."""
        if self.sample.get("position_ids") is None:
            return None
        array = self.integers("position_ids")
        # Transformers gives mRoPE positions a batch axis: (3, 1, T).
        if array.ndim == 3 and array.shape[1] == 1:
            array = array[:, 0]
        rows = np.atleast_2d(array)
        if rows.ndim != 2 or len(rows) not in (1, 3, 4) or rows.shape[1] != self._size:
            raise self.error(
                f"has 'position_ids' of shape {array.shape} and {self._size:,} tokens: give one "
                "row, or 3 or 4 rows of mRoPE"
            )
        return rows[:, token_indices].astype(np.int64)

    def boundaries(
        self, num_tokens: int, mask: Int64Array | None, positions: Int64Array | None
    ) -> CuSeqlens:
        """Return the boundaries of the samples in the row; all keys that define boundaries must
        agree.
        """
        starts_by_key: dict[str, Int64Array] = {}
        if self.sample.get("seq_lengths") is not None:
            starts_by_key["seq_lengths"] = self._starts_of_lengths(num_tokens)
        if mask is not None and mask.max() > 1:
            starts_by_key["attention_mask"] = np.flatnonzero(np.diff(mask[mask > 0], prepend=0))
        # Three rows of mRoPE repeat positions within an image, so they do not show where a sample
        # starts.
        if positions is not None and len(positions) != 3:
            starts_by_key["position_ids"] = self._starts_of_positions(positions[0])
        if not starts_by_key:
            return np.array([0, num_tokens], dtype=np.int32)
        (first_key, starts), *starts_of_others = starts_by_key.items()
        for key, other_starts in starts_of_others:
            if not np.array_equal(other_starts, starts):
                raise self.error(
                    f"contradicts itself: by {first_key!r} it holds {len(starts)} samples that "
                    f"begin at {_few(starts)}, and by {key!r} {len(other_starts)} that begin at "
                    f"{_few(other_starts)}; leave one of the two out"
                )
        return np.append(starts, num_tokens).astype(np.int32)

    def targets(self, ids: AnyArray, token_indices: _Indices) -> LossMask:
        """Return ``bool[T]``, true at targets; a new array."""
        masks = {key: mask for key in TARGET_MASKS if (mask := self._binary(key)) is not None}
        if self.sample.get("labels") is None:
            if not masks:
                return np.ones(len(ids[token_indices]), dtype=bool)
            mask = np.logical_and.reduce(list(masks.values()))
            return self._without_padding(next(iter(masks)), mask, token_indices)
        labels = self.integers("labels")
        if labels.shape != ids.shape:
            raise self.error(
                f"has 'input_ids' {ids.shape} and 'labels' {labels.shape}: they must be rows of "
                "one length"
            )
        mask = labels != IGNORE_INDEX
        if bool((mask & (labels != ids)).any()):
            raise self.error("has a label that is not its own token; labels must not be shifted")
        targets = self._without_padding("labels", mask, token_indices)
        loss_mask = masks.get("loss_mask")
        if loss_mask is not None:
            # Nothing predicts the first token, so the two need not agree on it.
            is_other = (loss_mask != mask)[token_indices][1:]
            if is_other.any():
                index = int(np.arange(self._size)[token_indices][1:][is_other.argmax()])
                raise self.error(
                    "has 'labels' and 'loss_mask' that name different targets, first at token "
                    f"{index}: give one of them"
                )
        return targets

    def _starts_of_lengths(self, num_tokens: int) -> Int64Array:
        lengths = self.integers("seq_lengths")
        if (
            lengths.ndim != 1
            or not len(lengths)
            or (lengths < 1).any()
            or int(lengths.sum()) != num_tokens
        ):
            raise self.error(
                f"has 'seq_lengths' {_few(lengths)} and {num_tokens:,} tokens: they must be at "
                "least 1 each, and that many together"
            )
        return starts_of(lengths).astype(np.int64)

    def _starts_of_positions(self, row: Int64Array) -> Int64Array:
        """Return the indices at which positions restart with the first number of the row."""
        starts = np.concatenate([[0], np.flatnonzero(np.diff(row) != 1) + 1])
        is_wrong = row[starts] != row[0]
        if is_wrong.any():
            index = int(starts[is_wrong.argmax()])
            raise self.error(
                f"has 'position_ids' that go from {int(row[index - 1])} to {int(row[index])} at "
                f"token {index}: they must rise by 1, or restart at {int(row[0])}"
            )
        return starts

    def _without_padding(self, key: str, mask: BoolArray, token_indices: _Indices) -> LossMask:
        """Return a copy of a target mask without padding, which must not hold targets."""
        targets = np.array(mask[token_indices])
        count = int(np.count_nonzero(mask)) - int(np.count_nonzero(targets))
        if count:
            raise self.error(
                f"has {count:,} targets in {key!r} where 'attention_mask' marks padding, which is "
                f"cut off: put {IGNORE_INDEX} (in masks 0) there, or 1 in 'attention_mask' if the "
                "token is to be kept"
            )
        return targets

    def _binary(self, key: str) -> BoolArray | None:
        row = self.per_token(key)
        if row is None:
            return None
        if row.dtype != np.bool_ and not np.isin(row, (0, 1)).all():
            raise self.error(
                f"has {key!r} with other numbers than 0 and 1: weights of targets belong in "
                "'loss_weights'"
            )
        return row.astype(bool)

    def per_token(self, key: str) -> AnyArray | None:
        """Return a row of numbers, one for each token; None if the sample lacks the key."""
        if self.sample.get(key) is None:
            return None
        row = self.array(key)
        if row.shape != (self._size,):
            raise self.error(
                f"has {key!r} {row.shape}, which must be one row as long as input_ids, {self._size}"
            )
        if row.dtype.kind not in "biuf":
            raise self.error(f"has {key!r} of {row.dtype}, which must hold numbers")
        return row

    def array(self, key: str) -> AnyArray:
        value = self.sample[key]
        # NumPy has no bfloat16; float32 holds all its numbers.
        if str(getattr(value, "dtype", None)) == "torch.bfloat16":
            value = value.float()
        try:
            return np.asarray(value)
        except (ValueError, TypeError, RuntimeError) as error:
            raise self.error(f"has {key!r} that is not an array of numbers ({error})") from error

    def integers(self, key: str) -> AnyArray:
        array = self.array(key)
        if array.size and array.dtype.kind not in "iu":
            raise self.error(f"has {key!r} of {array.dtype}, which must hold whole numbers")
        return array

    def error(self, problem: str) -> CollateError:
        return CollateError(f"{self.name} {problem}")


def _few(values: AnyArray) -> str:
    text = ", ".join(map(str, values.reshape(-1)[:4].tolist()))
    return f"{text}…" if values.size > 4 else text
