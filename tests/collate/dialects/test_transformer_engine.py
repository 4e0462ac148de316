"""Transformer Engine: ``thd`` rows, places from the padded boundaries, lengths from the real ones."""

import pytest

pytest.importorskip("torch")


from brimful.testing.contracts import DialectContract
from tests.collate.dialects.reading import at_places, count_labels, pairs


class TestTransformerEngine(DialectContract):
    dialect = "transformer_engine"
    knows_gaps = True

    def segments(self, batch):
        return at_places(batch["input_ids"], batch["cu_seqlens_q_padded"], batch["cu_seqlens_q"])

    def targets(self, batch):
        return pairs(batch["input_ids"], batch["labels"], labels_shifted=False)

    def loss_tokens(self, batch):
        return count_labels(batch)
