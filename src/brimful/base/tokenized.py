"""Samples that are already tokenized, as users and other trainers provide them.

Every key is read, refused, or known to carry no information. The collator, ``TokenBudgetBatches``
and ``verify_packing`` read plain samples here, so that all of them accept the same samples.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, time, timedelta
from decimal import Decimal
from pathlib import PurePath
from typing import Any, TypeAlias

import numpy as np

from brimful.base.ragged import starts_of
from brimful.base.tokenized_media import (
    FEATURE_KEYS,
    MARK_KEYS,
    TOKEN_TYPES,
    Media,
    placeholders_of,
    read_media,
)
from brimful.base.typing import (
    IGNORE_INDEX,
    AnyArray,
    BoolArray,
    CuSeqlens,
    Float32Array,
    Int32Array,
    Int64Array,
    LossMask,
    TokenIds,
)
from brimful.errors import CollateError


@dataclass(frozen=True, slots=True, eq=False)
class TokenizedSample:
    """One row without padding: T tokens in S segments (more than one if the row is packed already).

    Attributes:
        input_ids: ``int32[T]``.
        loss_mask: ``bool[T]``, true where the token is a target; never on the first of a segment.
        cu_seqlens: ``int32[S + 1]``.
        places: ``int64[T]``: index of each token in the original row, which may contain padding.
        positions: ``int64[rows, T]`` of the original row, 1 row for text, 3 or 4 for mRoPE; None if
            it had none.
        loss_weights: ``float32[T]``, or None.
        source_ids: ``int32[S]``, or None.
        media: features of images, videos and audio, one item for each kind.
        placeholders: indices of the tokens that stand for each kind of media; kinds without such
            information are absent.
        marks: ``[T]`` by key, from which the placeholders were read; they are also passed to
            models.
        sample_id: number of the sample in its source; None if only a loader knows.
    """

    input_ids: TokenIds
    loss_mask: LossMask
    cu_seqlens: CuSeqlens
    places: Int64Array
    positions: Int64Array | None = None
    loss_weights: Float32Array | None = None
    source_ids: Int32Array | None = None
    media: tuple[Media, ...] = ()
    placeholders: Mapping[str, Int64Array] = field(default_factory=dict)
    marks: Mapping[str, AnyArray] = field(default_factory=dict)
    sample_id: int | None = None

    @property
    def num_segments(self) -> int:
        """Samples in the row."""
        return len(self.cu_seqlens) - 1

    @property
    def is_pack(self) -> bool:
        """True if a pack can hold all of it: only tokens, targets and sample boundaries."""
        extras = (self.loss_weights, self.source_ids, self.rope_positions)
        return not (self.media or self.marks or self.position_start) and all(
            extra is None for extra in extras
        )

    @property
    def position_start(self) -> int:
        """Position of the first token of each segment; 0 without positions or with three rows of
        mRoPE.
        """
        return (
            0 if self.positions is None or len(self.positions) == 3 else int(self.positions[0, 0])
        )

    @property
    def rope_positions(self) -> Int64Array | None:
        """``int64[3, T]``: time, height and width; None for text."""
        return None if self.positions is None or len(self.positions) == 1 else self.positions[-3:]

    def part(self, start: int, length: int) -> "TokenizedSample":
        """Return some of the tokens of a single sample; positions begin with the same number as in
        the whole sample.

        Raises:
            CollateError: a sample with media, or a row of several samples; these are never cut.
        """
        if length == len(self.input_ids):
            return self
        if self.media or self.num_segments > 1:
            kind = "media" if self.media else "several samples in a row"
            raise CollateError(
                f"sample {self.sample_id} has {kind} and {len(self.input_ids):,} tokens, and is "
                "never cut: raise capacity, or choose overflow drop"
            )
        tokens = slice(start, start + length)
        loss_mask, positions, weights = self.loss_mask[tokens].copy(), self.positions, None
        loss_mask[0] = False
        if positions is not None:
            positions = positions[:, tokens] - positions[:, start, None] + positions[:, :1]
        if self.loss_weights is not None:
            weights = self.loss_weights[tokens]
        return replace(
            self,
            input_ids=self.input_ids[tokens],
            loss_mask=loss_mask,
            cu_seqlens=np.array([0, length], dtype=np.int32),
            places=self.places[tokens],
            positions=positions,
            loss_weights=weights,
            marks={key: values[tokens] for key, values in self.marks.items()},
        )

    def without_loss(self) -> "TokenizedSample":
        """Return the same tokens and media without targets; the sample id is -1."""
        return replace(self, loss_mask=self.loss_mask & False, sample_id=-1)


def read_tokenized(
    sample: Any, name: str, *, token_ids: Mapping[str, int] | None = None
) -> TokenizedSample:
    """Read a mapping of rows, or an object with ``input_ids`` and ``loss_mask``.

    ==========================================  =====================================================
    ``input_ids``                               whole numbers, at least one
    ``labels``                                  the token itself, or ``IGNORE_INDEX``; without labels every token is a target
    ``loss_mask``                               1 if the token itself is a target; instead of labels
    ``completion_mask, assistant_masks``        the same, from TRL; only without labels
    ``attention_mask``                          0 at padding, which is cut off; 1, 2, … number the samples of a packed row
    ``seq_lengths``                             tokens of each sample of a packed row
    ``position_ids``                            restart with each sample of a packed row; mRoPE: ``(3, T)`` or ``(4, T)``
    ``loss_weights``, or ``loss_scale``         one number for each token
    ``source_id``, or ``ds_idx``                one number, or one for each sample of a packed row
    ``pixel_values``, ``input_features``, …     a processor's output for images, videos and audio (``tokenized_media``)
    ``mm_token_type_ids``, ``image_mask``, …    for each token, whether it stands for media
    ==========================================  =====================================================

    ::

        input_ids        5 6 7 8 9 0 0
        attention_mask   1 1 1 2 2 0 0        two samples, 5 6 7 and 8 9; seq_lengths 3 2 and position_ids 0 1 2 0 1 agree

    A key that is not in the table is left out if it can only describe the sample: text, a single
    number, records, and what tokenizers add about the text. Rows of numbers and objects under
    another name may be inputs of the model, and are refused.

    Args:
        sample: lists, arrays or tensors in host memory.
        name: the sample's name in messages.
        token_ids: token that stands for each kind of media, for samples without marks, if the model
            is known.

    Raises:
        CollateError: a key is missing, wrong, cannot be carried, or contradicts another; names the
            sample and the keys.

    >>> read = read_tokenized({"input_ids": [5, 6, 7, 8, 9, 0], "attention_mask": [1, 1, 1, 2, 2, 0]}, "sample 0")
    >>> read.input_ids.tolist(), read.cu_seqlens.tolist(), read.loss_mask.tolist()
    ([5, 6, 7, 8, 9], [0, 3, 5], [False, True, True, False, True])
    """
    if isinstance(sample, TokenizedSample):
        if not (token_ids and sample.media):
            return sample
        # A loader read it, which does not know the model's placeholder tokens.
        placeholders = placeholders_of(sample.input_ids, sample.marks, token_ids)
        arrays = {key: array for item in sample.media for key, array in item.arrays.items()}
        media = read_media(arrays, placeholders, sample.cu_seqlens, name)
        return replace(sample, placeholders=placeholders, media=media)
    if not isinstance(sample, Mapping):
        if not (hasattr(sample, "input_ids") and hasattr(sample, "loss_mask")):
            raise CollateError(
                f"{name} is a {type(sample).__name__}: give packs, or mappings with 'input_ids' "
                "and, if not all tokens are targets, 'labels'"
            )
        sample = {"input_ids": sample.input_ids, "loss_mask": sample.loss_mask}
    row = TokenizedRow(sample, name)
    row.refuse_other_keys()
    ids = row.input_ids()
    mask = row.attention_mask()
    token_indices = slice(None) if mask is None or mask.all() else np.flatnonzero(mask)
    places = np.arange(len(ids))[token_indices]
    positions = row.positions(token_indices)
    cu_seqlens = row.boundaries(len(places), mask, positions)
    loss_mask = row.targets(ids, token_indices)
    # The first token of a segment has no predecessor that could predict it.
    loss_mask[cu_seqlens[:-1]] = False
    input_ids = ids[token_indices].astype(np.int32, copy=False)
    arrays, marks = row.features(), row.marks(token_indices)
    placeholders = placeholders_of(input_ids, marks, token_ids or {})
    return TokenizedSample(
        input_ids=input_ids,
        loss_mask=loss_mask,
        cu_seqlens=cu_seqlens,
        places=places,
        positions=positions,
        loss_weights=row.weights(token_indices),
        source_ids=row.sources(len(cu_seqlens) - 1),
        media=read_media(arrays, placeholders, cu_seqlens, name) if arrays or placeholders else (),
        placeholders=placeholders,
        marks=marks,
    )


_Indices: TypeAlias = Int64Array | slice
"""Indices of the tokens that are not padding, ascending; a slice of all tokens without padding."""
_INT32 = np.iinfo(np.int32)

TARGET_MASKS = ("loss_mask", "completion_mask", "assistant_masks")
"""Keys that mark the targets of samples without labels."""

_WEIGHT_KEYS = ("loss_weights", "loss_scale")
_SOURCE_KEYS = ("source_id", "ds_idx")
_READ_KEYS = {"input_ids", "labels", "attention_mask", "seq_lengths", "position_ids"}
_READ_KEYS |= {*TARGET_MASKS, *_WEIGHT_KEYS, *_SOURCE_KEYS, *FEATURE_KEYS, *MARK_KEYS}

_TOKENIZER_KEYS = {"special_tokens_mask", "offset_mapping", "overflow_to_sample_mapping", "length"}
"""Keys of numbers about the text that tokenizers add; causal models do not take them."""

_DESCRIPTIVE_TYPES = (str, bytes, Decimal, date, time, timedelta, PurePath)
"""Types of values that, besides numbers, can only describe the sample and are never inputs of the
model.
"""

_REFUSED_KEYS = {"label", "label_ids", "image", "images", "video", "videos", "audio", "audios"}
"""Keys whose omission would change training, for any value."""


class TokenizedRow:
    """The keys of one sample, each read and checked separately.

    Args:
        sample: rows of numbers by key, in host memory.
        name: the sample's name in messages.
    """

    def __init__(self, sample: Mapping[str, Any], name: str) -> None:
        self._sample, self._name = sample, name
        self._size = 0

    def refuse_other_keys(self) -> None:
        """Refuse keys that may be inputs of the model and that no method here reads."""
        for key, value in self._sample.items():
            if key in _READ_KEYS or value is None or key in _TOKENIZER_KEYS:
                continue
            # Text tokenizers make it of zeros, which say nothing.
            if key == "token_type_ids" and not np.any(self._array(key)):
                continue
            # Templates of ms-swift add the length of the row as a list; for several samples it
            # would hold boundaries.
            is_length = key == "lengths" and "input_ids" in self._sample
            if is_length and np.array_equal(value, self._array("input_ids").shape):
                continue
            if key in _REFUSED_KEYS or _may_be_for_the_model(value):
                raise self._error(
                    f"has {key!r}, which a batch of plain samples cannot carry: leave it out of "
                    "the sample if the model does not need it, or give the sample as a pack with "
                    "PackExtras, which hold media and positions"
                )

    def input_ids(self) -> AnyArray:
        """Return the tokens with padding, ``int[num_tokens]``; the other keys are as long."""
        if "input_ids" not in self._sample:
            raise self._error(f"has no 'input_ids' (found {sorted(map(str, self._sample))})")
        ids = self._integers("input_ids")
        if ids.ndim != 1 or len(ids) == 0:
            raise self._error(
                f"has 'input_ids' of shape {ids.shape}: they must be one row of at least 1 token"
            )
        self._size = len(ids)
        outside = (ids > _INT32.max) | (ids < _INT32.min)
        if outside.any():
            index = int(outside.argmax())
            raise self._error(
                f"has {int(ids[index])} in 'input_ids' at token {index}, which no vocabulary has: "
                "encode with the model's own tokenizer"
            )
        return ids

    def attention_mask(self) -> Int64Array | None:
        """Return ``int64[num_tokens]``: sample numbers, 0 at padding; None if all tokens belong to
        one sample.
        """
        row = self._per_token("attention_mask")
        if row is None or (row == 1).all():
            return None
        mask = row.astype(np.int64)
        if (mask != row).any() or (mask < 0).any():
            raise self._error(
                "has an 'attention_mask' with other numbers than 0 at padding and 1, 2, … at "
                "samples"
            )
        # One number for each run of equal numbers. They rise only if no padding interrupts a
        # sample.
        run_values = mask[np.flatnonzero(np.diff(mask, prepend=-1))]
        numbers = run_values[run_values > 0]
        if not len(numbers):
            raise self._error(
                "has an 'attention_mask' of only zeros: leave out samples without tokens"
            )
        if (np.diff(numbers) <= 0).any():
            raise self._error(
                "has an 'attention_mask' with zeros within a sample, or numbers that do not rise: "
                "it must be 1, 2, … for the samples of the row, and 0 at padding only"
            )
        return mask

    def positions(self, token_indices: _Indices) -> Int64Array | None:
        """Return ``int64[rows, T]``, of 1 row, or 3 or 4 of mRoPE; None if the sample has none."""
        if self._sample.get("position_ids") is None:
            return None
        array = self._integers("position_ids")
        # Transformers gives mRoPE positions a batch axis: (3, 1, T).
        if array.ndim == 3 and array.shape[1] == 1:
            array = array[:, 0]
        rows = np.atleast_2d(array)
        if rows.ndim != 2 or len(rows) not in (1, 3, 4) or rows.shape[1] != self._size:
            raise self._error(
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
        if self._sample.get("seq_lengths") is not None:
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
                raise self._error(
                    f"contradicts itself: by {first_key!r} it holds {len(starts)} samples that "
                    f"begin at {_few(starts)}, and by {key!r} {len(other_starts)} that begin at "
                    f"{_few(other_starts)}; leave one of the two out"
                )
        return np.append(starts, num_tokens).astype(np.int32)

    def targets(self, ids: AnyArray, token_indices: _Indices) -> LossMask:
        """Return ``bool[T]``, true at targets; a new array."""
        masks = {key: mask for key in TARGET_MASKS if (mask := self._binary(key)) is not None}
        if self._sample.get("labels") is None:
            if not masks:
                return np.ones(len(ids[token_indices]), dtype=bool)
            mask = np.logical_and.reduce(list(masks.values()))
            return self._without_padding(next(iter(masks)), mask, token_indices)
        labels = self._integers("labels")
        if labels.shape != ids.shape:
            raise self._error(
                f"has 'input_ids' {ids.shape} and 'labels' {labels.shape}: they must be rows of "
                "one length"
            )
        mask = labels != IGNORE_INDEX
        if bool((mask & (labels != ids)).any()):
            raise self._error("has a label that is not its own token; labels must not be shifted")
        targets = self._without_padding("labels", mask, token_indices)
        loss_mask = masks.get("loss_mask")
        if loss_mask is not None:
            # Nothing predicts the first token, so the two need not agree on it.
            is_other = (loss_mask != mask)[token_indices][1:]
            if is_other.any():
                index = int(np.arange(self._size)[token_indices][1:][is_other.argmax()])
                raise self._error(
                    "has 'labels' and 'loss_mask' that name different targets, first at token "
                    f"{index}: give one of them"
                )
        return targets

    def features(self) -> dict[str, AnyArray]:
        """Return the media arrays that are not empty. ``float64``, which no tower takes, becomes
        ``float32``.
        """
        arrays = {
            key: self._array(key) for key in FEATURE_KEYS if self._sample.get(key) is not None
        }
        for key, array in arrays.items():
            if array.dtype.kind not in "biuf":
                raise self._error(f"has {key!r} of {array.dtype}, which must hold numbers")
            if array.dtype == np.float64:
                arrays[key] = array.astype(np.float32)
        return {key: array for key, array in arrays.items() if array.size}

    def marks(self, token_indices: _Indices) -> dict[str, AnyArray]:
        """Return the sample's keys that mark placeholders, without token types that are all 0."""
        rows = {
            key: row[token_indices]
            for key in MARK_KEYS
            if (row := self._per_token(key)) is not None
        }
        return {key: row for key, row in rows.items() if key != TOKEN_TYPES or row.any()}

    def weights(self, token_indices: _Indices) -> Float32Array | None:
        """Return the weights of the tokens in the loss, ``float32[T]``, or None."""
        row = self._per_token(self._one_of(_WEIGHT_KEYS))
        return None if row is None else np.asarray(row[token_indices], dtype=np.float32)

    def sources(self, num_segments: int) -> Int32Array | None:
        """Return the source of each segment, ``int32[num_segments]``, or None."""
        key = self._one_of(_SOURCE_KEYS)
        if self._sample.get(key) is None:
            return None
        ids = np.atleast_1d(self._integers(key))
        if ids.shape not in ((1,), (num_segments,)):
            raise self._error(
                f"has {key!r} of shape {ids.shape}: give one number, or one for each of its "
                f"{num_segments} samples"
            )
        return np.broadcast_to(ids, (num_segments,)).astype(np.int32)

    def _one_of(self, synonyms: Sequence[str]) -> str:
        """Return the key among synonyms that the sample has; the first one if it has none."""
        keys = [key for key in synonyms if self._sample.get(key) is not None]
        if len(keys) > 1:
            raise self._error(
                f"has {keys[0]!r} and {keys[1]!r}, which mean the same: give one of them"
            )
        return [*keys, *synonyms][0]

    def _starts_of_lengths(self, num_tokens: int) -> Int64Array:
        lengths = self._integers("seq_lengths")
        if (
            lengths.ndim != 1
            or not len(lengths)
            or (lengths < 1).any()
            or int(lengths.sum()) != num_tokens
        ):
            raise self._error(
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
            raise self._error(
                f"has 'position_ids' that go from {int(row[index - 1])} to {int(row[index])} at "
                f"token {index}: they must rise by 1, or restart at {int(row[0])}"
            )
        return starts

    def _without_padding(self, key: str, mask: BoolArray, token_indices: _Indices) -> LossMask:
        """Return a copy of a target mask without padding, which must not hold targets."""
        targets = np.array(mask[token_indices])
        count = int(np.count_nonzero(mask)) - int(np.count_nonzero(targets))
        if count:
            raise self._error(
                f"has {count:,} targets in {key!r} where 'attention_mask' marks padding, which is "
                f"cut off: put {IGNORE_INDEX} (in masks 0) there, or 1 in 'attention_mask' if the "
                "token is to be kept"
            )
        return targets

    def _binary(self, key: str) -> BoolArray | None:
        row = self._per_token(key)
        if row is None:
            return None
        if row.dtype != np.bool_ and not np.isin(row, (0, 1)).all():
            raise self._error(
                f"has {key!r} with other numbers than 0 and 1: weights of targets belong in "
                "'loss_weights'"
            )
        return row.astype(bool)

    def _per_token(self, key: str) -> AnyArray | None:
        """Return a row of numbers, one for each token; None if the sample lacks the key."""
        if self._sample.get(key) is None:
            return None
        row = self._array(key)
        if row.shape != (self._size,):
            raise self._error(
                f"has {key!r} {row.shape}, which must be one row as long as input_ids, {self._size}"
            )
        if row.dtype.kind not in "biuf":
            raise self._error(f"has {key!r} of {row.dtype}, which must hold numbers")
        return row

    def _array(self, key: str) -> AnyArray:
        value = self._sample[key]
        # NumPy has no bfloat16; float32 holds all its numbers.
        if str(getattr(value, "dtype", None)) == "torch.bfloat16":
            value = value.float()
        try:
            return np.asarray(value)
        except (ValueError, TypeError, RuntimeError) as error:
            raise self._error(f"has {key!r} that is not an array of numbers ({error})") from error

    def _integers(self, key: str) -> AnyArray:
        array = self._array(key)
        if array.size and array.dtype.kind not in "iu":
            raise self._error(f"has {key!r} of {array.dtype}, which must hold whole numbers")
        return array

    def _error(self, problem: str) -> CollateError:
        return CollateError(f"{self._name} {problem}")


def _may_be_for_the_model(value: Any) -> bool:
    """Return true for rows of numbers and for objects. Text, single numbers and records describe
    the sample.
    """
    is_row = isinstance(value, (list, tuple))
    while isinstance(value, (list, tuple)):
        # The first element stands for all: rows of a data set have one type.
        value = next((inner for inner in value if inner is not None), "")
    if isinstance(value, Mapping):
        return not is_row and any(getattr(inner, "shape", ()) != () for inner in value.values())
    if isinstance(value, _DESCRIPTIVE_TYPES):
        return False
    if isinstance(value, (bool, int, float)) or getattr(value, "shape", None) == ():
        return is_row
    # Only NumPy has arrays of text. Dtypes of other libraries, such as torch, have no kind.
    return getattr(getattr(value, "dtype", None), "kind", None) not in ("U", "S")


def _few(numbers: AnyArray) -> str:
    text = ", ".join(map(str, numbers.reshape(-1)[:4].tolist()))
    return f"{text}…" if numbers.size > 4 else text
