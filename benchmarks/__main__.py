"""All benchmarks in one run, as one table of ratios beside their peers: ``python -m benchmarks [--quick] [STAGE …]``.

Absolute numbers belong to one machine and one hour; ratios taken in turn in one process are what to compare.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path

sys.path.insert(
    0, str(Path(__file__).resolve().parent)
)  # with -m, Python puts the working directory there

from compare import Row, describe_machine, print_rows

_FIRST = ("job", "measure", "plan", "write", "read", "collate")


def _stages() -> list[str]:
    """Every ``bench_<stage>.py`` beside this file that has a ``measure``; those of the main line in its order."""
    paths = Path(__file__).resolve().parent.glob("bench_*.py")
    found = {
        path.stem.removeprefix("bench_")
        for path in paths
        if "\ndef measure(quick: bool)" in path.read_text()
    }
    return [name for name in _FIRST if name in found] + sorted(found - set(_FIRST))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=(__doc__ or "").split("\n", 1)[0]
    )
    parser.add_argument(
        "stages", nargs="*", metavar="STAGE", help=f"some of: {', '.join(_stages())} (default: all)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="little data, few repetitions: does it run at all?"
    )
    options = parser.parse_args()
    unknown = set(options.stages) - set(_stages())
    if unknown:
        parser.error(
            f"there is no bench_{sorted(unknown)[0]}.py; choose from {', '.join(_stages())}"
        )
    machine = describe_machine()
    rows: list[Row] = []
    for stage in options.stages or _stages():
        print(f"{stage} …", file=sys.stderr, flush=True)
        rows += import_module(f"bench_{stage}").measure(options.quick)
    print("\n".join(machine), end="\n\n")
    print_rows(rows)


if __name__ == "__main__":
    main()
