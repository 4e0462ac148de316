"""Boundaries, positions, labels, padding."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.collate import PackExtras, lay_out
from brimful.collate.layout import indexed_mask
from brimful.collate.padding import Padding
from brimful.collate.torch import PackCollator
from brimful.errors import CollateError, SettingsError
from brimful.testing.toys import toy_pack


@pytest.mark.parametrize(
    ("lengths", "pad_to", "boundaries", "positions"),
    [
        ([4, 2, 3, 1], None, [0, 4, 6, 9, 10], [0, 1, 2, 3, 0, 1, 0, 1, 2, 0]),
        ([4, 2], 8, [0, 4, 6, 8], [0, 1, 2, 3, 0, 1, 0, 1]),
        ([3, 2, 2], 10, [0, 3, 5, 7, 10], [0, 1, 2, 0, 1, 0, 1, 0, 1, 2]),
        ([4, 1], 8, [0, 4, 5, 8], [0, 1, 2, 3, 0, 0, 1, 2]),
        ([4, 3], 10, [0, 4, 7, 10], [0, 1, 2, 3, 0, 1, 2, 0, 1, 2]),
        ([2, 3, 2, 1, 3], 13, [0, 2, 5, 7, 8, 11, 13], [0, 1, 0, 1, 2, 0, 1, 0, 0, 1, 2, 0, 1]),
    ],
)
def test_worked_examples(lengths, pad_to, boundaries, positions):
    """The padding is one explicit last segment: neither part of the last sample nor one segment a token."""
    batch = lay_out([toy_pack(lengths)], padding=Padding(to=pad_to), pad_token_id=0)
    assert batch.cu_seqlens.tolist() == boundaries
    assert batch.position_ids.tolist() == positions
    assert batch.num_padding == sum(np.diff(boundaries)) - sum(lengths)
    assert batch.labels[sum(lengths) :].tolist() == [-100] * batch.num_padding
    assert batch.cu_seqlens.dtype == np.int32


@given(
    packs=st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=5), min_size=1, max_size=3),
    extra=st.integers(0, 7),
)
def test_several_packs_lay_out_like_their_samples(packs, extra):
    """A micro-batch of packs is one row whose segments are all their segments, in order."""
    made = [toy_pack(lengths, first_sample=10 * number, seed=number) for number, lengths in enumerate(packs)]
    flat = [length for lengths in packs for length in lengths]
    batch = lay_out(made, padding=Padding(to=sum(flat) + extra), pad_token_id=7)
    assert batch.lengths.tolist() == flat + ([extra] if extra else [])
    assert batch.input_ids.tolist() == [t for pack in made for t in pack.input_ids.tolist()] + [7] * extra
    assert batch.sample_ids.tolist() == [s for pack in made for s in pack.sample_ids.tolist()]
    assert batch.num_loss_tokens == sum(pack.num_loss_tokens for pack in made)
    starts = batch.cu_seqlens[:-1]
    assert batch.labels[starts].tolist() == [-100] * len(starts)
    assert batch.position_ids[starts].tolist() == [0] * len(starts)


@pytest.mark.parametrize("lengths", [[16_384], [16_383, 16_385, 1], [40_000, 3, 70_000]])
def test_long_segments(lengths):
    """Numbers of 14 and of 16 bits end here: without it a loop that counts in small numbers passes on short rows alone."""
    batch = lay_out([toy_pack(lengths)], padding=Padding(to=sum(lengths) + 5), pad_token_id=0)
    whole = [*lengths, 5]
    assert batch.position_ids.tolist() == [index for length in whole for index in range(length)]
    assert batch.segment_index.tolist() == [number for number, length in enumerate(whole) for _ in range(length)]
    assert batch.cu_seqlens.tolist() == [sum(whole[:number]) for number in range(len(whole) + 1)]
    assert batch.max_seqlen == max(whole)


def test_a_segment_without_loss_has_no_label_to_its_last_token():
    """Arrays made here, each token a target: of the second pack's segments the first has no loss."""
    packs = [toy_pack([3]), toy_pack([2, 4], first_sample=1)]
    packs = [replace(pack, loss_mask=np.ones(len(pack), dtype=bool)) for pack in packs]
    extras = [PackExtras(), PackExtras(no_loss=np.array([0], dtype=np.int32))]
    batch = lay_out(packs, extras=extras)
    ids = batch.input_ids.tolist()
    assert batch.labels.tolist() == [-100, *ids[1:3], -100, -100, -100, *ids[6:]]
    assert (batch.num_loss_tokens, batch.no_loss) == (5, (1,))


def test_pads_never_look_at_values():
    """A real token equal to the pad token keeps its label."""
    batch = PackCollator(pad_to=6, pad_token_id=9)([{"input_ids": [5, 9, 9], "labels": [5, 9, 9]}])
    assert batch["labels"].tolist() == [[-100, 9, 9, -100, -100, -100]]


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ([], "at least one pack and got none"),
        ([{"input_ids": [1, 2], "labels": [1, 2]}, {"labels": [1]}], "sample 1 of the batch has no 'input_ids'"),
        ([{"input_ids": [1, 2], "labels": [2, -100]}], "labels must not be shifted"),
        ([{"input_ids": [1, 2], "labels": [1]}], "must be rows of one length"),
        ([{"input_ids": [], "labels": []}], "at least 1"),
    ],
)
def test_what_cannot_be_collated(features, message):
    """Each error names the sample and the key."""
    with pytest.raises(CollateError, match=message):
        PackCollator()(features)


def test_pad_to_too_small():
    """Cutting silently would lose tokens; the message says what to raise."""
    with pytest.raises(CollateError, match="pad_to is 4 and the packs hold 6 tokens"):
        PackCollator(pad_to=4)([toy_pack([4, 2])])
    with pytest.raises(SettingsError, match="pad_to must be at least 1 and is 0"):
        PackCollator(pad_to=0)


def test_boundaries_of_a_segment_mask():
    """The mask of the Ascend kit: a real segment of one token before the padding keeps its own boundaries."""
    mask = np.array([1, 1, 2, 2, 2, 3, 3, 4, 5, 5, 5, 0, 0])
    boundaries = [0, *(np.flatnonzero(mask[1:] != mask[:-1]) + 1).tolist(), len(mask)]
    assert boundaries == [0, 2, 5, 7, 8, 11, 13]
    batch = lay_out([toy_pack([2, 3, 2, 1, 3])], padding=Padding(to=13))
    assert indexed_mask(batch).tolist() == mask.tolist()
    assert batch.cu_seqlens.tolist() == boundaries
