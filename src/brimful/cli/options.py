"""Options that several commands share, and the objects they stand for."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from brimful.cli.artefacts import refuse_as_data
from brimful.cli.command import grouped, together
from brimful.encode import Encoder, Mode, Reasoning, encoder_for
from brimful.errors import InvalidLengthsError, SettingsError, SourceNotFoundError
from brimful.measure import LengthTable
from brimful.plan import Alignment
from brimful.plan.no_target import NoTarget
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

source_options = grouped(
    "Source",
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
        "--ignore",
        multiple=True,
        metavar="NAME",
        help="A column that may be left out though it changes what a sample means (images, label, rejected), or a mark "
        "such as <image> that is plain text.",
    ),
    click.option(
        "--text-unit",
        type=click.Choice(["file", "line"]),
        default="file",
        show_default=True,
        help="What one document of a text file is.",
    ),
    click.option(
        "--split", metavar="NAME", help="Split of a data set that has several (all: every one in a directory)."
    ),
    click.option("--config", metavar="NAME", help="Configuration of a data set that has several."),
    click.option("--max-samples", type=int, metavar="N", help="Take the first N samples: a trial run."),
)

encoder_options = grouped(
    "Encoding",
    click.option("--tokenizer", metavar="DIR|ID", help="Tokenizer: a directory or a hub id."),
    click.option(
        "--mode",
        type=click.Choice([mode.value for mode in Mode]),
        default="auto",
        show_default=True,
        help="Chats through the chat template, prompt and completion without one, documents, or tokens as they are; by "
        "the format of the rows if auto.",
    ),
    click.option("--chat-template", metavar="FILE", help="A Jinja chat template instead of the tokenizer's own."),
    click.option(
        "--template-arg",
        "template_args",
        multiple=True,
        metavar="NAME=VALUE",
        help="A variable of the chat template, such as enable_thinking=false; may be given several times.",
    ),
    click.option("--system", metavar="TEXT", help="System prompt for chats that have none."),
    click.option(
        "--reasoning",
        type=click.Choice([choice.value for choice in Reasoning]),
        default="error",
        show_default=True,
        help="Thoughts (reasoning_content) that the template does not know: refuse, write them as <think>, or drop.",
    ),
    click.option(
        "--date", metavar="YYYY-MM-DD", help="The day that templates write which ask for today's, as Llama 3.1's does."
    ),
    click.option(
        "--train-on",
        type=click.Choice(["assistant", "last", "completion", "all"]),
        help="Tokens that are targets: of a chat every answer (default), the last, or all; of prompt and completion the "
        "completion (default) or all.",
    ),
    click.option(
        "--separator", default="", metavar="TEXT", help="Between prompt and completion, with --mode completion."
    ),
    click.option("--bos/--no-bos", default=None, help="Documents begin with BOS (default: as the tokenizer does)."),
    click.option("--eos/--no-eos", default=True, show_default=True, help="Documents end with EOS."),
)

json_option = grouped(
    "Output", click.option("--json", "as_json", is_flag=True, help="The result, progress and errors as JSON lines.")
)

job_options = together(
    json_option,
    grouped("Output", click.option("--quiet", is_flag=True, help="No progress.")),
    grouped(
        "Job",
        click.option(
            "--num-proc",
            type=click.IntRange(min=1),
            help="Processes (default: all cores, one for small data). Never changes the result.",
        ),
        click.option(
            "--cache-dir",
            type=click.Path(file_okay=False),
            help="Where indexes and measured lengths are kept (default: $BRIMFUL_CACHE or ~/.cache/brimful).",
        ),
    ),
)

bad_sample_option = grouped(
    "Source",
    click.option(
        "--on-bad-sample",
        type=click.Choice(["error", "skip"]),
        default="error",
        show_default=True,
        help="A malformed row stops the job, or is counted and written to a reject file.",
    ),
)

capacity_option = grouped(
    "Packing",
    click.option(
        "--max-length",
        "--capacity",
        "--packing-length",
        "--seq-length",
        "capacity",
        type=int,
        metavar="TOKENS",
        help="Most tokens of a pack; with an alignment, the largest multiple of it within.",
    ),
)

groups_option = grouped(
    "Packing",
    click.option(
        "--groups", metavar="FILE", help="A .npy file with a group for each sample: equal ones stay together, -1 alone."
    ),
)

overflow_option = grouped(
    "Packing",
    click.option(
        "--overflow",
        type=click.Choice(["error", "drop", "truncate", "truncate_left", "split"]),
        default="error",
        show_default=True,
        help="What becomes of samples longer than a pack.",
    ),
)

no_target_option = grouped(
    "Packing",
    click.option(
        "--no-target",
        type=click.Choice([choice.value for choice in NoTarget]),
        default="error",
        show_default=True,
        help="What becomes of samples without a target of the loss, before or after truncation.",
    ),
)

plan_options = together(
    capacity_option,
    overflow_option,
    no_target_option,
    groups_option,
    grouped(
        "Packing",
        click.option(
            "--algorithm",
            default="auto",
            show_default=True,
            metavar="NAME",
            help="How to pack: auto, optimal, phased, best_fit_decreasing (bfd), first_fit_decreasing (ffd), next_fit "
            "(sequential), first_fit, best_fit, worst_fit, concat_split (wrapped).",
        ),
        click.option(
            "--phases", metavar="TEXT", help="What phased does, as in 'powers_of_two; half(min_fill=0.96); finish'."
        ),
        click.option(
            "--budget",
            "budgets",
            multiple=True,
            metavar="NAME=MOST",
            help="Most that a pack may hold of something else: a column of the lengths, samples, or squares. May be given "
            "several times.",
        ),
        click.option(
            "--min-fill",
            type=float,
            default=0.0,
            metavar="SHARE",
            help="Packs below it are packed again, then come last.",
        ),
        click.option(
            "--mix", is_flag=True, help="Exchange segments until packs look like the data, at no cost in fill."
        ),
        click.option("--time-limit", type=float, metavar="SECONDS", help="Most that optimal (60) and auto may search."),
        click.option(
            "--seed", type=int, default=0, show_default=True, help="Of the order of packs and of equally long samples."
        ),
        click.option(
            "--epoch", type=int, default=0, show_default=True, help="Gives a pass over the data its own companions."
        ),
    ),
    grouped(
        "Alignment",
        click.option(
            "--align", type=int, metavar="TOKENS", help="Segments are padded to a multiple of this: plan with it."
        ),
        click.option("--align-total", type=int, metavar="TOKENS", help="So are rows."),
        click.option("--cp", type=int, metavar="RANKS", help="Align for context parallelism of so many ranks."),
        click.option(
            "--tp", type=int, metavar="RANKS", help="Align for tensor and sequence parallelism of so many ranks."
        ),
        click.option("--fp8", metavar="FORMAT", help="Align rows for a number format: fp8, nvfp4, mxfp8 or blockwise."),
        click.option("--fused-attention", is_flag=True, help="Align rows for cuDNN's fused attention."),
    ),
)


def required(value: Any, flag: str, why: str) -> Any:
    """An option that a command cannot do without, with an error that says what it is for."""
    if value is None:
        raise SettingsError(f"{flag} is missing: {why}")
    return value


def plan_arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    """What ``plan_packs`` is called with, but for lengths, capacity and groups."""
    return {
        "algorithm": options["algorithm"],
        "overflow": options["overflow"],
        "no_target": options["no_target"],
        "budgets": _budgets(options["budgets"]),
        "alignment": _alignment(options),
        "min_fill": options["min_fill"],
        "phases": options["phases"],
        "mix": options["mix"],
        "seed": options["seed"],
        "epoch": options["epoch"],
        "time_limit": options["time_limit"],
    }


def measured_budgets(options: Mapping[str, Any]) -> tuple[str, ...]:
    """Columns that measuring must make for the budgets that were asked for."""
    return ("tokens", *(name for name in ("loss_tokens",) if name in (_budgets(options["budgets"]) or {})))


def _budgets(texts: Sequence[str]) -> dict[str, int] | None:
    budgets = {}
    for text in texts:
        name, equals, most = text.partition("=")
        if not (name and equals and most.isdecimal()):
            raise SettingsError(f"--budget {text!r} must be NAME=MOST with a whole number, such as patches=16384")
        if name in budgets:
            raise SettingsError(f"--budget {name} is given twice")
        budgets[name] = int(most)
    return budgets or None


def _alignment(options: Mapping[str, Any]) -> Alignment:
    own = [flag for flag in ("align", "align_total") if options[flag] is not None]
    of_parallelism = [flag for flag in ("cp", "tp", "fp8", "fused_attention") if options[flag] not in (None, False)]
    if own and of_parallelism:
        raise SettingsError(
            f"--{own[0].replace('_', '-')} and --{of_parallelism[0].replace('_', '-')} both say what to align to: leave one out"
        )
    if of_parallelism:
        cp, tp = options["cp"], options["tp"]
        return Alignment.of_parallelism(
            cp=1 if cp is None else cp,
            tp=1 if tp is None else tp,
            sequence_parallel=tp is not None,
            fp8=options["fp8"],
            fused_attention=options["fused_attention"],
        )
    segment, total = options["align"], options["align_total"]
    return Alignment(segment=1 if segment is None else segment, total=1 if total is None else total)


def make_source(data: Sequence[str], options: Mapping[str, Any]) -> Source:
    """The source that the options describe."""
    refuse_as_data(data)
    mapping: dict[str, str] = {}
    for field in options["fields"]:
        name, equals, key = field.partition("=")
        if not (name and equals and key):
            raise SettingsError(f"--field {field!r} must be NAME=KEY, such as messages=dialogue")
        mapping[name] = key
    return open_source(
        data[0] if len(data) == 1 else [Path(path) for path in data],
        format=options["format_name"],
        fields=mapping or None,
        ignore=options["ignore"],
        text_unit=options["text_unit"],
        split=options["split"],
        config=options["config"],
        max_samples=options["max_samples"],
        cache_dir=options["cache_dir"],
    )


def make_encoder(source: Source, options: Mapping[str, Any]) -> Encoder:
    """The encoder that the options and the format of the source describe."""
    return encoder_for(
        source,
        options["tokenizer"],
        mode=options["mode"],
        train_on=options["train_on"],
        chat_template=options["chat_template"],
        template_kwargs=_template_arguments(options["template_args"]),
        system=options["system"],
        reasoning=options["reasoning"],
        date=options["date"],
        separator=options["separator"],
        bos=options["bos"],
        eos=options["eos"],
    )


def _template_arguments(texts: Sequence[str]) -> dict[str, Any]:
    """Variables of a chat template: JSON where it is, else text."""
    variables: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise SettingsError(f"--template-arg {text!r} must be NAME=VALUE, such as enable_thinking=false")
        try:
            variables[name] = json.loads(value)
        except ValueError:
            variables[name] = value
    return variables


def tokenizer_note(encoder: Encoder) -> dict[str, Any]:
    """What a pack store notes of its tokenizer: where it lies, and its fingerprint, so that it can be found again."""
    tokenizer = getattr(encoder, "tokenizer", None)
    if tokenizer is None:
        return {}
    return {"tokenizer": tokenizer.place, "tokenizer_fingerprint": tokenizer.fingerprint}


def make_reporter(as_json: bool, quiet: bool) -> Progress:
    """Where progress goes: a bar on a terminal, lines elsewhere, JSON or nothing if asked."""
    return make_progress("json" if as_json else "none" if quiet else "auto", sys.stderr)


def numbers_from_npy(path: str) -> Any:
    """The array of a .npy file, or the named arrays of a .npz file.

    Raises:
        SourceNotFoundError: no such file.
        InvalidLengthsError: it holds no numbers.
    """
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError as error:
        raise SourceNotFoundError(f"{path}: no such file") from error
    except (ValueError, EOFError, OSError) as error:
        raise InvalidLengthsError(f"{path} is no .npy file of numbers: {error}") from error


def lengths_from_npy(path: str) -> LengthTable:
    """A table of the whole numbers in a .npy file, or of the named columns in a .npz file.

    Raises:
        SourceNotFoundError: no such file.
        InvalidLengthsError: no such file of numbers, no whole numbers, none at all, or one below 1.
    """
    numbers = numbers_from_npy(path)
    try:
        if isinstance(numbers, np.ndarray):
            table = LengthTable.from_lengths(numbers)
        else:
            columns = {"lengths" if name == "tokens" else name: numbers[name] for name in numbers}
            if "lengths" not in columns:
                raise InvalidLengthsError(f"it has {', '.join(numbers)}, and the lengths must be named tokens")
            table = LengthTable.from_lengths(**columns)
    except InvalidLengthsError as error:
        raise InvalidLengthsError(f"{path}: {error.message}") from error
    if len(table) == 0:
        raise InvalidLengthsError(f"{path} holds nothing: there are no lengths")
    return table
