"""Batch of a collator, with the places of its samples and the targets of its tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from brimful.base.typing import IGNORE_INDEX, BoolArray, Int64Array
from brimful.errors import CollateError
from brimful.verify.locate import Place, SampleLayout
from brimful.verify.reference_samples import Segment


@dataclass(frozen=True)
class CollatedBatch:
    """A batch with the places of its samples.

    Attributes:
        kwargs: keyword arguments of the model.
        ids: ``int64[B, T]``.
        targets: ``int64[B, T]``: the token that the logits of each position are trained to predict; None without labels.
            Labels of ``labels`` are shifted by the model, ``shift_labels`` are shifted already.
        layout: places of the samples.
    """

    kwargs: dict[str, Any]
    ids: Int64Array
    targets: Int64Array | None
    layout: SampleLayout

    @property
    def shifted(self) -> bool:
        """True if the labels came as ``shift_labels``."""
        return self.kwargs.get("shift_labels") is not None

    @cached_property
    def free(self) -> BoolArray:
        """``bool[B, T]``: tokens in no sample's place."""
        free = np.ones(self.ids.shape, dtype=bool)
        for _, place in self.located:
            free[place.index] = False
        return free

    @property
    def located(self) -> list[tuple[int, Place]]:
        """Index and place of each segment that is in the batch as a whole."""
        return [(index, place) for index, place in enumerate(self.layout.places) if place is not None]

    @property
    def padding(self) -> BoolArray:
        """``bool[B, T]``: tokens of no sample, if all are the same; none otherwise, as that is not padding."""
        remainder = self.free & ~self.layout.fragments
        return remainder if len(np.unique(self.ids[remainder])) <= 1 else np.zeros_like(remainder)

    @property
    def num_targets(self) -> int:
        """Targets of the batch."""
        return 0 if self.targets is None else int(np.count_nonzero(self.targets != IGNORE_INDEX))

    @property
    def is_packed(self) -> bool:
        """True if any row holds more than one sample."""
        rows = [place.row for _, place in self.located]
        return len(set(rows)) < len(rows)

    def per_token(self, name: str) -> Int64Array | None:
        """Return a keyword argument that has one number for each token.

        Args:
            name: such as ``position_ids``; one row serves all rows of the batch.

        Returns:
            ``int64[B, T]``, or ``int64[rows, B, T]`` if it has three dimensions; None if the batch does not have it.

        Raises:
            CollateError: another shape than ``input_ids``.
        """
        if (value := self.kwargs.get(name)) is None:
            return None
        numbers, shape = as_integers(value), self.ids.shape
        try:
            return np.broadcast_to(numbers, (*numbers.shape[:-2], *shape))
        except ValueError:
            raise CollateError(f"{name} of the batch have the shape {numbers.shape} and input_ids {shape}") from None


def as_integers(value: Any) -> Int64Array:
    """Convert a tensor, an array or a list to ``int64`` in host memory."""
    numbers = value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
    return numbers.astype(np.int64)


def as_rows(value: Any) -> Int64Array:
    """Convert a tensor of one or two dimensions to ``int64[B, T]``."""
    return np.atleast_2d(as_integers(value))


def expected_targets(batch: CollatedBatch, segments: Sequence[Segment]) -> Int64Array:
    """Return ``int64[B, T]``: the token that every position should be trained to predict."""
    targets = np.full(batch.ids.shape, IGNORE_INDEX, dtype=np.int64)
    for index, place in batch.located:
        targets[place.row, place.start : place.stop - 1] = segments[index].labels[1:]
    return targets
