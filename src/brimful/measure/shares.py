"""Shares of a measuring job: which are done, and a note next to the path of the unfinished table."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from brimful.base.atomic_file import atomic_file
from brimful.base.blobs.local import LocalBlobStore
from brimful.base.execute import Execution
from brimful.base.wording import setting

_MAX_NAMED = 8
"""Shares that a message names; a job array of thousands may lack most of them."""


def missing_shares(folder: Path, num_tasks: int) -> list[int]:
    """Return the shares without a file for their end in the folder of a job."""
    done = {name.rsplit("/", 1)[-1] for name in LocalBlobStore(folder).list(f"{num_tasks}")}
    return [index for index in range(num_tasks) if str(index) not in done]


def in_words(shares: Sequence[int]) -> str:
    """Return numbers of shares for a message.

    >>> in_words([3, 7]), in_words(range(12))
    ('3, 7', '0, 1, 2, 3, 4, 5, 6, 7 and 4 more')
    """
    named = ", ".join(map(str, shares[:_MAX_NAMED]))
    return named if len(shares) <= _MAX_NAMED else f"{named} and {len(shares) - _MAX_NAMED} more"


def note_shares(target: str | os.PathLike[str], folder: Path, execution: Execution, source: str) -> None:
    """Write a note next to a table that waits for other shares, so that its readers can name them."""
    note = {"folder": os.path.abspath(folder), "num_tasks": execution.num_tasks, "source": source}
    with atomic_file(_note_of(target)) as file:
        file.write(json.dumps(note).encode())


def forget_shares(target: str | os.PathLike[str]) -> None:
    """Remove the note: the table exists."""
    _note_of(target).unlink(missing_ok=True)


def unfinished_shares(target: str | os.PathLike[str]) -> str | None:
    """Describe the shares that a table waits for, and the commands that measure them; None without a note."""
    try:
        note = json.loads(_note_of(target).read_bytes())
        num_tasks, source = int(note["num_tasks"]), str(note["source"])
        missing = missing_shares(Path(note["folder"]), num_tasks)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    command = f"{measure_command([source], os.fspath(target))} with the settings of the other shares"
    index = setting("task_index", missing[0] if missing else None)
    share = f"and {index} {setting('num_tasks', num_tasks)}, or without both, " if missing else "and without shares "
    which = (
        f"of {num_tasks} shares {in_words(missing)} are missing"
        if missing
        else "its shares are done and were not joined"
    )
    return f"{os.fspath(target)} is not there yet, {which}: {command} {share}measures what is missing and joins them"


def measure_command(sources: Sequence[str], output: str, flags: Sequence[str] = ()) -> str:
    """Return the command that measures sources into a length table, for messages to show.

    >>> measure_command(["chats.jsonl", "…"], "lengths of chats")
    "brimful measure chats.jsonl … -o 'lengths of chats'"
    """
    words = ["brimful", "measure", *sources, *flags, "-o", output]
    return " ".join(word if word == "…" else shlex.quote(word) for word in words)


def _note_of(target: str | os.PathLike[str]) -> Path:
    return Path(f"{os.fspath(target)}.shares.json")
