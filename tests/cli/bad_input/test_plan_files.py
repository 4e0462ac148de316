"""Arrays of lengths, length tables and plans that are damaged, of another kind, or of other data."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from brimful.plan import Plan
from tests.cli.bad_input.tools import CHATS, chat, done, flip, one_line, refused, write_rows
from tests.cli.tools import outcome as run

WHOLE_NPY = io.BytesIO()

np.save(WHOLE_NPY, np.arange(1, 1000))

ARRAYS: dict[str, tuple[Any, str]] = {
    "floats.npy": (np.array([1.5, 2.0]), "must be whole numbers and are float64"),
    "flags.npy": (np.array([True]), "must be whole numbers and are bool"),
    "texts.npy": (np.array(["a"]), "must be whole numbers"),
    "negative.npy": (np.array([5, -3]), "sample 1 has length -3"),
    "zero.npy": (np.array([5, 0]), "sample 1 has length 0"),
    "none.npy": (np.array([], dtype=np.int64), "holds no lengths"),
    "square.npy": (np.ones((2, 2), dtype=int), "has shape (2, 2)"),
    "huge.npy": (np.array([1, 2**40]), "sample 1 has 1,099,511,627,776"),
    "objects.npy": (np.array([{}], dtype=object), "objects.npy"),
    "text.npy": (b"1 2 3\n", "text.npy"),
    "empty.npy": (b"", "empty.npy"),
    "cut.npy": (b"\x93NUMPY\x01\x00", "cut.npy"),
    "tail.npy": (WHOLE_NPY.getvalue()[:-1], "tail.npy"),
}


@pytest.mark.parametrize("command", ["plan", "report"])
@pytest.mark.parametrize("name", ARRAYS)
def test_an_array_that_is_no_lengths_is_refused(name: str, command: str, tmp_path: Path) -> None:
    """Without it floats, negative numbers or pickled objects in a .npy file are planned, or executed."""
    content, expected = ARRAYS[name]
    path = tmp_path / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        np.save(path, content, allow_pickle=True)
    options = ["--max-length", 100, "--quiet"] if command == "plan" else []
    assert expected in refused(command, path, *options)


def test_a_plan_that_was_cut_is_refused_everywhere(
    plan_file: Path, chats: Path, tokenizer: Path, tmp_path: Path
) -> None:
    """Without it a plan that was copied in part is packed in part, or kills the process that maps it."""
    data = plan_file.read_bytes()
    for size in (0, 1, len(data) // 2, len(data) - 1):
        plan_file.write_bytes(data[:size])
        for command in (
            ("inspect", plan_file),
            ("report", plan_file),
            ("write", plan_file, chats, "-o", tmp_path / "packs", "--tokenizer", tokenizer, "--quiet"),
        ):
            assert str(plan_file) in refused(*command), (size, command)
    assert not (tmp_path / "packs").exists()


def description_at(data: bytes) -> list[int]:
    """Where the keys and numbers of the JSON description of one of our tables lie, once in the footer's copy."""
    begin = data.rindex(b'"kind"')
    return list(range(begin, data.index(b"}", data.index(b'"fingerprint"', begin)), 5))


def test_a_plan_or_table_with_a_flipped_byte_in_its_description_gives_no_traceback(
    plan_file: Path, chats: Path, tokenizer: Path, tmp_path: Path
) -> None:
    """Without it one rotten bit in a header is a KeyError, which tells a user nothing."""
    table = tmp_path / "lengths.arrow"
    done("measure", chats, "--tokenizer", tokenizer, "-o", table, "--quiet")
    wrong = []
    for path in (plan_file, table):
        good = path.read_bytes()
        for at in description_at(good):
            for bit in (1, 0x80):
                path.write_bytes(good[:at] + bytes([good[at] ^ bit]) + good[at + 1 :])
                try:
                    outcome = run("inspect", path)
                except Exception as error:
                    wrong.append((path.name, at, bit, repr(error)[:80]))
                else:
                    assert outcome.code == 0 or one_line(outcome.code, outcome.err)
        path.write_bytes(good)
    assert not wrong, f"{len(wrong)} flips end in a traceback, for example {wrong[:: max(1, len(wrong) // 5)]}"


