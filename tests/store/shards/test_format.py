"""The file of packs and the log."""

import io

import numpy as np
import pyarrow as pa
import pytest

from brimful.base.blobs import LocalBlobStore
from brimful.base.fingerprint import fingerprint_bytes
from brimful.base.ragged import offsets_of
from brimful.errors import CorruptFileError
from brimful.store.shards import (
    BATCH_ROWS,
    PackRows,
    ShardReader,
    ShardWriter,
    assemble_pack,
    checked_file,
    version_of,
)
from brimful.testing.toys import toy_pack, toy_tree


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


def test_every_flipped_byte_is_noticed_or_harmless(tmp_path):
    """A flip may hit padding between buffers; elsewhere it must raise, never give other tokens."""
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


@pytest.mark.parametrize("change", [lambda data: data[:-8], lambda data: data + b"\0"], ids=["short", "long"])
def test_a_file_of_another_size_is_refused_before_it_is_mapped(tmp_path, change):
    """Reading past the end of a mapped file kills the process with SIGBUS."""
    data = bytes(shard_bytes([toy_pack([5])]))
    path = tmp_path / "s.arrow"
    path.write_bytes(change(data))
    with pytest.raises(CorruptFileError, match="was committed with"):
        ShardReader(str(path), size=len(data))


def test_versions_say_what_a_reader_must_support():
    """Stores are older than the program: their numbers never change."""
    kinds = [(media, sharing) for sharing in (None, toy_tree([[1, 2]]).sharing) for media in (False, True)]
    assert [version_of(has_attachments=media, sharing=sharing) for media, sharing in kinds] == [1, 4, 5, 6]


@pytest.mark.parametrize("column", ["input_ids", "starts", "checksum"])
def test_a_column_of_another_type_is_named(tmp_path, column):
    """And one that is missing: another program may have written the file again."""
    table = pa.ipc.open_file(shard_bytes([toy_pack([5])])).read_all()
    path, place = tmp_path / "s.arrow", table.schema.names.index(column)
    for other in (table.drop_columns(column), table.set_column(place, column, pa.array(["x"]))):
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, other.schema) as writer:
            writer.write_table(other)
        with pytest.raises(CorruptFileError, match=rf"s\.arrow has no column '{column}' of type "):
            ShardReader(str(path), size=path.stat().st_size)


@pytest.mark.parametrize("in_place", [True, False])
def test_a_file_has_the_committed_hash(tmp_path, in_place):
    """The file itself, or a copy that goes with the block: readers of a store elsewhere map a file too."""
    (tmp_path / "s").write_bytes(b"shard")
    store = LocalBlobStore(tmp_path)
    with checked_file(store, "s", fingerprint_bytes(b"shard"), in_place=in_place) as path:
        with open(path, "rb") as file:
            assert file.read() == b"shard"
        assert (path == str(tmp_path / "s")) is in_place
    for digit in "0f":
        with pytest.raises(CorruptFileError, match="s has other bytes"), checked_file(store, "s", digit * 32):
            pass


def test_rows_and_files_that_are_not_there(tmp_path):
    """After the last row of a short batch, and after the last batch."""
    reader = write(tmp_path / "s.arrow", [toy_pack([2])] * 65)
    for row in (65, 66, 128, 6400):
        with pytest.raises(CorruptFileError, match=f"s.arrow has no row {row}: write it again"):
            reader.pack(row)
    with pytest.raises(
        CorruptFileError, match=r"t.arrow is missing: its packs were committed, so it was deleted since"
    ):
        ShardReader(str(tmp_path / "t.arrow"), size=3)


def test_a_batch_of_another_shard_is_noticed(tmp_path):
    """Its rows have valid checksums of their own; the digest of a batch is 8 digits of them all, as every version wrote it."""
    sink = io.BytesIO()
    writer = ShardWriter(sink)
    for number in range(2):
        writer.add(rows_of([toy_pack([2], seed=number)] * (64 if number == 0 else 3)))
    writer.close()
    path, size = tmp_path / "s.arrow", len(sink.getvalue())
    path.write_bytes(sink.getvalue())
    digests = writer.batches
    assert digests == "c7f8dfa6201af705"
    assert ShardReader(str(path), size=size, batches=digests).pack(66) == toy_pack([2], seed=1)
    for digest in ("0" * 8, "f" * 8, ""):
        other = ShardReader(str(path), size=size, batches=digests[:8] + digest)
        assert other.pack(63) == toy_pack([2], seed=0)
        with pytest.raises(CorruptFileError, match="batch 1 has other bytes than were committed"):
            other.pack(64)


def test_a_row_that_changes_under_an_open_reader(tmp_path):
    """The file is mapped: every read is checked, and not the first alone."""
    path = tmp_path / "s.arrow"
    reader = write(path, [toy_pack([3]), toy_pack([4], seed=1)])
    pack = reader.pack(1)
    place = path.read_bytes().index(pack.input_ids.tobytes())
    with open(path, "r+b") as file:
        file.seek(place)
        file.write(b"\xff")
    assert reader.pack(0) == toy_pack([3])
    with pytest.raises(CorruptFileError, match="row 1 has other bytes than were written"):
        reader.pack(1)
