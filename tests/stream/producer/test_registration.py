"""Producers of one stream: a number and settings by name."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from brimful import open_packs
from brimful.base.blobs import LocalBlobStore, local, open_blob_store
from brimful.encode.choose import EncoderSettings, Mode
from brimful.errors import (
    BadSampleError,
    CorruptFileError,
    SettingsError,
    SourceError,
    StoreMismatchError,
)
from brimful.sources.sample import Sample
from brimful.store.shards import StreamLog
from brimful.stream import PackingProducer
from brimful.stream.producer.registration import (
    SAMPLES_OF_PRODUCER,
    Producers,
    Registration,
    check_apart,
    mode_of_arrivals,
)
from brimful.testing.toys import toy_chat_encoder


@pytest.fixture
def store(tmp_path):
    return LocalBlobStore(tmp_path)


def test_numbers_follow_each_other(store):
    """Each name has one; its sample ids are its own."""
    producers = Producers(store)
    made = [producers.register(name, {"capacity": 8}) for name in ("a", "b.1_-", "a")]
    assert made == [Registration(0, "a", {"capacity": 8}), Registration(1, "b.1_-", {"capacity": 8}), made[0]]
    assert [one.first_sample_id for one in made[:2]] == [0, SAMPLES_OF_PRODUCER] == [0, 2**44]
    assert producers.all() == made[:2]
    assert producers.all(1) == made[1:2]
    assert producers.all(2) == []
    assert producers.named("b.1_-") == made[1]
    assert producers.named("c") is None
    assert sorted(path.name for path in (store.directory / "producers").iterdir()) == ["000000.json", "000001.json"]


def test_another_that_comes_first_takes_the_number(store, monkeypatch):
    """It is looked for again, under the next one."""
    others = Producers(store)
    put = LocalBlobStore.put_if_absent

    def late(self, key, data):
        monkeypatch.undo()
        others.register("first", {})
        return put(self, key, data)

    monkeypatch.setattr(LocalBlobStore, "put_if_absent", late)
    assert Producers(store).register("second", {}).index == 1


@pytest.mark.parametrize("name", ["", "a/b", ".a", "-a", "a b", "é"])
def test_a_name_that_no_file_can_have(store, name):
    with pytest.raises(SettingsError, match="must be of letters, digits, dots, dashes and underscores"):
        Producers(store).register(name, {})


def test_closing(store):
    producers = Producers(store)
    one, other = producers.register("a", {}), producers.register("b", {})
    producers.close(one, {"packs": 3})
    assert [producers.is_closed(one), producers.is_closed(other)] == [True, False]
    assert store.get("producers/000000-closed.json") == b'{"packs": 3}'


def test_a_claim_of_a_killed_producer_is_no_registration(store, monkeypatch):
    """On a file system without hard links: without it the stream could never have another producer."""
    monkeypatch.setattr(local, "_CLAIM_PAUSES", (0.0,))
    store.put_atomic("producers/000000.json", b"")
    assert Producers(store).all() == []
    assert Producers(store).register("a", {}).index == 0


@pytest.mark.parametrize("closes", [False, True])
@pytest.mark.parametrize("same_source", [False, True])
@pytest.mark.parametrize("same_settings", [False, True])
@pytest.mark.parametrize("same_name", [False, True])
def test_two_names_are_for_two_sources(store, monkeypatch, same_name, same_settings, same_source, closes):
    """Without it both take everything, and each sample is trained twice with nothing said."""
    said: list[str] = []
    monkeypatch.setattr(logging.getLogger("brimful"), "warning", said.append)
    producers = Producers(store)
    one = producers.register("a", {"capacity": 8}, "rows")
    if closes:
        producers.close(one, {})
    name, settings = "a" if same_name else "b", {"capacity": 8 if same_settings else 9}

    def register():
        return producers.register(name, settings, "rows" if same_source else None)

    if same_name:
        if same_settings:
            assert register() == one
        else:
            with pytest.raises(
                StoreMismatchError,
                match=r"producer a was begun differently: capacity \(8 there, 9 here\)\. Go on with the same settings, or",
            ):
                register()
    elif same_source and same_settings and not closes:
        with pytest.raises(
            StoreMismatchError, match=r'producer a reads this source too.* Go on as producer="a", or name'
        ):
            register()
        assert producers.all() == [one]
    else:
        # It may be meant: after a refused row with other policies, or a folder that was filled again.
        assert register().index == 1
        assert [text.startswith(f"{store.url}: producer a reads this source too") for text in said] == [
            True
        ] * same_source


def test_producers_of_one_file_know_it_by_any_path(tmp_path):
    """Without it a link, or a relative path, would be another source."""
    (tmp_path / "rows.jsonl").write_text('{"text": "abc"}\n' * 3)
    (tmp_path / "link").symlink_to(tmp_path)
    options: Any = {"capacity": 8, "packs_per_shard": 1}
    PackingProducer(tmp_path / "rows.jsonl", toy_chat_encoder(), tmp_path / "out", **options).step()
    with pytest.raises(StoreMismatchError, match="producer producer reads this source too"):
        PackingProducer(
            tmp_path / "link" / "rows.jsonl", toy_chat_encoder(), tmp_path / "out", producer="b", **options
        ).step()
    for rows in ([{"text": "abc"}], iter([{"text": "abc"}])):  # nothing says that rows in memory are the same
        PackingProducer(
            rows, toy_chat_encoder(), tmp_path / "out", producer=f"c{type(rows).__name__}", **options
        ).step()


@pytest.mark.parametrize("data", [b" ", b"{}", b"[]", b'{"producer": "a"}'])
def test_a_damaged_registration_is_named(store, data):
    store.put_atomic("producers/000000.json", data)
    with pytest.raises(CorruptFileError, match=r"producers/000000.json is damaged"):
        Producers(store).all()


Stub: Any = SimpleNamespace
"""An object of which only some attributes are asked."""

TEXT, ROW = Sample(0, text="a"), Sample(1, messages=[{"role": "user", "content": "a"}])


class Feed:
    """Rows that came, and whether any more will."""

    title = "rows"

    def __init__(self, *rows, is_ended=False):
        self.rows, self.is_ended, self.calls = list(rows), is_ended, []

    def poll(self, count, first_id, *, is_last):
        self.calls.append((count, first_id, is_last))
        return self.rows

    def seek(self, cursors):
        self.calls.append(cursors)


def mode(feed, known=None, *, close=False, **options):
    registration = None if known is None else Stub(settings={"mode": known})
    return mode_of_arrivals(EncoderSettings(**options), feed, registration, close=close)


def test_what_was_given_or_begun_asks_no_row():
    """In this order: the mode, a family of media, what the producer was begun with."""
    feed = Feed(TEXT)
    assert mode(feed, "text", mode="chat") is Mode.CHAT
    assert mode(feed, "text", media="qwen2_5_vl") is Mode.CHAT
    assert mode(feed, "chat") is Mode.CHAT
    assert feed.calls == []
    assert mode(feed, "encoder") is Mode.TEXT


@pytest.mark.parametrize("close", [True, False])
def test_the_first_rows_choose(close):
    """Rows of several kinds are chats; rows that are looked at are read again."""
    feed = Feed(BadSampleError("no", sample_id=0), TEXT, TEXT)
    assert mode(feed, close=close) is Mode.TEXT
    assert feed.calls == [(256, 0, close), []]
    assert mode(Feed(TEXT, ROW)) is Mode.CHAT
    assert mode(Feed(ROW)) is Mode(ROW.kind)


def test_without_a_row_it_waits_or_says_why_there_is_none():
    assert mode(Feed()) is None
    assert mode(Feed(), close=True) is None
    assert mode(Feed(is_ended=True)) is None
    with pytest.raises(SourceError, match="rows is empty: no sample to pack"):
        mode(Feed(is_ended=True), close=True)
    with pytest.raises(BadSampleError, match="first"):
        mode(Feed(BadSampleError("first", sample_id=0), BadSampleError("second", sample_id=1)))


def test_a_stream_lies_apart_from_its_source(tmp_path):
    """In it, also by a link; next to it, or of a source that is not a directory, it may lie anywhere."""
    source, file = tmp_path / "in", tmp_path / "in" / "a.jsonl"
    source.mkdir()
    file.write_text("")
    (tmp_path / "link").symlink_to(source)
    for inside in (source, source / "out", tmp_path / "link" / "out"):
        with pytest.raises(SettingsError, match=r"lies in the source .*in: choose another directory"):
            check_apart(str(source), str(inside))
    for given, directory in (
        (source, tmp_path / "input"),
        (source, tmp_path),
        (file, source / "out"),
        ([TEXT], source),
        (str(source), f"s3://bucket/{source}"),
    ):
        check_apart(given, str(directory))


def test_rows_of_tokens_need_no_encoder(tmp_path):
    """The way to tokens is kept with the name of the producer: the next process asks no row, and no other may change it."""
    rows = [{"input_ids": [1, 2, 3], "labels": [-100, 2, 3]}, {"input_ids": [4, 5]}]
    options: dict[str, Any] = {"capacity": 8, "lookahead": 2, "packs_per_shard": 1}
    first = PackingProducer(rows, None, tmp_path, notes={"by": "a test"}, **options)
    assert first.close().samples_packed == 2
    (own,) = Producers(open_blob_store(tmp_path)).all()
    assert own.settings["mode"] == "tokens"
    assert StreamLog(open_blob_store(tmp_path)).header()["notes"] == {"by": "a test"}
    (pack,) = open_packs(tmp_path)
    assert (pack.input_ids.tolist(), pack.labels.tolist()) == ([1, 2, 3, 4, 5], [-100, 2, 3, -100, 5])
    assert PackingProducer(iter([]), None, tmp_path, **options).close().samples_packed == 2
