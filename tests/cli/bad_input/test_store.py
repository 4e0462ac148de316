"""Pack stores that are unfinished, damaged, of another job, or none at all."""

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.cli.bad_input.tools import CHATS, done, flip, one_line, refused, snapshot, write_rows
from tests.cli.tools import outcome as run


def test_a_directory_that_is_no_pack_store_is_named(tmp_path: Path) -> None:
    """Without it the wrong directory looks like an empty store."""
    for command in (["inspect"], ["inspect", "--pack", "0"], ["inspect", "--check"], ["report"]):
        assert str(tmp_path) in refused(command[0], tmp_path, *command[1:])


def test_a_path_that_brimful_did_not_write_is_named(tmp_path: Path, chats: Path) -> None:
    """Without it `inspect` on a data set is an Arrow traceback."""
    foreign = tmp_path / "foreign.arrow"
    table = pa.table({"a": [1]})
    with pa.ipc.new_file(foreign, table.schema) as writer:
        writer.write_table(table)
    for path in (chats, foreign, tmp_path / "nothing"):
        assert str(path) in refused("inspect", path)
        assert str(path) in refused("report", path)
    assert "--check reads a pack store" in refused("inspect", chats, "--check")


def test_an_unfinished_store_is_refused_with_what_is_there(store: Path) -> None:
    """Without it a job that was killed trains on half its data."""
    last = sorted((store / "log").iterdir())[-1]
    last.unlink()
    for options in ([], ["--pack", "0"], ["--check"]):
        line = refused("inspect", store, *options)
        assert f"{store} is not finished: 4 shards with 19 packs so far" in line
        assert "run the command that writes it again" in line


@pytest.mark.parametrize("index", ["19", "-1", "99999999999"])
def test_a_pack_out_of_range_is_answered_with_the_range(index: str, store: Path, plan_file: Path) -> None:
    """Without it --pack 19 of 19 packs is an IndexError, or shows the last one."""
    assert f"--pack {index}: the store has packs 0 … 18" in refused("inspect", store, "--pack", index)
    assert f"--pack {index}: the plan has packs 0 … 18" in refused("inspect", plan_file, "--pack", index)


def shards(store: Path) -> list[Path]:
    return sorted((store / "shards").iterdir())


