"""Mutants: single changes of the code, each of which a test must see.

    make mutants                          a sample of every room
    python -m tests.mutants serve --sample 200 --seed 7

A copy of the checkout is changed by cosmic-ray, one operator or number at a time, and the tests of the room run on it, with
the examples of the module. What survives is printed as a diff: either a test is missing, or the change changes nothing that
anybody can see.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import json
import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

import pytest

ROOT = Path(__file__).parents[1]

ROOMS: dict[str, tuple[list[str], list[str]]] = {
    "collate": (
        ["collate"],
        ["collate", *(f"flow/test_media{name}.py" for name in ("", "_audio", "_features", "_loader", "_videos"))],
    ),
    "serve": (["serve"], ["serve", "dynamic"]),
    "dynamic": (["dynamic"], ["dynamic", "serve"]),
    "stream": (["stream"], ["stream"]),
    "store/shards": (["store/shards"], ["store/shards", "golden", "serve/test_pack_store.py"]),
    "rl": (["rl"], ["rl"]),
    "plan/fit": (["plan/fit"], ["plan/fit", "plan/test_algorithms.py", "plan/test_frozen_plans.py"]),
    "plan": (
        [f"plan/{room}" for room in ("counts", "order", "policies", "saved", "schedule")]
        + [f"plan/{module}.py" for module in ("algorithms", "drawn", "items", "ledger", "plan", "planner")],
        [
            "plan",
            *(
                f"properties/test_{name}.py"
                for name in ("plan_properties", "bounds", "pairs_of_plan_settings", "thresholds")
            ),
        ],
    ),
    "mixtures": (["mixtures"], ["mixtures", "cli/test_mixture.py"]),
    "planners": (["planners"], ["planners", "plan/test_algorithms.py", "plan/test_frozen_plans.py"]),
    "trees": (
        ["trees"],
        ["trees", "collate/dialects", "golden/test_golden_trees.py"],
    ),
    "sources": (["sources"], ["sources", "cli/bad_input"]),
    "fast": (["fast"], ["fast", "encode"]),
    "encode": (["encode"], ["encode", "fast", "flow/test_entrance_law.py", "flow/test_per_turn.py"]),
    "measure": (["measure", "lengths"], ["measure", "lengths", "properties/test_measure_properties.py"]),
    "store": (
        ["store"],
        ["store", "cli/test_pack.py", "flow/test_shares.py", "flow/test_media_features_kinds.py"],
    ),
    "media": (
        ["media"],
        [
            "media",
            *(f"flow/test_media{name}.py" for name in ("", "_families", "_features", "_features_kinds")),
            "stream/producer/test_producer_media.py",
            "sources/test_augmented.py",
        ],
    ),
    "preferences": (["preferences"], ["preferences"]),
    "integrations": (["integrations"], ["integrations", "cli/test_export.py", "rl/compat/test_installers.py"]),
    "verify": (["verify"], ["verify", "cli/test_verify.py"]),
    "doctor": (["doctor"], ["doctor", "cli/test_doctor.py"]),
    "base": (["base"], ["base", "cli/test_options.py", "cli/test_option_values.py"]),
    "clusters": (["clusters"], ["clusters"]),
}
"""Modules of each room, below ``src/brimful``, and the tests that have to see a change of them, below ``tests``."""

_SILENT = ("stacklevel", "copy", "strict", "frozen")

Position: TypeAlias = tuple[int, int]
"""Line and column."""

_SECONDS = 600
"""Time after which a change that makes the tests wait counts as seen."""

_CPU_SECONDS = 240
"""Processor time after which a change that makes the tests run for ever counts as seen, however busy the machine is."""

_MORE_SECONDS = 15
"""Processor time that a single test may take in addition to twice its own: loops are compiled again."""

_LIBRARIES = ("numpy", "numba", "pyarrow", "torch", "transformers", "hypothesis.strategies")
"""Libraries that take seconds to import, once for all mutants."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rooms", nargs="*", default=list(ROOMS), help=f"of {', '.join(ROOMS)}")
    parser.add_argument("--sample", type=int, default=30, help="mutants of each room")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "MKL_DISABLE_FAST_MM": "1"}  # as tests/conftest.py
    for library in _LIBRARIES:
        with contextlib.suppress(ImportError):
            import_module(library)
    killed = num_all = 0
    for room in arguments.rooms:
        survivors, count = run(room, arguments.sample, arguments.seed)
        killed, num_all = killed + count - survivors, num_all + count
        print(f"{room}: {count - survivors} of {count} killed", flush=True)
    print(f"all: {killed} of {num_all} killed, {100 * killed / max(1, num_all):.1f} %")


