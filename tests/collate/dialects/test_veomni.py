"""VeOmni: attention and linear attention cut at the same boundaries; the mask of ones says nothing."""

import pytest

pytest.importorskip("torch")


import numpy as np

from brimful import PackCollator
from brimful.collate import PackExtras
from brimful.testing.contracts import DialectContract
from brimful.testing.toys import toy_pack
from tests.collate.dialects.reading import I64, between, count_labels, pairs


class TestVeomni(DialectContract):
    dialect = "veomni"

    def segments(self, batch):
        assert bool((batch["attention_mask"] == 1).all())
        edges = batch["cu_seq_lens_q"].tolist()
        assert batch["linear_attn_cu_seq_lens_q"].tolist() == edges
        return between(batch["input_ids"][0], edges)

    def targets(self, batch):
        return pairs(batch["input_ids"], batch["labels"], labels_shifted=False)

    def loss_tokens(self, batch):
        return count_labels(batch)


def test_sources_for_the_meter_of_veomni():
    """With several sources it takes one number for each sample from the batch, and fails without."""
    packs = [(toy_pack([3, 2]), PackExtras(source_ids=np.array([1, 0], np.int32)))]
    given = PackCollator(dialect="veomni", pad_to=8)(packs)
    assert (given["ds_idx"].tolist(), given["ds_idx"].dtype) == ([1, 0], I64)
    assert "ds_idx" not in PackCollator(dialect="veomni")([toy_pack([3, 2])])
