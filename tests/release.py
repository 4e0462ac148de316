"""Release: what would be published, built and tried the way a user gets it.

    make release-check
    make release-check TAG=v0.1.0 PYTHONS="3.10 3.13"

Builds the source distribution, and the wheel from it; looks at their files and metadata; installs the wheel without extras, then with
the README's, in a new environment of each Python, and runs there what the README shows, outside of the checkout. Everything
else is done in a folder that is removed. ``dist/`` has the two files then, and the notes of the release.
"""

from __future__ import annotations

import argparse
import ast
import email
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import textwrap
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DIST = ROOT / "dist"

IN_SOURCE = (
    "CHANGELOG.md",
    "CITATION.cff",
    "CONTRIBUTING.md",
    "LICENSE",
    "Makefile",
    "README.md",
    "SECURITY.md",
    "constraints.txt",
)
"""Files next to the folders of the source distribution: enough to run ``make test`` there."""

FIELDS = (
    "Name",
    "Version",
    "Summary",
    "Author",
    "License-Expression",
    "License-File",
    "Requires-Python",
    "Description-Content-Type",
)
"""Metadata that the page of a release shows."""


PLAN = "from brimful import plan_packs; print(plan_packs([3, 3, 5, 6, 1, 1], capacity=7, seed=None))"
"""A plan, which needs no extra."""


def notes_of(version: str) -> str:
    """Return what the changes say about a version, without its heading.

    Raises:
        SystemExit: they say nothing.
    """
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## (\S+)\n(.*?)(?=^## |\Z)", changes, flags=re.MULTILINE | re.DOTALL))
    if not sections.get(version, "").strip():
        raise SystemExit(f"CHANGELOG.md has no section '## {version}'")
    return sections[version].strip() + "\n"


def run(*words: str | Path, cwd: Path, path: Path | None = None) -> str:
    """Run a command without the variables of this process that would show it the checkout; return what it prints."""
    hidden = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    # A program finds the commands of its own environment first, as after `activate`.
    environment["PATH"] = os.pathsep.join([*([str(path)] if path else []), environment["PATH"]])
    result = subprocess.run([*map(str, words)], cwd=cwd, env=environment, capture_output=True, text=True)
    if result.returncode:
        raise SystemExit(f"{shlex.join(map(str, words))}\n{result.stdout}{result.stderr}")
    return result.stdout


def new_environment(python: Path | str, folder: Path, *packages: str) -> Path:
    """Make an environment with packages; return the folder of its commands."""
    run(python, "-m", "venv", folder, cwd=folder.parent)
    commands = folder / "bin"
    if packages:
        run(
            commands / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages, cwd=folder
        )
    return commands


def interpreter(version: str) -> Path | None:
    """Return the Python of a version that is on the path or that pyenv installed, or None."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    places: list[Path | str | None] = [shutil.which(f"python{version}")]
    places += sorted(pyenv.glob(f"{version}.*/bin/python"))
    for place in places:
        # A name on the path may be a shim of pyenv that refuses to run.
        if place is not None and subprocess.run([place, "-c", ""], capture_output=True).returncode == 0:
            return Path(place)
    return None


def build(folder: Path) -> tuple[Path, Path]:
    """Build both files into ``dist``; the wheel comes from the source distribution, as an index's mirror would make it."""
    tools = new_environment(sys.executable, folder / "tools", "build", "twine")
    shutil.rmtree(DIST, ignore_errors=True)
    run(tools / "python", "-m", "build", "--outdir", DIST, ROOT, cwd=folder)
    (source,), (wheel,) = DIST.glob("*.tar.gz"), DIST.glob("*.whl")
    run(tools / "python", "-m", "twine", "check", "--strict", source, wheel, cwd=folder)
    return source, wheel


