"""Batch of any collator with the places of its samples: what it trains, what is free, and values by
token.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from brimful.base.typing import IGNORE_INDEX, BoolArray, Float64Array, Int64Array
from brimful.doctor.batch.claims import per_token
from brimful.doctor.batch.words import as_array
from brimful.errors import CollateError
from brimful.verify.locate import Place, SampleLayout
from brimful.verify.reference_samples import ReferenceSample


class TargetTerms(NamedTuple):
    """Targets of a batch: one for each token that is trained."""

    places: Int64Array
    """``int64[M]``: the place in the flattened batch whose logits predict the target."""
    targets: Int64Array
    """``int64[M]``: the token."""
    weights: Float64Array
    """``float64[M]``: how often it counts."""


@dataclass(frozen=True)
class CollatedBatch:
    """A batch with the places of its samples.

    Attributes:
        kwargs: keyword arguments of the model.
        ids: ``int64[B, T]``.
        layout: places of the samples.
        samples: the samples, in the order of these places.
        has_trees: true if targets are weighed: a token may be the target of several samples.
    """

    kwargs: dict[str, Any]
    ids: Int64Array
    layout: SampleLayout
    samples: Sequence[ReferenceSample]
    has_trees: bool = False

    @property
    def shifted(self) -> bool:
        """True if the labels came as ``shift_labels``."""
        return self.kwargs.get("shift_labels") is not None

    @cached_property
    def targets(self) -> Int64Array | None:
        """``int64[B, T]``: the token that the logits of each position are trained to predict; None
        without labels. Labels of ``labels`` are shifted by the model, ``shift_labels`` are shifted
        already.
        """
        if self.shifted:
            return self.per_token("shift_labels")
        if (labels := self.per_token("labels")) is None:
            return None
        # The model compares the logits of each position with the label of the next one.
        return np.pad(labels[:, 1:], ((0, 0), (0, 1)), constant_values=IGNORE_INDEX)

    @cached_property
    def terms(self) -> TargetTerms | None:
        """Targets with the places that predict them; None if the batch has none."""
        count = self.ids.size
        if self.kwargs.get("loss_index") is not None:
            places, targets = (
                as_integers(self.kwargs[name]).reshape(-1)
                for name in ("loss_index", "loss_targets")
            )
            weights = self._weights(len(places))
            return TargetTerms(
                places, targets, np.ones(len(places)) if weights is None else weights
            )
        if self.targets is None:
            return None
        targets = self.targets.reshape(-1)
        places = np.flatnonzero(targets != IGNORE_INDEX)
        weights = self._weights(count) if self.has_trees else None
        if weights is None:
            return TargetTerms(places, targets[places], np.ones(len(places)))
        # A weight lies where its label lies, which is the token itself unless labels are shifted.
        return TargetTerms(places, targets[places], weights[places + (not self.shifted)])

    def _weights(self, count: int) -> Float64Array | None:
        """Return the weights of the targets, ``float64[count]``; None if the batch has none."""
        if (value := self.kwargs.get("loss_weights")) is None:
            return None
        weights = np.asarray(as_array(value), dtype=np.float64).reshape(-1)
        if len(weights) != count:
            raise CollateError(
                f"loss_weights of the batch are {len(weights):,}, and it has {count:,} places"
            )
        return weights

    @cached_property
    def free(self) -> BoolArray:
        """``bool[B, T]``: tokens in no sample's place."""
        free = np.ones(self.ids.shape, dtype=bool)
        for _, place in self.located:
            free[place.index] = False
        return free

    @property
    def located(self) -> list[tuple[ReferenceSample, Place]]:
        """Each sample that is in the batch as a whole, and its place."""
        pairs = zip(self.samples, self.layout.places, strict=True)
        return [(sample, place) for sample, place in pairs if place is not None]

    @property
    def places(self) -> dict[int, Place]:
        """Places by the index of the sample; none if they are not certain."""
        pairs = self.located if self.layout.certain else []
        return {sample.index: place for sample, place in pairs}

    @property
    def padding(self) -> BoolArray:
        """``bool[B, T]``: tokens of no sample, if all are the same; none otherwise, as that is not
        padding.
        """
        remainder = self.free & ~self.layout.fragments
        return remainder if len(np.unique(self.ids[remainder])) <= 1 else np.zeros_like(remainder)

    @property
    def num_targets(self) -> float:
        """Targets of the batch, in trees the sum of their weights."""
        if self.has_trees:
            return 0 if self.terms is None else float(self.terms.weights.sum())
        return 0 if self.targets is None else int(np.count_nonzero(self.targets != IGNORE_INDEX))

    def per_token(self, name: str) -> Int64Array | None:
        """Return a keyword argument that has one number for each token.

        Args:
            name: such as ``position_ids``; one row serves all rows of the batch.

        Returns:
            ``int64[B, T]``, or ``int64[rows, B, T]`` if it has three dimensions; None if the batch
            does not have it.

        Raises:
            CollateError: another shape than ``input_ids``.
        """
        if (value := self.kwargs.get(name)) is None:
            return None
        array = as_array(value)
        numbers = per_token(array, (self.ids.shape[0], self.ids.shape[1]))
        if numbers is None:
            shape = None if array is None else array.shape
            raise CollateError(
                f"{name} of the batch have the shape {shape} and input_ids {self.ids.shape}"
            )
        return numbers.astype(np.int64)


def as_integers(value: Any) -> Int64Array:
    """Convert a tensor, an array or a list to ``int64`` in host memory."""
    array = as_array(value)
    assert array is not None
    return array.astype(np.int64)


def as_rows(value: Any) -> Int64Array:
    """Convert a tensor of one or two dimensions to ``int64[B, T]``."""
    return np.atleast_2d(as_integers(value))
