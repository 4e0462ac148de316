"""Commands whose options stand in named groups, in ``--help`` as in the source."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

__all__ = ["GroupedCommand", "together", "grouped"]

Command = TypeVar("Command", bound=Callable[..., Any])

_GROUP = "brimful_group"
_OTHER = "Other"


def grouped(title: str, *options: Callable[[Any], Any]) -> Callable[[Command], Command]:
    """Several options under one heading of ``--help``, as one decorator."""

    def decorate(function: Command) -> Command:
        for option in reversed(options):
            function = option(function)
            setattr(function.__click_params__[-1], _GROUP, title)  # type: ignore[attr-defined]
        return function

    return decorate


def together(*decorators: Callable[[Any], Any]) -> Callable[[Command], Command]:
    """Decorators as one, in the order of reading."""

    def decorate(function: Command) -> Command:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


class GroupedCommand(click.Command):
    """Writes its options group by group, in the order in which the groups first appear; what has none comes last."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = _record(ctx, parameter) if isinstance(parameter, click.Option) else None
            if record is not None:
                groups.setdefault(getattr(parameter, _GROUP, _OTHER), []).append(record)
        for title, records in sorted(groups.items(), key=lambda group: group[0] == _OTHER):
            with formatter.section(title):
                formatter.write_dl(records, col_max=min(30, formatter.width // 3))


def _record(ctx: click.Context, option: click.Option) -> tuple[str, str] | None:
    """Names and help; one name of several that are as long as a line, and the others behind the help."""
    record = option.get_help_record(ctx)
    first, *others = [name for name in option.opts if name.startswith("--")]
    if record is None or not others:
        return record
    names, text = record
    return names.replace(", ".join([first, *others]), first), f"{text} Also {', '.join(others)}."
