"""Pictures and text: packs over the bound of two budgets, and what ranks wait for in tower and language model.

Real lengths of MathVision and COCO (text and image tokens of Qwen2-VL; four patches are a token) mixed with the chats of SGD,
which are text alone, several times over in a random order. Packs are limited in tokens and in patches; the second capacity is
a multiple of the one at which both ask for equally many packs. Costs are those of Qwen2.5-VL 7B. Ranks wait for each other in
every part: "waits" is the time that the slowest rank takes over the mean of 64 ranks, summed over an epoch, less one.

In the shared table the peers are the bound of packs, and the same packs in shuffled order.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from compare import SHARED_DATA, Row, describe_machine

from brimful import LengthTable, plan_packs
from brimful.plan.schedule import CostModel, Tail, schedule_packs

__all__ = ["measure"]

RANKS = 64
QWEN25_VL_7B = {
    "hidden_size": 3584,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "intermediate_size": 18944,
    "vocab_size": 152064,
    "model_type": "qwen2_5_vl",
    "vision_config": {
        "depth": 32,
        "hidden_size": 1280,
        "intermediate_size": 3420,
        "num_heads": 16,
        "in_chans": 3,
        "out_hidden_size": 3584,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "window_size": 112,
        "fullatt_block_indexes": [7, 15, 23, 31],
    },
}
_SECOND = (0.9, 1.0, 1.1, 1.5)


@dataclass(frozen=True)
class Outcome:
    """One plan and the schedules of its first epoch; what ranks wait is a share of the mean."""

    capacity: int
    patches: int
    second: float
    samples: int
    bound: int
    packs: int
    steps: int
    micro_batches: int
    tower_share: float
    shuffled: tuple[float, float]
    balanced: tuple[float, float]
    by_total: tuple[float, float]
    mean_of_steps: float
    seconds: float


def real_mix(directory: Path, repetitions: int) -> np.ndarray:
    """``int64[samples, 2]``: text tokens and image tokens, in a random order."""
    vision = [
        np.load(directory / f"{name}_text_and_image_tokens__qwen2vl.npy").astype(np.int64)
        for name in ("mathvision", "coco_val2017_5captions")
    ]
    text = np.load(directory / "sgd_train_text_only__qwen25_chat.npy").astype(np.int64)
    mix = np.concatenate([*vision, np.stack([text, np.zeros_like(text)], axis=1)])
    mix = np.concatenate([mix] * repetitions)
    return mix[np.random.default_rng(0).permutation(len(mix))]


def outcomes(
    directory: Path, repetitions: int, capacities: tuple[int, ...], second: tuple[float, ...]
) -> Iterator[Outcome]:
    model = CostModel.of_model(QWEN25_VL_7B)
    mix = real_mix(directory, repetitions)
    tokens, patches = mix.sum(axis=1), 4 * mix[:, 1]
    blocks = -(-(patches**2) // 4096)
    for capacity in capacities:
        fits = tokens <= capacity
        balance = patches[fits].sum() / tokens[fits].sum()
        for multiple in second:
            limit = int(np.ceil(capacity * balance * multiple))
            kept = fits & (patches <= limit)
            table = LengthTable.from_lengths(
                tokens[kept], patches=patches[kept], patch_blocks=blocks[kept]
            )
            plan = plan_packs(table, capacity=capacity, budgets={"patches": limit})
            costs = plan.costs(model, table)
            for micro_batches in (1, 4):
                shape = {
                    "dp_world_size": RANKS,
                    "micro_batches": micro_batches,
                    "packs_per_micro_batch": 1,
                }
                options = {**shape, "epoch": 0, "seed": 0, "tail": Tail.DROP}
                if plan.num_packs < RANKS * micro_batches:
                    continue
                start = time.process_time()
                balanced = schedule_packs(plan.num_packs, **options, costs=costs)
                seconds = time.process_time() - start
                shuffled = schedule_packs(plan.num_packs, **options)
                by_total = schedule_packs(plan.num_packs, **options, costs=costs.sum(axis=1))
                tower = costs[:, 1][balanced].sum(axis=3)
                ratios = tower.max(axis=1).sum(axis=1) / np.maximum(
                    tower.mean(axis=1).sum(axis=1), 1
                )
                yield Outcome(
                    capacity=capacity,
                    patches=limit,
                    second=multiple,
                    samples=int(kept.sum()),
                    bound=plan.bound,
                    packs=plan.num_packs,
                    steps=len(balanced),
                    micro_batches=micro_batches,
                    tower_share=float(costs[:, 1].sum() / costs.sum()),
                    shuffled=_waits(shuffled, costs),
                    balanced=_waits(balanced, costs),
                    by_total=_waits(by_total, costs),
                    mean_of_steps=float(ratios.mean() - 1),
                    seconds=seconds,
                )


def _waits(schedule: np.ndarray, costs: np.ndarray) -> tuple[float, float]:
    """Slowest rank over the mean, summed over the micro-batches of an epoch, less one; of language model and tower."""
    work = costs[schedule].sum(axis=3)  # [steps, ranks, micro-batches, parts]
    waits = work.max(axis=1).sum(axis=(0, 1)) / work.mean(axis=1).sum(axis=(0, 1)) - 1
    return float(waits[0]), float(waits[1])


def measure(quick: bool) -> list[Row]:
    rows = []
    for one in outcomes(SHARED_DATA / "lengths", 4 if quick else 16, (8192,), (1.0, 1.5)):
        name = f"{one.capacity:,} tokens and {one.patches:,} patches"
        if one.micro_batches == 1:
            rows.append(
                Row(f"packs, {name}", "packs", one.packs, "bound", one.bound, less_is_better=True)
            )
        rows.append(
            Row(
                f"tower, {RANKS} ranks, {one.micro_batches} micro-batches, {name}",
                "slowest ÷ mean",
                1 + one.balanced[1],
                "plain shuffle",
                1 + one.shuffled[1],
                less_is_better=True,
            )
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="little data: does it run at all?")
    parser.add_argument(
        "--repetitions", type=int, default=16, help="how often the data are repeated"
    )
    parser.add_argument(
        "--lengths", type=Path, default=SHARED_DATA / "lengths", help="where the real arrays are"
    )
    options = parser.parse_args()
    print("\n".join(describe_machine()), end="\n\n", flush=True)
    print(
        "| tokens, patches | second | samples | bound | packs | over | micro-batches | steps | tower's share | shuffled: language, "
        "tower | by the sum | balanced | tower, mean of steps | seconds |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|---|---|---|---:|---:|")
    capacities = (8192,) if options.quick else (8192, 32768)
    for one in outcomes(
        options.lengths, 4 if options.quick else options.repetitions, capacities, _SECOND
    ):
        waits = " | ".join(
            f"{a:.2%}, {b:.2%}" for a, b in (one.shuffled, one.by_total, one.balanced)
        )
        print(
            f"| {one.capacity:,}, {one.patches:,} | {one.second} | {one.samples:,} | {one.bound:,} | {one.packs:,} "
            f"| {one.packs / one.bound - 1:.2%} | {one.micro_batches} | {one.steps:,} | {one.tower_share:.1%} | {waits} "
            f"| {one.mean_of_steps:.2%} | {one.seconds:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
