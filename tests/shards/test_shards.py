"""The file of packs and the log."""

import io
import json

import numpy as np
import pyarrow as pa
import pytest

from brimful.blobs import open_blob_store
from brimful.errors import CorruptFileError, NotAPackStoreError, StoreMismatchError
from brimful.ragged import offsets_of
from brimful.shards import (
    BATCH_ROWS,
    LANES,
    EndRecord,
    PackRows,
    ShardReader,
    ShardRecord,
    ShardWriter,
    StreamLog,
    assemble_pack,
)
from brimful.testing.toys import toy_pack


def rows_of(packs):
    return PackRows(
        np.concatenate([pack.input_ids for pack in packs]),
        np.concatenate([pack.loss_mask for pack in packs]),
        np.concatenate([np.diff(pack.cu_seqlens) for pack in packs]),
        np.concatenate([pack.sample_ids for pack in packs]),
        np.concatenate([pack.starts for pack in packs]),
        offsets_of([pack.num_segments for pack in packs]),
    )


def shard_bytes(packs):
    sink = io.BytesIO()
    writer = ShardWriter(sink)
    for begin in range(0, len(packs), BATCH_ROWS):
        writer.add(rows_of(packs[begin : begin + BATCH_ROWS]))
    writer.close()
    return sink.getvalue()


def write(path, packs):
    data = shard_bytes(packs)
    path.write_bytes(data)
    return ShardReader(str(path), size=len(data))


def same(left, right):
    return all(
        np.array_equal(getattr(left, name), getattr(right, name))
        for name in ("input_ids", "loss_mask", "cu_seqlens", "sample_ids", "starts")
    )


def test_packs_come_back_as_they_were(tmp_path):
    """Across batch borders (64 rows) and at mask lengths that fill no whole byte."""
    packs = [toy_pack([1 + number % 7, 3], first_sample=2 * number, seed=number) for number in range(130)]
    reader = write(tmp_path / "s.arrow", packs)
    assert all(same(reader.pack(row), pack) for row, pack in enumerate(packs))


def test_equal_packs_make_equal_bytes():
    """Shards are named by content; a rerun must find its own file."""
    assert bytes(shard_bytes([toy_pack([3, 2])])) == bytes(shard_bytes([toy_pack([3, 2])]))


def test_any_arrow_reader_opens_a_shard(tmp_path):
    """Data in a format only we can read would be a trap."""
    path = tmp_path / "s.arrow"
    path.write_bytes(shard_bytes([assemble_pack([np.array([5, 6, 7])], [np.array([True, False, True])], [4])]))
    row = pa.ipc.open_file(str(path)).read_all().to_pylist()[0]
    assert {key: row[key] for key in ("input_ids", "loss_mask", "lengths", "sample_ids", "starts")} == {
        "input_ids": [5, 6, 7],
        "loss_mask": b"\x04",  # the first token of a segment is never a target; bit 2 is the third
        "lengths": [3],
        "sample_ids": [4],
        "starts": [0],
    }


def test_the_first_label_of_every_segment_is_ignored():
    """Its only predictor would be the last token of the sample before it."""
    assert toy_pack([3, 2, 1]).loss_mask.tolist() == [False, True, True, False, True, False]


def test_every_flipped_byte_is_noticed_or_harmless(tmp_path):
    """A flip may hit padding between buffers; anywhere else it must raise, never give other tokens."""
    packs = [toy_pack([5, 3], seed=1), toy_pack([4], first_sample=2, seed=2)]
    data = bytes(shard_bytes(packs))
    raised = 0
    for position in range(len(data)):
        path = tmp_path / "s.arrow"
        path.write_bytes(data[:position] + bytes([data[position] ^ (1 << position % 8)]) + data[position + 1 :])
        try:
            reader = ShardReader(str(path), size=len(data))
            read = [reader.pack(row) for row in range(2)]
        except CorruptFileError:
            raised += 1
        else:
            assert all(same(left, right) for left, right in zip(read, packs, strict=True))
    assert raised > 50


def test_a_short_file_is_refused_before_it_is_mapped(tmp_path):
    """Reading behind the end of a mapped file kills the process with SIGBUS."""
    data = bytes(shard_bytes([toy_pack([5])]))
    path = tmp_path / "s.arrow"
    path.write_bytes(data[:-8])
    with pytest.raises(CorruptFileError, match="was committed with"):
        ShardReader(str(path), size=len(data))


def record(seq, packs=2, tokens=20):
    return ShardRecord(seq, f"shards/{seq}", 10, "0" * 32, packs, tokens, packs * (seq + 1), tokens * (seq + 1), "me")


def test_the_log_is_dense_and_ends(tmp_path):
    """Shards committed out of order count up to the first gap; the end closes the log."""
    log = StreamLog(open_blob_store(tmp_path))
    assert log.commit(record(1))
    assert log.records() == ([], None)
    assert log.commit(record(0))
    assert not log.commit(record(0))
    assert log.records() == ([record(0), record(1)], None)
    log.end(EndRecord(2, 4, 40))
    assert log.records() == ([record(0), record(1)], EndRecord(2, 4, 40))
    assert not log.commit(record(2)), "nothing can follow the end"


def test_a_changed_record_is_noticed(tmp_path):
    """The log decides what exists; sums that do not add up mean that somebody edited it."""
    log = StreamLog(open_blob_store(tmp_path))
    log.commit(record(0))
    path = tmp_path / "log" / "000000000000.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "cum_packs": 3}))
    with pytest.raises(CorruptFileError, match=r"000000000000.json does not follow"):
        log.records()


def test_a_directory_belongs_to_one_identity(tmp_path):
    """Two jobs in one directory would mix their packs."""
    log = StreamLog(open_blob_store(tmp_path))
    with pytest.raises(NotAPackStoreError, match="is no pack store"):
        log.header()
    identity = {"capacity": 8, "plan": "a" * 32, "source": "s", "encoder": "e", "lanes": 1}
    log.begin(identity, {"source": "x"})
    log.begin(identity, {"source": "elsewhere"})
    with pytest.raises(StoreMismatchError, match=r"plan \(aaaaaaa there, bbbbbbb now\)"):
        log.begin({**identity, "plan": "b" * 32}, {})


def test_lanes_of_earlier_stores_do_not_matter(tmp_path):
    """Earlier versions could write others into the header; no reader used them, and the packs are the same."""
    log = StreamLog(open_blob_store(tmp_path))
    identity = {"capacity": 8, "plan": "a" * 32, "source": "s", "encoder": "e", "lanes": 3}
    log.begin(identity, {})
    log.begin({**identity, "lanes": LANES}, {})
    assert log.header()["identity"]["lanes"] == 3
    with pytest.raises(StoreMismatchError, match=r"made otherwise: capacity \(8 there, 9 now\)\. Choose"):
        log.begin({**identity, "lanes": LANES, "capacity": 9}, {})


def test_files_of_other_names_in_the_log_are_no_records(tmp_path):
    """Without it what a Mac leaves beside every file it copies would make a whole store unreadable."""
    log = StreamLog(open_blob_store(tmp_path))
    log.end(EndRecord(0, 0, 0))
    for name in ("._000000000000.json", "notes.json", "0.json", "000000000001.json.part"):
        (tmp_path / "log" / name).write_bytes(b"\x00\x05\x16\x07")
    assert log.committed() == {0}
    assert log.records() == ([], EndRecord(0, 0, 0))
