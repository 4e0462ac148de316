"""Tables in memory, and other things in memory that are sources."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from brimful.sources import Sample, open_source
from tests.sources.tools import ROWS, texts


def _pandas() -> Any:
    return pytest.importorskip("pandas").DataFrame(ROWS)


def _polars() -> Any:
    return pytest.importorskip("polars").DataFrame(ROWS)


def _streamed() -> Any:
    datasets = pytest.importorskip("datasets", reason="needs the extra brimful[huggingface]")
    return datasets.Dataset.from_list(ROWS).to_iterable_dataset()


TABLES = {
    "pyarrow": lambda: pa.Table.from_pylist(ROWS),
    "pandas": _pandas,
    "polars": _polars,
    "generator": lambda: (row for row in ROWS),
    "streamed data set": _streamed,
}


@pytest.mark.parametrize("name", TABLES)
def test_what_lies_in_memory_is_a_source(name: str) -> None:
    """Without it every notebook would begin by writing a file."""
    source = open_source(TABLES[name]())
    assert texts(source) == ["one", "two", "three"]
    assert (source[2].text, sum(len(block) for block in source.blocks)) == ("three", 3)
    again = pickle.loads(pickle.dumps(source))
    assert (texts(again), again.fingerprint) == (texts(source), open_source(TABLES[name]()).fingerprint)


def test_a_missing_value_of_a_table_is_no_value() -> None:
    """Without it a column that pandas filled with NaN would count as one that says something."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame([{"text": "a", "image": None}, {"text": "b", "image": None}])
    assert open_source(frame)[0] == Sample(0, text="a")


def test_a_text_that_is_no_utf8_is_one_bad_row(tmp_path: Path) -> None:
    """Without it one broken text ends the job with a traceback, also with on_bad_sample="skip"."""
    broken = pa.StringArray.from_buffers(
        3, pa.py_buffer(np.array([0, 1, 3, 4], np.int32).tobytes()), pa.py_buffer(b"a\xffbc")
    )
    table = pa.table({"text": broken})
    pq.write_table(table, tmp_path / "a.parquet")
    for data in (table, tmp_path / "a.parquet"):
        source = open_source(data)
        first, bad, last = source.read(0, 3)
        assert [first.text, last.text] == ["a", "c"]
        assert (
            bad.reason
            == "column 'text' cannot be read: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"
        )
        assert "row 1" in str(bad)