def run(room: str, sample: int, seed: int) -> tuple[int, int]:
    """Run the tests of a room on a sample of its mutants, and show each survivor; return their number, and the number of all."""
    from cosmic_ray.mutating import use_mutation
    from cosmic_ray.plugins import get_operator

    modules, tests = ROOMS[room]
    survivors = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "main")
        # With what Python and numba have compiled: they know it by the times of the files, which are copied too.
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".git", ".venv", ".*_cache", ".hypothesis"))
        if (ROOT.parent / "shared").exists():
            Path(folder, "shared").symlink_to(ROOT.parent / "shared")
        paths = [f"tests/{test}" for test in tests]
        if not _passes(copy, paths):
            sys.exit(f"{room}: its tests fail on the code as it is")
        mutations = mutants_of(copy, modules)
        count = 0
        for mutation in random.Random(seed).sample(mutations, len(mutations)):
            if count == sample:
                break
            operator = get_operator(mutation.operator_name)(**mutation.operator_args)
            name = mutation.module_path.relative_to(copy / "src/brimful")
            own = f"tests/{name.with_name(f'test_{name.name}')}"
            ordered = [*([own] if (copy / own).exists() else []), f"src/brimful/{name}", *paths]
            with use_mutation(mutation.module_path, operator, mutation.occurrence) as (code, mutant):
                if not _is_python(mutant):
                    continue
                count += 1
                if _passes(copy, ordered):
                    survivors += 1
                    lines = code.splitlines(), mutant.splitlines()
                    diff = "\n".join(difflib.unified_diff(*lines, str(name), str(name), lineterm=""))
                    print(f"\n── {room}: survived\n{diff}", flush=True)
    return survivors, count


def _is_python(text: str) -> bool:
    """Return false for a mutant that no test needs to see, such as another operator for ``**`` in a call."""
    try:
        compile(text, "mutant", "exec")
    except SyntaxError:
        return False
    return True


def mutants_of(copy: Path, modules: list[str]) -> list[Any]:
    """Return the mutations of the modules of a room, in an order that is the same every time."""
    from cosmic_ray.commands.init import init
    from cosmic_ray.modules import find_modules
    from cosmic_ray.work_db import use_db

    with use_db(copy / "session.sqlite") as database:
        init(sorted(find_modules([copy / "src/brimful" / module for module in modules])), database, {})
        # The database is keyed by random numbers.
        mutations = sorted(
            (item.mutations[0] for item in database.work_items),
            key=lambda mutation: (str(mutation.module_path), mutation.operator_name, mutation.occurrence),
        )
    return [mutation for mutation in mutations if _is_code(mutation)]


def _passes(copy: Path, paths: list[str]) -> bool:
    """Return true if the tests pass, in a process forked from this one, which has imported the large libraries."""
    process = multiprocessing.get_context("fork").Process(target=_test, args=(copy, paths))
    process.start()
    process.join(_SECONDS)
    if process.is_alive():
        os.killpg(process.pid or 0, signal.SIGKILL)
        process.join()
    return process.exitcode == 0


def _test(copy: Path, paths: list[str]) -> None:
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS))
    for output in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), output)
    os.chdir(copy)
    folders = [str(copy / "src"), str(copy)]
    os.environ["PYTHONPATH"], sys.path[:0] = ":".join(folders), folders
    for name in [name for name in sys.modules if name.split(".")[0] == "tests"]:
        del sys.modules[name]
    ignored = "ignore::pytest.PytestAssertRewriteWarning"  # some plugin came along with a library
    examples = ["--doctest-modules", "--doctest-ignore-import-errors", "-o", "doctest_optionflags=NORMALIZE_WHITESPACE"]
    order = _CheapestFirst(copy / "seconds.json", tuple(paths[:2]))
    sys.exit(pytest.main(["-x", "-q", "-W", ignored, *examples, *paths], plugins=[order]))


