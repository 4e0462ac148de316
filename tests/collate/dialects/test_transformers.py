"""Transformers: flash attention cuts at ``cu_seq_lens_q``, Mamba at ``seq_idx``; the model shifts the labels."""

import pytest

pytest.importorskip("torch")


from brimful import PackCollator
from brimful.testing.contracts import DialectContract
from tests.collate.dialects.reading import (
    I32,
    ROPE,
    TEXT,
    VARLEN,
    between,
    changes,
    count_labels,
    pack_with_image,
    pairs,
)


class TestTransformers(DialectContract):
    dialect = "transformers"
    shapes = {**TEXT, **VARLEN, "seq_idx": (I32, (1, 12)), "use_cache": False}

    def segments(self, batch):
        edges = batch["cu_seq_lens_q"].tolist()
        assert changes(batch["seq_idx"][0].tolist()) == edges
        return between(batch["input_ids"][0], edges)

    def targets(self, batch):
        return pairs(batch["input_ids"], batch["labels"], labels_shifted=False)

    def loss_tokens(self, batch):
        return count_labels(batch)


def test_text_positions_come_before_those_of_mrope():
    """Transformers isolates segments by the text row alone."""
    positions = PackCollator(dialect="transformers", pad_to=8)([pack_with_image()])["position_ids"]
    assert positions[:, 0].tolist() == [[0, 1, 2, 3, 0, 1, 0, 1], *[[*row, 0, 1] for row in ROPE]]
