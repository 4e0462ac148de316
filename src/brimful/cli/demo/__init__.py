"""``brimful demo``: the whole pipeline on real text from this machine. No network, no GPU.

::

    docstrings ─► chats ─► tokenizer ─► brimful pack, report, inspect

Its commands run as printed; a second run resumes a stopped one.
"""

import contextlib
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click

from brimful.base.atomic_file import atomic_file
from brimful.base.typing import AnyPath
from brimful.base.wording import setting
from brimful.cli.options import command, grouped, json_option
from brimful.cli.program import show
from brimful.errors import SettingsError, TaskFailedError, missing_extra

_MAX_LINES_OF_PACK = 40
"""Maximum number of lines shown of the inspected pack."""


@command()
@grouped(
    "Output",
    click.option(
        "-o",
        "--output",
        metavar="DIR",
        help="Directory for the files; kept (default: a temporary one).",
    ),
    click.option("--keep", is_flag=True, help="Keep the temporary directory."),
)
@json_option
def demo(output: str | None, keep: bool, as_json: bool) -> None:
    """Pack the docstrings of Python's standard library, report, and inspect a pack.

    Run again on the same directory, it continues. It takes half a minute on two cores, needs no
    network and no GPU, and writes nothing outside its directory.
    """
    # With --json, standard output is only for the result.
    say = partial(click.echo, err=as_json)
    # The stack removes a temporary directory at the end; a named or kept one stays.
    with contextlib.ExitStack() as stack:
        directory = tempfile.mkdtemp(prefix="brimful-demo-") if output is None else output
        is_permanent = keep or output is not None
        if not is_permanent:
            stack.callback(shutil.rmtree, directory)
        summary = run_demo(directory, say)
        if is_permanent:
            say(f"All files stay in {directory}")
        else:
            say(f"{directory} is removed now; keep it with --keep, or name one with -o DIR")
        result = {"directory": directory if is_permanent else None, **summary}
        show(result, lambda: (), as_json)


def run_demo(
    directory: AnyPath, say: Callable[[str], object] = print, *, limit: int | None = None
) -> dict[str, Any]:
    """Make chats, a tokenizer and a tiny model; pack, report and inspect.

    Args:
        directory: new, empty, or of an earlier run, which it resumes; receives ``chats.jsonl``,
            ``tokenizer/``, ``model/``, ``packs/`` and ``cache/``.
        say: receives each line.
        limit: largest number of chats; None for all.

    Returns:
        The summary of ``packs``, as its ``summary.json`` has it.

    Raises:
        MissingExtraError: a required package is not installed.
        SettingsError: the directory has files of another origin.
        SourceNotFoundError: this Python has no sources of its library.
        TaskFailedError: a command failed, and printed the reason.
    """
    home = _prepared(directory, say, limit=limit)
    run = partial(_run, home, say)
    say("\n3. Pack: exact lengths, a plan, and packs of at most 2,048 tokens\n")
    options = ("--tokenizer", "tokenizer", "--max-length", "2048", "--overflow", "drop")
    run("pack", "chats.jsonl", "-o", "packs", *options)

    say("\n4. Report: where the tokens are, and what other capacities would give\n")
    run("report", "packs")

    say("\n5. Inspect: one pack with its boundaries; targets of the loss stand between ⟦ and ⟧\n")
    run("inspect", "packs", "--pack", "0", max_lines=_MAX_LINES_OF_PACK)

    for line in (
        "\nWhat to do next:",
        "  pack your data     brimful pack chats.jsonl -o packs --tokenizer DIR|ID --max-length "
        "8192 --overflow drop",
        '  train with it      Trainer(model, train_dataset=PackedDataset("packs"), '
        "data_collator=collator_for(model))",
        "  prove it           brimful verify --model model packs",
        "  see every option   brimful pack --help",
    ):
        say(line)
    summary: dict[str, Any] = json.loads((home / "packs" / "summary.json").read_text("utf-8"))
    return summary


def _prepared(directory: AnyPath, say: Callable[[str], object], *, limit: int | None) -> Path:
    """Make chats, a tokenizer and a tiny model; return their directory."""
    for package in ("tokenizers", "transformers", "torch"):
        if importlib.util.find_spec(package) is None:
            raise missing_extra(package, "text,torch", "brimful demo")
    from brimful.cli.demo.docstring_chats import make_chats
    from brimful.cli.demo.toy_model import make_model, train_tokenizer

    home = Path(directory).absolute()
    # The mark says that a directory belongs to this demo, made with this Python.
    mark_file = home / "demo.json"
    mark = json.dumps({"python": platform.python_version(), "chats": limit})
    home.mkdir(parents=True, exist_ok=True)
    if any(home.iterdir()) and not (mark_file.is_file() and mark_file.read_text("utf-8") == mark):
        raise SettingsError(
            f"{setting('directory', str(home))} has files already, and not of this demo; name a "
            "new directory"
        )
    mark_file.write_text(mark, encoding="utf-8")

    say(f"Everything goes to {home}. Nothing is downloaded. Commands run there, after")
    say("$ export BRIMFUL_CACHE=$PWD/cache")

    say("\n1. Chats: questions about Python's standard library, answered by its docstrings\n")
    chats = make_chats()[:limit]
    with atomic_file(str(home / "chats.jsonl")) as file:
        for chat in chats:
            file.write(f"{json.dumps(chat, ensure_ascii=False)}\n".encode())
    say(f"chats.jsonl    {len(chats):,} chats; one of them:")
    for turn in chats[0]["messages"][:2]:
        say(f"               {turn['role'] + ':':<11}{' '.join(turn['content'].split())[:90]}")

    say("\n2. A tokenizer: byte-level BPE, trained on these texts, with a chat template\n")
    texts = [turn["content"] for chat in chats for turn in chat["messages"]]
    vocab_size = train_tokenizer(texts, home / "tokenizer")
    say(f"tokenizer/     {vocab_size:,} entries")
    # Saved with its tokenizer, like models of the hub.
    make_model(vocab_size).save_pretrained(home / "model")
    shutil.copytree(home / "tokenizer", home / "model", dirs_exist_ok=True)
    say("model/         a tiny Qwen2 of random weights with it, for the code in the docs")
    return home


def _run(
    home: Path, say: Callable[[str], object], *arguments: str, max_lines: int | None = None
) -> None:
    """Show a command, run it in the directory of the demo, and show its output."""
    title = f"brimful {' '.join(arguments)}"
    say(f"$ {title}")
    # The cache belongs to the demo too, and no command contacts the hub.
    settings = {"BRIMFUL_CACHE": str(home / "cache"), "HF_HUB_OFFLINE": "1", "PYTHONUTF8": "1"}
    process = subprocess.run(
        [sys.executable, "-m", "brimful", *arguments],
        cwd=home,
        env={**os.environ, **settings},
        stdout=subprocess.PIPE,
        encoding="utf-8",
        check=False,
    )
    for line in process.stdout.splitlines()[:max_lines]:
        say(line)
    if process.returncode:
        raise TaskFailedError(f"`{title}` ended with exit code {process.returncode}; see above")
