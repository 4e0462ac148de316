"""One sample a row: the mask is 1 at its tokens."""

import pytest

pytest.importorskip("torch")


from brimful.testing.contracts import DialectContract
from tests.collate.dialects.reading import I64, count_labels, pairs


class TestPlain(DialectContract):
    dialect = "plain"
    knows_gaps = True
    shapes = {
        "input_ids": (I64, (2, 12)), "labels": (I64, (2, 12)), "position_ids": (I64, (2, 12)),
        "attention_mask": (I64, (2, 12)),
    }  # fmt: skip

    def segments(self, batch):
        rows = zip(batch["input_ids"], batch["attention_mask"], strict=True)
        return [row[mask.bool()].tolist() for row, mask in rows]

    def targets(self, batch):
        return pairs(batch["input_ids"], batch["labels"], labels_shifted=False)

    def loss_tokens(self, batch):
        return count_labels(batch)
