"""Splits over ranks of context parallelism: against PyTorch's own balancers, and back again."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.collate import Column, PackExtras, Padding, lay_out, shift_labels
from brimful.errors import CollateError, SettingsError
from brimful.plan.policies.budgets import Alignment
from brimful.rl.context_parallel_split import (
    ContextParallelLayout,
    context_parallel_indices,
    gather_from_context_parallel,
    split_for_context_parallel,
)
from brimful.testing.toys import toy_pack

LAYOUTS = list(ContextParallelLayout)


def batch_of(lengths, cp_size):
    """Segments with gaps and a tail, and a column of each place."""
    pack = toy_pack(lengths)
    values = np.arange(len(pack), dtype=np.float32)
    columns = (
        Column("target", values, fill=-1),
        Column("token", np.stack([values, values], 1), fill=-1, place="token"),
    )
    padding = Padding.of_alignment(Alignment.of_parallelism(cp=cp_size))
    size = int(padding.padded(np.array(lengths)).sum()) + padding.unit
    return lay_out(
        [pack],
        extras=[PackExtras(columns=columns)],
        padding=Padding(to=size, segment_multiple_of=padding.segment_multiple_of),
    )


def local_cu_seqlens(shard):
    """Boundaries of the tokens of a rank: segments without a token here are empty."""
    counts = np.bincount(shard.segment_index, minlength=len(shard.cu_seqlens) - 1)
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)


lengths = st.lists(st.integers(1, 40), min_size=1, max_size=5)


@given(lengths=lengths, cp_size=st.sampled_from([1, 2, 3, 4, 8]), layout=st.sampled_from(LAYOUTS))
def test_ranks_hold_every_token_once(lengths, cp_size, layout):
    """Also: what is gathered is the row; targets, weights and columns are the whole row's, shifted."""
    batch = batch_of(lengths, cp_size)
    shards = [split_for_context_parallel(batch, cp_rank=r, cp_size=cp_size, layout=layout) for r in range(cp_size)]
    assert sorted(np.concatenate([shard.indices for shard in shards]).tolist()) == list(range(len(batch.input_ids)))
    assert {len(shard.indices) for shard in shards} == {len(batch.input_ids) // cp_size}

    def gathered(values):
        return gather_from_context_parallel(values, batch.cu_seqlens, layout=layout)

    expected = {
        "input_ids": batch.input_ids,
        "targets": shift_labels(batch.labels, batch.cu_seqlens),
        "position_ids": batch.position_ids,
        "segment_index": batch.segment_index,
        "padding_mask": batch.padding_mask,
    }
    for name, whole in expected.items():
        assert (gathered([getattr(shard, name) for shard in shards]) == whole).all(), name
    weights = gathered([shard.target_weights for shard in shards])
    assert ((weights > 0) == (expected["targets"] != -100)).all()
    for column in batch.columns:
        whole = column.shifted(batch.cu_seqlens).values
        assert (gathered([shard.column(column.name).values for shard in shards]) == whole).all()
    for shard in shards:
        bounds = local_cu_seqlens(shard)
        assert (np.repeat(np.arange(len(bounds) - 1), np.diff(bounds)) == shard.segment_index).all()


@given(lengths=lengths, cp_size=st.sampled_from([2, 4, 8]))
def test_the_split_is_that_of_pytorch(lengths, cp_size):
    """Its balancers for documents and rows are the other implementation that runs without a GPU."""
    balancers = pytest.importorskip("torch.distributed.tensor.experimental._context_parallel._load_balancer")
    if not hasattr(balancers, "_PerDocumentHeadTailLoadBalancer"):
        pytest.skip("this version of PyTorch has no balancer for documents")
    batch = batch_of(lengths, cp_size)

    def ours(layout):
        parts = [
            context_parallel_indices(batch.cu_seqlens, cp_rank=rank, cp_size=cp_size, layout=layout)
            for rank in range(cp_size)
        ]
        return np.concatenate(parts)

    # Theirs lists the ranks within each document, ours the documents within each rank.
    documents = [np.arange(a, b) for a, b in zip(batch.cu_seqlens[:-1], batch.cu_seqlens[1:], strict=True)]
    theirs = balancers._PerDocumentHeadTailLoadBalancer([list(map(len, documents))], cp_size, "cpu")
    indices = theirs._generate_indices(restore=False)[0].numpy()
    per_rank = [
        np.concatenate([part.reshape(cp_size, -1)[rank] for part in np.split(indices, batch.cu_seqlens[1:-1])])
        for rank in range(cp_size)
    ]
    assert ours("zigzag_segments").tolist() == np.concatenate(per_rank).tolist()
    row = balancers._HeadTailLoadBalancer(len(batch.input_ids), cp_size, "cpu")._generate_indices(restore=False)
    assert ours("zigzag_row").tolist() == row.reshape(-1).tolist()


def test_places_by_hand():
    cu_seqlens = np.array([0, 8, 12], dtype=np.int32)
    places = {
        layout: [
            context_parallel_indices(cu_seqlens, cp_rank=rank, cp_size=2, layout=layout).tolist() for rank in range(2)
        ]
        for layout in ("zigzag_segments", "zigzag_row", "contiguous")
    }
    assert places == {
        "zigzag_segments": [[0, 1, 6, 7, 8, 11], [2, 3, 4, 5, 9, 10]],
        "zigzag_row": [[0, 1, 2, 9, 10, 11], [3, 4, 5, 6, 7, 8]],
        "contiguous": [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]],
    }


