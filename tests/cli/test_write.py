"""``brimful write``: the packs of a plan."""

from __future__ import annotations

from pathlib import Path

from tests.cli.tools import result_of, run


def test_write_makes_the_packs_that_pack_makes(chats: Path, packs: Path, tokenizer: Path, tmp_path: Path) -> None:
    """Without it planning first and writing later gives another training run than `pack` in one go."""
    plan, written = tmp_path / "chats.plan", tmp_path / "written"
    base = ("--tokenizer", tokenizer, "--quiet")
    run("plan", chats, "--max-length", 70, "-o", plan, *base)
    out, err = run("write", plan, chats, "-o", written, *base)
    assert out[-1].endswith("1 shard written now")
    assert "4 packs of 70, 218 tokens, fill 77.86 %" in out[-1]
    assert err == []
    assert [path.read_bytes() for path in sorted((written / "shards").iterdir())] == [
        path.read_bytes() for path in sorted((packs / "shards").iterdir())
    ]
    out, _ = run("write", plan, chats, "-o", written, *base)
    assert out[-1].endswith("0 shards written now")


def test_write_gives_json(chats: Path, tokenizer: Path, tmp_path: Path) -> None:
    """Without it a script has to read sentences."""
    run("plan", chats, "--max-length", 70, "-o", tmp_path / "p", "--tokenizer", tokenizer, "--quiet")
    command = ("write", tmp_path / "p", chats, "-o", tmp_path / "written", "--tokenizer", tokenizer)
    first = result_of(*command)
    assert first == {
        "directory": str(tmp_path / "written"),
        "packs": 4,
        "tokens": 218,
        "fill_ratio": 218 / 280,
        "shards_written": 1,
    }
    assert result_of(*command) == {**first, "shards_written": 0}


def test_write_takes_the_options_of_measure(home: Path, tokenizer: Path, tmp_path: Path) -> None:
    """Without it the flags that left a row out are refused by the next command, which advises --max-samples."""
    base = (home / "chats.jsonl", "--tokenizer", tokenizer, "--quiet", "--on-bad-sample", "skip")
    run("measure", *base, "-o", tmp_path / "lengths")
    run("plan", tmp_path / "lengths", "--max-length", 20, "--overflow", "drop", "-o", tmp_path / "p", "--quiet")
    assert result_of("write", tmp_path / "p", *base, "-o", tmp_path / "written")["packs"] == 2
