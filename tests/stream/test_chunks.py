"""Chunks of packed rows as a stream: the packs that they were made of, waited for, and named where they contradict themselves."""

from __future__ import annotations

import json
import pickle
import threading
import time
from typing import Any

import pytest

from brimful import open_packs
from brimful.errors import (
    BadSampleError,
    SettingsError,
    SourceError,
    StreamTimeoutError,
    UnfinishedStoreError,
    WrongTypeError,
)
from brimful.integrations.export import export_packs
from brimful.stream import LazyShardedDataset, PackingProducer
from brimful.stream.chunks import FollowedChunks, holds_chunks
from brimful.testing.toys import toy_stream
from tests.library import is_freed_with_its_user
from tests.stream.producer.streams import append, samples_of

PACK = {"input_ids": [5, 6, 7], "labels": [-100, 6, 7], "position_ids": [0, 1, 0], "lengths": [2, 1], "pack_length": 3}


def chunk(folder, number, rows):
    (folder / f"chunk_{number:05d}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_the_packs_are_those_that_were_exported(tmp_path):
    """By number, in a copy of another process too; the length has to be declared, as chunks have no end."""
    stream = toy_stream(tmp_path / "stream", [3, 3, 2])
    export_packs(stream, to="jsonl", directory=tmp_path / "chunks", packs_per_shard=3, num_proc=1)
    dataset = LazyShardedDataset(tmp_path / "chunks", num_packs=8, timeout=5)
    assert list(pickle.loads(pickle.dumps(dataset))) == list(open_packs(stream))
    assert len(dataset) == 8
    with pytest.raises(UnfinishedStoreError, match="declare num_packs"):
        len(LazyShardedDataset(tmp_path / "chunks"))


def test_chunks_are_freed_with_their_last_user(tmp_path):
    """Each maps the index of its lines: held until a collection, they would add up in a training that opens them again."""
    chunk(tmp_path, 0, [PACK])
    chunk(tmp_path, 1, [PACK])

    def chunks():
        followed = FollowedChunks(tmp_path)
        followed.look()
        followed.row(followed.shards[0], 0)
        return followed

    assert is_freed_with_its_user(chunks)


def test_lanes_own_chunks_in_turn(tmp_path):
    for number in range(4):
        chunk(tmp_path, number, [{**PACK, "sample_ids": [10 * number + row, 99]} for row in range(2)])
    dataset = LazyShardedDataset(tmp_path, num_packs=8, lanes=2, assign="lane")
    assert [int(pack.sample_ids[0]) for pack in dataset] == [0, 10, 1, 11, 20, 30, 21, 31]


def test_a_chunk_that_comes_is_waited_for(tmp_path):
    """The last one is taken when it stays as it is: its writer may still be at work."""
    chunk(tmp_path, 0, [PACK])
    dataset = LazyShardedDataset(tmp_path, num_packs=3, timeout=3)
    assert dataset[0].labels.tolist() == [-100, 6, -100]
    threading.Thread(target=lambda: (time.sleep(0.3), chunk(tmp_path, 1, [PACK]))).start()
    assert dataset[1].sample_ids.tolist() == [1 << 20, (1 << 20) + 1]
    assert dataset[1].starts.tolist() == [0, 0]
    with pytest.raises(StreamTimeoutError, match=r"waiting for pack 2 \(2 exist\), so for chunk_00002\.jsonl for"):
        dataset[2]


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("num_first", [0, 1])
def test_the_last_chunk_is_taken_when_it_has_stopped_growing(tmp_path, monkeypatch, number, num_first):
    """Lines that come a moment later would be lost: the count of a chunk is taken once, and may be none for a moment."""
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    for complete in range(number):
        chunk(tmp_path, complete, [PACK])
    chunk(tmp_path, number, [PACK] * num_first)
    followed, counts = FollowedChunks(tmp_path), []
    for num_looks in range(number + 6):
        followed.look()
        counts.append(followed.num_packs)
        now[0] += 0.5
        if num_looks == number + 1:
            append(tmp_path / f"chunk_{number:05d}.jsonl", [PACK])
    assert counts[number : number + 4] == [number] * 4, "it stood still for half a second, grew, and again"
    assert counts[number + 4 :] == [number + num_first + 1] * 2


def test_a_chunk_that_grows_after_it_was_taken_is_named(tmp_path, monkeypatch):
    """Its writer paused for longer than a second, or a mount showed an old size: the later lines were passed over in silence."""
    monkeypatch.setattr("brimful.stream.chunks._SETTLE_SECONDS", 0.0)
    chunk(tmp_path, 0, [PACK])
    dataset = LazyShardedDataset(tmp_path, num_packs=3, timeout=3)
    assert len(dataset[0]) == 3
    append(tmp_path / "chunk_00000.jsonl", [PACK])
    chunk(tmp_path, 1, [PACK])
    assert dataset.packs.log.num_packs == 1
    reason = r"chunk_00000\.jsonl was changed since it was read \(1 line then, 2 now\), 0 s after the last: write a chunk under"
    with pytest.raises(SourceError, match=reason):
        dataset[1]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"lengths": [2, 2]}, "lengths are 4 tokens"),
        ({"labels": [-100, 9, 7]}, "neither its tokens nor -100"),
        ({"labels": [-100, 3, 7]}, "neither its tokens nor -100"),
    ],
)
def test_a_row_that_contradicts_itself_is_named(tmp_path, change, reason):
    chunk(tmp_path, 0, [PACK, {**PACK, **change}])
    chunk(tmp_path, 1, [PACK])
    dataset = LazyShardedDataset(tmp_path, num_packs=3)
    assert len(dataset[0]) == 3
    with pytest.raises(BadSampleError, match=rf"chunk_00000\.jsonl:2.*{reason}"):
        dataset[1]


