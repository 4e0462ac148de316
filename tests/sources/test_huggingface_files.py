"""A damaged saved data set is named before it is mapped, and its rows before they are read."""

from __future__ import annotations

import os
import shutil

import numpy as np
import pyarrow as pa
import pytest

from brimful.errors import SourceError
from brimful.sources import open_source

datasets = pytest.importorskip("datasets", reason="needs the extra brimful[huggingface]")

TEXTS = [f"text {number}" for number in range(40)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Two files of twenty rows."""
    path = tmp_path_factory.mktemp("whole") / "saved"
    datasets.Dataset.from_dict({"text": TEXTS}).save_to_disk(path, num_shards=2)
    return path


@pytest.fixture
def saved(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "saved")


def _refused(path):
    with pytest.raises(SourceError) as caught:
        list(open_source(path, format="text").read(0, 40))
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(f"{path}/")


def test_a_file_cut_short_is_named(saved):
    """Without it reading past the end of the map kills the process, or the rows that were cut off are just gone."""
    file = saved / "data-00001-of-00002.arrow"
    data = file.read_bytes()
    for length in (0, 7, len(data) // 2, len(data) - 8, len(data) - 1):
        file.write_bytes(data[:length])
        assert _refused(saved) == "data-00001-of-00002.arrow is cut short: save the data set again"
    file.write_bytes(data[: len(data) // 2] + data[-8:])
    assert _refused(saved).startswith("data-00001-of-00002.arrow is damaged: ")


def test_texts_that_begin_outside_their_file_are_not_read(saved):
    """Without it a flipped bit in an offset makes the process read foreign memory, or end in a segmentation fault."""
    file = saved / "data-00000-of-00002.arrow"
    data = file.read_bytes()
    ends = np.cumsum([0, *(len(text) for text in TEXTS[:20])]).astype(np.int32)
    at = data.index(ends.tobytes()) + 5 * 4
    file.write_bytes(data[:at] + np.int32(1 << 30).tobytes() + data[at + 4 :])
    assert _refused(saved).startswith(f"{saved}: rows 0 to 39 are damaged: ")


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("state.json", b"{", "state.json is damaged: Expecting property name"),
        ("state.json", b"{}", "state.json is damaged: it does not name the data files"),
        ("state.json", b"[]", "state.json is damaged: it holds list"),
        ("dataset_info.json", b"\xff", "dataset_info.json is damaged: "),
        ("state.json", None, "state.json is missing: every saved data set has one"),
        ("data-00001-of-00002.arrow", None, "data-00001-of-00002.arrow is missing: save the data set again"),
    ],
)
def test_what_is_damaged_or_missing_is_named(saved, name, damage, message):
    """Without it the user would read a traceback of another library."""
    if damage is None:
        (saved / name).unlink()
    else:
        (saved / name).write_bytes(damage)
    assert _refused(saved).startswith(message)


def test_columns_of_another_type_than_was_saved_are_looked_at_first(saved):
    """Without it datasets converts values whose offsets were not checked, before it says that the types differ."""
    for file in sorted(saved.glob("*.arrow"), reverse=True):
        with pa.ipc.open_stream(pa.BufferReader(file.read_bytes())) as stream:
            table, metadata = stream.read_all(), stream.schema.metadata
        wide = pa.table({"text": table["text"].combine_chunks().cast(pa.large_string())})
        wide = wide.replace_schema_metadata(metadata)
        with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, wide.schema) as writer:
            writer.write_table(wide)
    assert _refused(saved).startswith(f"{saved} cannot be opened by datasets: ")
    data = file.read_bytes()
    ends = np.cumsum([0, *(len(text) for text in TEXTS[:20])]).astype(np.int64)
    at = data.index(ends.tobytes()) + 5 * 8
    file.write_bytes(data[:at] + np.int64(1 << 30).tobytes() + data[at + 8 :])
    assert _refused(saved).startswith("data-00000-of-00002.arrow is damaged: ")


def test_each_row_is_held_against_its_own_file(saved):
    """Without it a row would be refused for a change of a file that it does not lie in, or taken from one that changed."""
    for name, others, changed in (
        ("data-00000-of-00002", (20, 39), (0, 19)),
        ("data-00001-of-00002", (0, 19), (20, 39)),
    ):
        source = open_source(saved, format="text")
        os.utime(saved / f"{name}.arrow", (1, 1))
        assert [source[sample_id].text for sample_id in others] == [TEXTS[sample_id] for sample_id in others]
        for sample_id in changed:
            with pytest.raises(SourceError, match=rf"{name}\.arrow changed while it was being read"):
                _ = source[sample_id]


@pytest.mark.parametrize(
    "read", [lambda rows: rows.get(0), lambda rows: list(rows.read(0, 2)), lambda rows: rows.blocks]
)
def test_rows_that_change_while_they_are_converted_are_not_handed_out(saved, monkeypatch, read):
    """Without it a change between the look at the file and the reading of its rows would not be seen."""
    rows = open_source(saved, format="text").rows
    real = type(rows)._checked  # type: ignore[attr-defined]

    def checked(self, start, stop):
        table = real(self, start, stop)
        os.utime(saved / "data-00000-of-00002.arrow", (1, 1))
        return table

    monkeypatch.setattr(type(rows), "_checked", checked)
    with pytest.raises(SourceError, match="changed while it was being read"):
        read(rows)
