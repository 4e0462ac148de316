"""Help in groups, on terminals of any width."""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass
from enum import Enum
from typing import Any, Literal

import click
import pytest

from brimful.base.arguments import option
from brimful.cli.options import options_of
from brimful.cli.program import _brimful
from brimful.errors import SettingsError
from tests.cli.tools import outcome

COMMANDS = tuple(_brimful.list_commands(click.Context(_brimful)))


def groups_of(help: str) -> list[str]:
    """The headings of a help, in order."""
    return [line for line in help.splitlines() if line.endswith(":") and not line.startswith(" ")]


def shown_options(help: str) -> list[str]:
    """The flags of a help, one for each option."""
    return [line.strip().split("  ")[0] for line in help.splitlines() if line.startswith("  -")]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_stands_in_a_group_once(name: str) -> None:
    """Without it forty options stand in one list, or a new one is not shown at all."""
    command = _brimful.get_command(click.Context(_brimful), name)
    assert command is not None
    is_long = any("--help-all" in parameter.opts for parameter in command.params)
    _, shown, _ = outcome(name, "--help-all" if is_long else "--help")
    groups = groups_of(shown)
    assert groups[-1] == "Other:"
    assert len(groups) == len(set(groups))
    assert "Options:" not in groups
    others = shown_options(shown.split("Other:")[1])
    assert others == ["--help-all"] * is_long + ["-h, --help"]
    options = [each for each in command.params if isinstance(each, click.Option) and not each.hidden]
    assert len(shown_options(shown)) == len(options) + 1  # and --help


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_one_screen(name: str) -> None:
    """Without it a new user reads 160 lines to find the five options that a first job needs."""
    _, shown, _ = outcome(name, "--help")
    assert len(shown.splitlines()) <= (70 if name == "export" else 60)
    command = _brimful.get_command(click.Context(_brimful), name)
    assert command is not None
    options = [each for each in command.params if isinstance(each, click.Option) and not each.hidden]
    hidden = len(options) + 1 - len(shown_options(shown))
    assert hidden == 0 or f"Show {hidden} more options" in shown


def test_the_options_of_a_first_job_are_shown() -> None:
    """Without it the way out that an error names is not in the help."""
    _, shown, _ = outcome("pack", "--help")
    for flag in ("--tokenizer", "--max-length", "--overflow", "--no-target", "--output", "--config", "--budget"):
        assert flag in shown


def test_the_groups_of_pack_in_the_order_of_the_flow() -> None:
    """Without it the way from rows to packs is not to be seen in the help."""
    groups = ["Source:", "Encoding:", "Media:", "Packing:", "Alignment:", "Output:", "Job:", "Other:"]
    assert groups_of(outcome("pack", "--help")[1]) == groups_of(outcome("pack", "--help-all")[1]) == groups


def test_the_fields_of_settings_are_the_options() -> None:
    """Without it a field is added that no command can set, or a default is written twice."""

    class Kind(str, Enum):
        SMALL = "small"
        LARGE = "large"

    @dataclass
    class Box:
        width: int = option(MISSING, "Its width.", "CM")
        kind: Kind | str = option(Kind.SMALL, "Its kind.")
        order: Literal["first", "last"] = option("first", "Its place.")
        labels: Sequence[str] = option((), "A label.", "TEXT", "--label")
        limits: Mapping[str, int] | None = option(None, "A limit.", "NAME=MOST", example="books=3")
        variables: Mapping[str, Any] | None = option(None, "A variable.", "NAME=VALUE", example="a=1")
        is_open: bool = option(False, "No lid.")
        handles: bool | None = option(None, "Handles.")
        depth: float = option(0.5, "Its depth.", minimum=None)
        unseen: int = 3

    @click.command()
    @options_of(Box, "Box")
    def command(**options: Any) -> None:
        made.append(options)

    made: list[dict[str, Any]] = []
    command.main([], standalone_mode=False)
    words = ["--width", "3", "--kind", "large", "--order", "last", "--label", "a", "--label", "b", "--limits", "x=2"]
    words += ["--variables", "x=[1]", "--variables", "y=z", "--is-open", "--no-handles", "--depth", "2"]
    command.main(words, standalone_mode=False)
    assert made[0] == {
        "width": None, "kind": "small", "order": "first", "labels": (), "limits": None, "variables": None,
        "is_open": False, "handles": None, "depth": 0.5,
    }  # fmt: skip
    assert made[1] == {
        "width": 3, "kind": "large", "order": "last", "labels": ("a", "b"), "limits": {"x": 2},
        "variables": {"x": [1], "y": "z"}, "is_open": True, "handles": False, "depth": 2.0,
    }  # fmt: skip
    with pytest.raises(SettingsError, match="--limits 'x=y' must be NAME=MOST with a whole number, such as books=3"):
        command.main(["--limits", "x=y"], standalone_mode=False)


@pytest.mark.parametrize("width", [60, 80])
@pytest.mark.parametrize(
    ("name", "words"),
    [*((name, "--help") for name in (None, *COMMANDS)), ("pack", "--help-all"), ("plan", "--help-all")],
)
def test_help_fits_narrow_terminals(name: str | None, words: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it lines of the help are broken by the terminal in the middle of words."""
    monkeypatch.setenv("COLUMNS", str(width))
    _, shown, _ = outcome(*([name] if name else []), *words.split())
    assert [line for line in shown.splitlines() if len(line) > width and " " in line.strip()] == []
