"""Environments of trainers: which releases exist, and one environment for each, made by uv."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[2]

GPU_ONLY = [
    "apex",
    "causal-conv1d",
    "cut-cross-entropy",
    "deepspeed",
    "fla-core",
    "flash-attn",
    "flash-linear-attention",
    "flashinfer-python",
    "liger-kernel",
    "mamba-ssm",
    "nvidia-modelopt",
    "nvidia-resiliency-ext",
    "sglang",
    "torchaudio",
    "torchcodec",
    "torchvision",
    "transformer-engine",
    "vllm",
    "xformers",
]
"""Requirements of trainers that are left out: they are built for the CUDA build of torch, or only for CUDA."""

SECONDS = 900
"""Longest time of a command."""

SHOWN = ("torch", "transformers", "accelerate", "datasets", "numpy")
"""Packages whose versions the records hold."""


def run(*words: str | Path, cwd: Path, variables: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command with further variables; one that takes too long fails like any other."""
    environment = {**os.environ, **(variables or {})}
    command = [*map(str, words)]
    try:
        return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", f"no end after {SECONDS} s")


def releases(package: str, *, any_python: bool = False) -> list[str]:
    """Return releases in the index of packages, newest first: of this Python, or of any."""
    options = ["--ignore-requires-python"] if any_python else []
    words = (sys.executable, "-m", "pip", "index", "versions", package, "--disable-pip-version-check", *options)
    lines = re.findall(r"Available versions: (.*)", run(*words, cwd=ROOT).stdout)
    return lines[0].split(", ") if lines else []


def make_environment(folder: Path, package: str, release: str, needs: tuple[str, ...]) -> str:
    """Make the environment of a release, with brimful of this checkout and the torch that runs this.

    Returns:
        The reason if the release cannot be installed; else an empty text.
    """
    finished = folder / "finished"
    if finished.exists():
        return ""
    uv = shutil.which("uv")
    if uv is None:
        raise SystemExit("make compat: uv is not on the path: pip install uv")
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    overrides = folder.parent / "overrides.txt"
    absent = "".join(f'{name}; sys_platform == "none"\n' for name in GPU_ONLY)
    torch, _, _ = version("torch").partition("+")  # of a wheel for CPUs too, where uv finds one
    overrides.write_text(f"torch=={torch}\n{absent}", encoding="utf-8")
    run(uv, "venv", "--quiet", "--python", sys.executable, folder, cwd=ROOT)
    # fmt: off
    made = run(
        uv, "pip", "install", "--quiet", "--python", folder / "bin" / "python", "--overrides", overrides,
        f"{package}=={release}", "--editable", f"{ROOT}[text,torch,fast,test]", "datasets", "pyyaml", *needs,
        cwd=ROOT,
    )
    # fmt: on
    if made.returncode:
        return first_line(made.stderr)
    finished.touch()
    return ""


def installed(folder: Path) -> dict[str, str]:
    """Return versions of the packages in an environment that a reader asks for."""
    code = "import importlib.metadata as m, json; print(json.dumps({d.name: d.version for d in m.distributions()}))"
    names = json.loads(run(folder / "bin" / "python", "-c", code, cwd=folder).stdout)
    python = ".".join(map(str, sys.version_info[:2]))
    return {"python": python, **{name: names[name] for name in SHOWN if name in names}}


def source_of(folder: Path, package: str, release: str) -> Path:
    """Return the folder of the source distribution of a release, unpacked below a folder.

    Raises:
        FileNotFoundError: it has none.
    """
    place = folder / f"{package}-{release}"
    if not place.exists():
        files = folder / "files" / place.name
        files.mkdir(parents=True, exist_ok=True)
        pip = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:")
        run(*pip, "--dest", files, f"{package}=={release}", cwd=files)
        archives = list(files.glob("*.tar.gz"))
        if not archives:
            raise FileNotFoundError(f"{package} {release} has no source distribution")
        part = folder / f"{place.name}.part"
        shutil.unpack_archive(archives[0], part, filter="data")
        next(part.iterdir()).rename(place)
        shutil.rmtree(part)
    return place


def first_line(text: str) -> str:
    """Return the line that says most: the last one of a traceback, otherwise the first one; paths of the machine left out."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()] or ["no message"]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Exit|Interrupt)\b", line)]
    line = re.sub(r"^(error:|[×x]|╰─▶)\s*", "", errors[-1] if errors else lines[0])
    line = re.sub(r"(?<![\w:/])(/[\w.+-]+){2,}/", "…/", line)
    return line if len(line) <= 160 else line[:159] + "…"
