"""Mutants: single changes of the code, each of which a test must see.

    make mutants                          a sample of every room
    python -m tests.mutants serve --sample 200 --seed 7

A copy of the checkout is changed by cosmic-ray, one operator or number at a time, and the tests of the room run on it. What
survives is printed as a diff: either a test is missing, or the change changes nothing that anybody can see.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

ROOT = Path(__file__).parents[1]

ROOMS: dict[str, tuple[list[str], list[str]]] = {
    "collate": (["collate"], ["collate"]),
    "serve": (["serve"], ["serve"]),
    "shards": (["shards"], ["shards", "serve/test_pack_store.py"]),
    "plan/step": (["plan/step"], ["plan/step"]),
    "plan/fit": (["plan/fit"], ["plan/fit", "plan/test_algorithms.py", "plan/test_frozen_plans.py"]),
    "encode/filling": (
        ["encode/filling.py", "encode/skeleton.py", "encode/opaque.py", "encode/placeholders.py"],
        [
            *("encode/test_filling.py", "encode/test_skeleton.py", "encode/test_opaque.py", "encode/test_turns.py"),
            *("encode/test_placeholders.py", "encode/test_random_templates.py"),
        ],
    ),
    "materialize": (
        ["materialize"],
        [
            *("materialize", "cli/test_pack.py", "flow/test_shares.py", "flow/test_media_features_kinds.py"),
        ],
    ),
}
"""Modules of each room, below ``src/brimful``, and the tests that have to see a change of them, below ``tests``."""

Position: TypeAlias = tuple[int, int]
"""Line and column."""

_SECONDS = 120
"""Time after which a change that makes the tests wait counts as seen."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rooms", nargs="*", default=list(ROOMS), help=f"of {', '.join(ROOMS)}")
    parser.add_argument("--sample", type=int, default=30, help="mutants of each room")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    killed = num_all = 0
    for room in arguments.rooms:
        survivors, count = run(room, arguments.sample, arguments.seed)
        killed, num_all = killed + count - len(survivors), num_all + count
        for diff in survivors:
            print(f"\n── {room}: survived\n{diff}")
        print(f"{room}: {count - len(survivors)} of {count} killed", flush=True)
    print(f"all: {killed} of {num_all} killed, {100 * killed / max(1, num_all):.1f} %")


def run(room: str, sample: int, seed: int) -> tuple[list[str], int]:
    """Run the tests of a room on a sample of its mutants; return the diffs of the survivors and the number of all."""
    from cosmic_ray.work_db import use_db
    from cosmic_ray.work_item import TestOutcome

    modules, tests = ROOMS[room]
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "main")
        # With what Python and numba have compiled: they know it by the times of the files, which are copied too.
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".git", ".venv", ".*_cache", ".hypothesis"))
        if (ROOT.parent / "shared").exists():
            Path(folder, "shared").symlink_to(ROOT.parent / "shared")
        command = [sys.executable, "-m", "pytest", "-x", "-q", *(f"tests/{test}" for test in tests)]
        paths = ", ".join(f'"src/brimful/{module}"' for module in modules)
        (copy / "mutants.toml").write_text(
            f"[cosmic-ray]\nmodule-path = [{paths}]\ntimeout = {_SECONDS}\nexcluded-modules = []\n"
            f'test-command = "{" ".join(command)}"\n[cosmic-ray.distributor]\nname = "local"\n',
            encoding="utf-8",
        )
        environment = {**os.environ, "PYTHONPATH": f"{copy / 'src'}:{copy}", "PYTHONDONTWRITEBYTECODE": "1"}
        subprocess.run(command, cwd=copy, env=environment, check=True, stdout=subprocess.DEVNULL)

        def cosmic_ray(*words: str) -> None:
            program = [sys.executable, "-m", "cosmic_ray.cli", *words]
            subprocess.run(program, cwd=copy, env=environment, check=True)

        cosmic_ray("init", "mutants.toml", "session.sqlite")
        with use_db(copy / "session.sqlite") as database:
            items = [item for item in database.work_items if _is_code(copy, item.mutations[0])]
            # The database has them in no order.
            items.sort(key=lambda item: repr(item.mutations[0]))
            chosen = random.Random(seed).sample(items, min(sample, len(items)))
            database.clear()
            database.add_work_items(chosen)
        cosmic_ray("exec", "mutants.toml", "session.sqlite")
        with use_db(copy / "session.sqlite") as database:
            results = dict(database.results)
        return [result.diff or "" for result in results.values() if result.test_outcome is TestOutcome.SURVIVED], len(
            results
        )


def _is_code(copy: Path, mutation: Any) -> bool:
    """Return false where nothing would change: in annotations, signatures and limits, and for ``is`` in the place of ``==``."""
    path, position = copy / mutation.module_path, tuple(mutation.start_pos)
    return not {"Is", "IsNot"} & set(mutation.operator_name.split("_")) and not any(
        start <= position < end for start, end in _silent_ranges(path)
    )


@cache
def _silent_ranges(path: Path) -> list[tuple[Position, Position]]:
    """Return the ranges of annotations, of signatures with all that stands in them, of constants, and of guards."""
    ranges: list[tuple[Position, Position]] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            ranges.append(((node.lineno, node.col_offset), (node.body[0].lineno, node.body[0].col_offset)))
        elif isinstance(node, ast.AnnAssign) or (isinstance(node, ast.Assign) and _is_number(node.value)):
            # A limit of another size is a matter of taste.
            part = node.annotation if isinstance(node, ast.AnnAssign) else node.value
            ranges.append(((part.lineno, part.col_offset), (part.end_lineno or 0, part.end_col_offset or 0)))
        elif isinstance(node, ast.keyword) and node.arg in ("strict", "frozen"):
            # What guards against mistakes in the package changes nothing where there are none: sides of a ``zip`` are
            # equally long, and nobody writes to a frozen object.
            part = node.value
            ranges.append(((part.lineno, part.col_offset), (part.end_lineno or 0, part.end_col_offset or 0)))
    return ranges


def _is_number(value: ast.expr) -> bool:
    """Return true for a constant, and for one that is written as ``8 << 20``."""
    return all(isinstance(part, (ast.Constant, ast.BinOp, ast.operator)) for part in ast.walk(value))


if __name__ == "__main__":
    main()