@pytest.mark.parametrize(("options", "error", "words"), [
    ({"cp_size": 4}, CollateError, "segment 1 has 4 tokens .* cut each segment into 8 slices.*segment_multiple_of=8"),
    ({"cp_size": 4, "layout": "zigzag_row"}, CollateError, "12 tokens.*multiple_of=8"),
    ({"cp_size": 5, "layout": "contiguous"}, CollateError, "multiple_of=5"),
    ({"cp_size": 2, "cp_rank": 2}, SettingsError, "cp_rank must be from 0 to 1 and is 2"),
    ({"cp_size": 2, "layout": "ring"}, SettingsError, "zigzag_segments"),
])  # fmt: skip
def test_what_does_not_divide(options, error, words):
    with pytest.raises(error, match=words):
        context_parallel_indices(np.array([0, 8, 12], dtype=np.int32), **{"cp_rank": 0, **options})


def test_parts_that_are_no_parts():
    cu_seqlens = np.array([0, 8], dtype=np.int32)
    with pytest.raises(CollateError, match="rank 1 of 2 holds 4 of 8 tokens and gave 3"):
        gather_from_context_parallel([[0] * 4, [0] * 3], cu_seqlens)
    with pytest.raises(CollateError, match="no parts"):
        gather_from_context_parallel([], cu_seqlens)


def test_rope_positions_are_split_too():
    rope = np.arange(24).reshape(3, 8)
    batch = lay_out([toy_pack([8])], extras=[PackExtras(rope_positions=rope)])
    shard = split_for_context_parallel(batch, cp_rank=1, cp_size=2)
    assert shard.rope_positions.tolist() == rope[:, 2:6].tolist()
    with pytest.raises(CollateError, match="no column 'x'"):
        shard.column("x")


def test_boundaries_of_a_part():
    """Whole lists of segments: a rank without a token of the last ones has empty ones in their place."""
    batch = lay_out([toy_pack([4, 8])], padding=Padding(to=16, num_segments=5))
    shards = [split_for_context_parallel(batch, cp_rank=rank, cp_size=2, layout="contiguous") for rank in (0, 1)]
    assert [local_cu_seqlens(shard).tolist() for shard in shards] == [[0, 4, 8, 8, 8, 8], [0, 0, 4, 8, 8, 8]]
    with pytest.raises(CollateError, match="the shard of rank 1 has no column 'weights'"):
        shards[1].column("weights")
