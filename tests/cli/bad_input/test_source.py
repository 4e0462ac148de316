"""Files of data that are empty, malformed, cut, or not there: the file, the line and the sample are named."""

import bz2
import gzip
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cli.bad_input.tools import CHATS, done, length_of, refused, write_rows


def test_an_empty_file_is_refused_by_name(tmp_path: Path, tokenizer: Path) -> None:
    """Without it an export that failed upstream would train on nothing, or end in a division by zero."""
    for name, content in [("empty.jsonl", b""), ("blank.jsonl", b"\n\n\r\n"), ("empty.txt", b""), ("none.json", b"[]")]:
        path = tmp_path / name
        path.write_bytes(content)
        line = refused("measure", path, "--tokenizer", tokenizer, "--quiet")
        assert str(path) in line
        assert "empty" in line


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"messages": []}, "'messages' is empty: a conversation needs at least one turn"),
        (b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}', "invalid UTF-8 at byte 43"),
        (b"{not json", "not JSON"),
        (b"", None),
        (b"[1, 2]", "a row must be an object and is list"),
        (b"17", "a row must be an object and is int"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"messages": ' + b"1" * 5000 + b"}", ""),
        ({"dialogue": []}, "field 'messages' is missing (found ['dialogue'])"),
        ({"messages": "hi"}, "'messages' must be a list of turns and is str"),
        ({"messages": ["hi"]}, "messages[0] must be an object"),
        ({"messages": [{"content": "hi"}]}, "messages[0] has no role (found ['content'])"),
        ({"messages": [{"role": "user"}]}, "messages[0] (role user) has no content"),
        ({"messages": [{"role": "user", "content": 5}]}, "the content of messages[0] must be text and is int 5"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, ""),
    ],
    ids=[
        "empty-conversation",
        "invalid-utf8",
        "no-json",
        "blank-line-is-passed-over",
        "a-list",
        "a-number",
        "too-deep",
        "a-number-of-5000-digits",
        "missing-field",
        "text-for-a-list",
        "text-for-a-turn",
        "no-role",
        "no-content",
        "number-for-text",
        "half-a-surrogate-pair",
    ],
)
def test_a_malformed_row_is_named_by_file_line_and_sample(
    row: Any, reason: str | None, tmp_path: Path, tokenizer: Path
) -> None:
    """Without it one bad row in a million is a traceback without a line number, or silently lost."""
    path = write_rows(tmp_path / "chats.jsonl", [*CHATS[:3], row, *CHATS[3:]])
    command = ("pack", path, "-o", tmp_path / "packs", "--tokenizer", tokenizer, "--max-length", 64)
    if reason is None:
        assert done(*command, "--json").json["samples_in"] == 20
        return
    line = refused(*command, "--quiet")
    assert f"{path}:4 (sample 3): " in line
    assert reason in line
    assert not (tmp_path / "packs" / "stream.json").exists()
    summary = done(*command, "--json", "--on-bad-sample", "skip").json
    assert (summary["samples_in"], summary["samples_packed"], summary["samples_rejected"]) == (21, 20, 1)


def test_rows_that_are_all_refused_name_the_flag(tokenizer: Path, tmp_path: Path) -> None:
    """Without it a data set of pictures that is skipped row by row ends in Python's words, or in an empty store."""
    path = write_rows(tmp_path / "rows.jsonl", [{"question": "q", "answer": "a", "image": "a.jpg"}] * 3)
    command = ("pack", path, "-o", tmp_path / "p", "--tokenizer", tokenizer, "--max-length", 64, "--quiet")
    line = refused(*command, "--on-bad-sample", "skip")
    assert f"no row of {path} can be packed; the first is {path}:1 (sample 0): column 'image' holds images" in line
    assert line.endswith("leave it out with --ignore image")
    assert not (tmp_path / "p" / "stream.json").exists()
    shown = done(*command, "--ignore", "image").out
    assert "not read" not in shown


def test_a_refused_row_beside_good_ones_is_told_with_its_flag(tokenizer: Path, tmp_path: Path) -> None:
    """Without it the summary of the command line speaks of arguments."""
    path = write_rows(
        tmp_path / "rows.jsonl", [{"question": "q", "answer": "a"}, {"question": "<image>", "answer": "a"}]
    )
    command = ("pack", path, "-o", tmp_path / "p", "--tokenizer", tokenizer, "--max-length", 64, "--quiet")
    shown = done(*command, "--on-bad-sample", "skip").out
    assert "say so with --ignore '<image>'" in " ".join(shown.split())
    assert json.loads((tmp_path / "p" / "rejects.jsonl").read_text())["reason"].endswith('ignore=["<image>"]')


def test_skipped_rows_are_counted_shown_and_listed(tmp_path: Path, tokenizer: Path) -> None:
    """Without it --on-bad-sample skip loses data in silence."""
    path = write_rows(tmp_path / "chats.jsonl", [CHATS[0], b"{", *CHATS[1:], {"messages": []}])
    packs = tmp_path / "packs"
    command = ("pack", path, "-o", packs, "--tokenizer", tokenizer, "--max-length", 64, "--on-bad-sample", "skip")
    shown = done(*command, "--quiet").out
    rejected = next(line for line in shown.splitlines() if line.startswith("rejected"))
    assert "2 rows, listed in" in rejected
    assert f"{packs}/rejects.jsonl" in rejected
    assert f"{path}:2 (sample 1): not JSON" in rejected
    listed = [json.loads(line) for line in (packs / "rejects.jsonl").read_text().splitlines()]
    assert [(row["sample_id"], row["where"]) for row in listed] == [(1, f"{path}:2"), (21, f"{path}:22")]
    assert listed[0]["reason"].startswith("not JSON")
    assert listed[1]["row"] == {"messages": []}
    summary = json.loads((packs / "summary.json").read_text())
    assert summary["samples_in"] == 22
    assert summary["samples_rejected"] == 2
    assert summary["samples_packed"] == 20
    assert summary["tokens_packed"] == sum(map(length_of, CHATS))


