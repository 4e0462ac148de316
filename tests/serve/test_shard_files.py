"""Packs of shards by record and row: which shards stay open, and which are held against the log."""

import gc
import os
from dataclasses import replace

import pytest

from brimful.base.blobs import LocalBlobStore
from brimful.errors import CorruptFileError
from brimful.media.store.files import MediaFiles
from brimful.serve import open_packs, pack_store
from brimful.serve.pack_store import ShardFiles
from brimful.store.shards import StreamLog
from brimful.stream import StreamLoader
from brimful.testing.toys import toy_stream


def files_of(directory, **options):
    store = LocalBlobStore(directory)
    records, _ = StreamLog(store).records()
    return ShardFiles(store, lambda: MediaFiles(store, records, ""), **options), records


def first_samples(files, records):
    return [files.pack(record, 0).sample_ids.tolist() for record in records]


def test_the_shards_that_were_opened_first_are_let_go(tmp_path, monkeypatch):
    """A node reads hundreds of thousands of shards, and may keep a thousand files open."""
    monkeypatch.setattr(pack_store, "_MAX_OPEN_SHARDS", 2)
    files, records = files_of(toy_stream(tmp_path, [1, 2, 1, 1]))
    assert not files.is_copied
    assert first_samples(files, records) == [[0], [1], [3], [4]]
    assert list(files._open) == [2, 3]
    assert files.pack(records[1], 1).sample_ids.tolist() == [2]
    assert not files.has_attachments(records[3])
    assert list(files._open) == [3, 1]


def test_copies_that_are_open_are_a_share_of_the_cache(tmp_path):
    """Copies in use cannot be removed: a process keeps an eighth of the cache, and two shards at least."""
    directory = toy_stream(tmp_path / "stream", [1] * 4)
    files, records = files_of(directory, cache_dir=tmp_path / "cache", cache_bytes=10**9)
    assert files.is_copied
    assert files._max_open(replace(records[0], bytes=10**9 // 24)) == 3
    assert files._max_open(replace(records[0], bytes=10**9)) == 2
    assert files._max_open(replace(records[0], bytes=0)) == pack_store._MAX_OPEN_SHARDS
    assert first_samples(files, records) == [[0], [1], [2], [3]]


def test_a_damaged_shard_is_not_kept_open(tmp_path):
    """One that was put right, is read again without a new process."""
    directory = toy_stream(tmp_path, [1])
    files, (record,) = files_of(directory)
    path = tmp_path / record.file
    whole = path.read_bytes()
    place = whole.index(files.pack(record, 0).input_ids.tobytes())
    path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    files, _ = files_of(directory)
    with pytest.raises(CorruptFileError, match="row 0 has other bytes"):
        files.pack(record, 0)
    assert not files._open
    path.write_bytes(whole)
    assert first_samples(files, [record]) == [[0]]


@pytest.mark.parametrize("opened", [lambda path: open_packs(path), lambda path: StreamLoader(path, timeout=0)])
def test_files_are_closed_with_their_reader(tmp_path, opened):
    """Held until a collection, they add up to a thousand in a training that opens stores again and again."""
    directory = toy_stream(tmp_path, [1, 2, 1])
    gc.collect()
    gc.disable()
    try:
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            assert list(opened(directory))
        assert len(os.listdir("/proc/self/fd")) == before
    finally:
        gc.enable()
