"""Whether a stage has become slow: its processor time over that of a limit, in one process: ``python -m benchmarks.guard``.

Seconds depend on the machine; ratios of work taken in turn hardly do. Each stage is held against work that it cannot do
without, or that replaces it in plain NumPy, on the same data. The minimum of all rounds counts, of each of the two, so
that other work on the machine adds rounds and no failure. A stage over its bound is measured a second time; it fails
if it is over it again. Bounds are about twice what was seen where the guard was written.
"""

from __future__ import annotations

import argparse
import gc
import heapq
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np

__all__ = ["BOUNDS", "Stage", "least", "main", "slow_stages"]

BOUNDS = {"plan": 2.5, "measure": 2.2, "read": 1.6, "collate": 2.5, "step": 0.8}
"""Most that a stage may take, in times of its limit."""


@dataclass(frozen=True)
class Stage:
    """Work of ours, and the limit that it is held against."""

    name: str
    ours: Callable[[], object]
    limit: Callable[[], object]
    limit_name: str


def least(
    functions: Iterable[Callable[[], object]],
    *,
    rounds: int,
    clock: Callable[[], float] = time.process_time,
) -> list[float]:
    """Return the least time of each function, called in turn; the first round is not counted."""
    functions = list(functions)
    times = [float("inf")] * len(functions)
    for number in range(rounds + 1):
        for place, function in enumerate(functions):
            gc.collect()
            start = clock()
            function()
            elapsed = clock() - start
            if number:
                times[place] = min(times[place], elapsed)
    return times


def slow_stages(ratios: Mapping[str, float], bounds: Mapping[str, float] = BOUNDS) -> list[str]:
    """Return the stages whose ratio is over their bound; a stage without a bound is an error."""
    return [name for name, ratio in ratios.items() if not ratio <= bounds[name]]


def _repeat(function: Callable[[], object], times: int) -> Callable[[], object]:
    def run() -> None:
        for _ in range(times):
            function()

    return run


def _plan() -> Iterator[Stage]:
    from bench_plan import lognormal

    from brimful import plan_packs

    lengths = lognormal(np.random.default_rng(0), 1_000_000)
    short = lengths.astype(np.uint16)
    plan = partial(plan_packs, lengths, capacity=4096, algorithm="best_fit_decreasing", seed=0)
    yield Stage("plan", plan, lambda: np.argsort(short, kind="stable"), "np.argsort")


def _measure(home: Path) -> Iterator[Stage]:
    from bench_measure import _written

    from brimful.cli.demo.docstring_chats import make_chats
    from brimful.cli.demo.toy_model import train_tokenizer
    from brimful.encode import ChatEncoder
    from brimful.measure import measure_lengths
    from brimful.sources import open_source

    chats = make_chats(limit=500)
    train_tokenizer((turn["content"] for chat in chats for turn in chat["messages"]), home / "tok")
    source = open_source(str(_written(home / "rows.jsonl", chats)), cache_dir=home / "index")
    encoder = ChatEncoder(str(home / "tok"))
    texts = [encoder.render(source[index]) for index in range(len(source))]  # type: ignore[arg-type]
    backend = ChatEncoder(str(home / "tok")).tokenizer.backend

    def measure() -> None:
        with tempfile.TemporaryDirectory(dir=home) as cache:
            measure_lengths(source, encoder, cache_dir=Path(cache), num_proc=1)

    def bare() -> object:
        return backend.encode_batch(texts, add_special_tokens=False)

    yield Stage("measure", measure, bare, "tokenizers encode_batch")


def _read(home: Path) -> Iterator[Stage]:
    from bench_read import _Bare
    from bench_write import write_synthetic_packs

    from brimful.serve import open_packs

    directory = write_synthetic_packs(1_000_000, home)
    packs, bare = open_packs(directory), _Bare(directory)

    def ours() -> int:
        return sum(
            int(pack.input_ids.sum(dtype=np.int64))
            + 0 * int(pack.loss_mask.sum() + pack.cu_seqlens.sum() + pack.sample_ids.sum())
            for pack in map(packs.__getitem__, range(len(packs)))
        )

    def limit() -> int:
        return sum(map(bare.total, range(len(packs))))

    assert ours() == limit()
    yield Stage("read", ours, limit, "pyarrow memory map")


def _collate() -> Iterator[Stage]:
    import torch
    from bench_collate import _pack

    from brimful import PackCollator

    pack, collate = _pack(), PackCollator()
    edges = pack.cu_seqlens.tolist()
    parts = [pack.input_ids[a:b] for a, b in pairwise(edges)]

    def join() -> object:
        """Tokens, labels and positions: three rows of ``int64``."""
        return [torch.from_numpy(np.concatenate(parts).astype(np.int64)) for _ in range(3)]

    yield Stage(
        "collate",
        _repeat(lambda: collate([pack]), 200),
        _repeat(join, 200),
        "np.concatenate, 3 times",
    )


def _step() -> Iterator[Stage]:
    from bench_step import CAPACITY, COST, lengths_of

    from brimful.rl import plan_step, warm_up

    warm_up()
    lengths = lengths_of(4096)

    def longest_first() -> list[list[int]]:
        """Each sample to the rank with the least so far: no micro-batches, no budget."""
        work = (24576 * lengths + lengths**2).tolist()
        ranks: list[tuple[int, int]] = [(0, rank) for rank in range(64)]
        parts: list[list[int]] = [[] for _ in ranks]
        for sample in sorted(range(len(work)), key=work.__getitem__, reverse=True):
            load, rank = ranks[0]
            parts[rank].append(sample)
            heapq.heapreplace(ranks, (load + work[sample], rank))
        return parts

    plan = partial(plan_step, lengths, capacity=CAPACITY, dp_world_size=64, cost=COST)
    yield Stage("step", _repeat(plan, 10), _repeat(longest_first, 10), "a heap in Python")


def _stages(home: Path) -> Iterator[Stage]:
    yield from _plan()
    yield from _measure(home)
    yield from _read(home)
    yield from _collate()
    yield from _step()


def main(arguments: list[str] | None = None) -> int:
    """Measure all stages, print them, and return 1 if one is over its bound."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.guard", description=(__doc__ or "").split("\n", 1)[0]
    )
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args(arguments).rounds
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # processor time of all threads is counted
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    from compare import describe_machine

    print("\n".join(describe_machine()), end="\n\n")
    print("| stage | ms | limit | its ms | ratio | bound | |")
    print("|---|---:|---|---:|---:|---:|---|", flush=True)
    failed: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for stage in _stages(Path(folder)):
            for attempt in (1, 2):
                ours, limit = least((stage.ours, stage.limit), rounds=rounds * attempt)
                slow = slow_stages({stage.name: ours / limit})
                verdict = "SLOW" if slow else "ok"
                print(
                    f"| {stage.name} | {ours * 1e3:.1f} | {stage.limit_name} | {limit * 1e3:.1f} "
                    f"| {ours / limit:.2f} | {BOUNDS[stage.name]:g} | {verdict} |",
                    flush=True,
                )
                if not slow:
                    break
            failed += slow
    if failed:
        print(f"slower than their bounds: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
