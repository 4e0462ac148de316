"""The log that commits shards, and the header."""

import json

import pytest

from brimful.base.blobs import BlobGroup, open_blob_store
from brimful.errors import CorruptFileError, NotAPackStoreError, StoreMismatchError
from brimful.store.shards import (
    LANES,
    EndRecord,
    ShardRecord,
    StreamLog,
)


def record(seq, packs=2, tokens=20):
    return ShardRecord(seq, f"shards/{seq}", 10, "0" * 32, packs, tokens, packs * (seq + 1), tokens * (seq + 1), "me")


def test_the_log_is_dense_and_ends(tmp_path):
    """Shards committed out of order count up to the first gap; the end closes the log."""
    log = StreamLog(open_blob_store(tmp_path))
    assert log.commit(record(1), BlobGroup(log.store))
    assert log.records() == ([], None)
    assert log.commit(record(0), BlobGroup(log.store))
    assert not log.commit(record(0), BlobGroup(log.store))
    assert log.records() == ([record(0), record(1)], None)
    log.end(EndRecord(2, 4, 40))
    assert log.records() == ([record(0), record(1)], EndRecord(2, 4, 40))
    assert not log.commit(record(2), BlobGroup(log.store)), "nothing can follow the end"


def test_a_changed_record_is_noticed(tmp_path):
    """The log decides what exists; sums that do not add up mean that it was edited."""
    log = StreamLog(open_blob_store(tmp_path))
    log.commit(record(0), BlobGroup(log.store))
    path = tmp_path / "log" / "000000000000.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "cum_packs": 3}))
    with pytest.raises(CorruptFileError, match=r"000000000000.json does not follow"):
        log.records()


def test_a_directory_belongs_to_one_identity(tmp_path):
    """Two jobs in one directory would mix their packs."""
    (tmp_path / "file").touch()
    for place in (tmp_path, tmp_path / "file"):
        with pytest.raises(NotAPackStoreError, match="is not a pack store"):
            StreamLog(open_blob_store(place)).header()
    log = StreamLog(open_blob_store(tmp_path))
    identity = {"capacity": 8, "plan": "a" * 32, "source": "s", "encoder": "e", "lanes": 1}
    log.claim(identity, {"source": "x"})
    log.claim(identity, {"source": "elsewhere"})
    with pytest.raises(StoreMismatchError, match=r"plan \(aaaaaaa there, bbbbbbb now\)"):
        log.claim({**identity, "plan": "b" * 32}, {})


IDENTITY = {"capacity": 8, "plan": "a" * 32, "source": "s", "encoder": {"train_on": "assistant"}, "lanes": 1}


def _paths(value, path=()):
    """Paths of all numbers and texts in a header."""
    if not isinstance(value, dict):
        return [path]
    return [leaf for key, inner in value.items() for leaf in _paths(inner, (*path, key))]


def test_a_header_is_for_people(tmp_path):
    """One value in a line, in the same order for every job, and letters as they are."""
    log = StreamLog(open_blob_store(tmp_path))
    log.claim(IDENTITY, {"tokenizer": "é"})
    text = (tmp_path / "stream.json").read_text(encoding="utf-8")
    assert text == json.dumps(log.header(), indent=1, sort_keys=True, ensure_ascii=False)


@pytest.mark.parametrize("by", [-1, 1])
def test_every_value_of_a_header_is_checked(tmp_path, by):
    """One number or letter less or more: without it packs of another identity, or of a later version, could pass for these."""
    log = StreamLog(open_blob_store(tmp_path))
    log.claim(IDENTITY, {"source": "x", "brimful": "0.1.0"})
    path = tmp_path / "stream.json"
    header = json.loads(path.read_text())
    assert (header["format"], header["version"]) == ("brimful.packs", 1)
    leaves = _paths(header)
    assert len(leaves) == 5 + 2 + 3
    for leaf in leaves:
        changed = json.loads(json.dumps(header))
        *outer, last = leaf
        inner = changed
        for key in outer:
            inner = inner[key]
        inner[last] = (
            inner[last] + by if isinstance(inner[last], int) else chr(ord(inner[last][0]) + by) + inner[last][1:]
        )
        path.write_text(json.dumps(changed))
        expected = "has format" if last in ("format", "version") else "is damaged: it has other contents"
        with pytest.raises(CorruptFileError, match=expected):
            log.header()


