"""Axolotl: the attention mask holds the number of the segment, and 0 at padding."""

import pytest

pytest.importorskip("torch")


from brimful.testing.contracts import DialectContract
from tests.collate.dialects.reading import between, changes, count_labels, pairs


class TestAxolotl(DialectContract):
    dialect = "axolotl"
    knows_gaps = True

    def segments(self, batch):
        segments = []
        for ids, mask in zip(batch["input_ids"], batch["attention_mask"].tolist(), strict=True):
            edges = changes(mask)
            marked = zip(between(ids, edges), edges[:-1], strict=True)
            segments += [segment for segment, start in marked if mask[start]]
        return segments

    def targets(self, batch):
        return pairs(batch["input_ids"], batch["labels"], labels_shifted=False)

    def loss_tokens(self, batch):
        return count_labels(batch)
