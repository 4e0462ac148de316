"""Megatron-Bridge: places from the padded boundaries where there are gaps, lengths from the others."""

import pytest

torch = pytest.importorskip("torch")


from brimful.testing.contracts import DialectContract  # noqa: E402
from tests.collate.dialects.reading import BOOL, BOUNDARIES, F32, I32, TEXT, at_places, count_labels, pairs  # noqa: E402


class TestMegatronBridge(DialectContract):
    dialect = "megatron_bridge"
    knows_gaps = True
    shapes = {
        **TEXT, "loss_mask": (F32, (1, 12)), "padding_mask": (BOOL, (1, 12)), "attention_mask": None,
        "cu_seqlens_q": BOUNDARIES, "cu_seqlens_kv": BOUNDARIES, "cu_seqlens_q_padded": BOUNDARIES,
        "cu_seqlens_kv_padded": BOUNDARIES, "max_seqlen_q": (I32, ()), "max_seqlen_kv": (I32, ()), "total_tokens": 12,
    }  # fmt: skip

    def segments(self, batch):
        real = batch["cu_seqlens_q"]
        return at_places(batch["input_ids"][0], batch.get("cu_seqlens_q_padded", real), real)

    def targets(self, batch):
        labels = torch.where(batch["loss_mask"] > 0, batch["labels"], -100)
        return pairs(batch["input_ids"], labels, labels_shifted=True)

    def loss_tokens(self, batch):
        return count_labels(batch)