def test_a_first_row_that_is_bad_is_named_too(tmp_path: Path, tokenizer: Path) -> None:
    """Without it a file of another kind under the name .jsonl fails while its format is detected, with no line."""
    path = write_rows(tmp_path / "chats.jsonl", [b"\x89PNG\r\n\x1a\n\xff", b"\xff\xfe\xff"])
    assert f"{path}:1 (sample 0): invalid UTF-8" in refused("measure", path, "--tokenizer", tokenizer, "--quiet")


def test_a_bad_row_far_behind_is_named_by_a_worker_process(tmp_path: Path, tokenizer: Path) -> None:
    """Without it the error of a worker process arrives as a pickling failure instead of the row it is about."""
    path = write_rows(tmp_path / "chats.jsonl", [*CHATS * 230, {"messages": []}])
    line = refused("measure", path, "--tokenizer", tokenizer, "--num-proc", 2, "--quiet")
    assert f"{path}:4601 (sample 4600): 'messages' is empty" in line


def test_rows_of_no_known_format_are_shown(tmp_path: Path, tokenizer: Path) -> None:
    """Without it a user with other column names does not learn how to map them."""
    path = write_rows(tmp_path / "odd.jsonl", [{"foo": 1, "bar": 2}])
    line = refused("measure", path, "--tokenizer", tokenizer, "--quiet")
    assert "['bar', 'foo']" in line
    assert "--field messages=dialogue" in line


@pytest.mark.parametrize("name", ["nothing.jsonl", "nothing-*.jsonl", "nothing.parquet", "nothing.npy"])
@pytest.mark.parametrize("command", ["measure", "plan", "pack"])
def test_a_source_that_is_not_there_is_named(command: str, name: str, tmp_path: Path, tokenizer: Path) -> None:
    """Without it a wrong path is a traceback out of the file's library."""
    options = {
        "measure": ["--tokenizer", tokenizer],
        "plan": ["--tokenizer", tokenizer, "--max-length", 64],
        "pack": ["--tokenizer", tokenizer, "--max-length", 64, "-o", tmp_path / "packs"],
    }[command]
    assert str(tmp_path / name) in refused(command, tmp_path / name, "--quiet", *options)


def test_a_directory_under_the_name_of_a_file_is_refused(tmp_path: Path, tokenizer: Path) -> None:
    """Without it an empty directory called data.jsonl is an IsADirectoryError somewhere inside."""
    for name in ("data.jsonl", "data.parquet", "lengths.npy"):
        (tmp_path / name).mkdir()
        line = refused("plan", tmp_path / name, "--tokenizer", tokenizer, "--max-length", 64, "--quiet")
        assert str(tmp_path / name) in line


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_that_may_not_be_read_is_named(chats: Path, tokenizer: Path) -> None:
    """Without it missing permissions look like damaged data."""
    chats.chmod(0)
    line = refused("measure", chats, "--tokenizer", tokenizer, "--quiet")
    assert str(chats) in line
    assert "ermission" in line


@pytest.mark.parametrize("damage", ["text", "empty", "half", "tail", "begin"])
def test_a_parquet_file_that_is_none_or_was_damaged_is_named(damage: str, tmp_path: Path, tokenizer: Path) -> None:
    """Without it a download that broke off is an Arrow traceback, or an error that names no file."""
    path = tmp_path / "data.parquet"
    pq.write_table(pa.table({"prompt": ["1+1?"] * 1000, "completion": ["2"] * 1000}), path)
    data = path.read_bytes()
    path.write_bytes(
        {
            "text": b"no parquet at all, but long enough to look for a footer",
            "empty": b"",
            "half": data[: len(data) // 2],
            "tail": data[:-1],
            "begin": data[:4] + b"\xff" * 200 + data[204:],
        }[damage]
    )
    assert str(path) in refused("measure", path, "--tokenizer", tokenizer, "--quiet")


def test_a_compressed_file_that_was_cut_is_refused_not_read_in_part(tmp_path: Path, tokenizer: Path) -> None:
    """Without it half a download trains as if it were the whole data set."""
    plain = write_rows(tmp_path / "chats.jsonl", CHATS * 50).read_bytes()
    packed = {
        ".gz": gzip.compress(plain, mtime=0),
        ".zst": pa.Codec("zstd").compress(plain, asbytes=True),
        ".bz2": bz2.compress(plain),
    }
    for suffix, data in packed.items():
        whole = tmp_path / f"whole.jsonl{suffix}"
        whole.write_bytes(data)
        assert done("measure", whole, "--tokenizer", tokenizer, "--json").json["samples"] == 1000
        for name, content in {"half": data[: len(data) // 2], "tail": data[:-1], "garbage": b"garbage" * 20}.items():
            path = tmp_path / f"{name}.jsonl{suffix}"
            path.write_bytes(content)
            line = refused("measure", path, "--tokenizer", tokenizer, "--quiet")
            assert str(path) in line, (suffix, name)
