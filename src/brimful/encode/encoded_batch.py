"""Encoded samples in flat arrays: the form in which many of them are counted and stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from brimful.base.ragged import offsets_of
from brimful.base.tables import Ragged
from brimful.base.typing import Int64Array, LossMask
from brimful.encode.encoded import EncodedSample
from brimful.errors import BadSampleError


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
