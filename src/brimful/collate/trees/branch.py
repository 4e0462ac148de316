"""Forms of the loss at the branches of a trunk."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum

import numpy as np

from brimful.collate.batch import PackedBatch
from brimful.collate.trees.fork import on_first_copies, with_single_labels
from brimful.collate.trees.loss_terms import loss_terms
from brimful.collate.trees.shared_targets import SharedTargets, num_training_samples


class Branch(str, Enum):
    """Form of the loss of trees: the last token of a trunk predicts the first of each branch.

    ::

        row     a b c | d e | f     index   a b c d e f          c predicts d and f
                                    fork    a b | c d e | c f    one token more for each branch
    """

    FORK = "fork"
    """Each branch repeats the last token of its trunk. Every place has one label and one weight, so
    any loss goes with it.
    """
    INDEX = "index"
    """The batch has no labels but a list of targets with the places that predict them: logits, or
    the hidden states before the head, are gathered once for each target.
    """

    def apply(self, batch: PackedBatch, shared_targets: SharedTargets) -> PackedBatch:
        """Return a row of trees with its loss in this form.

        Args:
            batch: with the sums of the weights of its samples.
            shared_targets: weight of a target that several samples train.
        """
        weights, counts = batch.loss_weights, num_training_samples(batch)
        assert weights is not None
        if self is Branch.FORK:
            weights, counts = (on_first_copies(batch, values) for values in (weights, counts))
            batch = with_single_labels(batch)
        if shared_targets is SharedTargets.MEAN:
            weights = (weights / np.maximum(counts, 1)).astype(np.float32)
        batch = replace(batch, loss_weights=weights)
        return batch if self is Branch.FORK else replace(batch, loss_terms=loss_terms(batch))