@pytest.mark.parametrize("key", ["plan", "lanes", "notes"])
def test_a_header_that_lacks_something_is_damaged(tmp_path, key):
    """Without it a file of another program ends in a KeyError."""
    log = StreamLog(open_blob_store(tmp_path))
    log.claim(IDENTITY, {})
    path = tmp_path / "stream.json"
    header = json.loads(path.read_text())
    del (header if key == "notes" else header["identity"])[key]
    path.write_text(json.dumps(header))
    with pytest.raises(CorruptFileError, match="is damaged: it has other contents"):
        log.header()


def test_the_cause_is_named_and_not_what_follows_from_it(tmp_path):
    """Packs of other targets have another plan, too: a user who reads of the plan does not know what to change."""
    log = StreamLog(open_blob_store(tmp_path))
    log.claim(IDENTITY, {})
    other = {**IDENTITY, "plan": "b" * 32, "encoder": {"train_on": "all"}}
    with pytest.raises(
        StoreMismatchError, match=r"differently: encoder train_on \(assistant there, all now\)\. Choose"
    ):
        log.claim(other, {})
    for name in ("x" * 31, "x" * 33):
        with pytest.raises(StoreMismatchError, match=rf"encoder train_on \(assistant there, {name} now\)"):
            log.claim({**IDENTITY, "encoder": {"train_on": name}}, {})


def test_a_store_may_go_on_with_other_lanes(tmp_path):
    """The packs are the same."""
    log = StreamLog(open_blob_store(tmp_path))
    identity = {"capacity": 8, "plan": "a" * 32, "source": "s", "encoder": "e", "lanes": 3}
    log.claim(identity, {})
    log.claim({**identity, "lanes": LANES}, {})
    assert log.header()["identity"]["lanes"] == 3
    with pytest.raises(StoreMismatchError, match=r"made differently: capacity \(8 there, 9 now\)\. Choose"):
        log.claim({**identity, "lanes": LANES, "capacity": 9}, {})


def test_files_of_other_names_in_the_log_are_no_records(tmp_path):
    """Without it what a Mac leaves next to every file it copies would make a whole store unreadable."""
    log = StreamLog(open_blob_store(tmp_path))
    log.end(EndRecord(0, 0, 0))
    for name in ("._000000000000.json", "notes.json", "0.json", "000000000001.json.part"):
        (tmp_path / "log" / name).write_bytes(b"\x00\x05\x16\x07")
    assert log.committed() == {0}
    assert log.records() == ([], EndRecord(0, 0, 0))


def test_a_listing_that_is_ahead_of_reading_ends_no_reader(tmp_path, monkeypatch):
    """A record that is listed and cannot be read yet is not there yet: the next look finds it."""
    log = StreamLog(open_blob_store(tmp_path))
    log.commit(record(0), BlobGroup(log.store))
    with monkeypatch.context() as patched:
        patched.setattr(log, "committed", lambda: {0, 1})
        assert log.records() == ([record(0)], None)
    log.commit(record(1), BlobGroup(log.store))
    assert log.records() == ([record(0), record(1)], None)


def test_the_record_that_a_reader_waits_for(tmp_path):
    """One that a writer claimed before it was killed is empty: it is not there, and the message says why."""
    log = StreamLog(open_blob_store(tmp_path))
    log.commit(record(0), BlobGroup(log.store))
    assert log.awaited([record(0)]) == "log/000000000001.json"
    (tmp_path / "log" / "000000000001.json").touch()
    assert log.awaited([record(0)]) == "log/000000000001.json (empty: its writer was killed)"
    assert log.awaited([]) == "log/000000000000.json"
    assert log.records() == ([record(0)], None)
    assert log.record_of(1) is None


def test_records_are_read_as_they_are_committed(tmp_path):
    """A reader that follows asks for one name after the other; the end stops it, and a gap does too."""
    log, shards = StreamLog(open_blob_store(tmp_path)), []
    assert log.next_records(shards) is None
    for seq in (0, 1, 3):
        log.commit(record(seq), BlobGroup(log.store))
    assert log.next_records(shards) is None
    assert shards == [record(0), record(1)]
    log.commit(record(2), BlobGroup(log.store))
    log.end(EndRecord(4, 8, 80))
    assert log.next_records(shards) == EndRecord(4, 8, 80)
    assert shards == [record(seq) for seq in range(4)]
    assert log.record_of(3) == record(3)
    with pytest.raises(CorruptFileError, match=r"log/000000000004.json is not a record of a shard"):
        log.record_of(4)


