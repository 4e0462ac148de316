"""Packing while samples arrive: how full, and how long, compared with packers of other projects on the same lengths.

    pip install --no-deps --target peers online-dynamic-batching lmms-engine
    PYTHONPATH=peers python benchmarks/bench_online.py

20,000 lognormal lengths (median 400, σ 1, at most 8,192 tokens), rows of 8,192, in the order of arrival. *Fill* is tokens of samples over
positions that are computed. ``online-dynamic-batching`` makes padded batches within the budget; it is run as its page shows, with samples
of zeros and a collator that pads. lmms-engine's strategies take lengths alone, as ours does here. Processor time of one thread.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from compare import describe_machine

ROW = 8192


def lengths_of(number: int = 20_000) -> list[int]:
    """Lengths of samples in their order."""
    draw = np.random.default_rng(0).lognormal(np.log(400), 1.0, number)
    return draw.clip(16, ROW).astype(int).tolist()


def ours(lengths: list[int], size: int) -> Iterator[int]:
    """Positions of each row of a window of samples."""
    from brimful.stream import Lookahead

    planner = Lookahead(capacity=ROW, size=size, max_wait=4 * size)
    for start in range(0, len(lengths), 64):
        part = lengths[start : start + 64]
        for _ in planner.add(range(start, start + len(part)), part).as_lists():
            yield ROW
    for _ in planner.finish().as_lists():
        yield ROW


def of_lmms_engine(lengths: list[int], strategy: str) -> Iterator[int]:
    """Positions of each row of an online packer of lmms-engine."""
    (folder,) = importlib.util.find_spec("lmms_engine").submodule_search_locations  # type: ignore[union-attr]
    sys.path.insert(0, str(Path(folder, "datasets")))  # its package needs more than its packers do
    from packing import build_online_packer  # type: ignore[import-not-found]

    packer = build_online_packer(strategy, ROW)
    for place, length in enumerate(lengths):
        for _ in packer.add(place, length):
            yield ROW
    for _ in packer.flush():
        yield ROW


def of_odb(lengths: list[int]) -> Iterator[int]:
    """Positions of each padded batch of online-dynamic-batching."""
    import odb  # type: ignore[import-not-found]
    import torch

    def collate(samples: list[dict[str, Any]]) -> dict[str, Any]:
        rows = [sample["input_ids"] for sample in samples]
        return {"input_ids": torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)}

    class Samples(torch.utils.data.Dataset[dict[str, Any]]):
        def __len__(self) -> int:
            return len(lengths)

        def __getitem__(self, index: int) -> dict[str, Any]:
            return {"input_ids": torch.ones(lengths[index], dtype=torch.int64)}

    loader = odb.ODBDataLoader(
        Samples(),
        token_budget=ROW,
        batch_size=1,
        num_workers=1,
        prefetch_factor=256,
        collate_fn=collate,
    )
    for batch in loader:
        yield batch["input_ids"].numel()


def main() -> None:
    """Print a row for each packer whose package is here."""
    lengths = lengths_of()
    ways: dict[str, Callable[[], Iterator[int]]] = {
        f"`Lookahead`, {size} samples": lambda size=size: ours(lengths, size)
        for size in (64, 256, 1024)  # type: ignore[misc]
    }
    for strategy in ("first_fit", "best_fit", "balanced"):
        ways[f"lmms-engine, `{strategy}`"] = lambda strategy=strategy: of_lmms_engine(
            lengths, strategy
        )  # type: ignore[misc]
    ways["online-dynamic-batching"] = lambda: of_odb(lengths)
    print("\n".join(describe_machine()), end="\n\n")
    print("| packer | micro-batches | fill | µs a sample |\n|---|---:|---:|---:|")
    for name, way in ways.items():
        try:
            list(way())[:0]  # compiled code, imports
            start = time.process_time()
            positions = list(way())
            seconds = time.process_time() - start
        except (ImportError, AttributeError) as error:
            print(f"not measured: {name}: {error}", file=sys.stderr)
            continue
        fill = sum(lengths) / sum(positions)
        # The loader has a worker, whose time is another's.
        micros = "–" if name == "online-dynamic-batching" else f"{seconds / len(lengths) * 1e6:.1f}"
        print(f"| {name} | {len(positions):,} | {fill:.1%} | {micros} |", flush=True)


if __name__ == "__main__":
    main()
