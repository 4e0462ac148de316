"""Samples that are already tokenized, as users and other trainers provide them.

Every key is read, refused, or known to carry no information. The collator, ``TokenBudgetBatches``
and ``verify_packing`` read plain samples here, so that all of them accept the same samples.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, time, timedelta
from decimal import Decimal
from pathlib import PurePath
from typing import Any

import numpy as np

from brimful.base.attachment import ATTACHMENT_KINDS, AttachedInputs, attachment_inputs
from brimful.base.typing import (
    TARGET_MASKS,
    AnyArray,
    CuSeqlens,
    Float32Array,
    Int32Array,
    Int64Array,
    LossMask,
    TokenIds,
)
from brimful.errors import CollateError
from brimful.sources.tokenized_row import TokenizedRow

_WEIGHT_KEYS = ("loss_weights", "loss_scale")
_SOURCE_KEYS = ("source_id", "ds_idx")
_READ_KEYS = {"input_ids", "labels", "attention_mask", "seq_lengths", "position_ids"}
_READ_KEYS |= {*TARGET_MASKS, *_WEIGHT_KEYS, *_SOURCE_KEYS}

_TOKENIZER_KEYS = {"special_tokens_mask", "offset_mapping", "overflow_to_sample_mapping", "length"}
"""Keys of numbers about the text that tokenizers add; causal models do not take them."""

_DESCRIPTIVE_TYPES = (str, bytes, Decimal, date, time, timedelta, PurePath)
"""Types of values that, besides numbers, can only describe the sample and are never inputs of the
model.
"""

_REFUSED_KEYS = {
    "label",
    "label_ids",
    *ATTACHMENT_KINDS,
    *(f"{kind}s" for kind in ATTACHMENT_KINDS),
}
"""Keys whose omission would change training, for any value."""


@dataclass(frozen=True, slots=True, eq=False)
class TokenizedSample:
    """One row without padding: T tokens in S segments (more than one if the row is packed already).

    Attributes:
        input_ids: ``int32[T]``.
        loss_mask: ``bool[T]``, true where the token is a target; never on the first of a segment.
        cu_seqlens: ``int32[S + 1]``.
        indices: ``int64[T]``: index of each token in the original row, which may contain padding.
        positions: ``int64[rows, T]`` of the original row, 1 row for text, 3 or 4 for mRoPE; None if
            it had none.
        loss_weights: ``float32[T]``, or None.
        source_ids: ``int32[S]``, or None.
        attached: inputs of the model for the attachments, one item for each kind.
        placeholders: indices of the tokens that stand for each kind of attachment; kinds without
            such information are absent.
        marks: ``[T]`` by key, from which the placeholders were read; they are also passed to
            models.
        sample_id: number of the sample in its source; None if only a loader knows.
    """

    input_ids: TokenIds
    loss_mask: LossMask
    cu_seqlens: CuSeqlens
    indices: Int64Array
    positions: Int64Array | None = None
    loss_weights: Float32Array | None = None
    source_ids: Int32Array | None = None
    attached: tuple[AttachedInputs, ...] = ()
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
        return not (self.attached or self.marks or self.position_start) and all(
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

    def segment(self, start: int, length: int) -> "TokenizedSample":
        """Return some of the tokens of a single sample; positions begin with the same number as in
        the whole sample.

        Raises:
            CollateError: a sample with attachments, or a row of several samples; these are never cut.
        """
        if length == len(self.input_ids):
            return self
        if self.attached or self.num_segments > 1:
            contents = "media" if self.attached else "several samples in a row"
            raise CollateError(
                f"sample {self.sample_id} has {contents} and {len(self.input_ids):,} tokens, and is "
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
            indices=self.indices[tokens],
            positions=positions,
            loss_weights=weights,
            marks={key: values[tokens] for key, values in self.marks.items()},
        )

    def without_loss(self) -> "TokenizedSample":
        """Return the same tokens and attachments without targets; the sample id is -1."""
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
    ``pixel_values``, ``input_features``, …     a processor's output for images, videos and audio (``media.tokenized``)
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
        token_ids: token that stands for each kind of attachment, for samples without marks, if the
            model is known.

    Raises:
        CollateError: a key is missing, wrong, cannot be carried, or contradicts another; names the
            sample and the keys.

    >>> read = read_tokenized({"input_ids": [5, 6, 7, 8, 9, 0], "attention_mask": [1, 1, 1, 2, 2, 0]}, "sample 0")
    >>> read.input_ids.tolist(), read.cu_seqlens.tolist(), read.loss_mask.tolist()
    ([5, 6, 7, 8, 9], [0, 3, 5], [False, True, True, False, True])
    """
    if isinstance(sample, TokenizedSample):
        return sample
    if not isinstance(sample, Mapping):
        if not (hasattr(sample, "input_ids") and hasattr(sample, "loss_mask")):
            raise CollateError(
                f"{name} is a {type(sample).__name__}: give packs, or mappings with 'input_ids' "
                "and, if not all tokens are targets, 'labels'"
            )
        sample = {"input_ids": sample.input_ids, "loss_mask": sample.loss_mask}
    row = TokenizedRow(sample, name)
    has_attached = _has_attached(row)
    tokens = row.tokens()
    plain = TokenizedSample(
        *tokens,
        loss_weights=_weights(row, tokens.places),
        source_ids=_sources(row, len(tokens.cu_seqlens) - 1),
    )
    if not (has_attached or token_ids):
        return plain
    inputs, placeholders, marks = attachment_inputs().of_row(row, tokens, token_ids or {})
    return replace(plain, attached=inputs, placeholders=placeholders, marks=marks)


