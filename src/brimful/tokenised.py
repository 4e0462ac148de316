"""Samples that are tokens already, as users and other trainers bring them: every key is read, refused, or known to say nothing.

Whoever takes plain samples (the collator, ``TokenBudgetBatches``, ``verify_packing``) reads them here, so that all of
them take the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from pathlib import PurePath
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from brimful.errors import CollateError
from brimful.typing import IGNORE_INDEX, BoolArray, CuSeqlens, Int32Array, Int64Array, LossMask, TokenIds

__all__ = ["TARGET_MASKS", "TokenisedSample", "read_tokenised"]

_Kept: TypeAlias = Int64Array | None
_INT32 = np.iinfo(np.int32)

TARGET_MASKS = ("loss_mask", "completion_mask", "assistant_masks")
"""Keys that mark targets where there are no labels."""

_WEIGHTS = ("loss_weights", "loss_scale")
_SOURCES = ("source_id", "ds_idx")
_READ = {"input_ids", "labels", "attention_mask", "seq_lengths", "position_ids", *TARGET_MASKS, *_WEIGHTS, *_SOURCES}

_MAY_BE_ZERO = {"token_type_ids", "mm_token_type_ids"}
"""Without a word to say where all of it is 0, as tokenizers of text make it."""

_OF_TOKENIZERS = {"special_tokens_mask", "offset_mapping", "overflow_to_sample_mapping", "length"}
"""Rows of numbers that tokenizers add about the text; no causal model takes them."""

_ABOUT_THE_SAMPLE = (str, bytes, bool, int, float, Decimal, date, time, timedelta, PurePath)

_NEVER = {"label", "label_ids", "image", "images", "video", "videos", "audio", "audios"}
"""Whatever they hold, leaving them out would change what is trained."""


@dataclass(frozen=True, slots=True, eq=False)
class TokenisedSample:
    """One row as it was read: T tokens without padding, in S segments (more than one where the row is packed already).

    Attributes:
        input_ids: ``int32[T]``.
        loss_mask: ``bool[T]``, true where the token is a target; never on the first of a segment.
        cu_seqlens: ``int32[S + 1]``.
        kept: ``int64[T]``: where each token stood in the row that was given; None if that had no padding.
        positions: ``int64[rows, T]`` as they were given, 1 row for text, 3 or 4 for mRoPE; None if there were none.
        loss_weights: ``float32[T]``, or None.
        source_ids: ``int32[S]``, or None.
    """

    input_ids: TokenIds
    loss_mask: LossMask
    cu_seqlens: CuSeqlens
    kept: Int64Array | None = None
    positions: Int64Array | None = None
    loss_weights: npt.NDArray[np.float32] | None = None
    source_ids: Int32Array | None = None

    @property
    def places(self) -> Int64Array:
        """``int64[T]``: where each token stood in the row that was given, which may have had padding."""
        return np.arange(len(self.input_ids)) if self.kept is None else self.kept

    @property
    def position_start(self) -> int:
        """Position of the first token of each segment; 0 if the sample does not say."""
        return 0 if self.positions is None or len(self.positions) == 3 else int(self.positions[0, 0])

    @property
    def rope_positions(self) -> Int64Array | None:
        """``int64[3, T]``: time, height and width; None for text."""
        return None if self.positions is None or len(self.positions) == 1 else self.positions[-3:]


def read_tokenised(sample: Any, name: str) -> TokenisedSample:
    """Read a mapping of rows, or an object with ``input_ids`` and ``loss_mask``.

    ==========================================  =====================================================
    ``input_ids``                               whole numbers, at least one
    ``labels``                                  the token itself, or ``IGNORE_INDEX``; none at all: every token is a target
    ``loss_mask``                               1 where the token itself is a target, in the place of labels
    ``completion_mask, assistant_masks``        the same, of TRL; only where there are no labels
    ``attention_mask``                          0 at padding, which is cut off; 1, 2, … number the samples of a packed row
    ``seq_lengths``                             tokens of each sample of a packed row
    ``position_ids``                            begin anew with every sample of a packed row; ``(3, T)`` or ``(4, T)``: mRoPE
    ``loss_weights``, or ``loss_scale``         one number for each token
    ``source_id``, or ``ds_idx``                one number, or one for each sample of a packed row
    ==========================================  =====================================================

    ::

        input_ids        5 6 7 8 9 0 0
        attention_mask   1 1 1 2 2 0 0        two samples, 5 6 7 and 8 9; seq_lengths 3 2 and position_ids 0 1 2 0 1 agree

    A key that is not in the table is left out if it can only be about the sample: text, a single number, records, and
    what tokenizers add about the text. Rows of numbers and objects under another name are for the model, and refused.

    Args:
        sample: lists, arrays or tensors in host memory.
        name: how messages call it.

    Raises:
        CollateError: a key is missing, wrong, cannot be carried, or contradicts another; names the sample and the keys.

    >>> read = read_tokenised({"input_ids": [5, 6, 7, 8, 9, 0], "attention_mask": [1, 1, 1, 2, 2, 0]}, "sample 0")
    >>> read.input_ids.tolist(), read.cu_seqlens.tolist(), read.loss_mask.tolist()
    ([5, 6, 7, 8, 9], [0, 3, 5], [False, True, True, False, True])
    """
    if not isinstance(sample, Mapping):
        if not (hasattr(sample, "input_ids") and hasattr(sample, "loss_mask")):
            raise CollateError(
                f"{name} is a {type(sample).__name__}: give packs, or mappings with 'input_ids' and, if not all tokens "
                f"are targets, 'labels'"
            )
        sample = {"input_ids": sample.input_ids, "loss_mask": sample.loss_mask}
    row = _Row(sample, name)
    row.refuse_what_is_not_read()
    ids = row.input_ids()
    mask = row.attention_mask()
    kept = None if mask is None or mask.all() else np.flatnonzero(mask)
    size = len(ids) if kept is None else len(kept)
    positions = row.positions(kept)
    bounds = row.boundaries(size, mask, positions)
    loss_mask = row.targets(ids, kept)
    loss_mask[bounds[:-1]] = False
    return TokenisedSample(
        input_ids=_of(ids, kept).astype(np.int32, copy=False),
        loss_mask=loss_mask,
        cu_seqlens=bounds,
        kept=kept,
        positions=positions,
        loss_weights=row.weights(kept),
        source_ids=row.sources(len(bounds) - 1),
    )


class _Row:
    """The keys of one sample, each read by itself."""

    def __init__(self, sample: Mapping[str, Any], name: str) -> None:
        self._sample, self._name = sample, name
        self._size = 0

    def refuse_what_is_not_read(self) -> None:
        for key, value in self._sample.items():
            if key in _READ or value is None or key in _OF_TOKENIZERS:
                continue
            if key in _MAY_BE_ZERO and not np.any(self._array(key)):
                continue
            if key in _NEVER or _may_be_for_the_model(value):
                raise self._error(
                    f"has {key!r}, which a batch of plain samples cannot carry: leave it out of the sample if the model "
                    f"does not need it, or give the sample as a pack with PackExtras, which hold media and positions"
                )

    def input_ids(self) -> npt.NDArray[Any]:
        if "input_ids" not in self._sample:
            raise self._error(f"has no 'input_ids' (found {sorted(map(str, self._sample))})")
        ids = self._array("input_ids")
        if ids.ndim != 1 or len(ids) == 0:
            raise self._error(f"has 'input_ids' of shape {ids.shape}: they must be one row of at least 1 token")
        self._whole(ids, "input_ids")
        self._size = len(ids)
        if int(ids.max()) > _INT32.max or int(ids.min()) < _INT32.min:
            at = int(np.argmax((ids > _INT32.max) | (ids < _INT32.min)))
            raise self._error(
                f"has {int(ids[at])} in 'input_ids' at token {at}, which no vocabulary has: encode with the model's own "
                f"tokenizer"
            )
        return ids

    def attention_mask(self) -> Int64Array | None:
        """The mask as numbers of samples, 0 at padding; None if it says nothing."""
        given = self._per_token("attention_mask")
        if given is None:
            return None
        if (given == 1).all():
            return None
        mask = given.astype(np.int64)
        if (mask != given).any() or (mask < 0).any():
            raise self._error("has an 'attention_mask' with other numbers than 0 at padding and 1, 2, … at samples")
        begins = np.concatenate([[0], np.flatnonzero(np.diff(mask)) + 1])
        numbers = mask[begins][mask[begins] > 0]
        if not len(numbers):
            raise self._error("has an 'attention_mask' of zeros alone: leave out samples without tokens")
        if (np.diff(numbers) <= 0).any():
            raise self._error(
                "has an 'attention_mask' with zeros within a sample, or numbers that do not rise: it must be 1, 2, … for "
                "the samples of the row, and 0 at padding only"
            )
        return mask

    def positions(self, kept: _Kept) -> Int64Array | None:
        if self._sample.get("position_ids") is None:
            return None
        given = self._array("position_ids")
        self._whole(given, "position_ids")
        if given.ndim == 3 and given.shape[1] == 1:
            given = given[:, 0]
        rows = np.atleast_2d(given)
        if rows.ndim != 2 or len(rows) not in (1, 3, 4) or rows.shape[1] != self._size:
            raise self._error(
                f"has 'position_ids' of shape {given.shape} and {self._size:,} tokens: give one row, or 3 or 4 rows of "
                f"mRoPE"
            )
        return (rows if kept is None else rows[:, kept]).astype(np.int64)

    def boundaries(self, size: int, mask: Int64Array | None, positions: Int64Array | None) -> CuSeqlens:
        """What the keys say of samples in the row; all of them must say the same."""
        said: dict[str, Int64Array] = {}
        if self._sample.get("seq_lengths") is not None:
            said["seq_lengths"] = self._lengths(size)
        if mask is not None and mask.max() > 1:
            said["attention_mask"] = np.flatnonzero(np.diff(mask[mask > 0], prepend=0))
        if positions is not None and len(positions) != 3:
            said["position_ids"] = self._begins(positions[0])
        if not said:
            return np.array([0, size], dtype=np.int32)
        begins = next(iter(said.values()))
        for key, other in said.items():
            if not np.array_equal(other, begins):
                first = next(iter(said))
                raise self._error(
                    f"contradicts itself: by {first!r} it holds {len(begins)} samples that begin at {_few(begins)}, and "
                    f"by {key!r} {len(other)} that begin at {_few(other)}; leave one of the two out"
                )
        return np.append(begins, size).astype(np.int32)

    def targets(self, ids: npt.NDArray[Any], kept: _Kept) -> LossMask:
        """Which tokens are targets; a new array."""
        masks = {key: found for key in TARGET_MASKS if (found := self._binary(key)) is not None}
        if self._sample.get("labels") is None:
            if not masks:
                return np.ones(self._size if kept is None else len(kept), dtype=bool)
            chosen = np.logical_and.reduce(list(masks.values()))
            self._nothing_in_padding(next(iter(masks)), chosen, kept)
            return np.array(_of(chosen, kept))
        labels = self._array("labels")
        if labels.shape != ids.shape:
            raise self._error(
                f"has 'input_ids' {ids.shape} and 'labels' {labels.shape}: they must be rows of one length"
            )
        self._whole(labels, "labels")
        chosen = labels != IGNORE_INDEX
        if bool((chosen & (labels != ids)).any()):
            raise self._error("has a label that is not its own token; labels must not be shifted")
        self._nothing_in_padding("labels", chosen, kept)
        other = masks.get("loss_mask")
        # Nothing predicts the first token, so there the two need not agree.
        if other is not None and (differ := np.flatnonzero(_of(other != chosen, kept)[1:]) + 1).size:
            first = int(differ[0]) if kept is None else int(kept[differ[0]])
            raise self._error(
                f"has 'labels' and 'loss_mask' that name different targets, first at token {first}: give one of them"
            )
        return np.array(_of(chosen, kept))

    def weights(self, kept: _Kept) -> npt.NDArray[np.float32] | None:
        key = self._one_of(_WEIGHTS)
        if key is None:
            return None
        row = self._per_token(key)
        assert row is not None
        return np.asarray(_of(row, kept), dtype=np.float32)

    def sources(self, segments: int) -> Int32Array | None:
        key = self._one_of(_SOURCES)
        if key is None:
            return None
        found = np.atleast_1d(self._array(key))
        self._whole(found, key)
        if found.shape not in ((1,), (segments,)):
            raise self._error(
                f"has {key!r} of shape {found.shape}: give one number, or one for each of its {segments} samples"
            )
        return np.broadcast_to(found, (segments,)).astype(np.int32)

    def _one_of(self, keys: Sequence[str]) -> str | None:
        found = [key for key in keys if self._sample.get(key) is not None]
        if len(found) > 1:
            raise self._error(f"has {found[0]!r} and {found[1]!r}, which mean the same: give one of them")
        return found[0] if found else None

    def _lengths(self, size: int) -> Int64Array:
        lengths = self._array("seq_lengths")
        self._whole(lengths, "seq_lengths")
        if lengths.ndim != 1 or not len(lengths) or (lengths < 1).any() or int(lengths.sum()) != size:
            raise self._error(
                f"has 'seq_lengths' {_few(lengths)} and {size:,} tokens: they must be at least 1 each, and that many together"
            )
        return np.concatenate([[0], np.cumsum(lengths[:-1])]).astype(np.int64)

    def _begins(self, row: Int64Array) -> Int64Array:
        """Where positions begin anew: at the number that the row begins with."""
        begins = np.concatenate([[0], np.flatnonzero(np.diff(row) != 1) + 1])
        wrong = row[begins] != row[0]
        if wrong.any():
            at = int(begins[wrong.argmax()])
            raise self._error(
                f"has 'position_ids' that go from {int(row[at - 1])} to {int(row[at])} at token {at}: they must rise by 1, "
                f"or begin anew at {int(row[0])}"
            )
        return begins

    def _nothing_in_padding(self, key: str, chosen: BoolArray, kept: _Kept) -> None:
        if kept is None:
            return
        count = int(np.count_nonzero(chosen)) - int(np.count_nonzero(chosen[kept]))
        if count:
            raise self._error(
                f"has {count:,} targets in {key!r} where 'attention_mask' says padding, which is cut off: put {IGNORE_INDEX} "
                f"(in masks 0) there, or 1 in 'attention_mask' where the token is meant"
            )

    def _binary(self, key: str) -> BoolArray | None:
        row = self._per_token(key)
        if row is None:
            return None
        if row.dtype != np.bool_ and not np.isin(row, (0, 1)).all():
            raise self._error(
                f"has {key!r} with other numbers than 0 and 1: what targets count goes into 'loss_weights'"
            )
        return row.astype(bool)

    def _per_token(self, key: str) -> npt.NDArray[Any] | None:
        """A row of numbers as long as the tokens; None if there is none."""
        if self._sample.get(key) is None:
            return None
        row = self._array(key)
        if row.shape != (self._size,):
            raise self._error(f"has {key!r} {row.shape}, which must be one row as long as input_ids, {self._size}")
        if row.dtype.kind not in "biuf":
            raise self._error(f"has {key!r} of {row.dtype}, which must hold numbers")
        return row

    def _array(self, key: str) -> npt.NDArray[Any]:
        try:
            return np.asarray(self._sample[key])
        except (ValueError, TypeError, RuntimeError) as error:
            raise self._error(f"has {key!r} that is no array of numbers ({error})") from error

    def _whole(self, array: npt.NDArray[Any], key: str) -> None:
        if array.dtype.kind not in "iu":
            raise self._error(f"has {key!r} of {array.dtype}, which must hold whole numbers")

    def _error(self, what: str) -> CollateError:
        return CollateError(f"{self._name} {what}")


def _of(row: npt.NDArray[Any], kept: _Kept) -> npt.NDArray[Any]:
    return row if kept is None else row[kept]


def _may_be_for_the_model(value: Any) -> bool:
    """Rows of numbers, and objects. Text, single numbers and records are about the sample."""
    if isinstance(value, _ABOUT_THE_SAMPLE):
        return False
    if isinstance(value, Mapping):
        return any(getattr(inner, "shape", ()) != () for inner in value.values())
    if isinstance(value, (list, tuple)):
        first = next((inner for inner in value if inner is not None), "")
        if isinstance(first, (bool, int, float)):
            return True
        return not isinstance(first, Mapping) and _may_be_for_the_model(first)
    shape = getattr(value, "shape", None)
    return shape is None or (len(shape) > 0 and getattr(getattr(value, "dtype", None), "kind", "") not in "US")


def _few(numbers: npt.NDArray[Any]) -> str:
    shown = ", ".join(map(str, numbers.reshape(-1)[:4].tolist()))
    return f"{shown}…" if numbers.size > 4 else shown
