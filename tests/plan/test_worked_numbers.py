"""Worked numbers of existing packers: those that are right are ours too, those that are wrong are not repeated."""

import numpy as np
import pytest

from brimful import plan_packs
from brimful.errors import OversizedSampleError, SettingsError
from brimful.plan import Alignment, Lookahead, Tail, schedule_packs
from brimful.plan.counts.histogram import Histogram
from brimful.plan.fit.lower_bound import lower_bound

ONE_EACH = {"micro_batches": 1, "packs_per_micro_batch": 1, "epoch": 0, "seed": None}


def lengths_of(plan):
    return [[segment.length for segment in pack] for pack in plan]


def test_five_samples_by_first_fit_decreasing():
    """70, 30, 30, 30, 20 at 100: two packs, from a packing producer's own test."""
    assert lengths_of(plan_packs([70, 30, 30, 30, 20], capacity=100, algorithm="ffd", seed=None)) == [
        [70, 30],
        [30, 30, 20],
    ]


def test_sequential_packs_and_a_sample_over_the_capacity():
    """ms-swift's own trace; the sample of 120 became an over-full pack there, and here it is refused by name."""
    lengths = [60, 50, 40, 100, 30, 30, 30, 30, 120, 10]
    with pytest.raises(OversizedSampleError, match=r"sample 8 \(120\)"):
        plan_packs(lengths, capacity=100, algorithm="sequential")
    plan = plan_packs(lengths, capacity=100, algorithm="sequential", overflow="drop")
    assert lengths_of(plan) == [[60], [50, 40], [100], [30, 30, 30], [30, 10]]
    assert plan.dropped_ids.tolist() == [8]


def test_a_stream_of_growing_samples_by_first_fit():
    """Budget 32, sample i of length i: VeOmni's own test of its dynamic batches."""
    planner = Lookahead(capacity=32, size=16, max_wait=15, algorithm="first_fit", min_fill=0.0)
    parts = [planner.add(np.arange(1, 17), np.arange(1, 17)), planner.finish()]
    packs = [ids for part in parts for ids in part.as_lists()]
    assert packs == [[1, 2, 3, 4, 5, 6, 7], [8, 9, 10], [11, 12], [13, 14], [15, 16]]


@pytest.mark.parametrize(("tail", "served"), [(Tail.DROP, [0, 1, 2, 3]), (Tail.REPEAT, [0, 1, 2, 3, 4, 0, 1, 2])])
def test_ten_equal_samples_on_four_ranks(tail, served):
    """CoordExp: five packs of two; four are served, or eight with the first three again."""
    plan = plan_packs([40] * 10, capacity=80, seed=None)
    assert plan.num_packs == 5
    assert schedule_packs(5, dp_world_size=4, tail=tail, **ONE_EACH).ravel().tolist() == served  # type: ignore[arg-type]


def test_one_pack_on_four_ranks():
    """CoordExp repeats a list of packs that is too short and fails with an IndexError."""
    schedule = schedule_packs(1, dp_world_size=4, tail=Tail.REPEAT, **ONE_EACH)  # type: ignore[arg-type]
    assert schedule.ravel().tolist() == [0, 0, 0, 0]


def test_every_pack_of_eleven_is_seen_by_four_ranks():
    """ms-swift's sampler never serves packs 8, 9 and 10, in any epoch."""
    seen = set()
    for epoch in range(4):
        schedule = schedule_packs(
            11, dp_world_size=4, micro_batches=1, packs_per_micro_batch=1, epoch=epoch, seed=0, tail=Tail.DROP
        )
        seen |= set(schedule.ravel().tolist())
    assert seen == set(range(11))


@pytest.mark.parametrize(("shape", "least"), [("lognormal", 0.9995), ("uniform", 0.9988), ("two humps", 0.9963)])
def test_twenty_thousand_samples_are_at_the_bound(shape, least):
    """Windows of 1,000 samples reach .9971, .9841 and .9890 of these shapes at 8,192."""
    rng = np.random.default_rng(0)
    draw = {
        "lognormal": lambda: rng.lognormal(6.5, 1, 20_000),
        "uniform": lambda: rng.integers(1, 8193, 20_000),
        "two humps": lambda: np.where(
            rng.random(20_000) < 0.7, rng.normal(400, 150, 20_000), rng.normal(3000, 800, 20_000)
        ),
    }
    lengths = np.clip(draw[shape](), 1, 8192).astype(np.int32)
    plan = plan_packs(lengths, capacity=8192)
    bound = lower_bound(Histogram.of(lengths), capacity=8192)
    assert plan.num_packs <= bound + 1
    # Of these draws no plan may be as full: where the bound says so, the bound is the target.
    assert plan.fill_ratio >= min(least, plan.ledger.tokens_packed / ((bound + 1) * 8192))


def test_powers_of_two_lose_and_repeat_nothing():
    """LLaVA-OneVision's hash buckets: {64: 5, 4: 5} at 64 gave a "full" box of 4 tokens."""
    plan = plan_packs([64] * 5 + [4] * 5, capacity=64, algorithm="phased", seed=None)
    plan.validate(np.array([64] * 5 + [4] * 5))
    assert sorted(lengths_of(plan)) == [[4] * 5, *([[64]] * 5)]
    assert plan.outcome.phase_reports[0].startswith("powers_of_two: 5 packs of 5 items, fill 100.00 %")


@pytest.mark.parametrize(
    ("options", "total"),
    [
        ({}, 4),
        ({"fp8": "blockwise"}, 512),
        ({"fp8": "mxfp8"}, 128),
        ({"fp8": "fp8"}, 64),
        ({"fp8": "nvfp4"}, 64),
        ({"fused_attention": True}, 256),
    ],
)
def test_multiples_for_two_by_two_ranks(options, total):
    """TP 2 with sequence parallelism and CP 2: ms-swift's table."""
    alignment = Alignment.of_parallelism(cp=2, tp=2, sequence_parallel=True, **options)
    assert alignment == Alignment(segment=4, total=total)


def test_rounding_up_for_context_parallelism_is_part_of_the_plan():
    """ms-swift plans real lengths and pads each to 2 · CP afterwards: packs grow over the capacity."""
    lengths = [5] * 12
    plain, aligned = (plan_packs(lengths, capacity=60, alignment=multiple, seed=None) for multiple in (1, 8))
    padded = lambda plan: max(sum(-(-length // 8) * 8 for length in pack) for pack in lengths_of(plan))  # noqa: E731
    assert (plain.num_packs, padded(plain)) == (1, 96)
    assert (aligned.num_packs, padded(aligned)) == (2, 56)


def test_a_limit_of_eight_tokens_for_eight_samples_of_seven():
    """verl#7553: [7] * 8 with a limit of 8 gave a micro-batch of 14 tokens."""
    assert lengths_of(plan_packs([7] * 8, capacity=8)) == [[7]] * 8


def test_capacity_and_names_beyond_sixteen_bits():
    """LLaVA-OneVision keeps lengths in uint16: 66,000 becomes 464."""
    assert lengths_of(plan_packs([66_000, 65_072], capacity=131_072, seed=None)) == [[66_000, 65_072]]
    with pytest.raises(SettingsError, match="2,147,483,647"):
        plan_packs([1], capacity=2**31)