def test_a_plan_whose_packs_were_damaged_is_not_written(tokenizer: Path, tmp_path: Path) -> None:
    """Without it a flipped bit in a plan packs one sample twice and another never, and every length still agrees."""
    chats = write_rows(tmp_path / "equal.jsonl", [chat("q", letter * 10) for letter in "abcdefgh"])
    damaged = tmp_path / "equal.plan"
    done("plan", chats, "--tokenizer", tokenizer, "--max-length", 64, "-o", damaged, "--quiet")
    ids = np.array(Plan.open(damaged).sample_ids)
    assert sorted(ids.tolist()) == list(range(8))
    flip(damaged, damaged.read_bytes().index(ids.tobytes()))
    assert sorted(Plan.open(damaged).sample_ids.tolist()) != list(range(8))
    line = refused("write", damaged, chats, "-o", tmp_path / "packs", "--tokenizer", tokenizer, "--quiet")
    assert str(damaged) in line


def test_a_plan_of_other_data_is_not_written(plan_file: Path, tokenizer: Path, tmp_path: Path) -> None:
    """Without it a plan made before the data changed packs the wrong samples."""
    packs = tmp_path / "packs"
    shorter = write_rows(tmp_path / "shorter.jsonl", CHATS[:-1])
    edited = write_rows(tmp_path / "edited.jsonl", [*CHATS[:-1], chat("question 19", "b" * 25)])
    command = ("-o", packs, "--tokenizer", tokenizer, "--quiet")
    assert f"the plan is for 20 samples and {shorter} has 19" in refused("write", plan_file, shorter, *command)
    line = refused("write", plan_file, edited, *command)
    assert f"{edited}:20 (sample 19) encodes to 57 tokens and was planned with 51" in line
    assert not list((packs / "log").glob("*.json"))


def test_a_plan_that_is_no_plan_is_refused(chats: Path, tokenizer: Path, tmp_path: Path) -> None:
    """Without it a length table given for a plan, or nothing at all, is a KeyError."""
    table = tmp_path / "lengths.arrow"
    done("measure", chats, "--tokenizer", tokenizer, "-o", table, "--quiet")
    for path, reason in [
        (tmp_path / "none.plan", "no such plan"),
        (table, "is a length table, not a plan"),
        (chats, ""),
    ]:
        line = refused("write", path, chats, "-o", tmp_path / "packs", "--tokenizer", tokenizer, "--quiet")
        assert str(path) in line
        assert reason in line
    assert str(tmp_path) in refused("write", tmp_path, chats, "-o", tmp_path / "p", "--tokenizer", tokenizer, "--quiet")


def test_a_length_table_of_other_data_is_not_overwritten(chats: Path, tokenizer: Path, tmp_path: Path) -> None:
    """Without it measuring another data set into the same file destroys hours of work."""
    table = tmp_path / "lengths.arrow"
    done("measure", chats, "--tokenizer", tokenizer, "-o", table, "--quiet")
    before = table.read_bytes()
    other = write_rows(tmp_path / "other.jsonl", list(reversed(CHATS)))
    line = refused("measure", other, "--tokenizer", tokenizer, "-o", table, "--quiet")
    assert str(table) in line
    assert "source content" in line
    assert "--on-mismatch rebuild" in line
    line = refused("measure", chats, "--tokenizer", tokenizer, "-o", chats, "--quiet")
    assert str(chats) in line
    assert table.read_bytes() == before
    done("measure", other, "--tokenizer", tokenizer, "-o", table, "--quiet", "--on-mismatch", "rebuild")
    assert table.read_bytes() != before
