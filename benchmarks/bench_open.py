"""Opening a plan on a rank, in a new process: time beside a bare Arrow memory map, and the private memory it keeps.

    python benchmarks/bench_open.py [--samples 10_000_000] [--quick]

One process plans and saves; another opens the file three times as a rank of ``shared_plan`` does, reads a thousand packs
from everywhere, and makes the schedule of one rank of 512. Libraries are loaded before, and the file is in the page cache,
as on a node whose other ranks have opened it. Private memory is the growth of ``RssAnon`` (Linux): pages of a mapped file
are shared by all ranks of a node. A hundred million samples need 3 GB to plan and 1 GB of disk.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from compare import Row, describe_machine, print_rows

__all__ = ["measure"]

CAPACITY = 4096
RANKS = 512
MOST_MILLISECONDS, MOST_MEGABYTES = 50.0, 50.0
"""What a rank may take to open a plan of any size."""


def write_plan(num_samples: int, path: Path) -> str:
    """Plan lognormal lengths, seven to a pack, save the plan, and return its fingerprint."""
    from bench_plan import lognormal

    from brimful import plan_packs

    plan = plan_packs(lognormal(np.random.default_rng(0), num_samples), capacity=CAPACITY)
    plan.save(path)
    return plan.fingerprint


def open_plan(path: Path, fingerprint: str) -> dict[str, float]:
    """Return what a rank measures: milliseconds, and megabytes of its own memory."""
    import pyarrow as pa

    from brimful import PackLoader, Plan, plan_packs
    from brimful.testing.toys import toy_packs

    with tempfile.TemporaryDirectory(prefix="bench_open-") as folder:  # loads the libraries
        plan_packs([1, 2], capacity=3).save(Path(folder) / "plan.arrow")
        Plan.open(Path(folder) / "plan.arrow")
        list(PackLoader(toy_packs(3)))
    ours, bare = [], []
    before = private_megabytes()
    for _ in range(3):
        start = time.perf_counter()
        batch = pa.ipc.open_file(pa.memory_map(str(path))).get_batch(0)
        bare.append(1000 * (time.perf_counter() - start))
        assert batch.num_rows
        start = time.perf_counter()
        plan = Plan.open(path)
        ours.append(1000 * (time.perf_counter() - start))
        assert plan.fingerprint == fingerprint
    opened = private_megabytes() - before
    for index in np.random.default_rng(0).integers(len(plan), size=1000).tolist():
        assert plan.pack(index)
    read = private_megabytes() - before
    begin = time.perf_counter()
    loader = PackLoader(Numbered(len(plan)), dp_rank=7, dp_world_size=RANKS)
    loader.order.prepare()
    seconds = time.perf_counter() - begin
    return {
        "packs": len(plan),
        "milliseconds": max(ours),
        "bare": max(bare),
        "opened": opened,
        "read": read,
        "scheduled": private_megabytes() - before,
        "schedule_seconds": seconds,
        "file": path.stat().st_size / 1e6,
    }


class Numbered:
    """Packs that are nothing but so many: what a schedule is made of."""

    fingerprint = "0" * 32

    def __init__(self, num_packs: int) -> None:
        self._num_packs = num_packs

    def __len__(self) -> int:
        return self._num_packs

    def __getitem__(self, index: int) -> int:
        return index


def private_megabytes() -> float:
    """Return memory of this process that belongs to no file."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1e3
    raise SystemExit("no RssAnon in /proc/self/status: this runs on Linux")


def rows_of(num_samples: int) -> list[Row]:
    """Plan in one process, open in another."""
    with tempfile.TemporaryDirectory(prefix="bench_open-") as folder:
        path = Path(folder) / "plan.arrow"
        options = ["--samples", str(num_samples), "--path", str(path)]
        fingerprint = _process("write", options).strip()
        rank = json.loads(_process("open", [*options, "--fingerprint", fingerprint]))
    print(
        f"{rank['packs']:,.0f} packs, file of {rank['file']:,.0f} MB; the schedule of {RANKS} ranks took "
        f"{rank['schedule_seconds']:.2f} s and keeps {rank['scheduled'] - rank['read']:.1f} MB of its own",
        file=sys.stderr,
        flush=True,
    )
    title = f"plan of {num_samples:,} samples, opened by a rank"

    def row(
        name: str, unit: str, value: float, peer_name: str, peer: float, aim: float | None = None
    ) -> Row:
        return Row(
            f"{title}: {name}",
            unit,
            max(value, 0.01),
            peer_name,
            peer,
            less_is_better=True,
            aim=aim,
        )

    return [
        row("slowest of three", "ms", rank["milliseconds"], "bare Arrow memory map", rank["bare"]),
        row("slowest of three", "ms", rank["milliseconds"], "limit", MOST_MILLISECONDS, 1.0),
        row("private memory", "MB", rank["opened"], "limit", MOST_MEGABYTES, 1.0),
        row("private memory after 1,000 packs", "MB", rank["read"], "limit", MOST_MEGABYTES, 1.0),
        row(
            f"private memory with its schedule of {RANKS} ranks",
            "MB",
            rank["scheduled"],
            "limit",
            MOST_MEGABYTES,
            1.0,
        ),
    ]


def _process(part: str, options: list[str]) -> str:
    command = [sys.executable, __file__, "--part", part, *options]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def measure(quick: bool) -> list[Row]:
    """Rows for the shared table."""
    return rows_of(1_000_000 if quick else 10_000_000)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--samples", type=int, default=10_000_000)
    parser.add_argument(
        "--quick", action="store_true", help="a million samples: does it run at all?"
    )
    parser.add_argument("--part", choices=["write", "open"], help=argparse.SUPPRESS)
    parser.add_argument("--path", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--fingerprint", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part == "write":
        print(write_plan(arguments.samples, arguments.path))
    elif arguments.part == "open":
        print(json.dumps(open_plan(arguments.path, arguments.fingerprint)))
    else:
        print("\n".join(describe_machine()), end="\n\n", flush=True)
        print_rows(rows_of(1_000_000 if arguments.quick else arguments.samples))


if __name__ == "__main__":
    main()