def test_what_needs_a_log_is_refused(tmp_path):
    chunk(tmp_path, 0, [PACK])
    with pytest.raises(SettingsError, match=r"do not record trainings.*`brimful produce .*`"):
        LazyShardedDataset(tmp_path).ack(1, "run")


@pytest.mark.parametrize(
    ("word", "answer"),
    [
        ("samples_per_chunk", "leave it out: lines of chunks are counted"),
        ("pre_packed", "leave it out: rows of chunks are packs here"),
        ("encode_fn", "`brimful produce` encodes raw rows"),
        ("max_wait_time", "use timeout="),
    ],
)
def test_words_of_others_are_answered_with_ours(tmp_path: Any, word: str, answer: str) -> None:
    given: dict[str, Any] = {word: 1}
    with pytest.raises(WrongTypeError, match=f"has no argument '{word}': {answer}"):
        LazyShardedDataset(tmp_path, **given)


def test_raw_rows_are_refused_with_the_command_that_packs_them(tmp_path):
    chunk(tmp_path, 0, [{"messages": []}])
    chunk(tmp_path, 1, [PACK])
    with pytest.raises(BadSampleError, match="`brimful produce` packs raw rows"):
        LazyShardedDataset(tmp_path, num_packs=2)[0]


def test_a_producer_takes_chunks_apart(tmp_path):
    """Packed rows come as their samples, and are packed again."""
    source = tmp_path / "in"
    source.mkdir()
    chunk(source, 0, [{**PACK, "input_ids": [5, 6, 7, 8], "labels": [5, 6, 7, 8], "lengths": [2, 2], "pack_length": 4,
                       "position_ids": [0, 1, 0, 1]}] * 3)  # fmt: skip
    one = PackingProducer(source, None, tmp_path / "out", capacity=10)
    assert one.close().samples_packed == 6
    assert sorted(samples_of(tmp_path / "out")) == list(range(6))
    assert open_packs(tmp_path / "out")[0].input_ids.tolist()[:4] == [5, 6, 7, 8]


def test_a_stream_is_read_as_one_whatever_else_is_there(tmp_path):
    """Chunks in the folder of a stream, or a folder of other files, are not taken for one."""
    stream = toy_stream(tmp_path / "stream", [2])
    chunk(tmp_path / "stream", 0, [PACK])
    assert len(LazyShardedDataset(stream)) == 2
    chunk(tmp_path, 0, [PACK])
    found = [holds_chunks(tmp_path / name) for name in ("", "stream", "nowhere", "chunk_00000.jsonl", "stream/shards")]
    assert found == [True, False, False, False, False]


def test_a_chunk_that_was_trained_may_be_removed(tmp_path, monkeypatch):
    """Also the last one: what follows is read, and nothing asks for the old lines."""
    monkeypatch.setattr("brimful.stream.chunks._SETTLE_SECONDS", 0.0)
    chunk(tmp_path, 0, [PACK])
    chunk(tmp_path, 1, [PACK, PACK])
    dataset = LazyShardedDataset(tmp_path, num_packs=5, timeout=3)
    assert len(dataset[1]) == 3
    for number in range(2):
        (tmp_path / f"chunk_{number:05d}.jsonl").unlink()
    chunk(tmp_path, 2, [PACK])
    chunk(tmp_path, 3, [PACK])
    assert [dataset[number].sample_ids.tolist() for number in (3, 4)] == [
        [number << 20, (number << 20) + 1] for number in (3, 4)
    ]
