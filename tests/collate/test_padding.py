"""Padding policies: rows, segments, what the kernels are told."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful import plan_packs
from brimful.collate import Padding, lay_out
from brimful.collate.torch import PackCollator
from brimful.errors import CollateError, SettingsError
from brimful.plan import Alignment
from brimful.testing.toys import toy_pack


@pytest.mark.parametrize(
    ("lengths", "padding", "boundaries", "real", "positions"),
    [
        # 0 3 5 9 without gaps is the example of Transformer Engine.
        ([3, 2, 4], {"segment_multiple_of": 4}, [0, 4, 8, 12], [0, 3, 5, 9], [0, 1, 2, 3] * 3),
        ([3, 2], {"segment_multiple_of": 4, "to": 12}, [0, 4, 8, 12], [0, 3, 5, 5], [0, 1, 2, 3] * 3),
        ([3, 2], {"multiple_of": 4}, [0, 3, 5, 8], [0, 3, 5, 5], [0, 1, 2, 0, 1, 0, 1, 2]),
        ([3, 1], {"multiple_of": 4}, [0, 3, 4], [0, 3, 4], [0, 1, 2, 0]),
        ([3, 2], {"multiple_of": 3, "segment_multiple_of": 2}, [0, 4, 6], [0, 3, 5], [0, 1, 2, 3, 0, 1]),
        ([3, 2], {"num_segments": 4, "to": 8}, [0, 3, 5, 8, 8], [0, 3, 5, 5, 5], [0, 1, 2, 0, 1, 0, 1, 2]),
        ([3, 2], {"num_segments": 4}, [0, 3, 5, 5, 5], [0, 3, 5, 5, 5], [0, 1, 2, 0, 1]),
    ],
)
def test_worked_examples(lengths, padding, boundaries, real, positions):
    """Positions go on through the padding after a segment, as the kernels of Transformer Engine take them."""
    batch = lay_out([toy_pack(lengths)], padding=Padding(**padding), pad_token_id=0)
    assert batch.cu_seqlens.tolist() == boundaries
    assert batch.cu_seqlens_real.tolist() == real
    assert batch.position_ids.tolist() == positions
    assert batch.num_segments == len(lengths)
    assert batch.cu_seqlens.dtype == batch.cu_seqlens_real.dtype == batch.real_lengths.dtype == np.int32


def test_gaps_hold_padding_and_nothing_moves():
    """Whole output of one row with gaps."""
    pack = toy_pack([3, 2])
    a, b, c, d, e = pack.input_ids.tolist()
    batch = lay_out([pack], padding=Padding(to=12, segment_multiple_of=4), pad_token_id=7)
    assert batch.input_ids.tolist() == [a, b, c, 7, d, e, 7, 7, 7, 7, 7, 7]
    assert batch.labels.tolist() == [-100, b, c, -100, -100, e, *[-100] * 6]
    assert batch.padding_mask.tolist() == [False] * 3 + [True] + [False] * 2 + [True] * 6
    assert (batch.has_gaps, batch.num_padding, batch.tail_length) == (True, 7, 4)
    assert (batch.num_tokens, batch.num_loss_tokens) == (5, 3)


@given(
    packs=st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=5), min_size=1, max_size=3),
    unit=st.integers(1, 5),
    segment_unit=st.integers(1, 5),
    spare=st.integers(0, 2),
    to=st.booleans(),
)
def test_any_policy_keeps_every_token(packs, unit, segment_unit, spare, to):
    """The tokens without padding are the packs; boundaries are multiples; Σ l is of the samples alone."""
    made = [toy_pack(lengths, first_sample=10 * number, seed=number) for number, lengths in enumerate(packs)]
    flat = [length for lengths in packs for length in lengths]
    policy = Padding(multiple_of=unit, segment_multiple_of=segment_unit)
    needed = policy.row_length(sum(-(-length // segment_unit) * segment_unit for length in flat))
    if to:
        policy = Padding(
            to=needed + spare * policy.unit, multiple_of=unit, segment_multiple_of=segment_unit, num_segments=20
        )
    batch = lay_out(made, padding=policy, pad_token_id=9)
    real = ~batch.padding_mask
    assert batch.input_ids[real].tolist() == [token for pack in made for token in pack.input_ids.tolist()]
    assert batch.labels[real].tolist() == [label for pack in made for label in pack.labels.tolist()]
    assert set(batch.input_ids[~real].tolist()) <= {9}
    assert set(batch.labels[~real].tolist()) <= {-100}
    assert len(batch.input_ids) == (policy.to or needed) == batch.cu_seqlens[-1]
    assert not (batch.cu_seqlens % segment_unit).any()
    assert batch.num_tokens == sum(flat)
    assert batch.real_lengths[: batch.num_segments].tolist() == flat
    assert not batch.real_lengths[batch.num_segments :].any()
    if to:
        assert len(batch.lengths) == 20
    assert batch.position_ids.tolist() == [place for length in batch.lengths.tolist() for place in range(length)]


@pytest.mark.parametrize(
    ("limit", "expected"),
    [(None, 300), ("bucket", 512), (300, 300), (4096, 4096)],
    ids=["true", "bucket", "just", "fixed"],
)
def test_longest_segment(limit, expected):
    """A Python integer: as a tensor it defeats the cache of FlashAttention 4; as a varying number, compilers' caches."""
    batch = lay_out([toy_pack([300, 20])], padding=Padding(to=400, max_seqlen=limit))
    assert batch.max_seqlen == expected
    assert type(batch.max_seqlen) is int


