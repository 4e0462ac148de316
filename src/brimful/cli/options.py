"""Options that several commands share, and the objects they stand for."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click
import numpy as np

from brimful.encode import ChatEncoder, Encoder, TextEncoder
from brimful.errors import BrimfulError, InvalidLengthsError, SettingsError, SourceNotFoundError
from brimful.measure import LengthTable
from brimful.progress import Progress, make_progress
from brimful.sources import Source, open_source
from brimful.sources.formats import FORMATS

__all__ = [
    "capacity_option",
    "encoder_options",
    "job_options",
    "lengths_from_npy",
    "make_encoder",
    "make_reporter",
    "make_source",
    "overflow_option",
    "plan_options",
    "required",
    "source_options",
]

Command = TypeVar("Command", bound=Callable[..., Any])


def _together(*options: Callable[[Any], Any]) -> Callable[[Command], Command]:
    def decorate(function: Command) -> Command:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


source_options = _together(
    click.option(
        "--format",
        "format_name",
        metavar="NAME",
        help=f"What rows look like: {', '.join(FORMATS)}. Detected if not given.",
    ),
    click.option(
        "--field",
        "fields",
        metavar="NAME=KEY",
        multiple=True,
        help="A field of the format under another key, e.g. messages=dialogue.",
    ),
    click.option(
        "--text-unit",
        type=click.Choice(["auto", "file", "line"]),
        default="auto",
        help="What one document of a text file is.",
    ),
    click.option(
        "--cache-dir",
        type=click.Path(file_okay=False),
        help="Where indexes and measured lengths are kept (default: $BRIMFUL_CACHE or ~/.cache/brimful).",
    ),
)

encoder_options = _together(
    click.option("--tokenizer", metavar="DIR|ID", help="Tokenizer: a directory or a hub id."),
    click.option(
        "--mode",
        type=click.Choice(["auto", "chat", "text"]),
        default="auto",
        help="Chats through the chat template, or documents; by the format of the rows if auto.",
    ),
    click.option("--chat-template", metavar="FILE", help="A Jinja chat template instead of the tokenizer's own."),
    click.option(
        "--train-on",
        type=click.Choice(["assistant", "last", "all"]),
        default="assistant",
        show_default=True,
        help="Tokens of a chat that are targets: every answer, the last, or all.",
    ),
    click.option("--bos/--no-bos", default=None, help="Documents begin with BOS (default: as the tokenizer does)."),
    click.option("--eos/--no-eos", default=True, show_default=True, help="Documents end with EOS."),
)

job_options = _together(
    click.option(
        "--num-proc",
        type=click.IntRange(min=1),
        help="Processes (default: all cores, one for small data). Never changes the result.",
    ),
    click.option("--json", "as_json", is_flag=True, help="Progress and result as JSON lines."),
    click.option("--quiet", is_flag=True, help="No progress."),
)

bad_sample_option = click.option(
    "--on-bad-sample",
    type=click.Choice(["error", "skip"]),
    default="error",
    show_default=True,
    help="A malformed row stops the job, or is counted and written to a reject file.",
)

capacity_option = click.option(
    "--max-length",
    "--capacity",
    "--packing-length",
    "--seq-length",
    "capacity",
    type=int,
    metavar="TOKENS",
    help="Most tokens of a pack.",
)

overflow_option = click.option(
    "--overflow",
    type=click.Choice(["error", "drop", "truncate", "truncate_left", "split"]),
    default="error",
    show_default=True,
    help="What becomes of samples longer than a pack.",
)

plan_options = _together(
    capacity_option,
    overflow_option,
    click.option(
        "--algorithm",
        default="auto",
        show_default=True,
        metavar="NAME",
        help="How to pack: auto, optimal, best_fit_decreasing, first_fit_decreasing, next_fit.",
    ),
    click.option("--time-limit", type=float, metavar="SECONDS", help="Most that auto (5) and optimal (60) may search."),
    click.option(
        "--seed", type=int, default=0, show_default=True, help="Of the order of packs and of equally long samples."
    ),
)


def required(value: Any, flag: str, why: str) -> Any:
    """An option that a command cannot do without, with an error that says what it is for."""
    if value is None:
        raise SettingsError(f"{flag} is missing: {why}")
    return value


def make_source(data: Sequence[str], options: Mapping[str, Any]) -> Source:
    """The source that the options describe."""
    mapping: dict[str, str] = {}
    for field in options["fields"]:
        name, equals, key = field.partition("=")
        if not (name and equals and key):
            raise SettingsError(f"--field {field!r} must be NAME=KEY, such as messages=dialogue")
        mapping[name] = key
    paths: Any = data[0] if len(data) == 1 else [_Path(path) for path in data]
    return open_source(
        paths,
        format=options["format_name"],
        fields=mapping or None,
        text_unit=options["text_unit"],
        cache_dir=options["cache_dir"],
    )


class _Path(str):
    """A path of several; ``open_source`` tells lists of paths from lists of rows by their type."""

    def __fspath__(self) -> str:
        return str(self)


def make_encoder(source: Source, options: Mapping[str, Any]) -> Encoder:
    """The encoder that the options and the format of the source describe."""
    name = options["tokenizer"]
    required(name, "--tokenizer", "name the directory or hub id of the tokenizer of your model")
    mode = options["mode"]
    if mode == "text" or (mode == "auto" and source.format.name == "text"):
        return TextEncoder(name, bos=options["bos"], eos=options["eos"])
    return ChatEncoder(name, chat_template=options["chat_template"], train_on=options["train_on"])


def make_reporter(as_json: bool, quiet: bool) -> Progress:
    """Where progress goes: a bar on a terminal, lines elsewhere, JSON or nothing if asked."""
    return make_progress("json" if as_json else "none" if quiet else "auto", sys.stderr)


def show_json(value: Any) -> None:
    """A result for machines, on one line."""
    click.echo(json.dumps(value, ensure_ascii=False))


def is_ours(path: str, kind: str) -> bool:
    """Whether a path is a file that brimful wrote, of that kind."""
    from brimful.columns import open_columns

    if not os.path.isfile(path):
        return False
    try:
        return open_columns(path).description.get("kind") == kind
    except (BrimfulError, OSError):
        return False


def lengths_from_npy(path: str) -> LengthTable:
    """A table of the whole numbers in a .npy file.

    Raises:
        SourceNotFoundError: no such file.
        InvalidLengthsError: no .npy file, no whole numbers, none at all, or one below 1.
    """
    try:
        numbers = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError as error:
        raise SourceNotFoundError(f"{path}: no such file") from error
    except (ValueError, EOFError, OSError) as error:
        raise InvalidLengthsError(f"{path} is no .npy file of numbers: {error}") from error
    try:
        table = LengthTable.from_lengths(numbers)
    except InvalidLengthsError as error:
        raise InvalidLengthsError(f"{path}: {error}") from error
    if len(table) == 0:
        raise InvalidLengthsError(f"{path} holds nothing: there are no lengths")
    return table
