"""The collator of packs: its options, and its way to workers."""

from typing import Any

import numpy as np
import pytest

from brimful import PackCollator
from brimful.collate import DIALECTS, Padding
from brimful.errors import CollateError, SettingsError
from brimful.testing.toys import toy_pack

pytest.importorskip("torch")


def test_collators_go_to_workers():
    """A loader with workers sends the collator to another process."""
    import copy

    collator = PackCollator(dialect="megatron", padding=Padding(to=8), loss_weights="sample")
    packs = [toy_pack([4, 2])]
    assert copy.deepcopy(collator)(packs)["labels"].tolist() == collator(packs)["labels"].tolist()
    assert collator.__reduce_ex__(2)


def test_positions_may_begin_elsewhere():
    """RoBERTa counts from 2. Trainers that look for position 0 would find no beginning at all."""
    given = PackCollator(position_start=2, pad_to=6)([toy_pack([3, 2])])
    assert given["position_ids"].tolist() == [[2, 3, 4, 2, 3, 2]]
    with pytest.raises(SettingsError, match="position_start=2 does not go with dialect 'torchtitan'"):
        PackCollator(dialect="torchtitan", position_start=2)


@pytest.mark.parametrize("dialect", ["transformers", "llama_factory", "nemo_automodel"])
def test_pad_to_too_small_in_every_shape(dialect):
    """Rows of one pack each say so too; nothing is cut."""
    with pytest.raises(CollateError, match=r"pad_to is 5 and the packs hold 6 tokens \(samples 0, 1"):
        PackCollator(dialect=dialect, pad_to=5)([toy_pack([4, 2])])


def test_text_for_a_model_with_mrope_has_four_rows_of_positions():
    """Qwen2-VL isolates samples only if a row of text positions stands before time, height and width."""
    batch = PackCollator(mrope=True)([toy_pack([3, 2])])
    assert batch["position_ids"].tolist() == [[[0, 1, 2, 0, 1]]] * 4
    assert PackCollator()([toy_pack([3, 2])])["position_ids"].shape == (1, 5)


def test_samples_are_not_changed_in_place():
    """A cached sample whose labels were overwritten trains on nothing the second time."""
    rows = [{"input_ids": np.array([5, 6]), "labels": np.array([5, 6])}]
    pack = toy_pack([3, 2])
    before = pack.input_ids.copy(), pack.loss_mask.copy(), pack.cu_seqlens.copy()
    collator = PackCollator(pad_to=16)
    first, again = collator([pack]), collator([pack])
    first["input_ids"].fill_(0)
    first["labels"].fill_(0)
    assert rows[0]["labels"].tolist() == [5, 6]
    PackCollator()(rows)
    assert rows[0]["labels"].tolist() == [5, 6]
    assert all(
        np.array_equal(a, b) for a, b in zip(before, (pack.input_ids, pack.loss_mask, pack.cu_seqlens), strict=True)
    )
    assert again["labels"].tolist() == collator([pack])["labels"].tolist()


def test_a_batch_is_a_list():
    """A pack alone would be read as what it holds."""
    alone: Any
    for alone in (toy_pack([2]), {"input_ids": [1]}, iter([toy_pack([2])])):
        with pytest.raises(SettingsError, match="a batch must be a list of packs or samples"):
            PackCollator()(alone)
    assert PackCollator(pad_to=8).padding.to == 8


@pytest.mark.parametrize("pad_token_id", [-1, 9])
def test_the_padding_is_in_the_vocabulary(pad_token_id):
    with pytest.raises(SettingsError, match=f"pad_token_id is {pad_token_id} and the vocabulary is 0 … 8"):
        PackCollator(pad_token_id=pad_token_id, vocab_size=9)
    PackCollator(pad_token_id=8, vocab_size=9)


@pytest.mark.parametrize("padding", [Padding(num_segments=4), Padding(max_seqlen=8)])
def test_rows_of_samples_have_no_boundaries_to_fix(padding):
    name = next(name for name, dialect in DIALECTS.items() if dialect.row_per_sample)
    with pytest.raises(SettingsError, match="whose batches have no boundaries"):
        PackCollator(dialect=name, padding=padding)
