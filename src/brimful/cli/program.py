"""The program's commands, and its exit on their errors."""

import errno
import json
import os
import shlex
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

import click

from brimful import __version__
from brimful.base.stopping import STOPPED
from brimful.cli.flags import COMMANDS, command_named, in_flags
from brimful.errors import BrimfulError, NoTargetError, UnfinishedSharesError


class _Commands(click.Group):
    """A group that imports a command's file when it is used, so that ``brimful --help`` answers at once."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return command_named(cmd_name) if cmd_name in COMMANDS else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        # This message names the nearest command, or the commands that take such a path.
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            raise click.UsageError(_unknown(args[0]), ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def _unknown(name: str) -> str:
    """Return the message for an unknown command: the nearest one, or the commands that take such a path."""
    # A path in place of a command is a likely mistake: "brimful chats.jsonl".
    if os.path.exists(name):
        return (
            f"no command {name!r}: to pack data use `brimful pack {name} …`, and to see brimful's own files "
            f"`brimful inspect {name}`"
        )
    matches = get_close_matches(name.lower(), COMMANDS, n=1, cutoff=0.5)
    return f"no command {name!r}: " + (
        f"did you mean {matches[0]}?" if matches else f"use one of {', '.join(COMMANDS)}"
    )


_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110, "show_default": True}
"""Settings of click that all commands inherit."""


@click.group(cls=_Commands, context_settings=_SETTINGS)
@click.version_option(__version__, prog_name="brimful")
def _brimful() -> None:
    """Pack training samples of any length into full sequences: plan once, prove it is right, use it in any trainer.

    Start with `brimful demo`, or with your data:

      brimful pack chats.jsonl -o packs --tokenizer Qwen/Qwen2.5-7B-Instruct --max-length 8192 --overflow drop
    """


def run(arguments: Sequence[str]) -> NoReturn:
    """Run one command and exit; see ``brimful.cli.main``."""
    as_json = "--json" in arguments
    try:
        result: Any = _brimful.main(args=list(arguments), prog_name="brimful", standalone_mode=False)
    except UnfinishedSharesError as error:
        # Not a failure: a Slurm array must not take it for one.
        message = in_flags(error.message)
        print(json.dumps({"event": "share", "message": message}) if as_json else message, file=sys.stderr)
        sys.exit(0)
    except NoTargetError as error:
        message, flags = in_flags(error.message), in_flags(error.way_out)
        # A command to copy, if two faults have one way out.
        command = f"{shlex.join(['brimful', *arguments])} " if flags else ""
        _fail(f"{message.removesuffix(flags)}{command}{flags}", error, as_json)
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
        _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error), error, as_json)
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
        place = {name: getattr(error, name) for name in ("sample_id", "where") if hasattr(error, name)}
        print(json.dumps({**event, **place}, ensure_ascii=False), file=sys.stderr)
    else:
        print(f"error: {line}", file=sys.stderr)
    sys.exit(2)
