"""Weights of targets by source."""

import pickle
from dataclasses import replace

import numpy as np
import pytest

from brimful import LengthTable, plan_packs
from brimful.collate import lay_out
from brimful.collate.padding import Padding
from brimful.errors import CollateError, SettingsError
from brimful.lengths.targets import Targets
from brimful.mixtures import Mixture
from brimful.mixtures.source_weights import SourceWeights
from brimful.testing.toys import toy_pack


def test_each_source_has_the_share_of_the_loss_that_was_asked_for():
    """Source a has 2 × 2 targets and b 3 × 5: by loss they count three to one, and 1 on average."""
    lengths = np.array([3, 3, 6, 6, 6], dtype=np.int32)
    table = LengthTable({"tokens": lengths}, targets=Targets.of_all_tokens(lengths))
    mixture = Mixture(weights={"a": 3, "b": 1}, unit="tokens", weighting="loss")
    plan = plan_packs(table, capacity=12, draw=mixture, sources={"a": 2, "b": 3})
    assert plan.ledger.samples_packed == 5
    weights = pickle.loads(pickle.dumps(SourceWeights.of_plan(plan)))
    assert weights.factors.tolist() == pytest.approx([0.75 * 19 / 4, 0.25 * 19 / 15])
    sums = np.zeros(2)
    for pack in plan:
        batch = lay_out([toy_pack([segment.length for segment in pack])])
        batch.sample_ids = np.array([segment.sample_id for segment in pack])
        batch.loss_weights = weights(batch)
        for index, sample_id in enumerate(batch.sample_ids):
            part = slice(batch.cu_seqlens[index], batch.cu_seqlens[index + 1])
            sums[int(sample_id >= 2)] += batch.target_weights[part].sum()
    assert sums / sums.sum() == pytest.approx([0.75, 0.25])
    assert sums.sum() == pytest.approx(19)


def test_an_empty_place_needs_no_weights():
    """A rank without a pack runs one without targets and without samples; targets without a sample are refused."""
    weights = SourceWeights([0], [0.5])
    assert len(weights(lay_out([toy_pack([3]).without_loss()]))) == 3
    with pytest.raises(CollateError, match="sample -1 is of no source"):
        weights(lay_out([replace(toy_pack([3]), sample_ids=np.array([-1]))]))


def test_a_plan_without_such_a_mixture_has_no_weights():
    """Without it a mixture of draws would be weighted twice."""
    of_draws = plan_packs([2, 2], capacity=4, draw=Mixture(weights={"a": 1}), sources={"a": 2})
    for plan in (plan_packs([2, 2], capacity=4), of_draws):
        with pytest.raises(SettingsError, match="no weights of tokens"):
            SourceWeights.of_plan(plan)


@pytest.mark.parametrize(
    ("begins", "factors"),
    [
        ([0], [1, 2]),
        ([0, 1], [1]),
        ([], []),
        ([[0]], [[1]]),
        ([1], [1]),
        ([0, 0], [1, 1]),
        ([0, 2, 1], [1, 1, 1]),
        ([0], [-1]),
        ([0], [np.nan]),
        ([0], [np.inf]),
    ],
)
def test_weights_that_fit_no_source_are_refused(begins, factors):
    """Without it the wrong source is weighted."""
    with pytest.raises(SettingsError):
        SourceWeights(begins, factors)


def test_a_sample_belongs_to_the_source_that_begins_at_it():
    """A weight of 0 leaves a source out; padding after the samples weighs nothing that counts."""
    weights = SourceWeights([0, 2], [0.0, 3.0])
    batch = lay_out([replace(toy_pack([2, 2, 1]), sample_ids=np.array([1, 2, 3]))], padding=Padding(to=7))
    assert weights(batch).tolist() == [0, 0, 3, 3, 3, 1, 1]
