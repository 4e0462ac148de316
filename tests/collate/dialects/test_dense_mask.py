"""A dense mask of booleans: the first token that a token sees begins its segment."""

import pytest

pytest.importorskip("torch")


import torch

from brimful import PackCollator
from brimful.testing.contracts import DialectContract
from brimful.testing.toys import toy_pack
from tests.collate.dialects.reading import between, changes, count_labels, pairs


class TestDenseMask(DialectContract):
    dialect = "dense_mask"

    def segments(self, batch):
        visible = batch["attention_mask"][0, 0]
        first_visible = visible.int().argmax(dim=1)
        return between(batch["input_ids"][0], changes(first_visible.tolist()))

    def targets(self, batch):
        return pairs(batch["input_ids"], batch["labels"], labels_shifted=False)

    def loss_tokens(self, batch):
        return count_labels(batch)


def test_all_pairs_written_out():
    """Segments of 2 and 1, one token of padding that sees itself."""
    mask = PackCollator(dialect="dense_mask", pad_to=4)([toy_pack([2, 1])])["attention_mask"]
    assert mask[0, 0].int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    added = PackCollator(dialect="dense_mask_additive", pad_to=4)([toy_pack([2, 1])])["attention_mask"]
    assert torch.equal(added == 0, mask)
    assert added.min() == torch.finfo(torch.float32).min
