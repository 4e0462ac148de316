"""Transformer Engine: ``thd`` rows, places from the padded boundaries, lengths from the real ones."""

import pytest

pytest.importorskip("torch")


from brimful.testing.contracts import DialectContract
from tests.collate.dialects.reading import BOUNDARIES, I64, at_places, count_labels, pairs


class TestTransformerEngine(DialectContract):
    dialect = "transformer_engine"
    knows_gaps = True
    shapes = {
        "input_ids": (I64, (12,)), "labels": (I64, (12,)), "position_ids": (I64, (12,)), "qkv_format": "thd",
        "cu_seqlens_q": BOUNDARIES, "cu_seqlens_kv": BOUNDARIES, "cu_seqlens_q_padded": BOUNDARIES,
        "cu_seqlens_kv_padded": BOUNDARIES, "max_seqlen_q": 4, "max_seqlen_kv": 4, "pad_between_seqs": True,
    }  # fmt: skip

    def segments(self, batch):
        return at_places(batch["input_ids"], batch["cu_seqlens_q_padded"], batch["cu_seqlens_q"])

    def targets(self, batch):
        return pairs(batch["input_ids"], batch["labels"], labels_shifted=False)

    def loss_tokens(self, batch):
        return count_labels(batch)
