"""Samples longer than a pack: refused by number, or dropped, cut and split with every token accounted for."""

import shutil
from pathlib import Path

import pytest

from tests.cli.bad_input.tools import CHATS, POLICIES, chat, done, length_of, refused, write_rows

LONG = [chat("q", "a" * 10), chat("q", "b" * 300), chat("q", "c" * 130), chat("q", "d" * 20)]

LENGTHS = [length_of(row) for row in LONG]


@pytest.mark.parametrize("policy", POLICIES)
def test_every_overflow_policy_accounts_for_every_token(policy: str, tmp_path: Path, tokenizer: Path) -> None:
    """Without it a policy may lose tokens that no number of the summary shows."""
    assert LENGTHS == [32, 322, 152, 42]
    path = write_rows(tmp_path / "long.jsonl", LONG)
    command = ("pack", path, "-o", tmp_path / "packs", "--tokenizer", tokenizer, "--max-length", 100)
    if policy == "error":
        line = refused(*command, "--quiet")
        assert "2 of 4 samples are longer than the capacity of 100 tokens: sample 1 (322), 2 (152)" in line
        assert "--overflow drop, truncate, truncate_left or split, or --max-length 322" in line
        assert not (tmp_path / "packs" / "stream.json").exists()
        return
    summary = done(*command, "--overflow", policy, "--json").json
    names = ("packed", "dropped", "truncated", "split", "rejected")
    samples = [summary[f"samples_{name}"] for name in names]
    tokens = [summary[f"tokens_{name}"] for name in ("packed", "dropped", "truncated")]
    expected = {
        "drop": ([2, 2, 0, 0, 0], [74, 474, 0]),
        "truncate": ([4, 0, 2, 0, 0], [274, 0, 274]),
        "truncate_left": ([4, 0, 2, 0, 0], [274, 0, 274]),
        "split": ([4, 0, 0, 2, 0], [548, 0, 0]),
    }[policy]
    assert (samples, tokens) == expected
    assert summary["tokens_in"] == sum(tokens) == 548
    assert summary["samples_in"] == 4


@pytest.fixture(scope="session")
def refused_monster(tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where `pack` with the policy error gave up on a sample of 1 MB: measured, nothing written."""
    home = tmp_path_factory.mktemp("monster")
    rows = [*CHATS[:5], chat("tell me", "word " * 200_000), *CHATS[5:]]
    path = write_rows(home / "monster.jsonl", rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BRIMFUL_CACHE", str(home / "cache"))
        line = refused("pack", path, "-o", home / "packs", "--tokenizer", tokenizer, "--max-length", 4096, "--quiet")
    assert f"sample 5 ({length_of(rows[5]):,})" in line
    assert f"--max-length {length_of(rows[5])}" in line
    return home


@pytest.mark.parametrize("policy", [policy for policy in POLICIES if policy != "error"])
def test_a_sample_of_a_megabyte_is_dropped_cut_or_split(
    policy: str, refused_monster: Path, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it one scraped monster row stops or distorts a job of a million."""
    monkeypatch.setenv("BRIMFUL_CACHE", str(refused_monster / "cache"))
    packs = Path(shutil.copytree(refused_monster / "packs", tmp_path / "packs"))
    summary = done(
        *("pack", refused_monster / "monster.jsonl", "-o", packs, "--tokenizer", tokenizer),
        *("--max-length", 4096, "--overflow", policy, "--json"),
    ).json
    small = sum(map(length_of, CHATS))
    monster = 1_000_000 + len("assistant") + 4 + len("user") + len("tell me") + 4
    lost = {"drop": (monster, 0), "truncate": (0, monster - 4096), "truncate_left": (0, monster - 4096)}
    assert summary["tokens_in"] == small + monster
    assert (summary["tokens_dropped"], summary["tokens_truncated"]) == lost.get(policy, (0, 0))
    assert summary["tokens_packed"] == small + monster - sum(lost.get(policy, (0, 0)))
    assert (summary["samples_dropped"], summary["samples_split"]) == (int(policy == "drop"), int(policy == "split"))
    assert "agree with log and plan" in done("inspect", packs, "--check").out
