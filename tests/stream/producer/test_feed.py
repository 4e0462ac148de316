"""Rows as they arrive: each once, in order, and none of a source that was changed under the cursor."""

from __future__ import annotations

import gzip
import json
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brimful.base.checks import MalformedRowError
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
        assert len(samples) <= most
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
    path.write_bytes(b'\xef\xbb\xbf\n{"text": "one"}\n\n{"text": "\xc3')
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
    """P6: shorter, or other bytes before the position."""
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
    """Each with its name."""
    with pytest.raises(SourceNotFoundError, match="no such file or directory"):
        open_feed(tmp_path / "absent")
    (tmp_path / "a.bin").touch()
    with pytest.raises(SettingsError, match="is not JSON lines"):
        open_feed(tmp_path / "a.bin")
    with pytest.raises(SettingsError, match="not int"):
        open_feed(3)


KINDS = st.lists(st.sampled_from(["row", "row", "row", "bad", "none"]), max_size=16)
STEPS = st.lists(st.one_of(st.integers(1, 4), st.sampled_from(["settle", "back", "restart"])), max_size=16)


@settings(max_examples=150)
@given(KINDS, STEPS)
def test_rows_of_an_iterator_come_once_whatever_is_settled_and_repeated(kinds, steps):
    """A row that is passed over is lost, and one that comes twice is trained twice; None only says "not yet"."""
    rows = [
        {"row": {"text": f"row {number}"}, "bad": MalformedRowError(f"fault {number}"), "none": None}[kind]
        for number, kind in enumerate(kinds)
    ]
    texts = [row["text"] if isinstance(row, dict) else "bad" for row in rows if row is not None]
    feed, settled, position, cursors = IteratorFeed(iter(rows), RowSettings()), 0, 0, []

    def poll(most):
        samples = feed.poll(most, 100 + position)
        assert len(samples) <= most
        assert [sample.sample_id for sample in samples] == [100 + position + place for place in range(len(samples))]
        for place, sample in enumerate(samples, position):
            if texts[place] == "bad":
                assert sample.where == f"list_iterator of rows: row {place}"
            else:
                assert sample.text == texts[place]
        return position + len(samples)

    for step in steps:
        if step == "settle":
            cursors.append(json.loads(json.dumps(feed.cursor())))
            feed.settle()
            settled = position
            assert cursors[-1]["rows"] == settled
        elif isinstance(step, int):
            position = poll(step)
        else:
            feed = IteratorFeed(iter(rows), RowSettings()) if step == "restart" else feed
            feed.seek(cursors)
            position = settled
            assert not cursors or feed.cursor() == cursors[-1]
    for _ in range(2 * len(rows) + 2):
        position = poll(3)
    assert (position, feed.is_ended) == (len(texts), True)


@pytest.mark.parametrize(("piece", "checked"), [(1, 1), (7, 5), (1 << 20, 4096)])
@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=8),
    cuts=st.lists(st.integers(0, 200), max_size=4),
    most=st.integers(1, 3),
    is_ended=st.booleans(),
)
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_lines_come_once_wherever_the_file_grows_and_the_feed_stops(
    tmp_path_factory, monkeypatch, piece, checked, lengths, cuts, most, is_ended
):
    """Also where lines are longer than a read, blank, or cut in the middle; each cursor leads on from its line."""
    monkeypatch.setattr("brimful.stream.producer.directory_feed._PIECE_BYTES", piece)
    monkeypatch.setattr("brimful.stream.producer.directory_feed._CHECKED_BYTES", checked)
    texts = [f"{number}{'a' * length}" for number, length in enumerate(lengths)]
    data = "\n\n".join(json.dumps({"text": text}) for text in texts).encode() + b"\n" * (not is_ended)
    path = tmp_path_factory.mktemp("in") / "a.jsonl"
    path.touch()
    found, cursors = [], []
    for end in [*sorted(cuts), len(data)]:
        path.write_bytes(data[:end])
        feed = open_feed(path)
        feed.seek(cursors)
        while samples := feed.poll(most, len(found), is_last=end >= len(data)):
            assert len(samples) <= most
            found += [sample.text for sample in samples]
            cursors.append(feed.cursor())
            feed.settle()
            progress = cursors[-1]["files"]["a.jsonl"]
            assert progress["rows"] == len(found)
            assert len(data[: progress["bytes"]].split()) == 2 * len(found), "the position is after the last line"
    assert (found, feed.is_ended) == (texts, True)
    # A changed byte that is checked is seen by a feed that goes on after it.
    for place in range(max(0, progress["bytes"] - checked), progress["bytes"]) if checked < 10 else ():
        path.write_bytes(data[:place] + b"~" + data[place + 1 :] + b"\n{}")
        changed = open_feed(path)
        changed.seek(cursors)
        with pytest.raises(SourceError, match=rf"was changed before byte {progress['bytes']}, up to which"):
            changed.poll(1, 0)


