"""Rows as they arrive: each once, in order, and none of a source that was changed under the cursor."""

from __future__ import annotations

import gzip
import json
import os

import pytest

from brimful.errors import BadSampleError, SettingsError, SourceError, SourceNotFoundError
from brimful.sources.settings import RowSettings
from brimful.stream.producer.directory_feed import open_feed
from brimful.stream.producer.feed import IteratorFeed, arriving_lines


def append(path, *texts):
    with open(path, "a") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in texts)


def drain(feed, most=2, *, is_last=False):
    """Texts of all that has come, by small polls."""
    texts = []
    while samples := feed.poll(most, len(texts), is_last=is_last):
        assert [sample.sample_id for sample in samples] == list(range(len(texts), len(texts) + len(samples)))
        texts += [str(each) if isinstance(each, BadSampleError) else each.text for each in samples]
    return texts


def test_files_come_by_name_and_a_begun_one_first(tmp_path):
    """A file that is renamed in is whole; a growing one is read as far as it goes."""
    feed = open_feed(tmp_path)
    append(tmp_path / "b.jsonl", "b1", "b2", "b3")
    assert [sample.text for sample in feed.poll(1, 0)] == ["b1"]
    append(tmp_path / "a.jsonl", "a1")
    (tmp_path / ".c.jsonl.gz").write_bytes(gzip.compress(b'{"text": "c1"}\n{"text": "c2"}\n'))
    (tmp_path / "README").write_text("no data")
    assert drain(feed) == ["b2", "b3", "a1"]
    os.rename(tmp_path / ".c.jsonl.gz", tmp_path / "c.jsonl.gz")
    (tmp_path / "deep").mkdir()
    append(tmp_path / "deep" / "d.jsonl", "d1")
    append(tmp_path / "b.jsonl", "b4")
    assert drain(feed) == ["b4", "c1", "c2", "d1"]
    assert not feed.is_ended
    assert drain(feed, is_last=True) == []
    assert feed.is_ended


def test_half_a_line_is_taken_when_it_ends(tmp_path):
    """A writer may be in the middle of a character; the last line of all needs no end."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"text": "one"}\n\n{"text": "\xc3')
    feed = open_feed(path)
    assert drain(feed) == ["one"]
    with open(path, "ab") as file:
        file.write(b'\xa9"}')
    assert drain(feed) == []
    assert drain(feed, is_last=True) == ["é"]


def test_a_cursor_says_what_changed_and_leads_back(tmp_path):
    """Each holds only the files since the last; all of them together are the position."""
    append(tmp_path / "a.jsonl", "a1", "a2")
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b'{"text": "b1"}\n{"text": "b2"}\n'))
    feed, cursors = open_feed(tmp_path), []
    for expected in (["a1"], ["a2"], ["b1"]):
        assert [sample.text for sample in feed.poll(1, 0)] == expected
        cursors.append(json.loads(json.dumps(feed.cursor())))
        feed.settle()
    assert [list(cursor["files"]) for cursor in cursors] == [["a.jsonl"], ["a.jsonl"], ["b.jsonl.gz"]]
    for count, rest in ((0, ["a1", "a2", "b1", "b2"]), (1, ["a2", "b1", "b2"]), (3, ["b2"])):
        feed.seek(cursors[:count])
        assert drain(feed) == rest
        again = open_feed(tmp_path)
        again.seek(cursors[:count])
        assert drain(again) == rest


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda path: path.write_text('{"text": "other 1"}\n{"text": "a2"}\n{"text": "new"}\n'),
            "changed before byte",
        ),
        (lambda path: path.write_text(""), "has 0 bytes and had 15"),
    ],
)
def test_a_file_that_was_changed_is_refused(tmp_path, change, message):
    """P6: shorter, or other bytes in front of the position."""
    path = tmp_path / "a.jsonl"
    append(path, "a1", "a2")
    feed = open_feed(path)
    feed.poll(1, 0)
    cursor = feed.cursor()
    change(path)
    again = open_feed(path)
    again.seek([cursor])
    with pytest.raises(SourceError, match=message):
        drain(again)


def test_a_whole_file_must_not_change(tmp_path):
    """A name is read once: new rows need a new one."""
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"text": "a1"}\n'))
    feed = open_feed(tmp_path)
    assert drain(feed) == ["a1"]
    path.write_bytes(gzip.compress(b'{"text": "a1"}\n{"text": "and more of it"}\n'))
    with pytest.raises(SourceError, match="give new rows a new name"):
        drain(feed)


def test_a_pipe_gives_what_has_come():
    """Nothing waits; a malformed row is an error in its place."""
    read_end, write_end = os.pipe()
    feed = IteratorFeed(arriving_lines(read_end, "standard input"), RowSettings(), "standard input")
    assert drain(feed) == []
    os.write(write_end, b'{"text": "one"}\n{"te')
    assert drain(feed) == ["one"]
    os.write(write_end, b'xt": "two"}\n{"text": \n{"text": "last"}')
    assert drain(feed)[0] == "two"
    os.close(write_end)
    assert drain(feed) == ["last"]
    assert feed.is_ended
    os.close(read_end)


def test_what_nothing_can_arrive_from(tmp_path):
    """Each by name."""
    with pytest.raises(SourceNotFoundError, match="no such file or directory"):
        open_feed(tmp_path / "absent")
    (tmp_path / "a.bin").touch()
    with pytest.raises(SettingsError, match="is not JSON lines"):
        open_feed(tmp_path / "a.bin")
    with pytest.raises(SettingsError, match="not int"):
        open_feed(3)
