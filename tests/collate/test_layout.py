"""Boundaries, positions, labels, padding."""

from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful import Pack
from brimful.collate import Padding, lay_out, layout, row_writer
from brimful.collate.torch import PackCollator
from brimful.errors import CollateError, SettingsError
from brimful.testing.toys import toy_pack


@contextmanager
def written_by(form):
    """Packs are written by the compiled form, or by the one in NumPy; skips where there is no numba."""
    if form == "compiled":
        pytest.importorskip("numba")
    with pytest.MonkeyPatch.context() as patch:
        if form == "numpy":
            patch.setattr(layout, "writer", lambda: row_writer._write_in_numpy)
        assert (layout.writer() is row_writer._write_in_numpy) == (form == "numpy"), "the path under test is not taken"  # type: ignore[attr-defined]
        yield


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
    batch = lay_out([toy_pack(lengths)], pad_to=pad_to, pad_token_id=0)
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
    batch = lay_out(made, pad_to=sum(flat) + extra, pad_token_id=7)
    assert batch.lengths.tolist() == flat + ([extra] if extra else [])
    assert batch.input_ids.tolist() == [t for pack in made for t in pack.input_ids.tolist()] + [7] * extra
    assert batch.sample_ids.tolist() == [s for pack in made for s in pack.sample_ids.tolist()]
    assert batch.num_loss_tokens == sum(pack.num_loss_tokens for pack in made)
    starts = batch.cu_seqlens[:-1]
    assert batch.labels[starts].tolist() == [-100] * len(starts)
    assert batch.position_ids[starts].tolist() == [0] * len(starts)


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


@pytest.mark.parametrize("form", ["compiled", "numpy"])
@given(
    packs=st.lists(st.lists(st.integers(0, 5), max_size=5), min_size=1, max_size=4),
    unit=st.sampled_from([1, 3]),
    spare=st.integers(0, 4),
    seed=st.integers(0, 2**16),
)
def test_targets_are_counted_whatever_packs_say_of_first_tokens(form, packs, unit, spare, seed):
    """Empty segments, whole packs without a token, first tokens marked as targets: boundaries and counts stay right."""
    rng = np.random.default_rng(seed)
    made, number = [], 0
    for lengths in packs:
        size = sum(lengths)
        made.append(
            Pack(
                rng.integers(1, 90, size).astype(np.int32),
                rng.random(size) < 0.6,
                np.cumsum([0, *lengths]).astype(np.int32),
                np.arange(number, number + len(lengths)),
                np.zeros(len(lengths), dtype=np.int32),
            )
        )
        number += len(lengths)
    wanted, ids = [], []
    for lengths, pack in zip(packs, made, strict=True):
        for begin, length in zip(pack.cu_seqlens, lengths, strict=False):
            gap = -length % unit
            part, mask = pack.input_ids[begin : begin + length], pack.loss_mask[begin : begin + length]
            ids += [*part.tolist(), *[0] * gap]
            wanted += [t if m and place else -100 for place, (t, m) in enumerate(zip(part, mask, strict=True))]
            wanted += [-100] * gap
    if not ids:
        return
    to = len(ids) + spare * unit
    with written_by(form):
        batch = lay_out(made, padding=Padding(to=to, segment_multiple_of=unit))
    assert batch.input_ids.tolist() == [*ids, *[0] * (to - len(ids))]
    assert batch.labels.tolist() == [*wanted, *[-100] * (to - len(wanted))]
    assert batch.num_loss_tokens == sum(label != -100 for label in wanted)
    flat = [-(-length // unit) * unit for lengths in packs for length in lengths]
    assert batch.cu_seqlens[: number + 1].tolist() == np.cumsum([0, *flat]).tolist()
    assert batch.position_ids.tolist() == [i for each in [*flat, to - len(ids)] for i in range(each)]
    index = [number for number, each in enumerate([*flat, to - len(ids)]) for _ in range(each)]
    assert batch.segment_index.tolist() == index
    assert batch.real_lengths[:number].tolist() == [length for lengths in packs for length in lengths]
    assert batch.max_seqlen == max([*flat, to - len(ids)])


@pytest.mark.parametrize("unit", [1, 4])
@pytest.mark.parametrize("form", ["compiled", "numpy"])
@pytest.mark.parametrize(
    ("change", "value"),
    [
        ("cu_seqlens", [0, 3, 7]),
        ("cu_seqlens", [0, 3, 5]),
        ("cu_seqlens", [1, 3, 6]),
        ("cu_seqlens", [0, 9, 6]),
        ("cu_seqlens", [0, 3, -1, 6]),
        ("cu_seqlens", [0, -50]),
        ("cu_seqlens", []),
        ("loss_mask", [True] * 5),
        ("loss_mask", [True] * 7),
        ("input_ids", [1] * 5),
    ],
)
def test_a_pack_that_contradicts_itself(form, unit, change, value):
    """Compiled code that believed it would read behind arrays and write there; so would the right pack before it."""
    pack = toy_pack([3, 3])
    pack = replace(pack, **{change: np.array(value, dtype=getattr(pack, change).dtype)})
    with written_by(form), pytest.raises(CollateError, match="samples 0, 1… contradicts itself: cu_seqlens must go"):
        lay_out([toy_pack([30]), pack], padding=Padding(segment_multiple_of=unit))


@pytest.mark.parametrize("start", [0, 2])
def test_both_forms_write_read_only_packs_of_any_size(start):
    """What comes out of a shard: views that nobody may write to, thousands of tokens, micro-batches of packs."""
    rng = np.random.default_rng(0)
    packs = [toy_pack(rng.integers(1, 700, size).tolist(), seed=size) for size in (1, 20, 300)]
    for pack in packs:
        for name in ("input_ids", "loss_mask", "cu_seqlens"):
            getattr(pack, name).flags.writeable = False
    batches = []
    for form in ("compiled", "numpy"):
        with written_by(form):
            batches.append(lay_out(packs, padding=Padding(multiple_of=64), position_start=start, pad_token_id=7))
    for name in ("input_ids", "labels", "position_ids", "segment_index", "cu_seqlens", "real_lengths"):
        first, second = (getattr(batch, name) for batch in batches)
        assert np.array_equal(first, second), name
        assert first.dtype == second.dtype, name
        assert first.flags.writeable
        assert second.flags.writeable
    assert batches[0].num_loss_tokens == batches[1].num_loss_tokens == np.count_nonzero(batches[0].labels != -100)
    assert type(batches[0].num_loss_tokens) is type(batches[0].max_seqlen) is int
    assert batches[0].max_seqlen == batches[1].max_seqlen
