"""Commands whose options are in named groups, in the source and in ``--help``."""

from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, TypeAlias, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

Decorator: TypeAlias = Callable[[Any], Any]
"""A function from a command to the same command with more options."""

_GROUP = "brimful_group"
"""Attribute of an option that holds the title of its group."""

_OTHER = "Other"
"""Title of the options without a group."""


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


def choice_option(flag: str, choices: Iterable[str | Enum], help: str, default: str | None = "error") -> Decorator:
    """Return an option that takes one of several names."""
    names = [str(choice.value) if isinstance(choice, Enum) else choice for choice in choices]
    return click.option(flag, type=click.Choice(names), default=default, help=help)


def grouped(title: str, *options: Decorator) -> Callable[[Command], Command]:
    """Return one decorator for several options under one heading of ``--help``; nested groups keep their heading."""

    def decorate(function: Command) -> Command:
        for option in reversed(options):
            function = option(function)
            # Click appends options to this list until the function becomes a command.
            vars(function.__click_params__[-1]).setdefault(_GROUP, title)  # type: ignore[attr-defined]
        return function

    return decorate


class GroupedCommand(click.Command):
    """A command that lists its options group by group, in order of first appearance; options without a group come last."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = _record(ctx, parameter) if isinstance(parameter, click.Option) else None
            if record is not None:
                groups.setdefault(getattr(parameter, _GROUP, _OTHER), []).append(record)
        # The sort is stable: it moves only the options without a group.
        for title, records in sorted(groups.items(), key=lambda group: group[0] == _OTHER):
            with formatter.section(title):
                formatter.write_dl(records, col_max=min(30, formatter.width // 3))


def _record(ctx: click.Context, option: click.Option) -> tuple[str, str] | None:
    """Return the names and help of an option: its first long name, and its other names after the help."""
    record = option.get_help_record(ctx)
    # A line of help has room for one long name.
    name, *aliases = [flag for flag in option.opts if flag.startswith("--")]
    if record is None or not aliases:
        return record
    names, text = record
    return names.replace(", ".join([name, *aliases]), name), f"{text} Also {', '.join(aliases)}."
