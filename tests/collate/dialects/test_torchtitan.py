"""torchtitan: documents begin where ``positions`` is 0, as ``varlen_metadata`` says; labels are shifted."""

import pytest

pytest.importorskip("torch")


from brimful.testing.contracts import DialectContract
from tests.collate.dialects.reading import between, count_labels, pairs


class TestTorchtitan(DialectContract):
    dialect = "torchtitan"

    def segments(self, batch):
        edges = batch["varlen_metadata"]["cu_seq_q"].tolist()
        assert (batch["positions"] == 0).nonzero().flatten().tolist() == edges[:-1]
        return between(batch["input"], edges)

    def targets(self, batch):
        return pairs(batch["input"], batch["labels"], labels_shifted=True)

    def loss_tokens(self, batch):
        return count_labels(batch)
