"""Terms of the loss of a row of trees: one for each token that a sample trains."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from brimful.base.tables import Ragged
from brimful.base.typing import IGNORE_INDEX, Int64Array
from brimful.collate.batch import LossTerms, PackedBatch
from brimful.collate.trees.visibility import predictors


def loss_terms(batch: PackedBatch) -> LossTerms:
    """Return the terms of the loss of a row of trees, in the order of their targets.

    >>> from brimful.collate.layout import lay_out
    >>> from brimful.testing.toys import toy_tree
    >>> terms = loss_terms(lay_out([toy_tree([[5, 6, 7], [5, 6, 8]])]))
    >>> terms.index.tolist(), terms.targets.tolist(), terms.weights.tolist(), terms.samples.tolist()
    ([0, 1, 1], [6, 7, 8], [2.0, 1.0, 1.0], [0, 0, 1])
    """
    assert batch.tree is not None
    (targets,) = np.nonzero(batch.labels != IGNORE_INDEX)
    samples = np.full(len(batch.labels), -1, dtype=np.int64)
    ranges = np.stack(batch.tree.target_ranges(batch.cu_seqlens), axis=1)
    # From the last sample to the first, so that the first of a shared target remains.
    for sample, begin, end in ranges[::-1].tolist():
        samples[begin:end] = sample
    return LossTerms(
        predictors(batch)[targets],
        batch.labels[targets],
        batch.target_weights[targets],
        samples[targets],
        targets,
    )


def terms_of_samples(batch: PackedBatch) -> Ragged:
    """Return the term of each target of each sample of a row of trees: ``int64``, one row for each
    sample.

    Values of terms are brought back to samples with it: ``values[terms.values]``, in NumPy or in
    torch. A shared target is there once for each sample that trains it.

    >>> from brimful.collate.layout import lay_out
    >>> from brimful.testing.toys import toy_tree
    >>> terms = terms_of_samples(lay_out([toy_tree([[5, 6, 7], [5, 6, 8]])]))
    >>> [terms.row(sample).tolist() for sample in range(2)]
    [[0, 1], [0, 2]]
    """
    tree = batch.tree
    assert tree is not None
    number = np.cumsum(batch.labels != IGNORE_INDEX, dtype=np.int64) - 1
    targets = tree.target_places(tree.places(batch.cu_seqlens))
    return Ragged(number[targets.values], targets.offsets)


class SampleTargets(NamedTuple):
    """Targets of the samples of a row of trees, sample by sample: a shared target once for each
    sample that trains it.
    """

    predictors: Int64Array
    """``int64[N]``: the place before the target on the path of its sample, whose logits predict
    it.
    """
    targets: Int64Array
    """``int64[N]``: the token."""
    samples: Int64Array
    """``int64[N]``: the sample, by its number in the row."""


def targets_of_samples(batch: PackedBatch) -> SampleTargets:
    """Return the targets of each sample of a row of trees, in either form of the loss.

    >>> from brimful.collate.layout import lay_out
    >>> from brimful.testing.toys import toy_tree
    >>> found = targets_of_samples(lay_out([toy_tree([[5, 6, 7], [5, 6, 8]])]))
    >>> found.predictors.tolist(), found.targets.tolist(), found.samples.tolist()
    ([0, 1, 0, 1], [6, 7, 6, 8], [0, 0, 1, 1])
    """
    tree = batch.tree
    assert tree is not None
    places = tree.places(batch.cu_seqlens)
    numbers = tree.target_places(Ragged(np.arange(len(places.values)), places.offsets))
    return SampleTargets(
        places.values[numbers.values - 1],
        batch.input_ids[places.values[numbers.values]],
        np.repeat(np.arange(tree.num_samples), np.diff(numbers.offsets)),
    )
