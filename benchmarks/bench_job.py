"""The whole job, from a file of rows to packs on disk, beside the routes of other projects.

Ours is ``brimful pack`` as a user types it. Every route is a process of its own with the same number of processes, the same
tokenizer and the same length of packs, so that the start of Python, imports and workers are in its time. Ours runs twice in each
round: as the first job with a tokenizer, which reads its files and, unless that was done before the release, compares the fast library on
hard texts, and as every later job. The median of the rounds counts. Memory is the largest sum over all processes of a route,
of what each has for itself and its share of what several have (proportional set size), asked for ten times a second in a
run of its own, as asking takes time.

Data: every row once, also where a file has it twice. Chats are four sets in one file, all as ``messages``: the dialogues of SGD
without their calls, of SMILE, and the questions and answers of GSM8K and GPTeacher. Documents are PEPs, tool calls the dialogues of
SGD with their calls. A thousand chats are the first of them, for which all of the time is the start. Rows without a target of the
loss are packed, as by the other routes, and longer ones are split, as documents.

Routes that are not installed are named and left out. The last table has the rows of docs/benchmarks.md.
"""

from __future__ import annotations

import compileall
import functools
import gzip
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compare import SHARED_DATA, Row, main_of

import brimful

__all__ = ["measure"]

_CAPACITY = 4096
_NUM_ROUNDS = 3
"""Every route runs once in each round, ours beside the others; the median counts."""

_PEERS = {"trl": "trl", "ms-swift": "swift", "axolotl": "axolotl"}
"""Routes of ``routes.py``, each with the package it needs.

Two of them pin other versions of libraries than the rest: their interpreters may be named by ``BRIMFUL_PYTHON_MS_SWIFT`` and
``BRIMFUL_PYTHON_AXOLOTL``.
"""

_CHATS = ("sgd_train_dialogues", "smile_zh_multiturn_3k", "gsm8k_train", "gpteacher")
_SETS = (
    ("chats", _CHATS, None, 10.0),
    ("documents", ("peps_even",), None, 6.0),
    ("chats with tool calls", ("sgd_train_dialogues",), None, 6.0),
    ("of the chats", _CHATS, 1_000, None),
)
"""Name, files, first rows alone, and the ratio aimed at."""


@dataclass(frozen=True)
class Outcome:
    """Time, memory and packs of one route; tokens in its packs."""

    seconds: float
    gigabytes: float
    packs: int
    fill: float

    @property
    def tokens(self) -> float:
        return self.packs * self.fill * _CAPACITY


def measure(quick: bool) -> list[Row]:
    rows: list[Row] = []
    readme: list[str] = []
    processes = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    # As an installation does; a checkout that was edited would compile modules anew in each of its processes.
    compileall.compile_dir(Path(brimful.__path__[0]), quiet=1)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        tokenizer = SHARED_DATA / "tokenizers" / "qwen2.5"
        if not tokenizer.is_dir():
            print("no real data: nothing measured", file=sys.stderr)
            return []
        for name, files, limit, aim in _SETS:
            data = home / "rows.jsonl"
            count = _write(data, files, with_calls="calls" in name, limit=300 if quick else limit)
            described = f"{count:,} {name}" if limit is None else f"the first {count:,} {name}"
            script = str(Path(__file__).with_name("routes.py"))
            routes = {
                route: [
                    interpreter,
                    script,
                    route,
                    str(data),
                    str(tokenizer),
                    str(_CAPACITY),
                    str(processes),
                ]
                for route, interpreter in _interpreters().items()
            }
            outcomes = _run_all(
                routes, data, tokenizer, processes, home, 1 if quick else _NUM_ROUNDS
            )
            for route, outcome in outcomes.items():
                print(
                    f"{name}, {count:,} rows: {route:<16} {outcome.seconds:6.1f} s {outcome.gigabytes:6.2f} GB "
                    f"{outcome.packs:>7,} packs, {100 * outcome.fill:.2f} % full",
                    file=sys.stderr,
                    flush=True,
                )
            for route in routes:
                peer, ours, first = outcomes[route], outcomes["brimful"], outcomes["brimful, first"]
                title = f"whole job, {described}"
                rows.append(
                    Row(title, "s", ours.seconds, route, peer.seconds, less_is_better=True, aim=aim)
                )
                rows.append(
                    Row(
                        f"{title}, first with the tokenizer",
                        "s",
                        first.seconds,
                        route,
                        peer.seconds,
                        less_is_better=True,
                    )
                )
                rows.append(
                    Row(
                        f"{title}: memory",
                        "GB",
                        ours.gigabytes,
                        route,
                        peer.gigabytes,
                        less_is_better=True,
                        aim=1.0,
                    )
                )
            if "trl" in outcomes:
                readme.append(_readme_row(described, outcomes))
    print("| | first job | later jobs | TRL | times as fast | memory | fill |")
    print("|---|---:|---:|---:|---|---|---|")
    print("\n".join(readme), end="\n\n", flush=True)
    return rows