def test_a_long_log_is_read_in_parts(tmp_path, monkeypatch):
    """Five records and an end, two at once: none is read twice, and the end may be first of its part or last."""
    log = StreamLog(open_blob_store(tmp_path))
    monkeypatch.setattr("brimful.store.shards.log._READ_AT_ONCE", 2)
    for seq in range(5):
        assert log.records() == ([record(number) for number in range(seq)], None)
        log.commit(record(seq), BlobGroup(log.store))
    log.end(EndRecord(5, 10, 100))
    assert log.records() == ([record(number) for number in range(5)], EndRecord(5, 10, 100))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"{", "000000000000.json is damaged: "),
        (b"[]", "000000000000.json is damaged: it holds list"),
        (b'{"type": "shard", "seq": 0}', "000000000000.json is not a record of a shard: "),
        (b'{"type": "end", "seq": 0, "packs": 1, "tokens": 0}', "the end counts 1 packs, the shards 0"),
        (b'{"type": "end", "seq": 0, "packs": 0, "tokens": 7}', "the end counts 0 packs, the shards 0"),
    ],
)
def test_damaged_records_are_named(tmp_path, text, message):
    log = StreamLog(open_blob_store(tmp_path))
    log.store.put_atomic("log/000000000000.json", text)
    for read in (log.records, lambda: log.next_records([])):
        with pytest.raises(CorruptFileError, match=message):
            read()


@pytest.mark.parametrize("change", [{"packs": 1}, {"packs": 3}, {"tokens": 19}, {"tokens": 21}])
def test_the_end_counts_the_shards_before_it(tmp_path, change):
    """One pack or token less or more, and the log is damaged."""
    log = StreamLog(open_blob_store(tmp_path))
    log.commit(record(0), BlobGroup(log.store))
    log.end(EndRecord(**{"seq": 1, "packs": 2, "tokens": 20, **change}))
    with pytest.raises(CorruptFileError, match=r"000000000001.json: the end counts"):
        log.records()


@pytest.mark.parametrize(
    "change", [{"seq": 2}, {"cum_packs": 5}, {"cum_tokens": 41}, {"packs": 3}, {"tokens": 19}, {"type": "x"}]
)
def test_a_record_in_the_place_of_another_is_noticed(tmp_path, change):
    """Of the next number, of other sums, and of a type that is none: each parses well."""
    log = StreamLog(open_blob_store(tmp_path))
    for seq in (0, 1):
        log.commit(record(seq), BlobGroup(log.store))
    path = tmp_path / "log" / "000000000001.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(CorruptFileError, match=r"000000000001.json does not follow from the records before it"):
        log.records()


def test_records_say_no_more_than_they_know(tmp_path):
    """Equal stores have equal records: what a store does not have, such as media, is left out."""
    log = StreamLog(open_blob_store(tmp_path))
    log.commit(record(0), BlobGroup(log.store))
    assert set(json.loads((tmp_path / "log" / "000000000000.json").read_text())) == {
        "type", "seq", "file", "bytes", "xxh3_128", "packs", "tokens", "cum_packs", "cum_tokens", "producer_id", "state",
        "batches",
    }  # fmt: skip


def test_part_of_an_identity_is_expected(tmp_path):
    """What is not asked for is not compared; a directory is begun once its header is there."""
    log = StreamLog(open_blob_store(tmp_path))
    assert not log.is_begun()
    log.claim(IDENTITY, {})
    assert log.is_begun()
    log.expect({"capacity": 8, "encoder": {"train_on": "assistant"}})
    with pytest.raises(
        StoreMismatchError, match=r"differently: encoder train_on \(assistant there, all now\)\. Choose"
    ):
        log.expect({"encoder": {"train_on": "all"}})
    other = {**IDENTITY, "plan": "b" * 32, "capacity": 9, "source": "t"}
    with pytest.raises(StoreMismatchError, match=r"capacity \(8 there, 9 now\), source \(s there, t now\)\. Choose"):
        log.expect(other)
