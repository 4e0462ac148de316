"""A length table: numbers that check themselves, and come back from their file."""

from __future__ import annotations

import numpy as np
import pytest

from brimful.base.tables import write_table
from brimful.errors import CorruptFileError, InvalidLengthsError, SettingsError
from brimful.lengths.targets import as_lengths
from brimful.measure import LengthTable


def test_a_table_comes_back_from_its_file(tmp_path):
    """Without it a plan could be made of other lengths than were measured."""
    table = LengthTable(
        {"tokens": np.array([3, -1, 5], np.int32), "loss_tokens": np.array([1, -1, 2], np.int32)},
        provenance={"settings": {"encoder": "toy"}},
        rejects=[[1, "a.jsonl:2", "no JSON"]],
    )
    table.save(tmp_path / "t.arrow")
    again = LengthTable.open(tmp_path / "t.arrow")
    assert list(again.budgets) == ["tokens", "loss_tokens"]
    assert (again.tokens.dtype, again.tokens.tolist()) == (np.int32, [3, -1, 5])
    assert again.budgets["loss_tokens"].tolist() == [1, -1, 2]
    assert (again.provenance, again.rejects) == ({"settings": {"encoder": "toy"}}, [[1, "a.jsonl:2", "no JSON"]])
    assert (len(again), again.total_tokens, again.rejected_ids.tolist()) == (3, 8, [1])
    assert again.fingerprint == table.fingerprint
    assert table.path == again.path == str(tmp_path / "t.arrow")


def test_the_fingerprint_is_of_the_numbers():
    """Without it equal lengths would make different plans, or a changed one the same."""
    table = LengthTable.from_lengths([3, 3, 5, 6, 1, 1])
    same = LengthTable({"tokens": np.array([3, 3, 5, 6, 1, 1], np.int32)}, provenance={"x": 1}, rejects=[[0, "", ""]])
    others = [
        LengthTable.from_lengths([3, 3, 5, 6, 1, 2]),
        LengthTable.from_lengths([3, 3, 5, 6, 1]),
        LengthTable.from_lengths([3, 3, 5, 6, 1, 1], patches=[0] * 6),
    ]
    assert same.fingerprint == table.fingerprint
    assert len({other.fingerprint for other in [table, *others]}) == 4


@pytest.mark.parametrize(
    "given", [[3, 5], (3, 5), np.array([3, 5], np.uint32), np.array([3, 5], np.int8), range(3, 6, 2)]
)
def test_lengths_of_any_integers(given):
    """Without it lengths from NumPy, a list or a file could not be planned alike."""
    lengths = as_lengths(given)
    assert (lengths.dtype, lengths.tolist()) == (np.int32, [3, 5])


def test_lengths_that_are_right_already_are_not_copied():
    """Without it a billion lengths would be held twice."""
    lengths = np.array([3, 5], np.int32)
    assert as_lengths(lengths) is lengths


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([3.5, 5.0], "lengths must be whole numbers and are float64"),
        ([True, False], "lengths must be whole numbers and are bool"),
        (
            ["3"],
            "lengths must be whole numbers, one for each sample, and the one of sample 0 is '3': give the number of its tokens",
        ),
        (
            [[3], [5]],
            "lengths must be whole numbers, one for each sample, and the one of sample 0 is a list of 1: give the number of its tokens",
        ),
        (
            3,
            "lengths must be whole numbers, one for each sample, and is 3: open a file of lengths by LengthTable.open or numpy.load, and measure data by measure_lengths",
        ),
        ([1, 2**31], "lengths: sample 1 has 2,147,483,648, above the maximum, 2,147,483,647"),
        (
            np.array([2**63], np.uint64),
            "lengths: sample 0 has 9,223,372,036,854,775,808, above the maximum, 2,147,483,647",
        ),
        ([1, -(2**40)], "lengths: sample 1 has -1,099,511,627,776"),
    ],
)
def test_what_are_no_lengths(given, message):
    """Without it fractions would be cut and large numbers wrap around to negative ones."""
    with pytest.raises(InvalidLengthsError) as caught:
        as_lengths(given)
    assert str(caught.value) == message


