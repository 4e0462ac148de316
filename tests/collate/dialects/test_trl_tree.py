"""Trees of TRL: queries of a segment, and the keys of its path, gathered one path after the other."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given

torch = pytest.importorskip("torch")

from brimful import PackCollator  # noqa: E402
from brimful.collate import Column, PackExtras  # noqa: E402
from brimful.errors import CollateError  # noqa: E402
from brimful.testing.contracts import DialectContract  # noqa: E402
from brimful.testing.toys import toy_tree  # noqa: E402
from tests.collate.dialects.forks import SAMPLES, batch_of, trained_by  # noqa: E402
from tests.collate.dialects.reading import between, pairs  # noqa: E402
from tests.trees.collate.reading import trained  # noqa: E402


class TestTrlTree(DialectContract):
    dialect = "trl_tree"

    def segments(self, batch):
        keys = batch["input_ids"][batch["tree_kv_index"]]
        return between(keys, batch["tree_cu_seqlens_k"].tolist())

    def targets(self, batch):
        return pairs(batch["input_ids"], batch["shift_labels"], labels_shifted=True)

    def loss_tokens(self, batch):
        return len(batch["token_index"])


@given(SAMPLES)
def test_terms_of_a_target_share_its_weight(samples):
    """A target that several samples train has the weights of all: its terms add up to what the row has at its place."""
    pack = toy_tree(*zip(*samples, strict=True))
    if not pack.num_loss_tokens:
        return
    row = PackCollator(dialect="dense_mask", loss_weights="sample")([pack])
    (expected,) = row["loss_weights"].tolist()
    batch = PackCollator(dialect="trl_tree", loss_weights="sample")([pack])
    weights = batch.get("loss_weights", torch.ones(len(batch["token_index"]))).tolist()
    found = [0.0] * len(expected)
    for place, weight in zip(batch["token_index"].tolist(), weights, strict=True):
        found[place + 1] += weight
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@given(SAMPLES)
def test_each_term_reads_its_sample(samples):
    """A query reads the keys of its segment up to itself; a label is what the terms of its place train."""
    batch, ordered = batch_of("trl_tree", samples, pad_to=90)
    given = {name: tensor.tolist() for name, tensor in batch.items()}
    seen = {}
    for segment, (begin, end) in enumerate(pairwise(given["tree_cu_seqlens_q"])):
        first, last = given["tree_cu_seqlens_k"][segment : segment + 2]
        for query in range(begin, end):
            seen[query] = given["tree_kv_index"][first : last - (end - 1 - query)]
    labels = given["shift_labels"]
    terms = list(zip(given["token_index"], given["segment_id"], strict=True))
    assert {place for place, label in enumerate(labels) if label != -100} == {place for place, _ in terms}
    predictions = [(place, labels[place], 1) for place, _ in terms]
    found = trained_by(given["input_ids"], given["position_ids"], lambda query, key: key in seen[query], predictions)
    assert found == trained(samples)
    assert [len(seen[place]) for place, _ in terms] == [
        depth for tokens, mask in ordered for depth in range(1, len(tokens)) if mask[depth]
    ]
    assert [sample for _, sample in terms] == [
        sample for sample, (_, mask) in enumerate(ordered) for _ in range(sum(mask[1:]))
    ]
    assert given["tree_max_seqlens"][1] == max(map(len, seen.values()))


@given(SAMPLES)
def test_a_row_is_the_one_of_trl(samples):
    """Equal in every element to what TRL packs of the same samples, if none begins another."""
    packing = pytest.importorskip("trl.experimental.async_grpo.packing", exc_type=ImportError)
    samples = [([*tokens, 4 + number % 2], [*mask, True]) for number, (tokens, mask) in enumerate(samples)]
    given, ordered = batch_of("trl_tree", samples)
    row = packing.TreeRow()
    for tokens, mask in ordered:
        row.add(
            {
                "input_ids": torch.tensor(tokens),
                "completion_mask": torch.tensor(mask).long(),
                "old_log_probs": torch.zeros(len(tokens)),
                "advantage": 1.0,
                "group_id": 0,
            }
        )
    expected = row.pack()
    assert set(expected) - set(given) == {"old_log_probs", "advantages"}
    for name, tensor in given.items():
        assert tensor.dtype == expected[name].dtype, name
        assert torch.equal(tensor, expected[name]), name


@pytest.mark.parametrize("dialect", ["trl_tree", "art", "nemo_automodel_tree"])
def test_a_place_with_several_labels_is_refused(dialect):
    """These have a row and no list of targets."""
    with pytest.raises(CollateError, match='collate with branch="fork"'):
        batch_of(dialect, [([1, 2], [False, True]), ([1, 3], [False, True])], branch="index")


def test_values_of_targets_are_there_for_each_sample():
    """TRL reads them under these names; a target that two samples train has them twice."""
    pack = toy_tree([[5, 6, 7], [5, 6, 8]])
    columns = [Column(name, np.array([0, 1, 2, 3], np.float32)) for name in ("old_log_probs", "advantages")]
    batch = PackCollator(dialect="trl_tree")([(pack, PackExtras(columns=tuple(columns)))])
    assert batch["segment_id"].tolist() == [0, 0, 1, 1]
    assert batch["old_log_probs"].tolist() == batch["advantages"].tolist() == [1, 2, 1, 3]
