"""A dense mask of booleans: the first token that a token sees begins its segment."""

import pytest

pytest.importorskip("torch")


from brimful.testing.contracts import DialectContract
from tests.collate.dialects.reading import BOOL, TEXT, between, changes, count_labels, pairs


class TestDenseMask(DialectContract):
    dialect = "dense_mask"
    shapes = {**TEXT, "attention_mask": (BOOL, (1, 1, 12, 12)), "use_cache": False}

    def segments(self, batch):
        visible = batch["attention_mask"][0, 0]
        first_visible = visible.int().argmax(dim=1)
        return between(batch["input_ids"][0], changes(first_visible.tolist()))

    def targets(self, batch):
        return pairs(batch["input_ids"], batch["labels"], labels_shifted=False)

    def loss_tokens(self, batch):
        return count_labels(batch)
