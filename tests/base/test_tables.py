"""Tables come back as they were written, or are refused by name."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from brimful.base.tables import Ragged, open_table, to_numpy_dtype, write_table
from brimful.errors import CorruptFileError


def _write(path, **columns):
    write_table(path, columns, {"unit": "tokens", "name": "é"})
    return path


def test_flat_and_ragged_columns_come_back_with_their_dtypes(tmp_path):
    """Without it a plan could come back with other ids than it was saved with."""
    rows = Ragged(np.array([7, 8, 9], dtype=np.int32), np.array([0, 2, 2, 3]))
    path = _write(tmp_path / "t.arrow", size=np.array([2, 0, 1]), share=np.array([0.5, 0.0, 1.0], np.float32), ids=rows)
    table = open_table(path)
    assert (len(table), table.names, "ids" in table, "other" in table) == (3, ["size", "share", "ids"], True, False)
    assert table.description == {"unit": "tokens", "name": "é"}
    assert (table.flat("size").dtype, table.flat("size").tolist()) == (np.int64, [2, 0, 1])
    assert (table.flat("share").dtype, table.flat("share").tolist()) == (np.float32, [0.5, 0.0, 1.0])
    ids = table.ragged("ids")
    assert (ids.values.dtype, ids.offsets.dtype, len(ids)) == (np.int32, np.int64, 3)
    assert [ids.row(index).tolist() for index in range(3)] == [[7, 8], [], [9]]


def test_booleans_come_back(tmp_path):
    """Without it a column that write_table documents (booleans) could be written and never read."""
    path = _write(tmp_path / "t.arrow", flag=np.array([True, False, True]))
    assert open_table(path).flat("flag").tolist() == [True, False, True]


def test_no_rows_are_a_table_too(tmp_path):
    """Without it an empty result would look like a broken file."""
    none = Ragged(np.array([], dtype=np.int32), np.array([0]))
    table = open_table(_write(tmp_path / "t.arrow", size=np.array([], dtype=np.int32), ids=none))
    assert (len(table), table.flat("size").tolist(), len(table.ragged("ids"))) == (0, [], 0)


def test_columns_of_a_view_are_written_as_its_values(tmp_path):
    """Without it a strided or big-endian array would be written as other numbers."""
    path = _write(tmp_path / "t.arrow", size=np.arange(6, dtype=np.int32)[::-2])
    assert open_table(path).flat("size").tolist() == [5, 3, 1]


def test_open_arrays_are_read_only_and_outlive_a_replaced_file(tmp_path):
    """Without it a caller could change the file, or a rewrite could change a caller's numbers."""
    path = _write(tmp_path / "t.arrow", size=np.array([1, 2, 3]))
    before = open_table(path).flat("size")
    with pytest.raises(ValueError, match="read-only"):
        before[0] = 9
    _write(path, size=np.array([4, 5, 6]))
    assert (before.tolist(), open_table(path).flat("size").tolist()) == ([1, 2, 3], [4, 5, 6])


def test_any_arrow_reader_opens_it(tmp_path):
    """Without it polars and DuckDB could not look into our files."""
    path = _write(tmp_path / "t.arrow", size=np.array([1, 2]))
    with pa.OSFile(str(path)) as file:
        assert pa.ipc.open_file(file).read_all().to_pydict() == {"size": [1, 2]}


def test_a_file_cut_anywhere_is_refused_by_name(tmp_path):
    """Without it a half-copied table would be read as a shorter one or crash in Arrow."""
    data = _write(tmp_path / "t.arrow", size=np.array([1, 2, 3])).read_bytes()
    cut = tmp_path / "cut.arrow"
    refused = 0
    for length in range(len(data)):
        cut.write_bytes(data[:length])
        with pytest.raises(CorruptFileError) as caught:
            open_table(cut)
        assert str(caught.value).startswith(f"{cut} cannot be read as a table of brimful: ")
        refused += 1
    assert refused == len(data) > 300


def _content(path):
    table = open_table(path)
    ids = table.ragged("ids")
    flat = [(name, table.flat(name).dtype, table.flat(name).tolist()) for name in ("size", "flag")]
    return table.description, flat, ids.values.dtype, ids.values.tolist(), ids.offsets.tolist()


