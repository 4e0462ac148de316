"""Appended rows alone are encoded, however the rows are stored."""

import gzip
import json

import pytest

from brimful.measure import measure_lengths
from brimful.sources import open_source
from tests.measure.encoders import Letters


def _lines(texts):
    return "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()


STORAGES = {
    "jsonl": _lines,
    "jsonl.gz": lambda texts: gzip.compress(_lines(texts)),
    "json": lambda texts: json.dumps([{"text": text} for text in texts]).encode(),
}


@pytest.mark.parametrize("has_table", [True, False])
@pytest.mark.parametrize("ending", STORAGES)
def test_only_appended_rows_are_encoded(tmp_path, ending, has_table):
    """A copy that is unpacked again is another file; its rows are those of before all the same."""
    texts = [f"text {number}" for number in range(50)]
    path = tmp_path / f"a.{ending}"
    options = {"path": tmp_path / "lengths.arrow"} if has_table else {}
    path.write_bytes(STORAGES[ending](texts[:48]))
    measure_lengths(open_source(path), Letters(), **options)
    path.write_bytes(STORAGES[ending](texts))
    encoder = Letters()
    measure_lengths(open_source(path), encoder, **options)
    assert encoder.seen == texts[48:]
