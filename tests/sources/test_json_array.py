"""A JSON array is read element by element, and says the same as JSON read whole."""

from __future__ import annotations

import gzip
import io
import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.errors import BadSampleError, SourceError
from brimful.sources import copies, json_rows, line_index, lines, open_source, rows
from brimful.sources.json_rows import array_elements

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def _elements(data):
    return list(array_elements(io.BytesIO(data), "a.json"))


@pytest.fixture
def _small(monkeypatch):
    monkeypatch.setattr(json_rows, "_CHUNK", 4)


@given(
    st.lists(VALUES, max_size=6),
    st.sampled_from([None, 1]),
    st.booleans(),
    st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-32-le"]),
    st.integers(1, 30),
)
def test_it_reads_what_json_reads(values, indent, ascii_only, encoding, chunk):
    """Without it an element on the edge of what is read at once would be cut, doubled or refused."""
    data = json.dumps(values, indent=indent, ensure_ascii=ascii_only).encode(encoding, "surrogatepass")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(json_rows, "_CHUNK", max(chunk, 4))
        assert _elements(data) == values


@pytest.mark.parametrize("data", [b'[{"text": "a\\u00e9b"}, 12.5e3, true, [null], ""]', b" [1 , 2] \n"])
@pytest.mark.usefixtures("_small")
def test_every_beginning_of_an_array_is_refused(data):
    """Without it an array that was cut short would lose its last rows without a word."""
    whole = _elements(data)
    end = data.rindex(b"]")
    for length in range(1, end):
        with pytest.raises((BadSampleError, SourceError)):
            _elements(data[:length])
    assert _elements(data[: end + 1]) == whole == json.loads(data)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'[\n{"a": 1}\n{"b": 2}]', "a.json:3 (sample 1): not JSON: Expecting ',' delimiter at column 1"),
        (b'[{"a": 1},\n\n   nope]', "a.json:3 (sample 1): not JSON: Expecting value at column 4"),
        (b'[{"a": nope, "long": "' + b"x" * 100 + b'"}]', "a.json:1 (sample 0): not JSON: Expecting value at column 8"),
        (b"[%s\n\n\n nope]" % (b"1,\n" * 20), "a.json:24 (sample 20): not JSON: Expecting value at column 2"),
        (b"[1, 2] 3", "a.json:1 (sample 2): not JSON: Extra data at column 8"),
        (b"[1, ", "a.json:1 (sample 1): not JSON: Expecting value at column 5"),
        (b'["abcdef", {"b": 12', "a.json:1 (sample 1): not JSON: Expecting ',' delimiter at column 20"),
        (b'[1,\n "abc", {"b": "cd', "a.json:2 (sample 2): not JSON: Unterminated string starting at at column 15"),
        (b'["a", "\xff"]', "a.json: row 1 (sample 1): invalid UTF-8"),
        (b"[%s]" % (b"1" * 5000), "a.json: row 0 (sample 0): not readable as JSON: Exceeds the limit"),
        (b"[" * 100_000, "a.json: row 0 (sample 0): not readable as JSON: nested too deeply"),
        (b'{"a": 1}', "a.json must hold a JSON array of rows"),
        (b"", "a.json must hold a JSON array of rows"),
    ],
)
@pytest.mark.parametrize("chunk", [4, 1 << 20])
def test_what_is_wrong_is_named_with_its_line(data, message, chunk, monkeypatch):
    """Without it a missing comma in a big file could not be found, in the window that it lies in or before it."""
    monkeypatch.setattr(json_rows, "_CHUNK", chunk)
    with pytest.raises(SourceError) as caught:
        _elements(data)
    assert str(caught.value).startswith(message)


def _peak(work):
    """Most bytes that Python held at once beyond what it held before, and the result."""
    work()  # what is imported on the way is not counted
    tracemalloc.start()
    result = work()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak, result


def test_a_row_that_unpacks_to_too_much_is_that_rows_fault(put, monkeypatch, tmp_path):
    """Without it two megabytes of a foreign archive would take all memory, or end a job that skips bad rows."""
    for module in (json_rows, lines, rows, copies):
        monkeypatch.setattr(module, "MAX_ROW_BYTES", 1 << 20)
    good = b'{"text": "%s"}' % (b"g" * ((1 << 20) - 12))
    assert len(good) == 1 << 20
    bomb = b'{"text": "%s"}' % (b"b" * (24 << 20))
    data = b"\n".join([b'{"text": "a"}', bomb, b'{"text": "c"}', good + b"\n" * 3000, b'{"text": "e"}'])
    path = put("a.jsonl.gz", gzip.compress(data, 1))
    times = iter(range(2))

    def read():
        return list(open_source(path, format="text", cache_dir=tmp_path / f"cache-{next(times)}").read(0, 5))

    peak, found = _peak(read)
    assert str(found[1]) == f"{path}:2 (sample 1): a row above the maximum of 1,048,576 bytes: cut it into several"
    assert [len(found[index].text) for index in (0, 2, 3, 4)] == [1, 1, (1 << 20) - 12, 1]
    assert peak < 20 << 20, "the long row was held"
    plain = put("b.jsonl", data)
    assert [type(row) for row in open_source(plain, format="text").read(0, 5)] == [type(row) for row in found]


@pytest.mark.parametrize("piece", [1, 2, 3, 4])
def test_lines_are_copied_up_to_what_a_row_may_have(monkeypatch, piece):
    """Without it the copy of a long line could take the next line along, or fill the disk."""
    monkeypatch.setattr(copies, "MAX_ROW_BYTES", 4)
    monkeypatch.setattr(copies, "_PIECE", piece)
    target = io.BytesIO()
    copies._copy_lines(io.BytesIO(b"1234\n12345\n123456\n\n1234567890\nab"), target)
    assert target.getvalue() == b"1234\n12345\n12345\n\n12345\nab"


def test_blank_lines_take_no_memory(put, tmp_path, monkeypatch):
    """Without it an archive of nothing but line ends would take hundreds of times its size."""
    monkeypatch.setattr(line_index, "_CHUNK", 1 << 18)
    path = put("a.jsonl", b'{"text": "a"}\n' + b"\n" * (4 << 20) + b'{"text": "b"}\n')
    times = iter(range(2))
    peak, source = _peak(lambda: open_source(path, cache_dir=tmp_path / f"cache-{next(times)}"))
    assert [sample.text for sample in source.read(0, 2)] == ["a", "b"]
    assert peak < 16 << 20


def test_an_element_that_is_too_long_is_named(monkeypatch):
    """Without it one element of a small archive would take all memory."""
    monkeypatch.setattr(json_rows, "MAX_ROW_BYTES", 50)
    monkeypatch.setattr(json_rows, "_CHUNK", 4)
    read = io.BytesIO(b'["a", "%s"]' % (b"b" * 4000))
    with pytest.raises(BadSampleError) as caught:
        list(array_elements(read, "a.json"))
    assert str(caught.value).startswith("a.json: row 1 (sample 1): a row above the maximum of ")
    assert read.tell() < 400