def test_budgets_must_fit_each_other():
    """Without it a second budget could be matched to the wrong samples."""
    with pytest.raises(InvalidLengthsError) as caught:
        LengthTable.from_lengths([3, 5], patches=[1])
    assert str(caught.value) == "the budgets have different numbers of samples: {'tokens': 2, 'patches': 1}"
    with pytest.raises(SettingsError) as caught:  # type: ignore[assignment]
        LengthTable({"patches": np.array([1], np.int32)})
    assert str(caught.value) == "a length table needs the budget 'tokens' and has ['patches']"


def test_no_lengths_are_a_table():
    """Without it an empty table would fail before the planner can say so."""
    table = LengthTable.from_lengths([])
    assert (len(table), table.total_tokens, table.tokens.dtype) == (0, 0, np.int32)


def test_a_file_of_another_kind_or_version_is_refused(tmp_path):
    """Without it a plan or a table of a later brimful would be read as lengths."""
    path = tmp_path / "t.arrow"
    for description, message in [
        ({"kind": "plan"}, f"{path} is a plan and not a length table"),
        ({}, f"{path} is a file and not a length table"),
        ({"kind": "length_table", "version": 9}, f"{path} has length table version 9; this brimful reads 1"),
    ]:
        write_table(path, {"tokens": np.array([1], np.int32)}, description)  # type: ignore[arg-type]
        with pytest.raises(CorruptFileError) as caught:
            LengthTable.open(path)
        assert str(caught.value) == message


def test_a_table_introduces_itself():
    """Without it a log would not say which lengths were planned."""
    table = LengthTable({"tokens": np.array([3000, -1, 5], np.int32), "patches": np.zeros(3, np.int32)})
    assert repr(table) == f"LengthTable(3 samples, 3,005 tokens, patches, 1 rejected, {table.fingerprint[:7]})"


def test_a_table_is_an_array_of_its_lengths(tmp_path):
    """``np.asarray(table)`` was an array of one object, and ``table[0]`` an AttributeError."""
    table = LengthTable({"tokens": np.array([3, -1, 5], dtype=np.int32), "patches": np.array([0, 0, 9], np.int32)})
    assert np.asarray(table).tolist() == [3, -1, 5] == list(table)
    assert np.shares_memory(np.asarray(table), table.tokens)
    assert np.asarray(table, dtype=np.float64).dtype == np.float64
    assert not np.shares_memory(np.array(table), table.tokens)
    assert (table[0], table[-1], table[1:].tolist(), table[[2, 0]].tolist()) == (3, 5, [-1, 5], [5, 3])  # type: ignore[call-overload]
    assert table[np.asarray(table) > 0].tolist() == [3, 5]
    assert type(table[0]) is int
    table.save(tmp_path / "t.arrow")
    assert np.asarray(LengthTable.open(tmp_path / "t.arrow")).tolist() == [3, -1, 5]
    with pytest.raises(IndexError, match="sample 3 is not in 0 … 2"):
        table[3]


def test_every_flipped_byte_of_a_saved_table_is_found_or_changes_nothing(tmp_path):
    """Without it a damaged table would be planned as other lengths, and the packs be full of gaps."""
    path = tmp_path / "t.arrow"
    table = LengthTable(
        {"tokens": np.array([3, -1, 5], np.int32)}, provenance={"source": "a"}, rejects=[[1, "a:2", "x"]]
    )
    table.save(path)
    data, found = path.read_bytes(), 0
    for at in range(0, len(data), 3):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        try:
            read = LengthTable.open(path)
        except CorruptFileError:
            found += 1
            continue
        assert (read.tokens.tolist(), read.provenance, read.rejects) == ([3, -1, 5], {"source": "a"}, [[1, "a:2", "x"]])
    assert found > len(data) / 6


def test_a_table_of_fractions_is_refused_as_lists_are():
    """Without it planning fails in the middle, by an error of NumPy."""
    with pytest.raises(InvalidLengthsError, match=r"^lengths must be whole numbers and are float64$"):
        LengthTable({"tokens": np.array([3.0, 5.0])})
    with pytest.raises(InvalidLengthsError, match=r"^patches must be whole numbers and are float64$"):
        LengthTable({"tokens": np.array([3]), "patches": np.array([3.0])})
