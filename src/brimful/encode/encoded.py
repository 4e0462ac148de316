"""The tokens of one sample with the mask of its targets: the output of an encoder; and many samples in flat arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from brimful.base.ragged import offsets_of
from brimful.base.tables import Ragged
from brimful.base.typing import IGNORE_INDEX, Int64Array, Labels, LossMask, TokenIds
from brimful.base.wording import counted
from brimful.errors import BadSampleError, EncodeError


@dataclass(frozen=True, slots=True)
class EncodedSample:
    """Tokens of one sample.

    Attributes:
        input_ids: ``int32[length]``.
        loss_mask: ``bool[length]``, true where the token itself is a target of the loss.
        attachments: what belongs to some of its tokens, such as images, in their order.

    >>> sample = EncodedSample(np.array([5, 6, 7], np.int32), np.array([False, True, True]))
    >>> len(sample), sample.labels.tolist()
    (3, [-100, 6, 7])
    """

    input_ids: TokenIds
    loss_mask: LossMask
    attachments: tuple[Any, ...] = ()

    def __len__(self) -> int:
        return len(self.input_ids)

    @property
    def media(self) -> tuple[Any, ...]:
        """Images, videos and audio (``media.PlacedMedium``), in the order of their tokens."""
        return self.attachments

    @property
    def labels(self) -> Labels:
        """``int64[length]``: the token where it is a target, else ``IGNORE_INDEX``. Not shifted."""
        return np.where(self.loss_mask, self.input_ids, IGNORE_INDEX).astype(np.int64)

    def difference(self, reference: EncodedSample) -> str:
        """Describe the first token or target that differs from a reference of equal length; empty if none does.

        >>> ids = np.array([5, 6], np.int32)
        >>> one, other = (EncodedSample(ids, np.array(mask)) for mask in ([False, True], [False, False]))
        >>> one.difference(other), one.difference(one)
        ('target 1 is True, and False by the reference', '')
        """
        for name, ours, theirs in (
            ("token", self.input_ids, reference.input_ids),
            ("target", self.loss_mask, reference.loss_mask),
        ):
            if not np.array_equal(ours, theirs):
                index = int(np.flatnonzero(ours != theirs)[0])
                return f"{name} {index} is {ours[index]}, and {theirs[index]} by the reference"
        return ""

    def __repr__(self) -> str:
        targets = int(np.count_nonzero(self.loss_mask))
        media = f", media: {len(self.attachments)}" if self.attachments else ""
        return f"EncodedSample({counted(len(self), 'token')}, {counted(targets, 'loss token')}{media})"

    @classmethod
    def from_labels(cls, input_ids: TokenIds, labels: Labels) -> EncodedSample:
        """Build a sample from ids and unshifted labels, as other encoders produce them.

        Raises:
            EncodeError: a label is neither its own token nor ``IGNORE_INDEX`` (shifted labels, for example), or an id does
                not fit int32.
        """
        ids, targets = np.asarray(input_ids), np.asarray(labels)
        if ids.shape != targets.shape or ids.ndim != 1:
            raise EncodeError(f"input_ids {ids.shape} and labels {targets.shape} must be two rows of equal length")
        mask = targets != IGNORE_INDEX
        mismatch = mask & (targets != ids)
        if mismatch.any():
            index = int(mismatch.argmax())
            raise EncodeError(
                f"label {targets[index]} at position {index} is neither its token {ids[index]} nor {IGNORE_INDEX}: "
                f"labels must not be shifted"
            )
        # Compared before the cast: int32 would wrap a larger id around to another token without an error.
        limits = np.iinfo(np.int32)
        outside = (ids > limits.max) | (ids < limits.min)
        if outside.any():
            index = int(outside.argmax())
            raise EncodeError(f"token {index} is {ids[index]}, which no vocabulary has")
        return cls(ids.astype(np.int32), mask)


@dataclass(frozen=True)
class EncodedBatch:
    """Tokens of several samples.

    Attributes:
        ids: ``int32``; row ``i`` holds the tokens of sample ``i``, none if it cannot be encoded.
        loss_mask: ``bool[len(ids.values)]``, true where a token is a target of the loss.
        errors: the error of each sample that cannot be encoded, by its index.
        attachments: of each sample that has any, by its index.

    >>> batch = EncodedBatch.of([EncodedSample(np.array([5, 6], np.int32), np.array([False, True]))])
    >>> batch.lengths.tolist(), batch.samples()[0].labels.tolist()
    ([2], [-100, 6])
    """

    ids: Ragged
    loss_mask: LossMask
    errors: Mapping[int, BadSampleError]
    attachments: Mapping[int, tuple[Any, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, results: Sequence[EncodedSample | BadSampleError]) -> EncodedBatch:
        """Concatenate samples."""
        samples = [None if isinstance(result, BadSampleError) else result for result in results]
        no_ids, no_mask = np.empty(0, dtype=np.int32), np.empty(0, dtype=bool)
        return cls(
            Ragged(
                np.concatenate([no_ids, *(sample.input_ids for sample in samples if sample is not None)]),
                offsets_of([0 if sample is None else len(sample) for sample in samples]),
            ),
            np.concatenate([no_mask, *(sample.loss_mask for sample in samples if sample is not None)]),
            {index: result for index, result in enumerate(results) if isinstance(result, BadSampleError)},
            {
                index: sample.attachments
                for index, sample in enumerate(samples)
                if sample is not None and sample.attachments
            },
        )

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def lengths(self) -> Int64Array:
        """Number of tokens of each sample, 0 for one that cannot be encoded."""
        return np.diff(self.ids.offsets)

    def samples(self) -> list[EncodedSample | BadSampleError]:
        """Return the samples one by one, as views; an error takes the place of one that cannot be encoded."""
        values, bounds = self.ids.values, self.ids.offsets.tolist()
        return [
            self.errors[index]
            if index in self.errors
            else EncodedSample(values[start:stop], self.loss_mask[start:stop], self.attachments.get(index, ()))
            for index, (start, stop) in enumerate(pairwise(bounds))
        ]
