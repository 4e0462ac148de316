"""What counts as a line, and what is said about a line that cannot be read."""

from __future__ import annotations

import json
import pickle

import pytest

from brimful.errors import BadSampleError, SourceError
from brimful.sources import open_source


def _shown(source):
    """The text of each sample, or the error after the path, for comparing whole files."""
    found = []
    for result in source.read(0, len(source)):
        found.append(str(result).removeprefix(source.title) if isinstance(result, Exception) else result.text)
    return found


NO_JSON = "not JSON: Expecting value at column 1"

FILES = {
    "line ends": (b'{"text":"a"}\n{"text":"b"}\n', ["a", "b"]),
    "no last line end": (b'{"text":"a"}\n{"text":"b"}', ["a", "b"]),
    "Windows": (b'{"text":"a"}\r\n\r\n{"text":"b"}\r\n', ["a", "b"]),
    "byte order mark": (b'\xef\xbb\xbf{"text":"a"}\n{"text":"b"}\n', ["a", "b"]),
    "blank lines": (b'\n\n{"text":"a"}\n\r\n\n{"text":"b"}\n\n', ["a", "b"]),
    "separators inside a text": ('{"text":"a\u2028b\u2029c\x85d"}\n'.encode(), ["a\u2028b\u2029c\x85d"]),
    "a bare text": (b'"a"\n{"text":"b"}\n', ["a", "b"]),
    "escapes": (rb'{"text":"\u00e9\ud83d\ude00\n"}', ["é😀\n"]),
    "no JSON": (b'{"text":"a"}\nnope\n', ["a", f":2 (sample 1): {NO_JSON}"]),
    "blank lines before an error": (b'\n{"text":"a"}\n\r\n\nnope\n', ["a", f":5 (sample 1): {NO_JSON}"]),
    "cut off": (
        b'{"text":"a"}\n{"text":"b',
        ["a", ":2 (sample 1): not JSON: Unterminated string starting at at column 9"],
    ),
    "two objects": (
        b'{"text":"a"}{"text":"b"}\n{"text":"c"}',
        [":1 (sample 0): not JSON: Extra data at column 13", "c"],
    ),
    "an array": (b'{"text":"a"}\n[1]\n', ["a", ":2 (sample 1): a row must be an object and is list"]),
    "null": (b'{"text":"a"}\nnull\n', ["a", ":2 (sample 1): a row must be an object and is NoneType"]),
    "invalid UTF-8": (
        b'{"text":"a"}\n{"text":"\xff"}\n{"text":"c"}',
        ["a", ":2 (sample 1): invalid UTF-8 at byte 9 (invalid start byte)", "c"],
    ),
    "missing field": (b'{"text":"a"}\n{"txt":"b"}', ["a", ":2 (sample 1): field 'text' is missing (found ['txt'])"]),
    "no text": (b'{"text":"a"}\n{"text":null}', ["a", ":2 (sample 1): text must be text and is NoneType null"]),
    "empty text": (
        b'{"text":"a"}\n{"text":""}',
        ["a", ":2 (sample 1): 'text' is empty: a document needs at least one character"],
    ),
    "nested too deeply": (
        b'{"text":"a"}\n' + b"[" * 100_000 + b"\n",
        ["a", ":2 (sample 1): not readable as JSON: nested too deeply"],
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_lines_reads_as(name, put):
    """Without it a line could be split, lost, joined, or blamed under another number."""
    data, expected = FILES[name]
    source = open_source(put("a.jsonl", data), format="text")
    assert _shown(source) == expected
    assert len(source) == len(expected)


def test_a_number_of_five_thousand_digits_is_that_lines_fault(put):
    """Without it one absurd number would end the whole job with Python's own ValueError."""
    source = open_source(put("a.jsonl", b'{"text":"a","n":%s}\n{"text":"b"}\n' % (b"1" * 5000)), format="text")
    errors = _shown(source)
    assert errors[0].startswith(":1 (sample 0): ")
    assert errors[1] == "b"


def test_a_row_of_three_megabytes(put):
    """Without it a long document could be cut at some buffer."""
    text = "long é " * 450_000
    data = json.dumps({"text": text}).encode() + b'\n{"text":"b"}\n'
    assert len(data) > 3 << 20
    source = open_source(put("a.jsonl", data))
    assert _shown(source) == [text, "b"]


def test_lines_of_text_lose_only_their_line_end(put):
    """Without it leading spaces of code, or a separator in a text, would be lost."""
    path = put("a.txt", "\ufeff  a \r\n\nb\u2028\x0bc\t\r\nd".encode())
    assert _shown(open_source(path, text_unit="line")) == ["  a ", "b\u2028\x0bc\t", "d"]


def test_invalid_utf8_in_a_line_of_text(put):
    """Without it a Latin-1 line would end the job."""
    assert _shown(open_source(put("a.txt", b"a\n\xe9t\xe9\n"), text_unit="line")) == [
        "a",
        ":2 (sample 1): invalid UTF-8 at byte 0 (invalid continuation byte)",
    ]


def test_a_pickled_source_opens_in_the_same_state(put):
    """Without it worker processes could number or name samples otherwise than their parent."""
    source = open_source(put("a.jsonl", b'\n{"doc":"a"}\nnope\n{"doc":"b"}'), format="text", fields={"text": "doc"})
    again = pickle.loads(pickle.dumps(source))
    assert _shown(again) == _shown(source) == ["a", f":3 (sample 1): {NO_JSON}", "b"]
    assert (again.fingerprint, again.blocks, again.row_settings, again.title) == (
        source.fingerprint,
        source.blocks,
        source.row_settings,
        source.title,
    )


@pytest.mark.parametrize("end", ["", "\n"])
def test_the_beginning_of_a_file_is_known_by_the_fingerprint_of_the_shorter_one(put, monkeypatch, end):
    """However many pieces it is read in; without it appended rows would cost the whole file again."""
    monkeypatch.setattr("brimful.sources.lines._PIECE_BYTES", 16)
    lines = [f'{{"text":"{"x" * length}"}}' for length in (1, 30, 5, 9, 2)]
    whole = open_source(put("whole.jsonl", "\n".join(lines)))
    for count in range(1, len(lines)):
        shorter = open_source(put(f"{count}.jsonl", "\n".join(lines[:count]) + end))
        assert whole.begins_with(count, shorter.fingerprint)
        assert not whole.begins_with(
            count, open_source(put("other.jsonl", "\n".join(lines[1 : count + 1]))).fingerprint
        )


def test_a_file_changed_under_a_pickled_source_is_refused(put):
    """Without it a worker would measure other rows under the fingerprint of the old ones."""
    path = put("a.jsonl", b'{"text":"a"}\n')
    state = pickle.dumps(open_source(path))
    put("a.jsonl", b'{"text":"changed"}\n')
    with pytest.raises(SourceError) as caught:
        pickle.loads(state)
    assert str(caught.value) == f"{path} changed while it was being read: run the command again"


def test_a_file_changed_and_opened_again_under_a_pickled_source_is_refused(put):
    """Without it another job that re-indexes the changed file would make the worker accept the other rows."""
    path = put("a.jsonl", b'{"text":"a"}\n')
    state = pickle.dumps(open_source(path))
    put("a.jsonl", b'{"text":"changed"}\n')
    assert open_source(path)[0].text == "changed"
    with pytest.raises(SourceError, match="changed while it was being read"):
        pickle.loads(state)


def test_a_file_changed_before_its_first_row_is_read_is_refused(put):
    """Without it the new rows would be cached under the fingerprint of the old ones, and served later for those."""
    path = put("a.jsonl", b'{"text":"a"}\n')
    source = open_source(path, format="text")
    put("a.jsonl", b'{"text":"changed"}\n')
    with pytest.raises(SourceError, match="while it was being read"):
        _ = source[0]


def test_a_file_that_became_shorter_is_refused(put):
    """Without it reading past the end of the map would kill the process with a bus error."""
    path = put("a.jsonl", b'{"text":"a"}\n{"text":"b"}\n')
    source = open_source(path, format="text")
    put("a.jsonl", b'{"text":"a"}\n')
    with pytest.raises(SourceError, match="while it was being read: run the command again"):
        list(source.read(0, 2))


@pytest.mark.parametrize("is_fast", [True, False])
def test_a_column_that_stands_twice_in_a_row_is_named(put, monkeypatch, is_fast):
    """Without it a parser keeps the last, and the first chat of the row is lost without a word."""
    if not is_fast:
        monkeypatch.setattr("brimful.sources.json_rows.fast_json_library", lambda: None)
    chat = '[{"role": "user", "content": "say \\"messages\\""}, {"role": "assistant", "content": "messages"}]'
    good = f'{{"messages": {chat}, "n": {{"messages": 1, "text": "messages"}}}}'
    twice = f'{{"messages": {chat}, "id": 1, "messages" : {chat}}}'
    source = open_source(put("a.jsonl", "\n".join([good, good, twice, good]).encode()), ignore=["n", "id"])
    samples = list(source.read(0, 4))
    assert [isinstance(sample, BadSampleError) for sample in samples] == [False, False, True, False]
    assert str(samples[2]).endswith("a.jsonl:3 (sample 2): it has 'messages' twice: one of them would be lost")
