"""Help in groups, on terminals of any width."""

from __future__ import annotations

import click
import pytest

from brimful.cli.program import _brimful
from tests.cli.tools import outcome

COMMANDS = tuple(_brimful.list_commands(click.Context(_brimful)))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_stands_in_a_group_once(name: str) -> None:
    """Without it forty options stand in one list, or one that somebody adds is not shown at all."""
    command = _brimful.get_command(click.Context(_brimful), name)
    assert command is not None
    _, shown, _ = outcome(name, "--help")
    groups = [line for line in shown.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert groups[-1] == "Other:"
    assert len(groups) == len(set(groups))
    assert "Options:" not in groups
    assert shown.split("Other:")[1].split() == ["-h,", "--help", "Show", "this", "message", "and", "exit."]
    options = [each for each in command.params if isinstance(each, click.Option) and not each.hidden]
    lines = [line.strip().split("  ")[0] for line in shown.splitlines() if line.startswith("  -")]
    assert len(lines) == len(options) + 1  # and --help


def test_the_groups_of_pack_in_the_order_of_the_flow() -> None:
    """Without it the way from rows to packs is not to be seen in the help."""
    _, shown, _ = outcome("pack", "--help")
    groups = [line for line in shown.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert groups == ["Source:", "Encoding:", "Media:", "Packing:", "Alignment:", "Output:", "Job:", "Other:"]


@pytest.mark.parametrize("width", [60, 80])
@pytest.mark.parametrize("name", [None, *COMMANDS])
def test_help_fits_narrow_terminals(name: str | None, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it lines of the help are broken by the terminal in the middle of words."""
    monkeypatch.setenv("COLUMNS", str(width))
    _, shown, _ = outcome(*([name] if name else []), "--help")
    assert [line for line in shown.splitlines() if len(line) > width and " " in line.strip()] == []