def test_every_flipped_byte_is_found_or_changes_nothing(tmp_path):
    """Without it a damaged table would be read as other lengths, other tokens or another description."""
    rows = Ragged(np.array([7, 8, 9], dtype=np.int32), np.array([0, 2, 2, 3]))
    path = _write(tmp_path / "t.arrow", size=np.array([2, 0, 1]), flag=np.array([True, False, True]), ids=rows)
    data, right = path.read_bytes(), _content(path)
    found = 0
    for at in range(len(data)):
        for bit in (1 << at % 8,):
            path.write_bytes(data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :])
            try:
                same = _content(path) == right
            except CorruptFileError as error:
                same = str(error).startswith(str(path)) and "\n" not in str(error)
                found += 1
            assert same, f"bit {bit} of byte {at}"
    assert found > len(data) / 2


def test_numbers_are_checked_when_they_are_asked_for(tmp_path):
    """Without it a plan of a billion samples would be read whole to open it, or never be checked."""
    path = _write(tmp_path / "t.arrow", size=np.arange(1000, 1009), other=np.array([5] * 9))
    path.write_bytes(path.read_bytes().replace(np.int64(1003).tobytes(), np.int64(1999).tobytes()))
    table = open_table(path)
    assert table.flat("other").tolist() == [5] * 9
    assert table.flat("size", checked=False)[3] == 1999
    for _ in range(2):  # a column that was refused once is not taken the second time
        with pytest.raises(CorruptFileError) as caught:
            table.flat("size")
    assert str(caught.value) == f"{path} is damaged: column 'size' has other numbers than were written"


def test_rows_cut_from_a_longer_column_come_back(tmp_path):
    """Without it values outside all rows, which Arrow leaves out, would make the checksum of a right file wrong."""
    rows = Ragged(np.arange(9, dtype=np.int32), np.array([2, 4, 7]))
    ids = open_table(_write(tmp_path / "t.arrow", ids=rows)).ragged("ids")
    assert (ids.values.tolist(), ids.offsets.tolist()) == ([2, 3, 4, 5, 6], [0, 2, 5])


def test_an_arrow_file_of_somebody_else_is_refused(tmp_path):
    """Without it columns of another program would be taken for ours."""
    path = str(tmp_path / "foreign.arrow")
    table = pa.table({"size": [1, 2]})
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(CorruptFileError) as caught:
        open_table(path)
    assert str(caught.value) == f"{path} is an Arrow file that brimful did not write"


def test_a_table_in_several_batches_is_refused(tmp_path):
    """Without it only the first batch would be read and rows would be lost silently."""
    path = str(tmp_path / "two.arrow")
    schema = pa.schema([("size", pa.int64())], metadata={b"brimful": b"{}"})
    batch = pa.record_batch([pa.array([1])], schema=schema)
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(batch)
        writer.write_batch(batch)
    with pytest.raises(CorruptFileError) as caught:
        open_table(path)
    assert str(caught.value) == f"{path} holds 2 record batches where one is due"


def test_a_text_file_is_refused(tmp_path):
    """Without it --lengths data.jsonl would end in an error of Arrow."""
    path = tmp_path / "data.jsonl"
    path.write_text('{"text": "a"}\n' * 10)
    with pytest.raises(CorruptFileError, match=r"data\.jsonl cannot be read as a table of brimful: Not an Arrow file"):
        open_table(path)


def test_an_absent_file_is_a_file_not_found_error(tmp_path):
    """Without it callers could not tell 'make it' from 'it is broken'."""
    with pytest.raises(FileNotFoundError):
        open_table(tmp_path / "no.arrow")


def test_a_failed_write_leaves_the_old_table(tmp_path):
    """Without it an error half way would cost the table that was there."""
    path = _write(tmp_path / "t.arrow", size=np.array([1, 2, 3]))
    with pytest.raises(ValueError, match="length"):
        _write(path, size=np.array([1]), other=np.array([1, 2]))
    assert open_table(path).flat("size").tolist() == [1, 2, 3]
    assert [file.name for file in tmp_path.iterdir()] == ["t.arrow"]


@pytest.mark.parametrize(
    "name",
    ["bool_", "float16", "float32", "float64", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))],
)
def test_types_of_arrow_have_the_dtype_that_arrow_says(name):
    """Arrow itself imports pandas to say it, up to version 25: without pandas nothing could be packed there."""
    arrow_type = getattr(pa, name)()
    assert to_numpy_dtype(arrow_type) == np.dtype(arrow_type.to_pandas_dtype())
