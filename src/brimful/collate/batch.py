"""One batch before any dialect: NumPy arrays, with all boundaries in ``cu_seqlens``."""

from dataclasses import dataclass

import numpy as np

from brimful.base.attachment import AttachedInputs
from brimful.base.ragged import offsets_of
from brimful.base.sharing import Sharing, wing_of
from brimful.base.typing import (
    IGNORE_INDEX,
    BoolArray,
    CuSeqlens,
    Float32Array,
    Int32Array,
    Int64Array,
    Labels,
    SampleIds,
)
from brimful.collate.columns import Column
from brimful.errors import CollateError


@dataclass(frozen=True, slots=True, eq=False)
class LossTerms:
    """Terms of the loss of a row: one for each token that a sample trains.

    Attributes:
        index: ``int64[M]``: the place whose logits predict the target; several branches have the
            same.
        targets: ``int64[M]``: the token.
        weights: ``float32[M]``: sum of the weights of the samples that train it.
        samples: ``int64[M]``: the first sample that trains it, by its number in the batch.
        places: ``int64[M]``, ascending: the place of the target.
    """

    index: Int64Array
    targets: Int64Array
    weights: Float32Array
    samples: Int64Array
    places: Int64Array


@dataclass(slots=True, eq=False)  # not frozen: freezing costs a tenth of the time of a whole batch
class PackedBatch:
    """Packs flattened into one row of T tokens in S segments.

    ::

        lengths 3, 2 in multiples of 4, row of 12      a a a . | b b . . | . . . .
        cu_seqlens        0 4 8 12                     boundaries in the row, padding included
        cu_seqlens_real   0 3 5  5                     without the gaps, as Transformer Engine requires
        position_ids      0 1 2 3 | 0 1 2 3 | 0 1 2 3  continue through the padding of a segment
        padding_mask      0 0 0 1 | 0 0 1 1 | 1 1 1 1

    The arrays are in host memory, so reading a boundary never waits for the device.

    Attributes:
        input_ids: ``int64[T]``, padding tokens after each segment and at the end.
        labels: ``int64[T]``, not shifted; ``IGNORE_INDEX`` on padding and on the first token of
            every segment.
        position_ids: ``int64[T]``, from 0 in each segment, and in the padding at the end.
        segment_index: ``int32[T]``: number of the segment of each token; the padding at the end has
            its own number.
        cu_seqlens: ``int32[S + 1]``: the only place with boundaries. The padding at the end is one
            explicit segment.
        num_segments: real segments, the first of the ``S``; then the padding, then empty segments
            if requested.
        sample_ids: ``int64[num_segments]``; -1 in a pack without loss that fills an empty place.
        num_loss_tokens: targets of all samples in the batch.
        real_lengths: ``int32[S]``: tokens of samples in each segment; 0 in the padding.
        max_seqlen: length of the longest segment, or its bound from the padding policy. A Python
            integer: a tensor defeats the cache of some kernels.
        source_ids: ``int32[num_segments]``, or None if the packs do not have them.
        loss_weights: ``float32[T]`` at the targets; None for 1 at every target.
        rope_positions: ``int64[3, T]``: time, height, width of mRoPE; None for text.
        attached: inputs for attachments, with the segment that owns each.
        no_loss: segments that are trained without loss because one of their attachments could not
            be decoded; ``labels`` and ``num_loss_tokens`` already leave them out.
        columns: additional values of each token, ``[T, …]``, with the fill value at padding; not
            shifted.
        sharing: how the segments make samples that share tokens: the first token of a segment may
            have a label, which the last token of an earlier one predicts. None if each segment is
            a sample.
        loss_terms: targets with the places that predict them, instead of labels; only of rows whose
            samples share.
    """

    input_ids: Int64Array
    labels: Labels
    position_ids: Int64Array
    segment_index: Int32Array
    cu_seqlens: CuSeqlens
    num_segments: int
    sample_ids: SampleIds
    num_loss_tokens: int
    real_lengths: Int32Array
    max_seqlen: int
    source_ids: Int32Array | None = None
    loss_weights: Float32Array | None = None
    rope_positions: Int64Array | None = None
    attached: tuple[AttachedInputs, ...] = ()
    no_loss: tuple[int, ...] = ()
    columns: tuple[Column, ...] = ()
    sharing: Sharing | None = None
    loss_terms: LossTerms | None = None

    @property
    def lengths(self) -> Int32Array:
        """Tokens of each segment with its padding: ``int32[S]``."""
        return self.cu_seqlens[1:] - self.cu_seqlens[:-1]

    @property
    def cu_seqlens_real(self) -> CuSeqlens:
        """Boundaries of the samples without padding: ``int32[S + 1]``, one for each entry of
        ``cu_seqlens``.
        """
        return offsets_of(self.real_lengths).astype(np.int32)

    @property
    def boundaries(self) -> CuSeqlens:
        """Boundaries within which only the first token is not predicted, ``int32[n + 1]``;
        ``cu_seqlens`` if each segment is a sample or a part of one.
        """
        if self.sharing is None:
            return self.cu_seqlens
        boundaries: CuSeqlens = wing_of(self.sharing).boundaries(self)
        return boundaries

    @property
    def has_gaps(self) -> bool:
        """True if padding follows a real segment; padding at the end of the row is not a gap."""
        return int(self.cu_seqlens[self.num_segments]) != self.num_tokens

    @property
    def num_tokens(self) -> int:
        """Tokens of samples, Σ l: the unit of cost that is linear in tokens."""
        return int(self.real_lengths.sum(dtype=np.int64))

    @property
    def num_padding(self) -> int:
        """Padding tokens, after segments and at the end."""
        return len(self.input_ids) - self.num_tokens

    @property
    def tail_length(self) -> int:
        """Padding tokens at the end of the row."""
        return int(self.cu_seqlens[-1] - self.cu_seqlens[self.num_segments])

    @property
    def padding_mask(self) -> BoolArray:
        """Mask of the padding, ``bool[T]``: for the balance losses of mixtures of experts."""
        index = np.arange(len(self.input_ids), dtype=np.int32)
        return np.asarray(
            index >= np.repeat(self.cu_seqlens[:-1] + self.real_lengths, self.lengths)
        )

    @property
    def target_weights(self) -> Float32Array:
        """Weight of each label in the loss: ``float32[T]``, 0 without a target. Not shifted; a new
        array.
        """
        targets = self.labels != IGNORE_INDEX
        weights: Float32Array = np.zeros(len(targets), dtype=np.float32)
        weights[targets] = 1 if self.loss_weights is None else self.loss_weights[targets]
        return weights

    def column(self, name: str) -> Column:
        """Return a column by name.

        Raises:
            CollateError: the batch has no such column; lists its columns.
        """
        for column in self.columns:
            if column.name == name:
                return column
        raise CollateError(
            f"the batch has no column {name!r}; it has "
            f"{', '.join(repr(column.name) for column in self.columns) or 'none'}"
        )

    def position_rows(self, rows: int) -> Int64Array:
        """Return positions in 1 row (text), 3 (time, height, width) or 4 (text, then the three):
        ``int64[rows, T]``.

        A batch of text has the same positions in all rows.
        """
        text = self.position_ids[None]
        if rows == 1:
            return text
        # mRoPE of text has equal time, height and width.
        space = (
            self.rope_positions if self.rope_positions is not None else np.repeat(text, 3, axis=0)
        )
        return space if rows == 3 else np.concatenate([text, space])

    def __repr__(self) -> str:
        return (
            f"PackedBatch({len(self.input_ids):,} tokens, {self.num_segments} segments, "
            f"{self.num_loss_tokens:,} loss tokens, {self.num_padding:,} padding"
            f"{f', {len(self.no_loss)} without loss' if self.no_loss else ''})"
        )
