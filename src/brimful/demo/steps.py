"""Steps of the demo, in the order shown. Its commands run as printed."""

import importlib.util
import json
import os
import platform
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from brimful.demo.chats import Chat, make_chats
from brimful.demo.commands import Say, claim, run_command, show_title, write_file
from brimful.demo.tokenizer import train_tokenizer
from brimful.demo.train import TrainingRun, compare_training, draw_comparison, make_model
from brimful.errors import missing_extra
from brimful.serve import PackStore, open_packs

_CAPACITY = 2048
"""Tokens of a pack."""

_MAX_LINES_OF_PACK = 40
"""Maximum number of lines shown of the inspected pack; the others are counted."""

_PACKAGES = ("tokenizers", "transformers", "torch")


def run_demo(
    directory: str | os.PathLike[str], say: Say = print, *, limit: int | None = None, steps: int = 12
) -> tuple[TrainingRun, TrainingRun]:
    """Make chats and a tokenizer, pack, report, inspect, and train a tiny model packed and padded.

    Args:
        directory: new, empty, or of an earlier run, which it resumes; receives ``chats.jsonl``, ``tokenizer/``,
            ``packs/``, ``model/`` and ``cache/``.
        say: receives each line.
        limit: largest number of chats; None for all.
        steps: optimizer steps of each training.

    Returns:
        The packed run and the padded one.

    Raises:
        MissingExtraError: a package for training is not installed.
        SettingsError: the directory has files of another origin.
        SourceNotFoundError: this Python has no sources of its library.
        TaskFailedError: a command failed, and printed the reason.
    """
    for package in _PACKAGES:
        if importlib.util.find_spec(package) is None:
            raise missing_extra(package, "text,torch", "brimful demo")
    home = claim(Path(directory).absolute(), {"demo": "text", "python": platform.python_version(), "chats": limit})
    start = time.monotonic()
    say(f"Everything goes to {home}. Nothing is downloaded.")

    show_title(say, 1, "Chats: questions about Python's standard library, answered by its docstrings")
    chats = make_chats(limit=limit)
    data = "".join(json.dumps(chat, ensure_ascii=False) + "\n" for chat in chats).encode()
    write_file(home / "chats.jsonl", data)
    say(f"chats.jsonl    {len(chats):,} chats, {len(data) / 1e6:.1f} MB; one of them:")
    for turn in _short_one(chats)["messages"]:
        say(f"               {turn['role'] + ':':<11}{' '.join(turn['content'].split())}")

    show_title(say, 2, "A tokenizer: byte-level BPE, trained on these texts, with a chat template")
    texts = (turn["content"] for chat in chats for turn in chat["messages"])
    vocab_size = train_tokenizer(texts, home / "tokenizer")
    say(f"tokenizer/     {vocab_size:,} entries")

    show_title(say, 3, f"Pack: exact lengths, a plan, and packs of at most {_CAPACITY:,} tokens")
    say(f"$ cd {home}")
    say("$ export BRIMFUL_CACHE=$PWD/cache")
    packing = ["--tokenizer", "tokenizer", "--max-length", str(_CAPACITY), "--overflow", "drop"]
    run_command(say, home, ["pack", "chats.jsonl", "-o", "packs", *packing])

    show_title(say, 4, "Report: where the tokens are, what the plan gives, and what other capacities would give")
    run_command(say, home, ["report", "packs"])

    show_title(say, 5, "Inspect: one pack with its boundaries; targets of the loss stand between ⟦ and ⟧")
    index = _readable_pack(open_packs(home / "packs"))
    run_command(say, home, ["inspect", "packs", "--pack", str(index)], max_lines=_MAX_LINES_OF_PACK)

    show_title(say, 6, "Train: a tiny model with random weights, the same samples at every step, packed and padded")
    say("packed         4 packs a step, one a forward")
    say("padded         the samples of the same packs, shuffled, 8 a forward, padded to the longest of the 8")
    # Saved with its tokenizer, like models of the hub: the code in the docs trains it.
    make_model(vocab_size).save_pretrained(home / "model")
    shutil.copytree(home / "tokenizer", home / "model", dirs_exist_ok=True)
    say("model/         its initial weights, and the tokenizer: the model that the code in the docs loads")
    runs = compare_training(home / "packs", vocab_size=vocab_size, steps=steps)
    for line in (
        "",
        *draw_comparison(*runs),
        "",
        f"The demo took {time.monotonic() - start:.0f} s. What to do next:",
        "  pack your data     brimful pack chats.jsonl -o packs --tokenizer DIR|ID --max-length 8192 --overflow drop",
        '  train with it      Trainer(model, train_dataset=PackedDataset("packs"), data_collator=collator_for(model))',
        "  see every option   brimful pack --help",
    ):
        say(line)
    return runs


def _short_one(chats: Sequence[Chat]) -> Chat:
    """Return a chat that fits on two lines: the first in the later half whose answer has 60 to 90 characters."""
    turns_of_chats = (chat["messages"] for chat in chats[len(chats) // 2 :])
    short = (
        {"messages": turns} for turns in turns_of_chats if len(turns) == 2 and 60 <= len(turns[1]["content"]) <= 90
    )
    return next(short, {"messages": [{**turn, "content": turn["content"][:90]} for turn in chats[0]["messages"][:2]]})


def _readable_pack(packs: PackStore) -> int:
    """Return the first full pack of three to six segments; the first pack if none is."""
    full = (index for index, pack in enumerate(packs) if 3 <= pack.num_segments <= 6 and len(pack) == packs.capacity)
    return next(full, 0)
