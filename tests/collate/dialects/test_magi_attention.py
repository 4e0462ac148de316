"""Rectangles of MagiAttention: a range of queries, a range of keys, and whether all pairs count or the causal ones."""

import numpy as np
import pytest
from hypothesis import given

torch = pytest.importorskip("torch")

from brimful.testing.contracts import DialectContract  # noqa: E402
from tests.collate.dialects.forks import SAMPLES, batch_of, trained_by  # noqa: E402
from tests.collate.dialects.reading import count_labels, pairs  # noqa: E402
from tests.trees.collate.reading import trained  # noqa: E402


def mask_of(batch):
    """The mask of the rectangles: causal ones are aligned at their last query and key."""
    mask = np.zeros((batch["input_ids"].shape[-1],) * 2, dtype=int)
    ranges = (batch[name].tolist() for name in ("q_ranges", "k_ranges", "attn_type_map"))
    for (q_begin, q_end), (k_begin, k_end), kind in zip(*ranges, strict=True):
        pairs_of = np.ones((q_end - q_begin, k_end - k_begin), dtype=int)
        mask[q_begin:q_end, k_begin:k_end] += (
            np.tril(pairs_of, k_end - k_begin - (q_end - q_begin)) if kind else pairs_of
        )
    assert mask.max() == 1, "a pair counts twice"
    return mask.astype(bool)


class TestMagiAttention(DialectContract):
    dialect = "magi_attention"

    def segments(self, batch):
        mask, ids = mask_of(batch), batch["input_ids"][0].numpy()
        last = [place for place in range(len(ids)) if place + 1 == len(ids) or not mask[place + 1, place]]
        return [ids[mask[place]].tolist() for place in last]

    def targets(self, batch):
        return pairs(batch["input_ids"], batch["labels"], labels_shifted=False)

    def loss_tokens(self, batch):
        return count_labels(batch)


@given(SAMPLES)
def test_each_target_reads_its_sample(samples):
    """The token before a label predicts it, with the weights of all samples that train it; or a list says which."""
    for branch in ("fork", "index"):
        given, _ = batch_of("magi_attention", samples, pad_to=90, branch=branch)
        mask, ids, weights = mask_of(given), given["input_ids"][0].tolist(), given["loss_weights"]
        if branch == "fork":
            labels = given["labels"][0].tolist()
            assert [label != -100 for label in labels] == (weights[0] > 0).tolist()
            predictions = [
                (place - 1, ids[place], weight) for place, weight in enumerate(weights[0].tolist()) if weight
            ]
        else:
            assert "labels" not in given
            lists = (given[name].tolist() for name in ("loss_index", "loss_targets", "loss_weights"))
            predictions = list(zip(*lists, strict=True))
        positions = given["position_ids"][0].tolist()
        assert trained_by(ids, positions, lambda query, key: mask[query, key], predictions) == trained(samples)  # noqa: B023


@given(SAMPLES)
def test_magi_makes_the_same_mask(samples):
    """Its own mask of the ranges."""
    common = pytest.importorskip("magi_attention.common", exc_type=ImportError)
    given, _ = batch_of("magi_attention", samples, pad_to=90)
    kinds = [common.AttnMaskType.from_int_type(kind) for kind in given["attn_type_map"].tolist()]
    ranges = [common.AttnRanges.from_ranges(given[name].tolist()) for name in ("q_ranges", "k_ranges")]
    assert (common.AttnMask.from_ranges(*ranges, kinds).mask_flag_array == mask_of(given)).all()
