"""Lengths as they are once padded: what is packed never grows over the capacity afterwards."""

from math import lcm

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful import Plan, plan_packs
from brimful.errors import SettingsError
from brimful.plan.counts.counting_sort import decreasing_order
from brimful.plan.counts.histogram import Histogram
from brimful.plan.fit.best_fit_decreasing import best_fit_decreasing
from brimful.plan.policies.budgets import Alignment
from brimful.plan.policies.overflow import Overflow, apply_overflow
from tests.plan.contents import lengths_of


@pytest.mark.parametrize(
    ("asked", "multiple"),
    [
        ({}, 4),
        ({"fp8": "blockwise"}, 512),
        ({"fp8": "mxfp8"}, 128),
        ({"fp8": "fp8"}, 64),
        ({"fp8": "nvfp4"}, 64),
        ({"fused_attention": True}, 256),
        ({"fused_attention": True, "fp8": "fp8"}, 256),
        ({"fused_attention": True, "fp8": "blockwise"}, 512),
    ],
)
def test_the_table_of_ms_swift(asked, multiple):
    """TP 2 with sequence parallelism and CP 2: the multiples that trainer pads a row to."""
    alignment = Alignment.of_parallelism(cp=2, tp=2, sequence_parallel=True, **asked)
    assert (alignment.segment, alignment.total) == (4, multiple)


@pytest.mark.parametrize(
    ("parallel", "segment", "total"),
    [
        ({}, 1, 1),
        ({"tp": 8}, 1, 1),
        ({"tp": 8, "sequence_parallel": True}, 8, 8),
        ({"cp": 4}, 8, 8),
        ({"cp": 4, "tp": 2}, 8, 8),
        ({"cp": 2, "tp": 3, "sequence_parallel": True}, 12, 12),
        ({"cp": 3, "tp": 4, "sequence_parallel": True}, 12, 12),
        ({"fp8": "mxfp8"}, 1, 32),
        ({"cp": 3, "fp8": "fp8"}, 6, 48),
    ],
)
def test_parallelism_by_hand(parallel, segment, total):
    """lcm(2·cp, cp·tp), the second only with sequence parallelism; the total is a multiple of the segment's."""
    assert Alignment.of_parallelism(**parallel) == Alignment(segment=segment, total=total)


@given(cp=st.integers(1, 9), tp=st.integers(1, 9), sequence_parallel=st.booleans())
def test_context_parallel_ranks_get_whole_slices(cp, tp, sequence_parallel):
    """The law of the table: 2·cp slices of every segment are whole, and so are TP's parts of a CP slice."""
    alignment = Alignment.of_parallelism(cp=cp, tp=tp, sequence_parallel=sequence_parallel)
    length = int(alignment.rounded(np.array([7]))[0])
    assert cp == 1 or length % (2 * cp) == 0
    assert not sequence_parallel or length % (cp * tp) == 0


def test_six_lengths_rounded():
    """The whole arithmetic on one line each."""
    alignment = Alignment(segment=4, total=16)
    assert alignment.rounded(np.array([1, 4, 5, 9, 3, 13], dtype=np.int32)).tolist() == [4, 4, 8, 12, 4, 16]
    assert [alignment.padded_total(tokens) for tokens in (0, 1, 16, 24)] == [0, 16, 16, 32]
    assert [alignment.usable(capacity) for capacity in (16, 31, 40)] == [16, 16, 32]
    assert repr(alignment) == "Alignment(segment=4, total=16)"


