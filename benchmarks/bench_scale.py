"""Rates from which docs/scale.md computes what 1e10 samples cost: processor time and memory of each stage, on one core.

    python benchmarks/bench_scale.py DATA.jsonl TOKENIZER [--samples 10_000_000]

Processor time of this process and all its threads; memory is the growth of its peak while it plans.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from brimful import (
    LengthTable,
    Plan,
    encoder_for,
    measure_lengths,
    open_source,
    plan_packs,
    write_packs,
)
from brimful.plan.counts.histogram import Histogram
from brimful.plan.fit.best_fit_decreasing import best_fit_decreasing

CAPACITY = 8192


def cost(action: Callable[[], Any]) -> tuple[Any, float]:
    """Return a result and the processor seconds that it took."""
    begin = time.process_time()
    result = action()
    return result, time.process_time() - begin


def memory(name: str) -> int:
    """Return bytes of this process: ``VmRSS`` now, ``VmHWM`` at most since it was reset (Linux)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"no {name} in /proc/self/status")


def of_data(data: str, tokenizer: str, home: Path) -> None:
    """Print what each byte, token and block of a data set costs."""
    num_bytes = os.path.getsize(data)
    source, seconds = cost(lambda: open_source(data))
    print(
        f"index: {num_bytes / seconds / 1e6:,.0f} MB, {len(source) / seconds:,.0f} samples a processor second"
    )
    encoder = encoder_for(source, tokenizer)
    measure_lengths(open_source(data, max_samples=4000), encoder, num_proc=1)
    table, seconds = cost(
        lambda: measure_lengths(source, encoder, num_proc=1, path=home / "lengths.arrow")
    )
    num_tokens = int(table.tokens.sum())
    print(
        f"measure with the places of targets: {num_tokens / seconds:,.0f} tokens a processor second"
    )
    _, seconds = cost(lambda: measure_lengths(source, encoder, num_proc=1, targets=False))
    print(f"measure lengths alone: {num_tokens / seconds:,.0f} tokens a processor second")
    num_blocks = len(source.blocks)
    (home / "lengths.arrow").unlink()
    _, seconds = cost(
        lambda: measure_lengths(source, encoder, num_proc=1, path=home / "lengths.arrow")
    )
    print(
        f"check and join measured blocks: {1000 * seconds / num_blocks:.2f} ms a block of {len(source) // num_blocks:,} rows"
    )
    table_bytes = os.path.getsize(home / "lengths.arrow")
    print(f"length table: {table_bytes / len(source):.1f} bytes a sample with targets")
    plan = plan_packs(LengthTable.open(home / "lengths.arrow"), capacity=CAPACITY)
    plan.save(home / "plan.arrow")
    plan = Plan.open(home / "plan.arrow")
    num_shards, seconds = cost(
        lambda: write_packs(plan, source, encoder, home / "packs", num_proc=1)
    )
    shard_bytes = sum(path.stat().st_size for path in (home / "packs/shards").iterdir())
    print(
        f"write, encoding again: {num_tokens / seconds:,.0f} tokens a processor second, "
        f"{shard_bytes / num_tokens:.2f} bytes a token, {num_shards} shards"
    )


def of_plans(num_samples: int, home: Path) -> None:
    """Print what planning costs a sample, from counts and with names."""
    rng = np.random.default_rng(0)
    lengths = np.clip(np.exp(rng.normal(np.log(700), 0.9, num_samples)), 8, CAPACITY).astype(
        np.int32
    )
    plan_packs(lengths[:200_000], capacity=CAPACITY)  # compiles
    merged, seconds = cost(
        lambda: Histogram.sum([Histogram.of(part) for part in np.array_split(lengths, 64)])
    )
    print(
        f"count lengths in 64 parts and merge: {1e9 * seconds / len(lengths):.2f} processor seconds for 1e9"
    )
    runs, seconds = cost(lambda: best_fit_decreasing(merged, capacity=CAPACITY))
    ten = Histogram(merged.lengths, merged.counts * (10**10 // len(lengths)))
    many, many_seconds = cost(lambda: best_fit_decreasing(ten, capacity=CAPACITY))
    print(
        f"pack counts, {len(merged.lengths):,} distinct lengths: {seconds:.3f} s for {merged.num_items:.0e} samples, "
        f"{many_seconds:.3f} s for {ten.num_items:.0e}, which are {many.num_packs:,} packs, fill "
        f"{100 * ten.total / many.num_packs / CAPACITY:.3f} %"
    )
    whole, parts = runs.num_packs, 0
    for part in np.array_split(lengths, 100):
        parts += best_fit_decreasing(Histogram.of(part), capacity=CAPACITY).num_packs
    print(
        f"planned in 100 parts of {len(lengths) // 100:,}: {parts - whole:,} packs more than {whole:,}"
    )
    path = home / "lengths.npy"
    np.save(path, lengths)
    del lengths
    lengths = np.load(path, mmap_mode="r")
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    plan, seconds = cost(lambda: plan_packs(lengths, capacity=CAPACITY))
    print(
        f"plan: {1e9 * seconds / len(lengths):.0f} processor seconds for 1e9 samples, peak memory "
        f"{(memory('VmHWM') - before) / len(lengths):.1f} bytes a sample with the mapped lengths"
    )
    plan.save(home / "plan.arrow")
    print(f"plan file: {os.path.getsize(home / 'plan.arrow') / len(lengths):.1f} bytes a sample")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("data")
    parser.add_argument("tokenizer")
    parser.add_argument("--samples", type=int, default=10_000_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench_scale-") as folder:
        os.environ["BRIMFUL_CACHE"] = str(Path(folder) / "cache")
        of_data(arguments.data, arguments.tokenizer, Path(folder))
        of_plans(arguments.samples, Path(folder))


if __name__ == "__main__":
    main()