def look_into(source: Path, wheel: Path) -> str:
    """Compare the files of a release with the ones of the checkout; return its version."""
    code = {
        path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src" / "brimful").rglob("*") if path.is_file()
    }
    code = {name for name in code if "__pycache__" not in name}
    with tarfile.open(source) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    wrong = [f"not in {source.name}: {name}" for name in {*IN_SOURCE, *(f"src/{name}" for name in code)} - names]
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        fields = email.message_from_bytes(archive.read(metadata))
    wrong += [f"not in {wheel.name}: {name}" for name in code - names]
    wrong += [f"in {wheel.name} by mistake: {name}" for name in names - code if ".dist-info/" not in name]
    wrong += [f"{wheel.name} has no {field}" for field in FIELDS if not fields[field]]
    if wrong:
        raise SystemExit("\n".join(sorted(wrong)))
    return str(fields["Version"])


def blocks_of(text: str) -> list[tuple[str, str]]:
    """Return pairs of language and code, in order."""
    found = re.findall(r"^( *)```(python|bash)\n(.*?)^\1```$", text, flags=re.MULTILINE | re.DOTALL)
    return [(language, textwrap.dedent(code)) for _, language, code in found]


def packages_of(text: str) -> list[str]:
    """Return what the first `pip install` of a page installs; the checkout is `.`, with extras."""
    (line,) = re.findall(r"^pip install (.*)$", text, flags=re.MULTILINE)[:1]
    return [word for word in shlex.split(line, comments=True) if not word.startswith("-")]


def imports_of(code: str) -> set[str]:
    """Return the packages that a block imports."""
    nodes = list(ast.walk(ast.parse(code)))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
    return {name.partition(".")[0] for name in names}


def run_readme(commands: Path, folder: Path) -> str:
    """Run what the README shows, in its order: our commands, and each block of Python whose packages are installed."""
    home, num_commands, num_blocks, missing = folder, 0, 0, set()
    for language, code in blocks_of(README):
        if language == "python":
            find = f"import importlib.util as u; print(*(n for n in {sorted(imports_of(code))} if not u.find_spec(n)))"
            absent = run(commands / "python", "-c", find, cwd=home).split()
            missing |= set(absent)
            if not absent:
                run(commands / "python", "-c", code, cwd=home, path=commands)
                num_blocks += 1
            continue
        for line in code.splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["cd"]:
                home = home / words[1]
            elif words[:1] == ["brimful"]:
                run(commands / "brimful", *words[1:], cwd=home, path=commands)
                num_commands += 1
    without = f", without the blocks that need {', '.join(sorted(missing))}" if missing else ""
    return f"{num_commands} commands and {num_blocks} blocks of the README{without}"


def try_wheel(version: str, wheel: Path, folder: Path) -> bool:
    """Install a wheel in a new environment of a Python and use it; return false if that Python is not here."""
    python = interpreter(version)
    if python is None:
        print(f"python {version}: not found, not tried")
        return False
    folder.mkdir()
    commands = new_environment(python, folder / "environment", str(wheel))
    printed = run(commands / "python", "-c", PLAN, cwd=folder).strip()
    print(f"python {version}: without extras {printed}", flush=True)
    install: list[str | Path] = [commands / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    packages = packages_of(README)
    run(*install, *(re.sub(r"^\.", str(wheel), name) for name in packages), cwd=folder)
    print(f"python {version}: with {' '.join(packages)} {run_readme(commands, folder)}", flush=True)
    shutil.rmtree(folder)
    return True


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tag", help="tag of the release: v and the version of the package")
    parser.add_argument("--python", action="append", help="a version to try (default: 3.10 and 3.13)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="brimful-release-") as temporary:
        folder = Path(temporary)
        source, wheel = build(folder)
        version = look_into(source, wheel)
        if options.tag not in (None, f"v{version}"):
            raise SystemExit(f"the tag is {options.tag} and the version {version}")
        (DIST / "notes.md").write_text(notes_of(version), encoding="utf-8")
        print(f"{source.name} {source.stat().st_size:,} bytes, {wheel.name} {wheel.stat().st_size:,} bytes", flush=True)
        pythons = options.python or ["3.10", "3.13"]
        tried = [try_wheel(name, wheel, folder / name) for name in pythons]
        if not any(tried):
            raise SystemExit(f"no Python of {', '.join(pythons)} was found")


if __name__ == "__main__":
    main()
