"""Terms of the loss of a row of trees: one for each token that a sample trains."""

from __future__ import annotations

import numpy as np

from brimful.base.tables import Ragged
from brimful.base.typing import IGNORE_INDEX
from brimful.collate.batch import LossTerms, PackedBatch
from brimful.collate.trees.visibility import predictors


def loss_terms(batch: PackedBatch) -> LossTerms:
    """Return the terms of the loss of a row of trees, in the order of their targets.

    >>> from brimful.collate.layout import lay_out
    >>> from brimful.testing.toys import toy_tree
    >>> terms = loss_terms(lay_out([toy_tree([[5, 6, 7], [5, 6, 8]])]))
    >>> terms.index.tolist(), terms.targets.tolist(), terms.weights.tolist(), terms.samples.tolist()
    ([0, 1, 1], [6, 7, 8], [2.0, 1.0, 1.0], [0, 0, 1])
    >>> [terms.of_samples.row(sample).tolist() for sample in range(2)]
    [[0, 1], [0, 2]]
    """
    tree = batch.tree
    assert tree is not None
    (targets,) = np.nonzero(batch.labels != IGNORE_INDEX)
    term_of_place = np.full(len(batch.labels), -1, dtype=np.int64)
    term_of_place[targets] = np.arange(len(targets))
    of_samples = tree.target_places(tree.places(batch.cu_seqlens))
    terms = term_of_place[of_samples.values]
    samples = np.zeros(len(targets), dtype=np.int64)
    # Written from the last sample to the first, so that the first of a shared term remains.
    owners = np.repeat(np.arange(len(of_samples)), np.diff(of_samples.offsets))
    samples[terms[::-1]] = owners[::-1]
    return LossTerms(
        predictors(batch)[targets],
        batch.labels[targets],
        batch.target_weights[targets],
        samples,
        Ragged(terms, of_samples.offsets),
    )
