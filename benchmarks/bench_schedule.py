"""Cost of the slowest rank over the mean of 64 ranks, balanced and as shuffled; and the time of making the schedule.

Packs come from heavy-tailed lengths, four parts chats to one part documents (both lognormal, the documents with a
tail up to the capacity), planned by ``plan_packs(seed=0)``. They cost what an 8B and a 0.6B model need for them
(Qwen3). Ranks wait for each other at every micro-batch. The aim is a mean of 1.02 at most, planned for a million packs
in under ten seconds with NumPy alone. ``--humps`` takes lengths that are harder: chats, and one sample in a hundred
from a quarter of the capacity up; the costs have a gap, and in each window some step must bridge it.

In the shared table the peer is the same schedule without costs: a plain shuffle.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from compare import Row, describe_machine

from brimful import plan_packs
from brimful.plan.schedule import (
    DEFAULT_WINDOW_STEPS,
    Barrier,
    CostModel,
    Tail,
    imbalance,
    pack_costs,
    schedule_packs,
)

__all__ = ["measure"]

RANKS = 64
MODELS = {
    "8B": CostModel.from_config(
        hidden_size=4096,
        num_layers=36,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        intermediate_size=12288,
        vocab_size=151936,
    ),
    "0.6B": CostModel.from_config(
        hidden_size=1024,
        num_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        intermediate_size=3072,
        vocab_size=151936,
    ),
}


@dataclass(frozen=True)
class Outcome:
    """One schedule of one epoch; ratios are max ÷ mean over the ranks."""

    capacity: int
    model: str
    micro_batches: int
    window_steps: int
    steps: int
    mean: float
    p99: float
    at_steps: float
    plain: float
    plain_p99: float
    seconds: float


def heavy_tailed_lengths(num_packs: int, capacity: int, humps: bool = False) -> np.ndarray:
    """``int32``: as many samples as fill about that many packs."""
    random = np.random.default_rng(0)
    parts: list[np.ndarray] = []
    left = num_packs * capacity
    while left > 0:
        chats = np.exp(random.normal(np.log(400), 1.0, 160_000))
        documents = np.exp(random.normal(np.log(4000), 1.4, 40_000))
        if humps:
            documents = random.integers(capacity // 4, capacity, 1_600, endpoint=True)
        lengths = np.clip(np.concatenate([chats, documents]), 8, capacity).astype(np.int32)
        random.shuffle(lengths)
        stop = int(np.searchsorted(np.cumsum(lengths, dtype=np.int64), left)) + 1
        parts.append(lengths[:stop])
        left -= int(parts[-1].sum(dtype=np.int64))
    return np.concatenate(parts)


def outcomes(
    num_packs: int, windows: tuple[int, ...] = (DEFAULT_WINDOW_STEPS,), humps: bool = False
) -> Iterator[Outcome]:
    for capacity in (32_768, 131_072):
        plan = plan_packs(
            heavy_tailed_lengths(num_packs, capacity, humps), capacity=capacity, seed=0
        )
        offsets, lengths = plan.offsets, plan.lengths
        for name, model in MODELS.items():
            costs = pack_costs(offsets, lengths, model)
            for micro_batches in (1, 4):
                shape = {
                    "dp_world_size": RANKS,
                    "micro_batches": micro_batches,
                    "packs_per_micro_batch": 1,
                }
                options = {**shape, "epoch": 0, "seed": 0, "tail": Tail.DROP}
                plain = imbalance(schedule_packs(len(costs), **options), costs)
                for window in windows:
                    start = time.perf_counter()
                    schedule = schedule_packs(
                        len(costs), **options, costs=costs, window_steps=window
                    )
                    seconds = time.perf_counter() - start
                    ratio = imbalance(schedule, costs)
                    yield Outcome(
                        capacity=capacity,
                        model=name,
                        micro_batches=micro_batches,
                        window_steps=window,
                        steps=len(schedule),
                        mean=float(ratio.mean()),
                        p99=float(np.quantile(ratio, 0.99)),
                        at_steps=float(imbalance(schedule, costs, barrier=Barrier.STEP).mean()),
                        plain=float(plain.mean()),
                        plain_p99=float(np.quantile(plain, 0.99)),
                        seconds=seconds,
                    )


def measure(quick: bool) -> list[Row]:
    return [
        Row(
            f"schedule, {RANKS} ranks, {one.capacity:,} tokens, {one.model}, {one.micro_batches} micro-batches",
            "max ÷ mean",
            one.mean,
            "plain shuffle",
            one.plain,
            less_is_better=True,
        )
        for one in outcomes(20_000 if quick else 200_000)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="20,000 packs: does it run at all?")
    parser.add_argument(
        "--packs", type=int, default=1_000_000, help="about how many packs (default: a million)"
    )
    parser.add_argument(
        "--windows",
        type=int,
        nargs="+",
        default=[DEFAULT_WINDOW_STEPS],
        metavar="STEPS",
        help="window_steps to compare",
    )
    parser.add_argument(
        "--humps", action="store_true", help="lengths with a gap between short and long"
    )
    arguments = parser.parse_args()
    print("\n".join(describe_machine()), end="\n\n", flush=True)
    print(
        "| capacity | model | micro-batches | window | steps | mean | p99 | mean, waiting once a step | plain mean "
        "| plain p99 | seconds |"
    )
    print("|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    for one in outcomes(
        20_000 if arguments.quick else arguments.packs, tuple(arguments.windows), arguments.humps
    ):
        print(
            f"| {one.capacity:,} | {one.model} | {one.micro_batches} | {one.window_steps} | {one.steps:,} "
            f"| {one.mean:.4f} | {one.p99:.4f} | {one.at_steps:.4f} | {one.plain:.3f} | {one.plain_p99:.3f} "
            f"| {one.seconds:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