class _CheapestFirst:
    """The order of tests: by the time that they took without a mutant, the ones of its module as if it were a tenth.

    A test that does not end is killed with the process, which counts as seen.
    """

    def __init__(self, file: Path, near: tuple[str, ...]) -> None:
        self._file, self._near, self._is_known = file, near, file.exists()
        self._seconds: dict[str, float] = json.loads(file.read_text()) if self._is_known else {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        def cost(item: pytest.Item) -> float:
            return self._seconds.get(item.nodeid, 0.0) / (10 if item.nodeid.startswith(self._near) else 1)

        items.sort(key=cost)

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if self._is_known:
            signal.setitimer(signal.ITIMER_PROF, _MORE_SECONDS + 2 * self._seconds.get(item.nodeid, 0.0))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] = self._seconds.get(report.nodeid, 0.0) + report.duration

    def pytest_sessionfinish(self) -> None:
        if not self._is_known:
            self._file.write_text(json.dumps(self._seconds))


def _is_code(mutation: Any) -> bool:
    """Return false where nothing would change, by ``_silent_ranges``, and for ``is`` in the place of ``==``."""
    position = line, column = tuple(mutation.start_pos)
    if mutation.operator_name == "core/ExceptionReplacer":
        # cosmic-ray cannot replace an exception with a dot in its name.
        text = mutation.module_path.read_text(encoding="utf-8").splitlines()[line - 1]
        if re.match(r"\w+\.", text[column:]):
            return False
    return not {"Is", "IsNot"} & set(mutation.operator_name.split("_")) and not any(
        start <= position < end for start, end in _silent_ranges(mutation.module_path)
    )


@cache
def _silent_ranges(path: Path) -> list[tuple[Position, Position]]:
    """Return the ranges whose changes cannot be seen.

    - annotations, and signatures with all that stands in them;
    - constants, and defaults of fields: a limit by one more or less is a matter of taste;
    - assertions, which hold always, so that a weaker one holds too;
    - ``__repr__``, for users who look for mistakes;
    - decorators that change time or nothing: caches and ``overload``; and arguments of others (slots, frozen, kw_only),
      which change memory, or what a caller may do by mistake;
    - the amount of work from which ``compiled`` compiles: both forms give the same;
    - ``stacklevel`` of warnings: the line that is named with the message;
    - ``copy=False`` of arrays, which only takes time if true;
    - ``strict`` of ``zip`` and ``frozen``: guards against mistakes in the package, which are not there.
    """
    ranges: list[tuple[Position, Position]] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        parts: list[Any] = []
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            for decorator in node.decorator_list:
                if isinstance(decorator, ast.Call):
                    parts += [*decorator.args, *decorator.keywords]
                name = ast.unparse(decorator).split("(")[0]
                if name in ("cache", "lru_cache", "overload"):
                    # From the ``@``, which stands before the decorator.
                    ranges.append(((decorator.lineno, 0), (decorator.lineno + 1, 0)))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            ranges.append(((node.lineno, node.col_offset), (node.body[0].lineno, node.body[0].col_offset)))
            parts += [node] if node.name == "__repr__" else []
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            parts += [node.annotation] if isinstance(node, ast.AnnAssign) else []
            numbers = (ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop)
            is_constant = node.value is not None and all(isinstance(part, numbers) for part in ast.walk(node.value))
            parts += [node.value] if is_constant else []
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "compiled":
            parts += node.args[1:]
        elif isinstance(node, ast.Assert) or (isinstance(node, ast.keyword) and node.arg in _SILENT):
            parts.append(node)
        ranges += [((part.lineno, part.col_offset), (part.end_lineno, part.end_col_offset)) for part in parts]
    return ranges


if __name__ == "__main__":
    main()
