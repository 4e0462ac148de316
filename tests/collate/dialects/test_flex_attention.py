"""FlexAttention: tokens see each other where their document is the same."""

import pytest

pytest.importorskip("torch")


from brimful.testing.contracts import DialectContract
from tests.collate.dialects.reading import I32, TEXT, between, changes, count_labels, pairs


class TestFlexAttention(DialectContract):
    dialect = "flex_attention"
    shapes = {**TEXT, "document_ids": (I32, (12,)), "block_mask": (1, 1, 12, 12)}

    def segments(self, batch):
        return between(batch["input_ids"][0], changes(batch["document_ids"].tolist()))

    def targets(self, batch):
        return pairs(batch["input_ids"], batch["labels"], labels_shifted=False)

    def loss_tokens(self, batch):
        return count_labels(batch)
