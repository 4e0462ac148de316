"""Variety of packs before and after mixing, and what it costs: no pack, and some seconds.

``alikeness`` is what the mean length of packs varies by, over what chance gives to groups of as many segments; that of
steps is for 8 ranks with two packs each. ``again`` is the share of pairs of samples in one pack that meet again in the
next epoch when each epoch draws new companions: by shuffling equal lengths alone, and with mixing. ``in turn`` is next
fit of shuffled samples, the variety and the packs that order by chance has. Shapes are drawn with seed 0. Seconds are processor
time of one thread.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from compare import SHARED_DATA, describe_machine

from brimful.base.typing import AnyIntArray, Lengths
from brimful.plan.counts.histogram import Histogram
from brimful.plan.fit.any_fit import next_fit
from brimful.plan.fit.best_fit_decreasing import best_fit_decreasing
from brimful.plan.order.diversity import Variety, measure_variety
from brimful.plan.order.exchange import exchange_segments
from brimful.plan.order.shuffle import companion_order, pack_order
from brimful.plan.packing import Packing
from brimful.plan.schedule import Tail, schedule_packs

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.plan.reference import co_packing_overlap

_REAL = {
    "smile_zh_multiturn_55k__qwen25_chat": 4096,
    "t0_50k_self_instruct__qwen25_chat": 4096,
    "sgd_train_with_tool_results__qwen25_chat": 8192,
    "librispeech_train_clean_100_audio_tokens__qwen2audio": 4096,
    "peps_documents__qwen25_raw": 32768,
}
_COUNTED = {
    "graphcore_wikipedia_histogram_counts": 512,
    "graphcore_squad_1_1_histogram_counts": 384,
}


def cases(number: int) -> Iterator[tuple[str, Lengths, int, AnyIntArray | None]]:
    """Name, lengths, capacity, sources."""
    draw = np.random.default_rng(0)

    def whole(values: np.ndarray, capacity: int) -> Lengths:
        return np.clip(np.rint(values), 1, capacity).astype(np.int32)

    yield (
        "lognormal, median 350, sigma 1",
        whole(draw.lognormal(np.log(350), 1.0, number), 4096),
        4096,
        None,
    )
    image = draw.choice([256, 576, 1024, 2304], number, p=[0.3, 0.4, 0.2, 0.1]) * draw.uniform(
        0.8, 1.2, number
    )
    text = np.clip(draw.normal(80, 40, number), 5, None) + draw.integers(20, 200, number)
    seen = draw.random(number) < 0.5
    yield (
        "text and images, two humps",
        whole(text + seen * image, 8192),
        8192,
        seen.astype(np.int64),
    )
    sources = draw.choice(3, number, p=[0.6, 0.3, 0.1])
    lengths = draw.lognormal(np.log(np.array([80, 600, 3000])[sources]), 0.5)
    yield "three sources, medians 80, 600, 3000", whole(lengths, 8192), 8192, sources
    for name, capacity in _COUNTED.items():
        path = SHARED_DATA / "lengths" / f"{name}.npy"
        if path.is_file():
            counts = np.load(path).astype(np.float64)
            drawn = draw.choice(np.arange(1, len(counts) + 1), number, p=counts / counts.sum())
            yield name.removesuffix("_counts"), drawn.astype(np.int32), capacity, None
    for name, capacity in _REAL.items():
        path = SHARED_DATA / "lengths" / f"{name}.npy"
        if path.is_file():
            real = np.load(path)
            yield name, real[real <= capacity].astype(np.int32), capacity, None


def variety(packing: Packing, lengths: Lengths, sources: AnyIntArray | None) -> Variety:
    """With steps of 8 ranks and two packs on each."""
    kept = None if sources is None else sources[packing.items]
    shape = {"dp_world_size": 8, "micro_batches": 2, "packs_per_micro_batch": 1}
    steps = schedule_packs(len(packing), epoch=0, seed=0, tail=Tail.DROP, **shape)
    return measure_variety(
        packing.offsets, lengths[packing.items], sources=kept, loss_tokens=None, steps=steps
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="little data: does it run at all?")
    parser.add_argument(
        "--samples", type=int, default=1_000_000, help="drawn of each shape (default: %(default)s)"
    )
    options = parser.parse_args()
    print("\n".join(describe_machine()), end="\n\n")
    print(
        "| lengths | samples | packs | in turn | alikeness: in turn, before, after | of steps | segments ± % |",
        end="",
    )
    print(
        " sources in a pack | sources of a step off by % | again % | seconds |",
        end="\n|" + "---|" * 11 + "\n",
    )
    for name, lengths, capacity, sources in cases(20_000 if options.quick else options.samples):
        items = Histogram.of(lengths)
        runs = best_fit_decreasing(items, capacity=capacity)
        plain, mixed, seconds = [], [], 0.0
        for epoch in (0, 1):
            order = pack_order(runs.num_packs, seed=0, epoch=epoch)
            plain.append(runs.assign(companion_order(lengths, items, seed=0, epoch=epoch), order))
            start = time.process_time()
            mixed.append(
                exchange_segments(
                    plain[-1], lengths, capacity=capacity, seed=0, epoch=epoch, alikeness=1.0
                )
            )
            seconds = time.process_time() - start  # of the second: compiled code is loaded
        assert len(mixed[0]) == len(plain[0])
        shuffled = np.random.default_rng(1).permutation(lengths)
        turn = next_fit(shuffled, capacity=capacity)
        chance = measure_variety(
            turn.offsets, shuffled[turn.items], sources=None, loss_tokens=None, steps=None
        )
        before, after = variety(plain[0], lengths, sources), variety(mixed[0], lengths, sources)
        assert before.steps is not None
        assert after.steps is not None
        mixture = "| – | – "
        if before.steps.source_distance is not None:
            mixture = (
                f"| {before.packs.sources:.2f} → {after.packs.sources:.2f} "
                f"| {100 * before.steps.source_distance:.1f} → {100 * after.steps.source_distance:.1f} "
                f"({100 * after.steps.source_distance_by_chance:.1f}) "
            )
        print(
            f"| {name} @{capacity:,} | {len(lengths):,} | {len(plain[0]):,} → {len(mixed[0]):,} | {len(turn):,} "
            f"| {chance.packs.alikeness:.2f}, {before.packs.alikeness:.2f} → {after.packs.alikeness:.2f} "
            f"| {before.steps.alikeness:.2f} → {after.steps.alikeness:.2f} "
            f"| {100 * before.packs.segments_cv:.0f} → {100 * after.packs.segments_cv:.0f} {mixture}"
            f"| {100 * co_packing_overlap(*plain):.2f} → {100 * co_packing_overlap(*mixed):.2f} | {seconds:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
