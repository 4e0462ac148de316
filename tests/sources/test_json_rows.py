"""Rows parsed by the fast library have the values that ``json.loads`` gives."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("orjson", reason="orjson comes with brimful[fast]")

from brimful.sources import json_rows
from brimful.sources.json_rows import rows_of_lines, unreadable

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


def _row(line):
    (row,) = rows_of_lines([line], line)
    return row


@given(VALUES, st.booleans())
def test_values_are_those_of_the_standard_library(value, escaped):
    """Without it a number of a tool call could be rounded, or half of a surrogate pair become another character."""
    text = json.dumps({"value": value}, ensure_ascii=escaped)
    line = text.encode("utf-8", "surrogatepass" if escaped else "replace")
    assert repr(_row(line)) == repr(json.loads(line))


@pytest.mark.parametrize(
    "text", ["NaN", "[1e999]", '"\\ud800"', "18446744073709551616", "-9223372036854775809", '{"a":1,"a":2}']
)
def test_what_the_fast_library_refuses_or_rounds(text):
    """Each of these is another value, or an error, by ``orjson`` alone."""
    line = b'{"value": %s}' % text.encode()
    assert repr(_row(line)) == repr(json.loads(line))


@pytest.mark.parametrize("line", [b"{", b'{"a": 01}', b"\xff", b'"\x01"', b"[" * 100_000])
def test_errors_are_those_of_the_standard_library(line):
    """Messages name the column that ``json`` names."""
    with pytest.raises(Exception) as expected:
        json.loads(line)
    assert str(_row(line)).startswith(str(unreadable(expected.value)))


def test_without_the_library(monkeypatch):
    """It is an extra."""
    monkeypatch.setattr(json_rows, "fast_json_library", lambda: None)
    assert _row(b'{"value": 1}') == {"value": 1}


def test_what_is_missing_at_the_end_of_a_line_is_missing_there():
    """Not at the beginning of the next line, which is another row."""
    assert str(_row(b'{"a": \n')) == "not JSON: Expecting value at column 6"
