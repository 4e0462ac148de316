"""The program: its commands, settings as flags, results on standard output, and its exit on errors.

>>> from brimful.base.wording import setting
>>> in_flags(f"choose {setting('overflow', 'drop')}, or {setting('capacity', 8192)}")
'choose --overflow drop, or --max-length 8192'
"""

import errno
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from typing import Any, NoReturn

import click

from brimful import __version__
from brimful.base.stopping import STOPPED
from brimful.base.wording import NO_VALUE, as_argument, translate
from brimful.errors import BrimfulError, UnfinishedSharesError

COMMANDS = {
    "demo": "the whole pipeline on real text from this machine, in a minute",
    "pack": "measure, plan and write a data set in one command",
    "measure": "measure the exact lengths of all samples",
    "plan": "decide which samples share which pack",
    "write": "write the packs of a plan",
    "produce": "append packs to a stream while the data still arrives",
    "export": "write packs in the layout of another project: energon, webdataset, megatron, …",
    "verify": "check that packing is right: isolation and parity, on your model",
    "doctor": "say what any run does to packed samples: by its configuration, by a batch",
    "inspect": "show a length table, a plan, a pack store, a stream, one pack with its text, or "
    "where one sample is",
    "report": "report lengths, fill and the effect of other capacities",
}
"""The commands."""

_FILES = {"pack": "jobs", "measure": "jobs", "write": "jobs", "plan": "planning"}
"""Files of commands; the others have a file of their name."""


def command_named(name: str) -> click.Command:
    """Import a command."""
    command: click.Command = getattr(import_module(f"brimful.cli.{_FILES.get(name, name)}"), name)
    return command


_OTHER_NAMES = {"directory": "-o", "path": "-o", "alignment": "--align", "draw": "--mixture"}
"""Flags of arguments that are called otherwise in Python."""


@cache
def _flags_of(command: str) -> dict[str, str]:
    """Return the first flag of each option of a command, by each of its names."""
    of_flags: dict[str, str] = {}
    of_settings: dict[str, str] = {}
    for parameter in command_named(command).params:
        long_flags = [flag for flag in parameter.opts if flag.startswith("--")]
        # A switch that only switches off, such as --no-gradients, is the setting gradients.
        if isinstance(parameter, click.Option) and parameter.is_flag:
            long_flags = [flag.replace("--no-", "--") for flag in long_flags]
        if long_flags:
            of_settings[str(parameter.name)] = long_flags[0]
            of_flags |= {flag[2:].replace("-", "_"): long_flags[0] for flag in long_flags}
    # The setting config is --subset, and not --config.
    return {**of_flags, **of_settings}


def flag_of(name: str) -> str:
    """Return the flag of a setting in the first command that has it; empty if no command has.

    >>> flag_of("capacity"), flag_of("on_bad_sample"), flag_of("pad_to")
    ('--max-length', '--on-bad-sample', '')
    """
    if name in _OTHER_NAMES:
        return _OTHER_NAMES[name]
    # A command is imported only if those before it do not have the setting.
    return next((flags[name] for flags in map(_flags_of, COMMANDS) if name in flags), "")


def in_flags(message: str) -> str:
    """Return a message with its settings as flags."""
    return translate(message, _as_flag)


def _as_flag(name: str, value: Any) -> str:
    flag = flag_of(name)
    # Without a flag, the argument is the only name that a reader can look up.
    if not flag:
        return as_argument(name, value)
    if value is NO_VALUE or value is True:
        return flag
    if value is False:
        return flag.replace("--", "--no-", 1)
    # A mapping or list becomes a repeated flag.
    if isinstance(value, Mapping):
        value = [f"{key}={limit}" for key, limit in value.items()]
    values = value if isinstance(value, list) else [value]
    return " ".join(f"{flag} {shlex.quote(str(item))}" for item in values)


class _Commands(click.Group):
    """A group that imports a command's file when it is used, so that ``brimful --help`` answers at
    once.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return command_named(cmd_name) if cmd_name in COMMANDS else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        # A path in place of a command is a likely mistake: "brimful chats.jsonl".
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            matches = get_close_matches(args[0].lower(), COMMANDS, n=1, cutoff=0.5)
            hint = (
                f"to pack data use `brimful pack {args[0]} …`"
                if os.path.exists(args[0])
                else f"did you mean {matches[0]}?"
                if matches
                else f"use one of {', '.join(COMMANDS)}"
            )
            raise click.UsageError(f"no command {args[0]!r}: {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110, "show_default": True}
"""Settings of click that all commands inherit."""


@click.group(cls=_Commands, context_settings=_SETTINGS)
@click.version_option(__version__, prog_name="brimful")
def _brimful() -> None:
    """Pack training samples of any length into full sequences: plan once, prove it is right, use it
    in any trainer.

    Start with `brimful demo`, or with your data:

      brimful pack chats.jsonl -o packs --tokenizer Qwen/Qwen2.5-7B-Instruct --max-length 8192
      --overflow drop
    """


def run(arguments: Sequence[str]) -> NoReturn:
    """Run one command and exit; see ``brimful.cli.main``."""
    as_json = "--json" in arguments
    try:
        result: Any = _brimful.main(
            args=list(arguments), prog_name="brimful", standalone_mode=False
        )
    except UnfinishedSharesError as error:
        # Not a failure: a Slurm array must not take it for one.
        message = in_flags(error.message)
        print(
            json.dumps({"event": "share", "message": message}) if as_json else message,
            file=sys.stderr,
        )
        sys.exit(0)
    except BrimfulError as error:
        _fail(in_flags(error.message), error, as_json)
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message())
        sys.exit(0)
    except click.ClickException as error:
        _fail(error.format_message(), error, as_json)
    except BrokenPipeError:
        # The reader is gone, such as `head`: Python must not fail again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:
        if error.errno == errno.ENOENT and error.filename is None:  # as raised by os.getcwd
            error.filename = os.environ.get("PWD", "the working directory")
        _fail(
            f"{error.filename}: {error.strerror}" if error.filename else str(error), error, as_json
        )
    except (KeyboardInterrupt, click.Abort):
        print(STOPPED, file=sys.stderr)
        sys.exit(130)
    sys.exit(result if isinstance(result, int) else 0)


def _fail(message: str, error: BaseException, as_json: bool) -> None:
    """Exit with one line: text or, with ``--json``, an event in the format of progress events."""
    # One line, so that logs and scripts can rely on it.
    line = " ".join(message.split())
    if as_json:
        event = {"event": "error", "error": type(error).__name__, "message": line}
        location = {
            name: getattr(error, name) for name in ("sample_id", "where") if hasattr(error, name)
        }
        print(json.dumps({**event, **location}, ensure_ascii=False), file=sys.stderr)
    else:
        print(f"error: {line}", file=sys.stderr)
    sys.exit(2)


def show(data: Any, lines: Callable[[], Iterable[str]], as_json: bool) -> None:
    """Print a result: ``data`` as one line of JSON, or ``lines`` as text with settings as flags,
    which are computed only then.
    """
    if as_json:
        click.echo(json.dumps(data, ensure_ascii=False))
        return
    for line in lines():
        click.echo(in_flags(line))
