"""Weights of shared targets: from the samples alone, by any function that weighs flat packs."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given

from brimful.base.typing import IGNORE_INDEX
from brimful.collate import Column, PackExtras, lay_out
from brimful.collate.torch import PackCollator
from brimful.mixtures.source_weights import SourceWeights
from brimful.testing.toys import toy_tree
from tests.trees.collate.reading import trained, trained_in
from tests.trees.test_pack_tree import SAMPLES


def by_column(row):
    """A function of users: weights that stand in a column of the batch."""
    return row.column("advantages").values * row.target_weights


WEIGHTS = ["token", "sample", "sqrt", SourceWeights([0, 2], [3.0, 0.5]), by_column]


def predictions(batch):
    """Predictions of either form: place, target, weight."""
    if batch.loss_terms is not None:
        terms = batch.loss_terms
        return list(zip(terms.index.tolist(), terms.targets.tolist(), terms.weights.tolist(), strict=True))
    (places,) = np.nonzero(batch.labels != IGNORE_INDEX)
    assert not batch.loss_weights[batch.labels == IGNORE_INDEX].any()
    return [(int(place) - 1, int(batch.labels[place]), float(batch.loss_weights[place])) for place in places]


@pytest.mark.parametrize("branch", ["fork", "index"])
@pytest.mark.parametrize("weights", WEIGHTS, ids=["token", "sample", "sqrt", "sources", "column"])
@given(samples=SAMPLES)
def test_weights_are_the_sums_of_flat_packs(weights, branch, samples):
    """Whatever the function, and whatever the samples share; their mean is the sum by the number of samples."""
    tokens, masks = zip(*samples, strict=True)
    pack = toy_tree(tokens, masks)
    column = Column("advantages", np.arange(len(pack), dtype=np.float32))
    feature = (pack, PackExtras(columns=(column,)))
    flat = pack.flat()
    flat_column = Column("advantages", column.values[pack.sharing.positions(pack.cu_seqlens).values])
    (row,) = PackCollator(loss_weights=weights).rows([(flat, PackExtras(columns=(flat_column,)))])
    truth = Counter()
    for segment in range(row.num_segments):
        where = slice(*row.cu_seqlens[segment : segment + 2].tolist())
        ids = row.input_ids[where].tolist()
        for depth, weight in enumerate(row.target_weights[where].tolist()):
            if row.labels[where][depth] != IGNORE_INDEX:
                truth[tuple(ids[: depth + 1])] += weight
    (tree,) = PackCollator(loss_weights=weights, branch=branch).rows([feature])
    ours = trained_in(tree, predictions(tree))
    assert ours.keys() == truth.keys()
    assert [ours[key] for key in truth] == pytest.approx(list(truth.values()), rel=1e-6)
    (tree,) = PackCollator(loss_weights=weights, branch=branch, shared_targets="mean").rows([feature])
    ours, counts = trained_in(tree, predictions(tree)), trained(samples)
    assert [ours[key] for key in truth] == pytest.approx([truth[key] / counts[key] for key in truth], rel=1e-6)


def test_weights_of_tokens_count_once_for_each_sample():
    """As ``loss_scale`` of ms-swift: 0.5 for token 6, which both samples train."""
    pack = toy_tree([[5, 6, 7], [5, 6, 8]])
    weights = np.array([0, 0.5, 1, 1], dtype=np.float32)
    assert lay_out([pack], extras=[PackExtras(loss_weights=weights)]).target_weights.tolist() == [0, 1, 1, 1]


def test_a_sample_without_loss_leaves_its_siblings_theirs():
    """A picture of the second branch cannot be decoded: the trunk counts for the first alone."""
    pack = toy_tree([[5, 6, 7], [5, 6, 8]])
    for branch in ("fork", "index"):
        (batch,) = PackCollator(branch=branch).rows([(pack, PackExtras(no_loss=np.array([2], np.int32)))])
        assert sorted(predictions(batch)) == [(0, 6, 1.0), (1, 7, 1.0)]
        assert len(batch.no_loss) == batch.num_loss_tokens - 1 == 1
    # One of the trunk silences both.
    (batch,) = PackCollator().rows([(pack, PackExtras(no_loss=np.array([0], np.int32)))])
    assert batch.num_loss_tokens == 0
    assert len(batch.no_loss) == 2


@pytest.mark.parametrize("branch", ["fork", "index"])
def test_columns_keep_the_value_of_a_first_token(branch):
    """The first token of a branch is predicted, unlike the first of a root."""
    pack = toy_tree([[5, 6, 7], [5, 6, 8]])
    column = Column("old_logps", np.array([1, 2, 3, 4], dtype=np.float32), fill=9)
    (batch,) = PackCollator(branch=branch, pad_to=6).rows([(pack, PackExtras(columns=(column,)))])
    expected = {"fork": [9, 2, 3, 2, 4, 9], "index": [9, 2, 3, 4, 9, 9]}
    assert batch.column("old_logps").values.tolist() == expected[branch]


def test_columns_of_targets_go_with_the_terms():
    """One value for each of ``loss_targets``; values of tokens stay one for each place."""
    pack = toy_tree([[5, 6, 7], [5, 6, 8]], [[True, False, True]] * 2)
    targets = Column("old_logps", np.array([1, 2, 3, 4], dtype=np.float32))
    tokens = Column("routes", np.array([1, 2, 3, 4], dtype=np.float32), place="token")
    collate = PackCollator(dialect="dense_mask", branch="index")
    batch = collate([(pack, PackExtras(columns=(targets, tokens)))])
    assert batch["loss_targets"].tolist() == [7, 8]
    assert batch["old_logps"].tolist() == [3, 4]
    assert batch["routes"].tolist() == [[1, 2, 3, 4]]
