"""Rows of trees: positions are depths, and a shared token counts for every sample that trains it."""

import numpy as np
import pytest
from hypothesis import given

from brimful.base.typing import IGNORE_INDEX
from brimful.collate import Padding, lay_out
from brimful.collate.torch import PackCollator
from brimful.errors import CollateError
from brimful.testing.toys import toy_pack, toy_tree
from brimful.trees.pack_tree import tree_of
from tests.trees.test_pack_tree import SAMPLES


def test_a_row_of_one_tree():
    """Sample 1 trains 6, which sample 0 only reads; both train 7."""
    pack = toy_tree([[5, 6, 7, 8], [5, 6, 7, 9, 9]], [[False, False, True, True], [False, True, True, True, False]])
    batch = lay_out([pack], padding=Padding(to=8), pad_token_id=1)
    assert batch.input_ids.tolist() == [5, 6, 7, 8, 9, 9, 1, 1]
    assert batch.position_ids.tolist() == [0, 1, 2, 3, 3, 4, 0, 1]
    assert batch.labels.tolist() == [IGNORE_INDEX, 6, 7, 8, 9, *[IGNORE_INDEX] * 3]
    assert batch.target_weights.tolist() == [0, 1, 2, 1, 1, 0, 0, 0]
    assert batch.cu_seqlens.tolist() == [0, 3, 4, 6, 8]
    tree = tree_of(batch)
    assert (tree.parents.tolist(), tree.ends.tolist()) == ([-1, 0, 0, -1], [1, 2])
    assert batch.num_loss_tokens == 5


@given(SAMPLES)
def test_two_trees_in_a_row_are_two_rows(samples):
    """Weights add up to the targets of the samples, one by one."""
    tokens, masks = zip(*samples, strict=True)
    packs = [toy_tree(tokens, masks), toy_tree(tokens)]
    batch = lay_out(packs)
    alone = [lay_out([pack]) for pack in packs]
    for name in ("input_ids", "labels", "position_ids", "loss_weights"):
        assert getattr(batch, name).tolist() == np.concatenate([getattr(one, name) for one in alone]).tolist()
    tree = tree_of(batch)
    places = tree.positions(batch.cu_seqlens)
    parts = [tree_of(one).positions(one.cu_seqlens).values for one in alone]
    assert places.values.tolist() == [*parts[0].tolist(), *(parts[1] + len(packs[0])).tolist()]
    assert batch.target_weights.sum() == batch.num_loss_tokens
    assert batch.num_loss_tokens == sum(sum(mask[1:]) for mask in masks) + sum(len(one) - 1 for one in tokens)


def test_trees_and_other_packs_are_not_one_batch():
    with pytest.raises(CollateError, match="packs of trees and other packs"):
        lay_out([toy_tree([[1, 2], [1, 3]]), toy_pack([3])])
    for packs in ([toy_tree([[1, 2], [1, 3]]), toy_pack([3])], [toy_pack([3]), toy_tree([[1, 2], [1, 3]])]):
        with pytest.raises(CollateError, match="packs of trees and other packs"):
            PackCollator()(packs)


def test_branches_continue_without_a_gap():
    with pytest.raises(CollateError, match="segment_multiple_of does not go with trees"):
        lay_out([toy_tree([[1, 2], [1, 3]])], padding=Padding(segment_multiple_of=4))


def test_a_dialect_without_words_for_trees_refuses_them():
    """Its trainer would take each segment for a sample: positions that begin anywhere, and no trunk."""
    with pytest.raises(CollateError, match='dialect="trl" has no words for packs of trees'):
        PackCollator(dialect="trl")([toy_tree([[1, 2], [1, 3]])])


@pytest.mark.parametrize("branch", ["fork", "index"])
def test_weights_of_samples_add_up(branch):
    """The first sample has targets 6 7, the second 6 8 9 9: each counts 1 in all."""
    pack = toy_tree([[5, 6, 7], [5, 6, 8, 9, 9]])
    batch = PackCollator(dialect="dense_mask", branch=branch, loss_weights="sample")([pack])
    weights = batch["loss_weights"].reshape(-1).tolist()
    assert [weight for weight in weights if weight] == [0.75, 0.5, 0.25, 0.25, 0.25]
