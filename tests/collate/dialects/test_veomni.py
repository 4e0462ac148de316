"""VeOmni: attention and linear attention cut at the same boundaries; the mask of ones says nothing."""

import pytest

pytest.importorskip("torch")


from brimful.testing.contracts import DialectContract
from tests.collate.dialects.reading import BOUNDARIES, I32, ROW, TEXT, VARLEN, between, count_labels, pairs


class TestVeomni(DialectContract):
    dialect = "veomni"
    shapes = {
        **TEXT, **VARLEN, "attention_mask": ROW, "linear_attn_cu_seq_lens_q": BOUNDARIES,
        "tail_padding_length": (I32, ()),
    }  # fmt: skip

    def segments(self, batch):
        assert bool((batch["attention_mask"] == 1).all())
        edges = batch["cu_seq_lens_q"].tolist()
        assert batch["linear_attn_cu_seq_lens_q"].tolist() == edges
        return between(batch["input_ids"][0], edges)

    def targets(self, batch):
        return pairs(batch["input_ids"], batch["labels"], labels_shifted=False)

    def loss_tokens(self, batch):
        return count_labels(batch)