def test_a_shard_that_was_cut_is_named(store: Path) -> None:
    """Without it reading past the end of a mapped file kills the process."""
    shard = shards(store)[0]
    size = shard.stat().st_size
    for keep in (size - 1, size // 2, 0):
        os.truncate(shard, keep)
        line = refused("inspect", store, "--pack", 0)
        assert f"{shard} has {keep:,} bytes and was committed with {size:,}" in line
        check = run("inspect", store, "--check")
        assert check.code == 2
        assert str(shard) in check.err.splitlines()[-1]


def test_a_shard_that_was_deleted_is_named(store: Path) -> None:
    """Without it a missing file is an OSError that does not say that packs were there."""
    shard = shards(store)[1]
    shard.unlink()
    line = refused("inspect", store, "--pack", 7)
    assert str(shard) in line
    assert "deleted" in line
    assert done("inspect", store, "--pack", 0).out.startswith("pack 0: ")
    check = run("inspect", store, "--check")
    assert check.code == 2
    assert check.err.splitlines()[-1].startswith("error: ")
    assert str(shard) in check.err.splitlines()[-1]


@pytest.mark.parametrize("damage", ["deleted", "cut"])
def test_packing_again_over_a_damaged_store_claims_no_success(
    damage: str, chats: Path, tokenizer: Path, tmp_path: Path
) -> None:
    """Without it the advice of the errors above, to write the shard again, ends in a summary over missing packs."""
    packs = tmp_path / "packs"
    command = ("pack", chats, "-o", packs, "--tokenizer", tokenizer, "--max-length", 64, "--quiet")
    done(*command)
    expected = snapshot(packs)
    shard = shards(packs)[0]
    shard.unlink() if damage == "deleted" else os.truncate(shard, 100)
    outcome = run(*command)
    if outcome.code == 0:
        assert snapshot(packs) == expected
    else:
        assert str(shard) in one_line(outcome.code, outcome.err)


@pytest.mark.parametrize("step", [25, pytest.param(5, marks=pytest.mark.long)])
def test_no_flipped_bit_in_a_shard_ever_gives_a_wrong_pack(store: Path, step: int) -> None:
    """Without it damage in a footer or in metadata may crash the reader or move rows; one bit in every step-th byte."""
    shard = shards(store)[0]
    good = shard.read_bytes()
    expected = done("inspect", store, "--pack", 2, "--full").out
    caught = 0
    for at in range(0, len(good), step):
        flip(shard, at, 1 << at % 8)
        outcome = run("inspect", store, "--pack", 2, "--full")
        if outcome.code == 0:
            assert outcome.out == expected, at
        else:
            assert str(shard) in one_line(outcome.code, outcome.err)
            caught += 1
        shard.write_bytes(good)
    assert caught > 250 // step


@pytest.mark.parametrize("name", ["log/000000000000.json", "log/000000000004.json", "stream.json"])
def test_no_flipped_bit_in_the_log_or_header_gives_a_traceback(name: str, store: Path) -> None:
    """Without it one rotten bit in a small JSON file is a KeyError that names nothing."""
    path = store / name
    good = path.read_bytes()
    wrong: list[Any] = []
    caught = 0
    for at in range(len(good)):
        flip(path, at, 1 << at % 7)
        try:
            outcome = run("inspect", store)
        except Exception as error:
            wrong.append((at, good[max(at - 12, 0) : at + 12].decode(), repr(error)[:80]))
        else:
            if outcome.code != 0:
                assert str(path) in one_line(outcome.code, outcome.err), at
                caught += 1
        path.write_bytes(good)
    assert caught > 20
    assert not wrong, f"{len(wrong)} of {len(good)} flips end in a traceback, such as {wrong[:: len(wrong) // 5 + 1]}"


def test_a_header_of_another_store_is_found_by_check(store: Path) -> None:
    """Without it a damaged capacity or fingerprint in stream.json is believed: nothing else states it."""
    header = json.loads((store / "stream.json").read_text())
    header["identity"]["plan"] = "0" * 32
    (store / "stream.json").write_text(json.dumps(header))
    outcome = run("inspect", store, "--check")
    assert outcome.code == 2
    assert outcome.err.splitlines()[-1].startswith("error: ")
    assert str(store) in outcome.err.splitlines()[-1]


def test_a_log_record_that_is_gone_is_not_passed_over(store: Path) -> None:
    """Without it a lost record moves every later pack to another index."""
    (store / "log" / "000000000001.json").unlink()
    line = refused("inspect", store)
    assert f"{store} is not finished: 1 shard with 5 packs so far" in line


@pytest.mark.parametrize(
    ("options", "differs"),
    [
        (["--max-length", "128"], "capacity (64 there, 128 now)"),
        (["--max-length", "64", "--algorithm", "next_fit"], "settings algorithm (auto there, next_fit now)"),
        (["--max-length", "64", "--seed", "7"], "settings seed (0 there, 7 now)"),
        (["--max-length", "64", "--train-on", "all"], "encoder ("),
        (["--max-length", "64", "other data"], "source ("),
    ],
)
@pytest.mark.parametrize("state", ["finished", "unfinished"])
def test_a_store_of_another_job_is_refused_and_stays_as_it_was(
    state: str, options: list[str], differs: str, chats: Path, tokenizer: Path, tmp_path: Path
) -> None:
    """Without it two jobs mix their packs in one directory, or the second destroys the first."""
    packs = tmp_path / "packs"
    base = ("-o", packs, "--tokenizer", tokenizer, "--quiet")
    done("pack", chats, *base, "--max-length", 64)
    if state == "unfinished":
        sorted((packs / "log").iterdir())[-1].unlink()
    before = snapshot(packs)
    data = chats
    if "other data" in options:
        options = options[:-1]
        data = write_rows(tmp_path / "other.jsonl", list(reversed(CHATS)))
    line = refused("pack", data, *base, *options)
    assert str(packs) in line
    assert differs in line
    assert "Choose another -o" in line
    changed = [name for name, content in snapshot(packs).items() if before.get(name) != content]
    assert (changed, set(before) - set(snapshot(packs))) == ([], set())
