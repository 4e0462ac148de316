"""What all benchmarks share: ours and a peer's in turn, so that drift of the machine hits both; medians and ratios.

``python -m benchmarks`` and each ``bench_<stage>.py`` print the same table, under the machine and the command that made it.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["SHARED_DATA", "Row", "describe_machine", "in_turn", "main_of", "print_rows"]

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
"""Real data, where this checkout has it beside it."""

_PACKAGES = ("brimful", "numpy", "pyarrow", "tokenizers", "transformers", "torch")


@dataclass(frozen=True)
class Row:
    """One comparison.

    Attributes:
        name: what is done, on what.
        ours, peer: rates, or times where ``less_is_better``, in ``unit``.
        peer_name: whom we are held against, or the physical limit.
        aim: least ratio that we aim at; None where the row is there to read along.
    """

    name: str
    unit: str
    ours: float
    peer_name: str
    peer: float
    less_is_better: bool = False
    aim: float | None = None

    @property
    def ratio(self) -> float:
        """How many times as fast as the peer; above 1 is faster."""
        return self.peer / self.ours if self.less_is_better else self.ours / self.peer


def in_turn(
    functions: Mapping[str, Callable[[], object]],
    *,
    repetitions: int,
    before: Callable[[], object] | None = None,
) -> dict[str, float]:
    """Median seconds of each function: one after the other, ``repetitions`` times over, the first round not counted.

    Args:
        functions: by name. Every second round goes backwards, so that none always runs in another's wake.
        repetitions: rounds that count.
        before: run in front of each call, outside the time.
    """
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for number in range(repetitions + 1):
        for name in list(functions)[:: 1 if number % 2 else -1]:
            if before is not None:
                before()
            start = time.perf_counter()
            functions[name]()
            elapsed = time.perf_counter() - start
            if number:
                seconds[name].append(elapsed)
    return {name: statistics.median(times) for name, times in seconds.items()}


def describe_machine() -> list[str]:
    """Processor, cores, Python, versions, and the command: what a number means nothing without."""
    model = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            model = next(
                line.split(":", 1)[1].strip() for line in file if line.startswith("model name")
            )
    except (OSError, StopIteration):
        pass
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    versions = []
    for package in _PACKAGES:
        try:
            versions.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            versions.append(f"{package} absent")
    load = f", load {os.getloadavg()[0]:.1f} before" if hasattr(os, "getloadavg") else ""
    return [
        f"machine   {model}, {cores} cores{load}",
        f"software  {platform.system()} {platform.release()}, Python {platform.python_version()}, {', '.join(versions)}",
        f"command   python {shlex.join([os.path.relpath(sys.argv[0]), *sys.argv[1:]])}",
    ]


def print_rows(rows: Iterable[Row]) -> None:
    """The table, as Markdown."""
    print("| what | ours | peer | unit | peer is | times as fast | aim |")
    print("|---|---:|---:|---|---|---:|---|")
    for row in rows:
        aim = "" if row.aim is None else f"≥ {row.aim:g}: {'yes' if row.ratio >= row.aim else 'NO'}"
        print(
            f"| {row.name} | {_number(row.ours)} | {_number(row.peer)} | {row.unit} | {row.peer_name} "
            f"| {row.ratio:.2f} | {aim} |",
            flush=True,
        )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def main_of(measure: Callable[[bool], list[Row]], purpose: str | None) -> None:
    """The command line of one benchmark."""
    parser = argparse.ArgumentParser(description=(purpose or "").split("\n", 1)[0])
    parser.add_argument(
        "--quick", action="store_true", help="little data, few repetitions: does it run at all?"
    )
    quick = parser.parse_args().quick
    print("\n".join(describe_machine()), end="\n\n", flush=True)
    print_rows(measure(quick))
