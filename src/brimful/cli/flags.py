"""Settings as flags: command-line spelling of Python arguments.

>>> from brimful.base.wording import setting
>>> in_flags(f"choose {setting('overflow', 'drop')}, or {setting('capacity', 8192)}")
'choose --overflow drop, or --max-length 8192'
"""

import shlex
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any

import click

from brimful.base.wording import NO_VALUE, as_argument, translate

COMMANDS = {
    "demo": "the whole pipeline on real text from this machine, in a minute",
    "pack": "measure, plan and write a data set in one command",
    "measure": "measure the exact lengths of all samples",
    "plan": "decide which samples share which pack",
    "write": "write the packs of a plan",
    "produce": "append packs to a stream while the data still arrives",
    "export": "write packs in the layout of another project: energon, webdataset, megatron, …",
    "verify": "check that packing is right: isolation and parity, on your model",
    "inspect": "show a length table, a plan, a pack store, a stream, one pack with its text, or where one sample is",
    "report": "report lengths, fill and the effect of other capacities",
}
"""The commands; each has a file of its name, which is imported when it is used."""


def command_named(name: str) -> click.Command:
    """Import a command."""
    command: click.Command = getattr(import_module(f"brimful.cli.{name}"), name)
    return command


_OTHER_NAMES = {"directory": "-o", "path": "-o", "alignment": "--align"}
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