def _readme_row(title: str, outcomes: Mapping[str, Outcome]) -> str:
    """Return the row of docs/benchmarks.md: seconds, ratios of the first job and of later ones, memory and fill of ours and TRL's."""
    first, later, trl = outcomes["brimful, first"], outcomes["brimful"], outcomes["trl"]
    return (
        f"| {title}, {later.tokens / 1e6:.1f} million tokens | {first.seconds:.1f} s | {later.seconds:.1f} s | {trl.seconds:.1f} s "
        f"| {trl.seconds / first.seconds:.1f}, {trl.seconds / later.seconds:.1f} | {later.gigabytes:.1f}, {trl.gigabytes:.1f} GB "
        f"| {100 * later.fill:.2f}, {100 * trl.fill:.2f} % |"
    )


def _interpreters() -> dict[str, str]:
    """Return the interpreter of each route that is installed; name the others."""
    found = {}
    for route, package in _PEERS.items():
        variable = f"BRIMFUL_PYTHON_{route.replace('-', '_').upper()}"
        interpreter = os.environ.get(variable)
        if interpreter is None and importlib.util.find_spec(package) is not None:
            interpreter = sys.executable
        if interpreter is None:
            print(
                f"{route} is not installed: left out ({variable} may name its interpreter)",
                file=sys.stderr,
            )
        else:
            found[route] = interpreter
    return found


def _write(path: Path, files: Sequence[str], *, with_calls: bool, limit: int | None) -> int:
    """Write the rows of some files, each once."""
    lines: dict[str, None] = {}
    for name in files:
        with gzip.open(SHARED_DATA / "text" / f"{name}.jsonl.gz", "rt", encoding="utf-8") as file:
            for line in file:
                row = _row(json.loads(line), with_calls=with_calls)
                lines[json.dumps(row, ensure_ascii=False) + "\n"] = None
                if len(lines) == limit:
                    break
        if len(lines) == limit:
            break
    path.write_text("".join(lines), encoding="utf-8")
    return len(lines)


def _row(row: Mapping[str, Any], *, with_calls: bool) -> dict[str, Any]:
    """Return a row as ``messages`` or ``text``; chats without calls keep the turns of text alone."""
    if "text" in row:
        return {"text": row["text"]}
    if "messages" in row and with_calls:
        return {"messages": row["messages"]}
    if "question" in row:
        turns = [("user", row["question"]), ("assistant", row["answer"])]
    elif "instruction" in row:
        turns = [
            ("user", f"{row['instruction']}\n{row['input']}".strip()),
            ("assistant", row["output"]),
        ]
    else:
        turns = [
            (turn["role"], turn.get("content"))
            for turn in row["messages"]
            if turn["role"] in ("user", "assistant")
        ]
    return {"messages": [{"role": role, "content": content} for role, content in turns if content]}


