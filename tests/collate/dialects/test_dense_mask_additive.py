"""A dense mask that is added to the scores: 0 where a token sees."""

import pytest

pytest.importorskip("torch")


from brimful.testing.contracts import DialectContract
from tests.collate.dialects.reading import between, changes, count_labels, pairs


class TestDenseMaskAdditive(DialectContract):
    dialect = "dense_mask_additive"

    def segments(self, batch):
        visible = batch["attention_mask"][0, 0] == 0
        first_visible = visible.int().argmax(dim=1)
        return between(batch["input_ids"][0], changes(first_visible.tolist()))

    def targets(self, batch):
        return pairs(batch["input_ids"], batch["labels"], labels_shifted=False)

    def loss_tokens(self, batch):
        return count_labels(batch)
