"""Transformers: flash attention cuts at ``cu_seq_lens_q``, Mamba at ``seq_idx``; the model shifts the labels."""

import pytest

pytest.importorskip("torch")


from brimful import PackCollator
from brimful.testing.contracts import DialectContract
from brimful.testing.toys import toy_pack
from tests.collate.dialects.reading import (
    ROPE,
    between,
    changes,
    count_labels,
    pack_with_image,
    pairs,
)


class TestTransformers(DialectContract):
    dialect = "transformers"

    def segments(self, batch):
        edges = batch["cu_seq_lens_q"].tolist()
        assert changes(batch["seq_idx"][0].tolist()) == edges
        return between(batch["input_ids"][0], edges)

    def targets(self, batch):
        return pairs(batch["input_ids"], batch["labels"], labels_shifted=False)

    def loss_tokens(self, batch):
        return count_labels(batch)


def test_text_positions_come_before_those_of_mrope():
    """Transformers isolates segments by the text row alone."""
    positions = PackCollator(dialect="transformers", pad_to=8)([pack_with_image()])["position_ids"]
    assert positions[:, 0].tolist() == [[0, 1, 2, 3, 0, 1, 0, 1], *[[*row, 0, 1] for row in ROPE]]


def test_the_collator_speaks_transformers():
    """Names, dtypes and shapes exactly; no attention_mask, which would switch the boundaries off."""
    import torch

    batch = PackCollator(pad_to=8)([toy_pack([4, 2])])
    assert {key: (value.dtype, tuple(value.shape)) for key, value in batch.items() if hasattr(value, "dtype")} == {
        "input_ids": (torch.int64, (1, 8)),
        "labels": (torch.int64, (1, 8)),
        "position_ids": (torch.int64, (1, 8)),
        "cu_seq_lens_q": (torch.int32, (4,)),
        "cu_seq_lens_k": (torch.int32, (4,)),
        "seq_idx": (torch.int32, (1, 8)),
    }
    assert type(batch["max_length_q"]) is type(batch["max_length_k"]) is int
    assert batch["max_length_q"] == 4
    assert batch["seq_idx"].tolist() == [[0, 0, 0, 0, 1, 1, 2, 2]]
    assert "attention_mask" not in batch
    assert batch["use_cache"] is False


def test_equal_to_the_flattening_collator_of_transformers():
    """On plain samples both say the same, key by key, so that one replaces the other."""
    from transformers import DataCollatorWithFlattening

    rows = [{"input_ids": [5, 6, 7], "labels": [-100, 6, 7]}, {"input_ids": [8, 9], "labels": [8, 9]}]
    theirs = DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)(rows)
    ours = PackCollator()(rows)
    assert set(ours) == set(theirs) | {"use_cache"}
    for key, value in theirs.items():
        if hasattr(value, "tolist"):
            assert ours[key].tolist() == value.tolist(), key
            assert ours[key].dtype == value.dtype, key
        else:
            assert ours[key] == value, key