def _run_all(
    routes: Mapping[str, Sequence[str]],
    data: Path,
    tokenizer: Path,
    processes: int,
    home: Path,
    num_rounds: int,
) -> dict[str, Outcome]:
    """Run all routes in rounds for their times, then each once more for its memory."""
    cache, output = home / "cache", home / "output"
    arguments = [
        "pack",
        str(data),
        "-o",
        str(output),
        "--tokenizer",
        str(tokenizer),
        "--max-length",
        str(_CAPACITY),
    ]
    arguments += [
        "--overflow",
        "split",
        "--no-target",
        "keep",
        "--num-proc",
        str(processes),
        "--quiet",
        "--json",
        "--cache-dir",
        str(cache),
    ]
    command = [sys.executable, "-m", "brimful", *arguments]

    def ours(*, is_sampled: bool, is_first: bool = False) -> tuple[float, float, dict[str, Any]]:
        for folder in (
            (cache, output) if is_first else (cache / "lengths", cache / "indexes", output)
        ):
            shutil.rmtree(folder, ignore_errors=True)
        seconds, gigabytes, text = _run(
            command, {"BRIMFUL_CACHE": str(cache)}, is_sampled=is_sampled
        )
        summary = json.loads(text.splitlines()[-1])
        return seconds, gigabytes, {"packs": summary["num_packs"], "fill": summary["fill_ratio"]}

    def theirs(route: str, *, is_sampled: bool) -> tuple[float, float, dict[str, Any]]:
        folder = home / "route"
        folder.mkdir()
        variables = {"HF_HOME": str(folder / "home")}
        seconds, gigabytes, text = _run(
            [*routes[route], str(folder)], variables, is_sampled=is_sampled
        )
        shutil.rmtree(folder)
        return seconds, gigabytes, json.loads(text.splitlines()[-1])

    # The first job leaves the cache that the later one finds.
    runs = {"brimful, first": functools.partial(ours, is_first=True), "brimful": ours}
    runs |= {route: functools.partial(theirs, route) for route in routes}
    outcomes = {}
    rounds = [
        {name: run(is_sampled=False)[0] for name, run in runs.items()} for _ in range(num_rounds)
    ]
    for name, run in runs.items():
        _, gigabytes, result = run(is_sampled=True)
        seconds = statistics.median(times[name] for times in rounds)
        outcomes[name] = Outcome(seconds, gigabytes, result["packs"], result["fill"])
    for folder in (cache, output):
        shutil.rmtree(folder)
    return outcomes


def _run(
    command: Sequence[str], variables: Mapping[str, str], *, is_sampled: bool
) -> tuple[float, float, str]:
    """Return seconds, the peak of memory in gigabytes if it is sampled, and standard output."""
    environment = {
        **os.environ,
        **variables,
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    }
    start = time.perf_counter()
    with tempfile.TemporaryFile("w+") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.DEVNULL, env=environment)
        peak, looked = 0, 0.0
        while process.poll() is None:
            time.sleep(0.01)
            if is_sampled and time.perf_counter() - looked > 0.1:
                peak, looked = (
                    max(peak, sum(map(_memory, _family(process.pid)))),
                    time.perf_counter(),
                )
        seconds = time.perf_counter() - start
        if process.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with exit code {process.returncode}")
        file.seek(0)
        return seconds, peak / 1e9, file.read()


def _family(pid: int) -> Iterator[int]:
    """Yield a process and all that it started."""
    yield pid
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            for child in Path(f"/proc/{pid}/task/{thread}/children").read_text().split():
                yield from _family(int(child))
    except OSError:
        return


def _memory(pid: int) -> int:
    """Return the proportional set size of a process in bytes."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) << 10
    except (OSError, StopIteration):
        return 0


if __name__ == "__main__":
    main_of(measure, __doc__)
