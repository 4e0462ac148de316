"""Titles and commands of a demo, which are run as they are printed."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from brimful.errors import TaskFailedError

Say = Callable[[str], object]
"""Function that takes each line."""


def show_title(say: Say, number: int, text: str) -> None:
    """Show the title of a step."""
    for line in ("", f"{number}. {text}", ""):
        say(line)


def run_command(say: Say, home: Path, arguments: Sequence[str], max_lines: int | None = None) -> None:
    """Show a command, run it in the directory of the demo, and show what it printed.

    Raises:
        TaskFailedError: it failed, and said why.
    """
    say(f"$ brimful {' '.join(arguments)}")
    # The cache belongs to the demo too, and nothing asks the hub.
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
        say(f"(trimmed here: {len(lines) - max_lines:,} lines more)")
    if process.returncode:
        raise TaskFailedError(f"`brimful {' '.join(arguments)}` ended with exit code {process.returncode}; see above")
