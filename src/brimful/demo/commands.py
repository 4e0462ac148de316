"""Directory, titles and commands of a demo; commands run as printed."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from brimful.blobs import atomic_file
from brimful.errors import SettingsError, TaskFailedError
from brimful.messages import setting

Say = Callable[[str], object]
"""Function that receives each line."""

_MARK = "demo.json"
"""File that marks a directory as belonging to this demo."""


def show_title(say: Say, number: int, text: str) -> None:
    """Show the title of a step."""
    for line in ("", f"{number}. {text}", ""):
        say(line)


def run_command(say: Say, home: Path, arguments: Sequence[str], max_lines: int | None = None) -> None:
    """Show a command, run it in the directory of the demo, and show its output.

    Raises:
        TaskFailedError: the command failed, and printed the reason.
    """
    say(f"$ brimful {' '.join(arguments)}")
    # The cache belongs to the demo too, and no command contacts the hub.
    environment = {**os.environ, "BRIMFUL_CACHE": str(home / "cache"), "HF_HUB_OFFLINE": "1", "PYTHONUTF8": "1"}
    process = subprocess.run(
        [sys.executable, "-m", "brimful", *arguments],
        cwd=home,
        env=environment,
        stdout=subprocess.PIPE,
        encoding="utf-8",
        check=False,
    )
    lines = process.stdout.splitlines()
    for line in lines[:max_lines]:
        say(line)
    if max_lines is not None and len(lines) > max_lines:
        say(f"(trimmed here: {len(lines) - max_lines:,} more lines)")
    if process.returncode:
        raise TaskFailedError(f"`brimful {' '.join(arguments)}` ended with exit code {process.returncode}; see above")


def claim(home: Path, mark: Mapping[str, Any]) -> Path:
    """Return the directory, which is new, empty, or of an earlier run of the same demo."""
    text = json.dumps(mark)
    if home.exists() and not home.is_dir():
        raise SettingsError(f"{setting('directory', str(home))} is a file: name a new directory for the demo")
    if home.exists() and any(home.iterdir()):
        mark_file = home / _MARK
        if not mark_file.is_file() or mark_file.read_text(encoding="utf-8") != text:
            raise SettingsError(
                f"{setting('directory', str(home))} has files already, and not of this demo; name a new directory"
            )
    home.mkdir(parents=True, exist_ok=True)
    write_file(home / _MARK, text.encode())
    return home


def write_file(path: Path, content: bytes) -> None:
    """Write a file unless it has this content already: its date shows whether it changed."""
    if path.is_file() and path.read_bytes() == content:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(str(path)) as file:
        file.write(content)
