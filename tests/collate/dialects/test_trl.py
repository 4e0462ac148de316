"""TRL: as Transformers, with the cache left to the trainer."""

import pytest

pytest.importorskip("torch")


from brimful.testing.contracts import DialectContract
from tests.collate.dialects.reading import between, changes, count_labels, pairs


class TestTrl(DialectContract):
    dialect = "trl"

    def segments(self, batch):
        edges = batch["cu_seq_lens_q"].tolist()
        assert changes(batch["seq_idx"][0].tolist()) == edges
        return between(batch["input_ids"][0], edges)

    def targets(self, batch):
        return pairs(batch["input_ids"], batch["labels"], labels_shifted=False)

    def loss_tokens(self, batch):
        return count_labels(batch)