def test_buckets_are_few():
    """One compiled form for each power of two; kernels work in tiles of 128 anyway."""
    assert sorted({Padding(max_seqlen="bucket").longest(tokens) for tokens in range(1, 8193)}) == [
        128, 256, 512, 1024, 2048, 4096, 8192,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("parallel", "row", "segment"),
    [
        ({}, 1, 1),
        ({"tp": 2}, 1, 1),
        ({"cp": 2}, 4, 4),  # the padding at the end is a segment too
        ({"tp": 2, "cp": 2, "sequence_parallel": True}, 4, 4),
        ({"tp": 8, "cp": 2, "sequence_parallel": True}, 16, 16),
        ({"tp": 2, "cp": 2, "sequence_parallel": True, "fp8": "blockwise"}, 512, 4),
        ({"tp": 2, "cp": 2, "sequence_parallel": True, "fp8": "mxfp8"}, 128, 4),
        ({"tp": 2, "cp": 2, "sequence_parallel": True, "fp8": "fp8"}, 64, 4),
        ({"tp": 2, "cp": 2, "sequence_parallel": True, "fp8": "fp8", "fused_attention": True}, 256, 4),
    ],
)
def test_what_parallel_training_needs(parallel, row, segment):
    """The numbers of ms-swift for rows; segments in ``2 * cp`` parts, and for each rank of sequence parallelism."""
    padding = Padding.of_alignment(Alignment.of_parallelism(**parallel))
    assert (padding.multiple_of, padding.segment_multiple_of) == (row, segment)


@pytest.mark.parametrize(
    ("padding", "message"),
    [
        ({"to": 0}, "pad_to must be at least 1 and is 0"),
        ({"multiple_of": 0}, "multiple_of must be at least 1 and is 0"),
        ({"max_seqlen": "biggest"}, "max_seqlen must be at least 1 and is 'biggest'"),
        (
            {"to": 10, "segment_multiple_of": 4},
            "rows of 10 tokens cannot consist of multiples of 4: set to=12, or 8 if the model takes no more$",
        ),
        ({"to": 3, "multiple_of": 8}, "rows of 3 tokens cannot consist of multiples of 8: set to=8$"),
    ],
)
def test_impossible_policies(padding, message):
    """Found when the policy is made, not at the first batch."""
    with pytest.raises(SettingsError, match=message):
        Padding(**padding)


@pytest.mark.parametrize(
    ("padding", "message"),
    [
        ({"to": 8, "segment_multiple_of": 4}, r"pad_to is 8 and the packs hold 12 tokens and gaps.*samples 5, 6, 7.*plan with"),
        ({"to": 6}, r"pad_to is 6 and the packs hold 7 tokens \(samples 5, 6, 7"),
        ({"num_segments": 3, "to": 8}, "num_segments is 3 and the batch has 4, the padding included"),
        ({"max_seqlen": 2}, "max_seqlen is 2 and sample 6 has 4 tokens"),
        ({"max_seqlen": 4, "to": 16}, "max_seqlen is 4 and the padding at the end has 9 tokens"),
    ],
)  # fmt: skip
def test_packs_that_do_not_fit_the_policy(padding, message):
    """Each error names the sample, the numbers and the way out."""
    with pytest.raises(CollateError, match=message):
        lay_out([toy_pack([2, 4, 1], first_sample=5)], padding=Padding(**padding))


def test_two_ways_to_say_it_are_one_too_many():
    """Neither silently wins."""
    with pytest.raises(SettingsError, match="contradict"):
        PackCollator(pad_to=4, padding=Padding(to=8))


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=30),
    parallel=st.sampled_from([{"cp": 2}, {"cp": 4, "tp": 2, "sequence_parallel": True}, {"cp": 2, "fp8": "fp8"}, {}]),
)
def test_rows_of_an_aligned_plan_fit_its_capacity(lengths, parallel):
    """Planner and collator share one object: a row longer than planned is an out-of-memory error at step 3,000."""
    alignment = Alignment.of_parallelism(**parallel)
    plan = plan_packs(lengths, capacity=300, alignment=alignment)
    padding = Padding.of_alignment(plan.alignment)
    behind = at_ends = 0
    for pack in plan:
        batch = lay_out([toy_pack([segment.length for segment in pack])], padding=padding)
        behind += batch.num_padding - batch.tail_length
        at_ends += batch.tail_length
        assert len(batch.input_ids) <= 300
        assert len(batch.input_ids) % alignment.total == 0
        assert not (batch.lengths % alignment.segment).any()
    assert plan.padding == (behind, at_ends)  # what reports say of it