def _has_attached(row: TokenizedRow) -> bool:
    """Return true if keys are inputs for attachments; refuse keys that may be inputs of the model
    and that nothing reads.
    """
    has_attached = False
    for key, value in row.sample.items():
        if key in _READ_KEYS or value is None or key in _TOKENIZER_KEYS:
            continue
        # Text tokenizers make it of zeros, which say nothing.
        if key == "token_type_ids" and not np.any(row.array(key)):
            continue
        # Templates of ms-swift add the length of the row as a list; for several samples it would
        # hold boundaries.
        is_length = key == "lengths" and "input_ids" in row.sample
        if is_length and np.array_equal(value, row.array("input_ids").shape):
            continue
        if key in attachment_inputs().KEYS:
            has_attached = True
        elif key in _REFUSED_KEYS or _may_be_for_the_model(value):
            raise row.error(
                f"has {key!r}, which a batch of plain samples cannot carry: leave it out of the "
                "sample if the model does not need it, or give the sample as a pack with "
                "PackExtras, which hold media and positions"
            )
    return has_attached


def _weights(row: TokenizedRow, indices: Int64Array) -> Float32Array | None:
    """Return the weights of the tokens in the loss, ``float32[T]``, or None."""
    weights = row.per_token(_one_of(row, _WEIGHT_KEYS))
    return None if weights is None else np.asarray(weights[indices], dtype=np.float32)


def _sources(row: TokenizedRow, num_segments: int) -> Int32Array | None:
    """Return the source of each segment, ``int32[num_segments]``, or None."""
    key = _one_of(row, _SOURCE_KEYS)
    if row.sample.get(key) is None:
        return None
    ids = np.atleast_1d(row.integers(key))
    if ids.shape not in ((1,), (num_segments,)):
        raise row.error(
            f"has {key!r} of shape {ids.shape}: give one number, or one for each of its "
            f"{num_segments} samples"
        )
    return np.broadcast_to(ids, (num_segments,)).astype(np.int32)


def _one_of(row: TokenizedRow, synonyms: Sequence[str]) -> str:
    """Return the key among synonyms that the row has; the first one if it has none."""
    keys = [key for key in synonyms if row.sample.get(key) is not None]
    if len(keys) > 1:
        raise row.error(f"has {keys[0]!r} and {keys[1]!r}, which mean the same: give one of them")
    return [*keys, *synonyms][0]


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
