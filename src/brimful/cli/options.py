"""Options of commands, made from the settings of the library, in named groups.

A field of settings that has a help (``brimful.base.arguments``) is a flag and a key of
``--config``. ``--help`` shows the options that people use, ``--help-all`` all of them.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from enum import Enum
from functools import partial
from textwrap import shorten
from types import UnionType
from typing import Any, Literal, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

import click

from brimful.base.arguments import Help
from brimful.base.execute import Execution
from brimful.cli.config import SourceArgument, apply_file
from brimful.cli.mixture import read_mixture
from brimful.encode.choose import EncoderSettings
from brimful.errors import SettingsError
from brimful.media.families import MediaSettings
from brimful.plan import PlanSettings
from brimful.plan.policies.trainer_multiples import KERNELS, RULES
from brimful.report.analysis.training_run import MODELS, TrainingRun
from brimful.sources.settings import SourceSettings
from brimful.store.claim import JobSettings

Command = TypeVar("Command", bound=Callable[..., Any])

Decorator: TypeAlias = Callable[[Any], Any]
"""A function from a command to the same command with more options."""

_GROUP = "brimful_group"
"""Attribute of an option that holds the title of its group."""

_SHOW_ALL = "brimful.show_all"
"""Key of ``click.Context.meta`` that is true if the help shows all options."""

_NAME_WIDTH = 30
"""Characters of the column of names in the help; a longer name has a line of its own."""

_OTHER = "Other"
"""Title of the options without a group."""

_MANY = 30
"""Options of a command from which on ``--help`` shows only the ones in ``_COMMON``, member in one
line.
"""

_COMMON = frozenset(
    {
        *("format", "fields", "on_bad_sample", "max_samples", "rejects"),
        *("tokenizer", "mode", "chat_template", "system", "train_on"),
        *("processor", "max_pixels", "media_storage"),
        *(
            "capacity",
            "overflow",
            "no_target",
            "algorithm",
            "budgets",
            "mixture",
            "seed",
            "cp",
            "lookahead",
        ),
        *("what_if", "dp_world_size", "micro_batch_size", "learning_rate"),
        *("producer", "close", "max_age", "lanes", "high_water", "trainings"),
        *(
            "output",
            "as_json",
            "quiet",
            "num_proc",
            "config_file",
            "task_index",
            "num_tasks",
            "help_all",
        ),
    }
)
"""Options that ``--help`` shows of a command that has many."""


def value_option(flag: str, metavar: str, help: str, *names: str, **settings: Any) -> Decorator:
    """Return an option that takes a value.

    Args:
        flag: the flag, such as ``--field``.
        metavar: placeholder of the value in ``--help``.
        help: help text of the option.
        names: other flags, and the argument's name if it differs from the flag's.
        settings: further settings of ``click.option``.
    """
    return click.option(flag, *names, metavar=metavar, help=help, **settings)


def grouped(title: str, *options: Decorator) -> Callable[[Command], Command]:
    """Return one decorator for several options under one heading of ``--help``; nested groups keep
    their heading.
    """

    def decorate(function: Command) -> Command:
        for option in reversed(options):
            function = option(function)
            # Click appends options to this list until the function becomes a command.
            vars(function.__click_params__[-1]).setdefault(_GROUP, title)  # type: ignore[attr-defined]
        return function

    return decorate


def options_of(settings: type[Any], title: str, *names: str) -> Callable[[Command], Command]:
    """Return the options of settings: all fields that have a help, or only those of these names."""
    hints = get_type_hints(settings)
    members = [
        member
        for member in fields(settings)
        if "help" in member.metadata and member.name in (names or hints)
    ]
    return grouped(title, *(_option(member, hints[member.name]) for member in members))


def _option(field: Field[Any], hint: Any) -> Decorator:
    """Return the option of one field: its type says if it is a switch, a choice, a number, or may
    be repeated.
    """
    help: Help = field.metadata["help"]
    flag, *aliases = help.flags or (f"--{field.name.replace('_', '-')}",)
    default = None if field.default is MISSING else field.default
    types = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    outer_types = {get_origin(type_) or type_ for type_ in types}
    choices = help.choices or [
        str(getattr(choice, "value", choice))
        for type_ in types
        for choice in (
            get_args(type_) if get_origin(type_) is Literal else type_ if _is_enum(type_) else ()
        )
    ]
    facts: dict[str, Any] = {"help": help.text, "metavar": help.form}
    if bool in types:
        if default is not False:
            flag = f"{flag}/--no-{flag.removeprefix('--')}"
        facts |= {"default": default, "is_flag": True, "metavar": None}
    elif Mapping in outer_types or Sequence in outer_types:
        facts |= {"multiple": True, "help": f"{help.text} May be given several times."}
        if Mapping in outer_types:
            value_type = get_args(types[0])[1]
            suffix = " with a whole number" if value_type is int else ""
            form = f"{help.form}{suffix}, such as {help.example}"
            facts["callback"] = pairs_of(flag, form, value_type)
    elif choices:
        facts |= {"type": click.Choice(choices), "default": getattr(default, "value", default)}
    else:
        type_ = next((type_ for type_ in (int, float) if type_ in types), str)
        if help.minimum is not None:
            type_ = click.IntRange(min=help.minimum)  # type: ignore[assignment]
        elif os.PathLike in outer_types:
            type_ = click.Path(file_okay=False)  # type: ignore[assignment]
        facts |= {"type": type_, "default": default, "show_default": default not in (None, "", 0)}

    return click.option(flag, *aliases, field.name, **facts)


def _is_enum(type_: Any) -> bool:
    return isinstance(type_, type) and issubclass(type_, Enum)


def pairs_of(flag: str, form: str, type_: Any = Any) -> Callable[..., dict[str, Any] | None]:
    """Return the callback of an option that takes texts ``NAME=VALUE``; it gives a dictionary, or
    None without any.

    Args:
        flag: the flag, for messages.
        form: the form of a text, for messages.
        type_: type of the values: ``int``, ``str``, or ``Any`` for JSON.
    """

    def parse(_: click.Context, __: click.Parameter, texts: Sequence[str]) -> dict[str, Any] | None:
        values: dict[str, Any] = {}
        for text in texts:
            name, equals, value = text.partition("=")
            if (
                not (name and equals)
                or (type_ is int and not value.isdecimal())
                or (type_ is str and not value)
            ):
                raise SettingsError(f"{flag} {text!r} must be {form}")
            # Otherwise the second limit would silently replace the first.
            if type_ is int and name in values:
                raise SettingsError(f"{flag} {name} is given twice")
            values[name] = type_(value) if type_ in (int, str) else _json_or_text(value)
        return values or None

    return parse


def _json_or_text(text: str) -> Any:
    """Return a value as JSON if possible: templates test booleans, and the text "false" would be
    true.
    """
    try:
        return json.loads(text)
    except ValueError:
        return text


class GroupedCommand(click.Command):
    """A command that lists its options group by group, in order of first appearance; options
    without a group come last.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._is_long = len(self.params) > _MANY
        if self._is_long:
            num_more = sum(
                isinstance(item, click.Option) and item.name not in _COMMON for item in self.params
            )
            show_all: dict[str, Any] = {
                "is_flag": True,
                "is_eager": True,
                "expose_value": False,
                "callback": _show_all,
            }
            self.params.append(
                click.Option(["--help-all"], **show_all, help=f"Show {num_more} more options.")
            )

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        is_short = self._is_long and not ctx.meta.get(_SHOW_ALL)
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = _record(ctx, parameter) if isinstance(parameter, click.Option) else None
            # Click adds --help itself.
            is_rare = parameter in self.params and parameter.name not in _COMMON
            if record is None or (is_short and is_rare):
                continue
            if is_short:
                record = (
                    record[0],
                    shorten(record[1], formatter.width - _NAME_WIDTH, placeholder=" …"),
                )
            groups.setdefault(getattr(parameter, _GROUP, _OTHER), []).append(record)
        # The sort is stable: it moves only the options without a group.
        for title, records in sorted(groups.items(), key=lambda group: group[0] == _OTHER):
            with formatter.section(title):
                formatter.write_dl(records, col_max=min(_NAME_WIDTH, formatter.width // 3))


def _show_all(ctx: click.Context, _: click.Parameter, is_given: bool) -> None:
    if is_given:
        ctx.meta[_SHOW_ALL] = True
        click.echo(ctx.get_help())
        ctx.exit()


def _record(ctx: click.Context, option: click.Option) -> tuple[str, str] | None:
    """Return the names and help of an option: its first long name, and its other names after the
    help.
    """
    record = option.get_help_record(ctx)
    # A line of help has room for one long name.
    name, *aliases = [flag for flag in option.opts if flag.startswith("--")]
    if record is None or not aliases:
        return record
    names, text = record
    return names.replace(", ".join([name, *aliases]), name), f"{text} Also {', '.join(aliases)}."


command = partial(click.command, cls=GroupedCommand)
source_argument = click.argument("source", nargs=-1, required=True, cls=SourceArgument)
row_options = options_of(SourceSettings, "Source", "format", "fields", "ignore", "prompt")
media_place_options = options_of(SourceSettings, "Media", "media_dir", "media_outside")
file_options = grouped(
    "Source",
    row_options,
    options_of(SourceSettings, "Source", "text_unit", "split", "config", "max_samples", "per_turn"),
)
source_options = grouped(
    "Source",
    file_options,
    value_option(
        "--transform",
        "MODULE:NAME",
        "A function that maps a sample to the sample to train on, before encoding; may be given "
        "several times.",
        "transforms",
        multiple=True,
    ),
)
encoder_options = grouped(
    "Encoding",
    value_option("--tokenizer", "DIR|ID", "Tokenizer: a directory or a hub id."),
    options_of(EncoderSettings, "Encoding"),
    options_of(MediaSettings, "Media"),
    media_place_options,
)
media_storage_option = options_of(JobSettings, "Media", "media_storage")
max_patches_option = grouped(
    "Media",
    value_option(
        "--max-patches", "N", "Most patches per pack: short for --budget patches=N.", type=int
    ),
)
json_option = grouped(
    "Output",
    click.option(
        "--json", "as_json", is_flag=True, help="Print result, progress and errors as JSON lines."
    ),
)
quiet_option = grouped("Output", click.option("--quiet", is_flag=True, help="No progress."))
job_options = grouped(
    "Output", json_option, quiet_option, options_of(JobSettings, "Job", "num_proc", "cache_dir")
)
engine_option = options_of(Execution, "Job", "engine")
execution_options = options_of(Execution, "Job")
store_options = grouped("Output", value_option("-o", "DIR", "Directory of the packs.", "--output"))
sample_options = options_of(JobSettings, "Source", "on_bad_sample")
plan_options = grouped(
    "Packing",
    options_of(PlanSettings, "Packing"),
    value_option(
        "--groups",
        "FILE",
        "A .npy file with a group for each sample: equal groups stay together, -1 alone.",
    ),
    value_option(
        "--mixture",
        "FILE.yaml",
        "Sources with weights and paths: samples or packs are drawn by weight (docs/mixtures.md).",
        callback=read_mixture,
        is_eager=True,
    ),
    grouped(
        "Alignment",
        value_option(
            "--align",
            "TOKENS",
            "Plan for segments padded to a multiple of this.",
            "segment",
            type=int,
        ),
        value_option(
            "--align-total",
            "TOKENS",
            "Plan for rows padded to a multiple of this.",
            "total",
            type=int,
        ),
        value_option(
            "--cp", "RANKS", "Align for context parallelism over this many ranks.", type=int
        ),
        value_option(
            "--tp",
            "RANKS",
            "Align for tensor and sequence parallelism over this many ranks.",
            type=int,
        ),
        value_option(
            "--fp8", "FORMAT", "Align rows for a number format: fp8, nvfp4, mxfp8 or blockwise."
        ),
        click.option(
            "--fused-attention", is_flag=True, help="Align rows for cuDNN's fused attention."
        ),
        value_option(
            "--align-for",
            "TRAINER",
            f"Align as this trainer pads: {', '.join(RULES)} (default: {KERNELS}).",
        ),
    ),
)
training_options = grouped(
    "Training run",
    options_of(TrainingRun, "Training run"),
    value_option("--model-type", "NAME", f"Model whose costs are used: {', '.join(MODELS)}."),
    value_option("--model-config", "FILE", "The config.json of your model, for its costs."),
)
config_option = grouped(
    "Job",
    value_option(
        "--config",
        "FILE.yaml",
        "A file of options by name, and source: paths; flags override it.",
        "config_file",
        is_eager=True,
        expose_value=False,
        callback=apply_file,
    ),
)
