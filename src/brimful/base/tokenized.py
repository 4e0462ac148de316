"""Samples that are already tokenized, as users and other trainers provide them.

Every key is read, refused, or known to carry no information. The collator, ``TokenBudgetBatches``
and ``verify_packing`` read plain samples here, so that all of them accept the same samples.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from brimful.base.tokenized_media import Media, placeholders_of, read_media
from brimful.base.tokenized_row import TokenizedRow
from brimful.base.typing import (
    AnyArray,
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
