"""Prefix trees of NeMo Automodel: lengths of nodes, and the nodes of each sample; labels are shifted."""

from itertools import accumulate

import pytest
from hypothesis import given

torch = pytest.importorskip("torch")

from brimful.errors import CollateError  # noqa: E402
from brimful.testing.contracts import DialectContract  # noqa: E402
from tests.collate.dialects.forks import SAMPLES, batch_of, trained_by, untrained  # noqa: E402
from tests.collate.dialects.reading import between, count_labels, pairs  # noqa: E402
from tests.rl.compat.sources import definitions_of  # noqa: E402
from tests.trees.collate.reading import trained  # noqa: E402


class TestNemoAutomodelTree(DialectContract):
    dialect = "nemo_automodel_tree"

    def segments(self, batch):
        lengths, paths = batch["prefix_tree"]
        assert paths == [[node] for node in range(len(lengths))]
        return between(batch["input_ids"][0], list(accumulate(lengths, initial=0)))

    def targets(self, batch):
        return pairs(batch["input_ids"], batch["labels"], labels_shifted=True)

    def loss_tokens(self, batch):
        return count_labels(batch)


@given(SAMPLES)
def test_each_target_reads_its_sample_or_is_refused(samples):
    """A node reads the nodes before it on a path, and its own tokens up to the query: ``AttnMaskSpec.prefix_tree`` of
    Automodel 0.7. The first token of each branch is trained."""
    expected = trained(samples)
    if max(expected.values(), default=0) > 1:
        with pytest.raises(CollateError, match="train the same token, which the loss of Automodel counts once"):
            batch_of("nemo_automodel_tree", samples)
        return
    given, ordered = batch_of("nemo_automodel_tree", samples, pad_to=90)
    lengths, paths = given["prefix_tree"]
    node_of = [node for node, length in enumerate(lengths) for _ in range(length)]
    before = {path[place]: set(path[:place]) for path in paths for place in range(len(path))}
    assert len(node_of) == 90
    assert before.keys() == set(range(len(lengths)))
    assert [sum(lengths[node] for node in path) for path in paths[: len(ordered)]] == [len(one) for one, _ in ordered]

    def is_visible(query, key):
        return node_of[key] in before[node_of[query]] or (node_of[key] == node_of[query] and key <= query)

    labels = given["labels"][0].tolist()
    predictions = [(place, label, 1) for place, label in enumerate(labels) if label != -100]
    ids, positions = given["input_ids"][0].tolist(), given["position_ids"][0].tolist()
    assert trained_by(ids, positions, is_visible, predictions) == expected


@given(SAMPLES)
def test_rectangles_are_those_of_automodel(samples):
    """What it makes of the nodes and paths is what we say to MagiAttention."""
    theirs = definitions_of(
        "nemo_automodel", "components/distributed/context_parallel/magi.py", ["AttnMaskSpec"]
    ).AttnMaskSpec
    nodes, _ = batch_of("nemo_automodel_tree", untrained(samples), pad_to=90)
    given, _ = batch_of("magi_attention", untrained(samples), pad_to=90)
    spec, _ = theirs.prefix_tree(*nodes["prefix_tree"])
    assert spec.total_seqlen == 90
    expected = zip(spec.q_ranges, spec.k_ranges, spec.mask_types, strict=True)
    kinds = [("full", "causal")[kind] for kind in given["attn_type_map"].tolist()]
    found = zip(given["q_ranges"].tolist(), given["k_ranges"].tolist(), kinds, strict=True)
    assert sorted(found) == sorted(expected)