def test_a_whole_file_that_was_begun_must_stay_as_it_is(tmp_path, monkeypatch):
    """Another end, or no file: rows after the cursor would be of other data."""
    monkeypatch.setattr("brimful.stream.producer.directory_feed._CHECKED_BYTES", 8)
    path, rows = tmp_path / "a.json", [{"text": f"row {number}"} for number in range(3)]
    path.write_text(json.dumps(rows))
    feed = open_feed(tmp_path)
    assert len(feed.poll(2, 0)) == 2
    cursor = feed.cursor()
    again = open_feed(tmp_path)
    again.seek([cursor])
    append(tmp_path / "b.jsonl", "one")
    assert drain(again) == ["row 2", "one"]
    path.write_text(json.dumps(rows).replace("row 2", "new 2"))
    changed = open_feed(tmp_path)
    changed.seek([cursor])
    with pytest.raises(SourceError, match=r"a\.json was changed after its first 2 rows were taken"):
        changed.poll(1, 2)
    path.unlink()
    with pytest.raises(SourceError, match=r"a\.json was removed after its first 2 rows"):
        open_feed(tmp_path).seek([cursor])
    # What was taken to its end, or up to a line, may be removed.
    (tmp_path / "b.jsonl").unlink()
    open_feed(tmp_path).seek([cursor, again.cursor()])


def test_a_row_without_an_end_is_refused_before_memory_is_full(tmp_path, monkeypatch):
    """A file that is one line of a terabyte; a long row that ends is read."""
    for module in ("directory_feed", "feed"):
        monkeypatch.setattr(f"brimful.stream.producer.{module}.MAX_ROW_BYTES", 32)
    monkeypatch.setattr("brimful.stream.producer.directory_feed._PIECE_BYTES", 4)
    path = tmp_path / "a.jsonl"
    append(path, "one", "x" * 25)
    feed = open_feed(path)
    assert drain(feed) == ["one", "x" * 25]
    with open(path, "a") as file:
        file.write('{"text": "' + "y" * 100)
    with pytest.raises(SourceError, match=r"a\.jsonl: row 2: .*bytes"):
        feed.poll(1, 2)
    read_end, write_end = os.pipe()
    lines = arriving_lines(read_end, "standard input")
    os.write(write_end, b'{"text": "one"}\n' + b"z" * 32)
    assert [next(lines), next(lines)] == [{"text": "one"}, None]
    os.write(write_end, b"z")
    with pytest.raises(SourceError, match="standard input: "):
        next(lines)
    os.close(write_end)
    os.close(read_end)


@pytest.mark.parametrize("kind", ["lines", "iterator"])
@pytest.mark.parametrize("given", [None, "text"])
def test_the_first_rows_decide_the_format_for_all_that_come_later(tmp_path, kind, given):
    """After a stop too: later rows that could be read in another way are not, unless the whole source is."""
    rows = [{"text": "one"}, {"text": "two", "messages": [{"role": "assistant", "content": "chat"}]}]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def opened(first=0):
        return open_feed(path if kind == "lines" else iter(rows[first:]), format=given)

    feed = opened()
    assert [sample.text for sample in feed.poll(1, 0)] == ["one"]
    cursor = json.loads(json.dumps(feed.cursor()))
    for again in (feed, opened()):
        again.seek([cursor])
        assert [sample.text for sample in again.poll(1, 0)] == ["two"]
    if kind == "iterator":
        assert [sample.text for sample in opened(first=1).poll(1, 0)] == ["two" if given else None]


def test_samples_of_several_files_are_numbered_on(tmp_path):
    """From any number: two samples of one number would be one."""
    for name in ("a", "b", "c"):
        append(tmp_path / f"{name}.jsonl", f"{name}1", f"{name}2")
    assert [sample.sample_id for sample in open_feed(tmp_path).poll(9, 7)] == [7, 8, 9, 10, 11, 12]


def test_a_text_waits_for_a_recording_only_where_media_are_read(tmp_path):
    """Texts of a feed of texts would never come; neither would one that was named, nor rows of JSON."""
    (tmp_path / "a.txt").write_text("a text")
    (tmp_path / "b.json").write_text('[{"text": "a row"}]')
    assert drain(open_feed(tmp_path)) == ["a text", "a row"]
    with_media = open_feed(tmp_path, media=True)
    assert drain(with_media) == ["a row"]
    assert len(drain(with_media, is_last=True)) == 1
    assert drain(open_feed(tmp_path / "a.txt", media=True)) == ["a text"]
