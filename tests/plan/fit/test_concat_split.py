"""Concat and split: the stream of all tokens, cut where packs are full."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful import plan_packs
from brimful.errors import OversizedSampleError
from brimful.plan import PlanSettings
from brimful.plan.algorithms import ALGORITHMS
from brimful.plan.fit.any_fit import concat_split
from brimful.plan.policies.overflow import Overflow, cut_stream
from brimful.testing.strategies import capacities_and_lengths
from tests.plan import reference

LARGEST = 2**31 - 1


def cut_and_pack(lengths, *, capacity):
    """Segments of the stream of tokens, and their packs."""
    segments = cut_stream(lengths, capacity=capacity, policy=Overflow.SPLIT)
    return segments, concat_split(segments.lengths, capacity=capacity)


def tokens_of(pieces, packing):
    """Every token as (sample, position), pack by pack."""
    rows = list(zip(pieces.sample_ids.tolist(), pieces.starts.tolist(), pieces.lengths.tolist(), strict=True))
    packs = [[rows[item] for item in pack] for pack in packing.as_lists()]
    return [[(i, start + token) for i, start, length in pack for token in range(length)] for pack in packs]


@given(case=capacities_and_lengths(oversized=True, max_samples=40))
def test_concat_split_is_the_stream_of_tokens(case):
    """Every token once and in order, however it is cut. TRL's ``wrapped`` once lost and doubled tokens (trl#6669)
    while the numbers of rows and of tokens stayed right, so counting is not enough."""
    capacity, lengths = case
    found = tokens_of(*cut_and_pack(np.array(lengths, dtype=np.int32), capacity=capacity))
    assert found == reference.concat_split(lengths, capacity)


def test_concat_split_fills_every_pack_and_keeps_every_token():
    """What others call wrapped. An existing one lost 6,000 of 10,000 tokens with the row count unchanged."""
    plan = plan_packs([5, 2, 1, 6], capacity=4, algorithm="concat_split", overflow="split")
    assert [[tuple(segment) for segment in pack] for pack in plan] == [
        [(0, 0, 4)],
        [(0, 4, 1), (1, 0, 2), (2, 0, 1)],
        [(3, 0, 4)],
        [(3, 4, 2)],
    ]
    plan.validate(np.array([5, 2, 1, 6]))


@pytest.mark.parametrize("algorithm", ["wrapped", *ALGORITHMS])
def test_only_concat_split_cuts_long_samples_unasked(algorithm):
    """It cuts every sample where a pack ends, so a long document needs no second option. For all others the default is
    ``error``, as their plans record it; ``error`` that is given stays an error."""
    default = PlanSettings(capacity=3, algorithm=algorithm)
    is_stream = default.algorithm == "concat_split"
    assert default == PlanSettings(capacity=3, algorithm=algorithm, overflow="split" if is_stream else "error")
    for given_policy in (None, "error"):
        if is_stream and given_policy is None:
            plan = plan_packs([3, 4, 1], capacity=3, algorithm=algorithm)
            assert [[tuple(segment) for segment in pack] for pack in plan] == [
                [(0, 0, 3)],
                [(1, 0, 3)],
                [(1, 3, 1), (2, 0, 1)],
            ]
        else:
            with pytest.raises(OversizedSampleError, match=r"sample 1 \(4\)"):
                plan_packs([3, 4, 1], capacity=3, algorithm=algorithm, overflow=given_policy)


@given(case=capacities_and_lengths(oversized=True))
def test_concat_split_fills_every_pack_but_the_last(case):
    """Exactly full, and no cut but where a pack ends: at most one piece of a sample begins inside it for each pack."""
    capacity, lengths = case
    pieces, packing = cut_and_pack(np.array(lengths, dtype=np.int32), capacity=capacity)
    loads = np.add.reduceat(pieces.lengths, packing.offsets[:-1])
    assert (loads[:-1] == capacity).all()
    assert loads[-1] == (sum(lengths) - 1) % capacity + 1
    inside = np.flatnonzero(pieces.starts)
    assert np.isin(inside, packing.offsets[:-1]).all()


def test_concat_split_in_full():
    """A sample over three packs, one that ends where a pack does, and one that begins there."""
    pieces, packing = cut_and_pack(np.array([3, 9, 4, 1], dtype=np.int32), capacity=4)
    assert pieces.sample_ids.tolist() == [0, 1, 1, 1, 2, 3]
    assert pieces.starts.tolist() == [0, 0, 1, 5, 0, 0]
    assert pieces.lengths.tolist() == [3, 1, 4, 4, 4, 1]
    assert packing.as_lists() == [[0, 1], [2], [3], [4], [5]]
    assert (pieces.lengths.dtype, pieces.sample_ids.dtype, pieces.starts.dtype) == (np.int32, np.int64, np.int32)


def test_concat_split_leaves_rejected_samples_out():
    """A length of -1 marks a row that could not be read: it takes no token of the stream."""
    pieces, packing = cut_and_pack(np.array([-1, 3, -1, 2], dtype=np.int32), capacity=4)
    assert pieces.sample_ids.tolist() == [1, 3, 3]
    assert packing.as_lists() == [[0, 1], [2]]
    pieces, packing = cut_and_pack(np.array([-1, -1], dtype=np.int32), capacity=4)
    assert (len(pieces.lengths), packing.as_lists()) == (0, [])


def test_concat_split_has_no_seam_every_thousand_samples():
    """TRL cuts within batches of 1,000 rows, and each leaves an unfilled pack; here all is one stream."""
    pieces, packing = cut_and_pack(np.full(5000, 3, dtype=np.int32), capacity=1024)
    assert len(packing) == -(-15_000 // 1024)
    assert int(pieces.lengths.sum()) == 15_000


@given(
    lengths=st.lists(st.integers(LARGEST - 3, LARGEST), min_size=1, max_size=4),
    capacity=st.sampled_from([LARGEST, LARGEST - 1, 1 << 30]),
)
def test_concat_split_beyond_32_bits(lengths, capacity):
    """Positions in the stream leave 32 bits long before positions in a sample do."""
    pieces, packing = cut_and_pack(np.array(lengths, dtype=np.int32), capacity=capacity)
    loads = np.add.reduceat(pieces.lengths, packing.offsets[:-1], dtype=np.int64)
    assert (loads[:-1] == capacity).all()
    assert int(loads.sum()) == sum(lengths)
    assert int(pieces.starts.min()) == 0
