"""A pack as lines: data is shown, and not obeyed."""

from __future__ import annotations

from pathlib import Path


def test_control_characters_of_the_data_do_not_reach_the_terminal(tmp_path: Path) -> None:
    """Without it a row of the data can clear the screen, or write its title."""
    from brimful.report.text.pack import show_pack
    from brimful.testing.toys import toy_pack

    lines = show_pack(toy_pack([3]), 0, 8, lambda ids: "a\x1b[2J\x9b\tb\n")
    assert "a\\x1b[2J\\x9b\tb\n" in "\n".join(lines)
    assert "\x1b" not in "\n".join(lines)
