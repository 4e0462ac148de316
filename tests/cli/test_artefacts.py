"""Paths that brimful wrote are named for what they are."""

from __future__ import annotations

from pathlib import Path

from tests.cli.tools import refused


def test_what_brimful_wrote_is_no_data(home: Path, tmp_path: Path) -> None:
    """Without it a plan is read as text, and refused for bytes that are no UTF-8."""
    lengths, plan, packs = (home / "packs" / "lengths.arrow", home / "packs" / "plan.arrow", home / "packs")
    for command in (["measure"], ["pack", "-o", tmp_path / "p", "--max-length", 8]):
        assert refused(*command, plan) == f"{plan} is a plan, not data: `brimful write` takes it"
        assert refused(*command, lengths) == f"{lengths} is a length table, not data: `brimful plan` takes it"
        assert refused(*command, packs) == f"{packs} is a pack store, not data: `brimful inspect` takes it"
    assert refused("plan", plan, "--max-length", 8).startswith(f"{plan} is already a plan: `brimful inspect` shows it")
    assert refused("write", lengths, home / "chats.jsonl", "-o", tmp_path / "p").startswith(
        f"{lengths} is a length table, not a plan: "
    )
    assert refused("write", home / "chats.jsonl", plan, "-o", tmp_path / "p").startswith(
        f"{home / 'chats.jsonl'} is not a plan: "
    )