@given(
    lengths=st.lists(st.integers(1, 200), min_size=1, max_size=40),
    segment=st.integers(1, 24),
    times=st.integers(1, 5),
    capacity=st.integers(1, 400),
    policy=st.sampled_from([Overflow.DROP, Overflow.TRUNCATE, Overflow.TRUNCATE_LEFT, Overflow.SPLIT]),
)
def test_no_padded_row_exceeds_the_capacity(lengths, segment, times, capacity, policy):
    """The law: rounded before packing, cut at the usable capacity, rows fit after all padding, whatever was packed."""
    alignment = Alignment(segment=segment, total=segment * times)
    if capacity < alignment.total:
        with pytest.raises(SettingsError, match=f"capacity={capacity} is below the alignment"):
            alignment.usable(capacity)
        return
    segments = apply_overflow(np.array(lengths, dtype=np.int32), capacity=alignment.usable(capacity), policy=policy)
    rounded = alignment.rounded(segments.lengths)
    usable = alignment.usable(capacity)
    packing = best_fit_decreasing(Histogram.of(rounded), capacity=usable).assign(decreasing_order(rounded))
    for pack in packing.as_lists():
        row = sum(-(-int(segments.lengths[item]) // segment) * segment for item in pack)
        assert row <= alignment.padded_total(row) <= usable <= capacity
        assert alignment.padded_total(row) % alignment.total == 0
        assert (alignment.padded_total(row) - row) % segment == 0, "the padding is a segment like others"


def test_rounding_after_packing_would_exceed():
    """What the law is for: lengths that fill 8 exactly need 12 once they are divisible by 4."""
    alignment = Alignment(segment=4, total=4)
    assert sum([3, 5]) <= 8 < int(alignment.rounded(np.array([3, 5])).sum())


def test_errors_name_the_numbers():
    """Each says which value, and what would do."""
    with pytest.raises(SettingsError, match="use 12"):
        Alignment(segment=4, total=6)
    with pytest.raises(SettingsError, match="at least 1 and is 0"):
        Alignment(segment=0)
    with pytest.raises(SettingsError, match="cp must be"):
        Alignment.of_parallelism(cp=0)
    with pytest.raises(SettingsError, match="'fp16' is unknown: use one of fp8, nvfp4, mxfp8, blockwise"):
        Alignment.of_parallelism(fp8="fp16")
    with pytest.raises(SettingsError, match="capacity=4000 is below the alignment of 4,096 tokens"):
        Alignment(total=4096).usable(4000)
    with pytest.raises(SettingsError, match="cannot be aligned to 4 in int32"):
        Alignment(segment=4).rounded(np.array([2**31 - 1], dtype=np.int32))
    assert Alignment(segment=6).total == lcm(6, 1)


def test_rounding_up_for_context_parallelism_is_part_of_the_plan():
    """ms-swift plans real lengths and pads each to 2 · CP afterwards: packs grow over the capacity."""
    lengths = [5] * 12
    plain, aligned = (plan_packs(lengths, capacity=60, alignment=multiple, seed=None) for multiple in (1, 8))
    padded = lambda plan: max(sum(-(-length // 8) * 8 for length in pack) for pack in lengths_of(plan))  # noqa: E731
    assert (plain.num_packs, padded(plain)) == (1, 96)
    assert (aligned.num_packs, padded(aligned)) == (2, 56)


@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=40),
    segment=st.sampled_from([1, 2, 4, 12]),
    times=st.integers(1, 4),
    capacity=st.integers(64, 200),
    algorithm=st.sampled_from(["auto", "first_fit", "next_fit", "best_fit_decreasing"]),
)
def test_padded_rows_never_exceed_the_capacity(lengths, segment, times, capacity, algorithm):
    """Padding that was not planned for makes rows longer than the model's: an out-of-memory error at step 3,000."""
    alignment = Alignment(segment=segment, total=segment * times)
    plan = plan_packs(lengths, capacity=capacity, alignment=alignment, algorithm=algorithm, overflow="drop")
    plan.validate(np.array(lengths))
    assert plan.alignment == alignment
    for pack in plan:
        padded = sum(-(-part.length // segment) * segment for part in pack)
        assert -(-padded // alignment.total) * alignment.total <= capacity


def test_alignment_is_part_of_the_plan_file(tmp_path):
    """The collator asks the plan what to pad to."""
    plan = plan_packs([5, 9], capacity=32, alignment=Alignment.of_parallelism(cp=2), overflow="drop")
    plan.save(tmp_path / "plan.arrow")
    assert Plan.open(tmp_path / "plan.arrow").alignment == Alignment(segment=4, total=4)
    assert plan_packs([5], capacity=8, alignment=4).alignment == Alignment(segment=4)


def test_truncated_samples_end_where_alignment_lets_them():
    """Capacity 10 in multiples of 4 holds 8: a sample cut at 10 would be padded to 12."""
    plan = plan_packs([11], capacity=10, alignment=4, overflow="truncate")
    assert [tuple(segment) for segment in plan.pack(0)] == [(0, 0, 8)]
    assert plan.ledger.tokens_truncated == 3
    assert plan.ledger.samples_truncated == 1
    assert plan.sample_lengths.tolist() == [11]
