"""Compatibility: what runs with the newest release of each trainer and the one before, each in an environment of its own.

    make compat
    make compat TRAINERS="trl veomni" AGAIN=--again
    python -m tests.compat --folder DIR [--check step] [--again] [NAME …]

For each release: the code of its page in ``docs/trainers``, a step of training on a CPU (or its loader alone), our tests that run
its code, and its own tests that touch packing. Results are kept in the folder, release by release: a killed run goes on, and
``--again`` begins the ones that are named once more. In the end it writes ``docs/compatibility.md`` from all results in the folder.
Environments have the version of torch that the calling one has, and share its files with uv's cache: 0.1 to 1 GB each. ``UV_FIND_LINKS``
names a folder with its wheel for CPUs.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import pkgutil
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from tests.compat import trainers
from tests.compat.environments import ROOT, first_line, installed, make_environment, releases, run, source_of
from tests.compat.page import page_of
from tests.compat.trainer import CHECKS, Outcome, Record, Trainer

PAGE = ROOT / "docs" / "compatibility.md"

NAMES = sorted(module.name for module in pkgutil.iter_modules(trainers.__path__))

OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "WANDB_MODE": "disabled",
    "DO_NOT_TRACK": "1",
    "UNSLOTH_COMPILE_LOCATION": str(Path(tempfile.gettempdir(), "unsloth_compiled_cache")),
}


def trainer_of(name: str) -> Trainer:
    """Return the trainer that a file describes."""
    trainer = importlib.import_module(f"tests.compat.trainers.{name}").TRAINER
    assert isinstance(trainer, Trainer)
    return trainer


def run_tests(python: Path, cwd: Path, report: Path, *words: str, variable: str = "") -> Outcome:
    """Run pytest in an environment; count what it says. A variable is given the folder of its packages."""
    report.unlink(missing_ok=True)
    options = ("-q", "-p", "no:cacheprovider", f"--junitxml={report}", "-W", "ignore")
    variables = {**OFFLINE, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}" if cwd == ROOT else ""}
    if variable:
        (packages,) = python.parent.parent.glob("lib/python*/site-packages")
        variables[variable] = str(packages)
    done = run(python, "-m", "pytest", *options, *words, cwd=cwd, variables=variables)
    if not report.exists():
        return Outcome(False, first_line(done.stderr or done.stdout))
    cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    wrong = [(case, child) for case in cases for child in case if child.tag in ("failure", "error")]
    skips = [child for case in cases for child in case if child.tag == "skipped"]
    right = len(cases) - len(wrong) - len(skips)
    if wrong:
        case, child = wrong[0]
        lines = first_line(child.get("message") or child.text or "")
        return Outcome(False, f"{len(wrong)} of {len(wrong) + right} fail: {case.get('name')}: {lines}")
    if not right:
        reason = skips[0].get("message") or "" if skips else done.stdout
        return Outcome(None, first_line(reason))
    return Outcome(True, f"{right}" + (f" ({len(skips)} skipped)" if skips else ""))


def run_step(python: Path, name: str, folder: Path) -> Outcome:
    """Train a step in a folder as ``brimful demo`` leaves it; its last line is the figure."""
    variables = {**OFFLINE, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "PYTHONWARNINGS": "ignore"}
    demo = folder / "demo"
    if not demo.exists():
        part = folder / "demo.part"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        made = run(sys.executable, "-m", "tests.integrations.trainers.demo_folder", part, cwd=part, variables=variables)
        if made.returncode:
            raise SystemExit(made.stderr)
        part.rename(demo)
    place = folder / "step"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(demo, place)
    done = run(python, "-m", f"tests.compat.trainers.{name}", cwd=place, variables=variables)
    if done.returncode:
        return Outcome(False, first_line(done.stderr))
    return Outcome(True, done.stdout.strip().splitlines()[-1])


def run_check(check: str, name: str, record: Record, folder: Path) -> Outcome | None:
    """Run one check of a release; None if the trainer has none of this kind."""
    trainer = trainer_of(name)
    place = f"{name}-{record.release}"
    python, report = folder / "envs" / place / "bin" / "python", folder / "reports" / f"{place}-{check}.xml"
    if check == "page":
        if not trainer.page:
            return None
        test = f"tests/integrations/trainers/test_pages.py::test_the_page_runs_as_shown[{trainer.page}]"
        return run_tests(python, ROOT, report, test, "-m", "")
    if check == "step":
        return Outcome(None, trainer.why_no_step) if trainer.why_no_step else run_step(python, name, folder)
    if check == "ours":
        return run_tests(python, ROOT, report, *trainer.ours, variable=trainer.variable) if trainer.ours else None
    if not trainer.own:
        return Outcome(None, trainer.why_no_own)
    try:
        source = source_of(folder / "sources", trainer.package, record.release)
    except FileNotFoundError as error:
        return Outcome(None, str(error))
    paths = [path for path in trainer.own if (source / path.partition("::")[0]).exists()]
    if not paths:
        return Outcome(None, "its tests of packing have other names, or are not in its source distribution")
    return run_tests(python, source, report, *paths)


def run_release(name: str, release: str, newest: str, checks: Sequence[str], folder: Path) -> None:
    """Run checks of a release that have not run yet, and keep what came of each."""
    trainer, path = trainer_of(name), folder / "results" / f"{name}-{release}.json"
    record = Record.load(path) if path.exists() else Record(name, release, newest, str(datetime.date.today()))
    if record.refusal or set(checks) <= set(record.outcomes):
        return
    environment = folder / "envs" / f"{name}-{release}"
    record.refusal = make_environment(environment, trainer.package, release, trainer.needs)
    if record.refusal:
        print(f"{trainer.name} {release}: cannot be installed: {record.refusal}", flush=True)
        record.save(path)
        return
    record.versions = installed(environment)
    for check in checks:
        if check in record.outcomes:
            continue
        outcome = run_check(check, name, record, folder) or Outcome(None, "")
        record.outcomes[check] = outcome
        record.save(path)
        word = {True: "passed", False: "FAILED", None: "not run"}[outcome.is_right]
        print(f"{trainer.name} {release}: {check}: {word} {outcome.text}", flush=True)


def known_releases(package: str, folder: Path) -> tuple[list[str], str]:
    """Return the releases for this Python, newest first, and the newest of any; a run that goes on has the same ones."""
    path = folder / "releases" / f"{package}.json"
    if not path.exists():
        usable, every = releases(package), releases(package, any_python=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps([usable, every[0] if every else ""]), encoding="utf-8")
    usable, newest = json.loads(path.read_text(encoding="utf-8"))
    return usable, newest


def write_page(folder: Path) -> None:
    """Write the page from all results in a folder."""
    records = [Record.load(path) for path in (folder / "results").glob("*.json")]
    PAGE.write_text(page_of(records, {name: trainer_of(name) for name in NAMES}), encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"trainers (default: all): {', '.join(NAMES)}")
    parser.add_argument("--folder", type=Path, required=True, help="for environments and results")
    parser.add_argument("--check", action="append", choices=CHECKS, help="only these, for now (default: all)")
    parser.add_argument("--again", action="store_true", help="begin the trainers once more")
    parser.add_argument("--last", type=int, default=2, metavar="N", help="releases of each trainer (default: 2)")
    options = parser.parse_args(arguments)
    folder = options.folder.resolve()
    names = options.names or NAMES
    if options.again:
        for name in names:
            for path in (folder / "results").glob(f"{name}-*.json"):
                path.unlink()
            (folder / "releases" / f"{trainer_of(name).package}.json").unlink(missing_ok=True)
    known = {name: known_releases(trainer_of(name).package, folder) for name in names}
    for place in range(options.last):  # the newest release of every trainer first
        for name in names:
            usable, newest = known[name]
            if place < len(usable):
                run_release(name, usable[place], newest, options.check or CHECKS, folder)
                write_page(folder)


if __name__ == "__main__":
    main()
