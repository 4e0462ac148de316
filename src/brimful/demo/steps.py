"""What the demo shows, step by step. Its commands are run as they are printed."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from brimful.demo.chats import Chat, make_chats
from brimful.demo.tokenizer import train_tokenizer
from brimful.demo.train import TrainingRun, compare_training, draw_comparison
from brimful.errors import SettingsError, TaskFailedError, missing_extra
from brimful.messages import setting
from brimful.serve import PackStore, open_packs

__all__ = ["run_demo"]

_CAPACITY = 2048
_LINES_SHOWN = 40
_NEEDED = ("tokenizers", "transformers", "torch")

Say = Callable[[str], object]


def run_demo(
    directory: str | os.PathLike[str], say: Say = print, *, limit: int | None = None, steps: int = 12
) -> tuple[TrainingRun, TrainingRun]:
    """Make chats and a tokenizer, pack, report, inspect, and train a tiny model packed and padded.

    Args:
        directory: where everything goes: ``chats.jsonl``, ``tokenizer/``, ``packs/``, ``cache/``. New or empty.
        say: takes each line.
        limit: most chats; None for all.
        steps: optimizer steps of each training.

    Returns:
        The packed run and the padded one.

    Raises:
        MissingExtraError: something to train with is not installed.
        SettingsError: there are files in the directory.
        SourceNotFoundError: this Python has no sources of its library.
        TaskFailedError: one of the commands failed; it said why.
    """
    for package in _NEEDED:
        if importlib.util.find_spec(package) is None:
            raise missing_extra(package, "text,torch", "brimful demo")
    home = Path(directory).absolute()
    if home.exists() and (not home.is_dir() or any(home.iterdir())):
        raise SettingsError(
            f"{setting('directory', directory)}: there are files already; name a new directory for the demo"
        )
    home.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    say(f"Everything goes to {home}. Nothing is downloaded.")

    _title(say, 1, "Chats: questions about Python's standard library, answered by its docstrings")
    chats = make_chats(limit=limit)
    data = "".join(json.dumps(chat, ensure_ascii=False) + "\n" for chat in chats).encode()
    (home / "chats.jsonl").write_bytes(data)
    say(f"chats.jsonl    {len(chats):,} chats, {len(data) / 1e6:.1f} MB; one of them:")
    for turn in _short_one(chats)["messages"]:
        say(f"               {turn['role'] + ':':<11}{' '.join(turn['content'].split())}")

    _title(say, 2, "A tokenizer: byte-level BPE, trained on these texts, with a chat template")
    texts = (turn["content"] for chat in chats for turn in chat["messages"])
    vocab_size = train_tokenizer(texts, home / "tokenizer")
    say(f"tokenizer/     {vocab_size:,} entries")

    _title(say, 3, f"Pack: exact lengths, a plan, and packs of at most {_CAPACITY:,} tokens")
    say(f"$ cd {home}")
    say("$ export BRIMFUL_CACHE=$PWD/cache")
    packing = ["--tokenizer", "tokenizer", "--max-length", str(_CAPACITY), "--overflow", "drop"]
    _run(say, home, ["pack", "chats.jsonl", "-o", "packs", *packing])

    _title(say, 4, "Report: where the tokens are, what the plan gives, and what other capacities would give")
    _run(say, home, ["report", "packs"])

    _title(say, 5, "Inspect: one pack with its boundaries; targets of the loss stand between ⟦ and ⟧")
    shown = _readable_pack(open_packs(home / "packs"))
    _run(say, home, ["inspect", "packs", "--pack", str(shown)], most_lines=_LINES_SHOWN)

    _title(say, 6, "Train: a tiny model with random weights, the same samples at every step, packed and padded")
    say("packed         4 packs a step, one a forward")
    say("padded         the samples of the same packs, shuffled, 8 a forward, padded to the longest of the 8")
    runs = compare_training(home / "packs", vocab_size=vocab_size, steps=steps)
    say("")
    for line in draw_comparison(*runs):
        say(line)

    say("")
    say(f"The demo took {time.monotonic() - begin:.0f} s. What to do next:")
    say("  pack your data     brimful pack chats.jsonl -o packs --tokenizer DIR|ID --max-length 8192 --overflow drop")
    say('  train with it      DataLoader(PackedDataset("packs"), batch_size=1, collate_fn=PackCollator())')
    say("  see every option   brimful pack --help")
    return runs


def _title(say: Say, number: int, text: str) -> None:
    say("")
    say(f"{number}. {text}")
    say("")


def _short_one(chats: Sequence[Chat]) -> Chat:
    """A chat that fits on two lines: the first in the later half whose answer is one line of some length."""
    for chat in chats[len(chats) // 2 :]:
        if len(chat["messages"]) == 2 and 60 <= len(chat["messages"][1]["content"]) <= 90:
            return chat
    return {"messages": [{**turn, "content": turn["content"][:90]} for turn in chats[0]["messages"][:2]]}


def _readable_pack(packs: PackStore) -> int:
    """The first full pack of a few segments; the first of all if there is none."""
    for index, pack in enumerate(packs):
        if 3 <= pack.num_segments <= 6 and len(pack) == packs.capacity:
            return index
    return 0


def _run(say: Say, home: Path, arguments: Sequence[str], most_lines: int | None = None) -> None:
    """Show a command, run it in the directory of the demo, and show what it printed."""
    say(f"$ brimful {' '.join(arguments)}")
    environment = {**os.environ, "BRIMFUL_CACHE": str(home / "cache"), "HF_HUB_OFFLINE": "1", "PYTHONUTF8": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "brimful.cli", *arguments],
        cwd=home,
        env=environment,
        stdout=subprocess.PIPE,
        encoding="utf-8",
        check=False,
    )
    lines = done.stdout.splitlines()
    for line in lines[:most_lines]:
        say(line)
    if most_lines is not None and len(lines) > most_lines:
        say(f"(trimmed here: {len(lines) - most_lines:,} lines more)")
    if done.returncode:
        raise TaskFailedError(f"`brimful {' '.join(arguments)}` ended with exit code {done.returncode}; see above")
