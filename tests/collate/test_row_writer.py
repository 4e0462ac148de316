"""Packs in a row: the compiled writer and the one in NumPy, to the same result."""

from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.collate import Padding, lay_out, layout, row_writer
from brimful.errors import CollateError
from brimful.serve import Pack
from brimful.testing.toys import toy_pack


@contextmanager
def written_by(form):
    """Packs are written by the compiled form, or by the one in NumPy; skips without numba."""
    if form == "compiled":
        pytest.importorskip("numba")
    with pytest.MonkeyPatch.context() as patch:
        if form == "numpy":
            patch.setattr(layout, "writer", lambda: row_writer._write_in_numpy)
        assert (layout.writer() is row_writer._write_in_numpy) == (form == "numpy"), "the path under test is not taken"  # type: ignore[attr-defined]
        yield


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


@pytest.mark.parametrize("form", ["compiled", "numpy"])
def test_packs_of_any_kind_of_arrays_make_the_same_row(form):
    """Of a store, whose arrays are read-only; in memory; of a caller's own types, or lying apart."""
    pack = toy_pack([3, 4])
    arrays = pack.input_ids, pack.loss_mask, pack.cu_seqlens
    for array in arrays:
        array.flags.writeable = False
    ids, mask, cu_seqlens = arrays
    kinds: list[tuple[Any, Any, Any]] = [
        arrays,
        (ids.copy(), mask.copy(), cu_seqlens.copy()),
        (ids, mask.copy(), cu_seqlens),
        (ids.astype(np.int64), mask, cu_seqlens.astype(np.int64)),
        (np.repeat(ids, 2)[::2], np.repeat(mask, 2)[::2], np.repeat(cu_seqlens, 2)[::2]),
    ]
    with written_by(form):
        rows = [
            lay_out([replace(pack, input_ids=ids, loss_mask=mask, cu_seqlens=cu_seqlens)])
            for ids, mask, cu_seqlens in kinds
        ]
    for row in rows:
        assert (row.input_ids.dtype, row.labels.dtype) == (np.int64, np.int64)
        for name in ("input_ids", "labels", "position_ids", "cu_seqlens", "segment_index"):
            assert getattr(row, name).tolist() == getattr(rows[0], name).tolist()


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
        ("input_ids", [1] * 7),
    ],
)
def test_a_pack_that_contradicts_itself(form, unit, change, value):
    """Compiled code that believed it would read past arrays and write there; so would the right pack before it."""
    pack = toy_pack([3, 3])
    changes: dict[str, Any] = {change: np.array(value, dtype=getattr(pack, change).dtype)}
    pack = replace(pack, **changes)
    with written_by(form), pytest.raises(CollateError, match="samples 0, 1… contradicts itself: cu_seqlens must go"):
        lay_out([toy_pack([30]), pack], padding=Padding(segment_multiple_of=unit))


@pytest.mark.parametrize("start", [0, 2])
def test_both_forms_write_read_only_packs_of_any_size(start):
    """What comes out of a shard: read-only views, thousands of tokens, micro-batches of packs."""
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
