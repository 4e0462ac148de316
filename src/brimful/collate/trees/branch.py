"""Forms of the loss at the branches of a trunk."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum

from brimful.collate.batch import PackedBatch
from brimful.collate.trees.fork import with_single_labels
from brimful.collate.trees.loss_terms import loss_terms


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

    def apply(self, batch: PackedBatch) -> PackedBatch:
        """Return a row of trees with its loss in this form."""
        if self is Branch.FORK:
            return with_single_labels(batch)
        return replace(batch, loss_terms=loss_terms(batch))
