"""The index of a file is made once, and never trusted over the bytes."""

from __future__ import annotations

import gzip
import os
import shutil
import time

import pytest

from brimful.base.fingerprint import fingerprint_bytes
from brimful.sources import line_index, lines, open_source
from brimful.sources.lines import JsonLines
from brimful.sources.stamp import Stamp

LINES = [b'{"text":"%d"}\n' % number for number in range(6)]


@pytest.fixture(autouse=True)
def _two_rows_a_block(monkeypatch):
    monkeypatch.setattr(line_index, "BLOCK_ROWS", 2)
    monkeypatch.setattr(lines, "_SMALL_BYTES", -1)


def _blocks(path):
    return [(block.start, block.stop, block.fingerprint) for block in open_source(path).rows.blocks]


def _block(start, stop, data=None):
    return (start, stop, fingerprint_bytes(data if data is not None else b"".join(LINES[start:stop])))


def test_an_index_is_not_flushed(put, monkeypatch):
    """Without it a thousand files wait for the disk three thousand times: ten seconds for what is read again in one."""
    open_source(put("a.jsonl", b"".join(LINES)))  # which makes folders
    monkeypatch.setattr(os, "fsync", lambda descriptor: pytest.fail("flushed"))
    open_source(put("b.jsonl", b"".join(LINES)))


def test_blocks_cover_all_lines_by_their_bytes(put):
    """Without it a line could belong to no block and never be measured."""
    assert _blocks(put("a.jsonl", b"".join(LINES[:5]))) == [_block(0, 2), _block(2, 4), _block(4, 5)]


def test_long_rows_make_short_blocks(put, monkeypatch):
    """Without it one block of long documents could take hours, and a kill as much."""
    monkeypatch.setattr(line_index, "BLOCK_ROWS", 4096)
    monkeypatch.setattr(line_index, "BLOCK_BYTES", 30)
    assert [block[:2] for block in _blocks(put("a.jsonl", b"".join(LINES)))] == [(0, 3), (3, 6)]
    monkeypatch.setattr(line_index, "BLOCK_BYTES", 1)
    assert [block[:2] for block in _blocks(put("b.jsonl", b"".join(LINES)))] == [(n, n + 1) for n in range(6)]


def test_appended_lines_change_no_full_block(put):
    """Without it all that was measured in the old blocks would be lost."""
    path = put("a.jsonl", b"".join(LINES[:3]))
    old = _blocks(path)
    put("a.jsonl", b"".join(LINES))
    assert old == [_block(0, 2), _block(2, 3)]
    assert _blocks(path) == [old[0], _block(2, 4), _block(4, 6)]
    assert [sample.text for sample in open_source(path).read(0, 6)] == list("012345")


def test_lines_behind_a_last_line_without_line_end(put):
    """Without it the first appended line could be glued to the last old one, or all blocks would be lost."""
    path = put("a.jsonl", b"".join(LINES[:3]).rstrip())
    assert _blocks(path) == [_block(0, 2), _block(2, 3, LINES[2].rstrip())]
    put("a.jsonl", b"".join(LINES))
    assert _blocks(path) == [_block(0, 2), _block(2, 4), _block(4, 6)]
    assert [sample.text for sample in open_source(path).read(0, 6)] == list("012345")


def test_a_line_that_grows_at_its_end_is_no_appended_line(put):
    """Without it a row written in two pieces would stay as its first half."""
    path = put("a.jsonl", b'{"text":"0"}\n{"text":"1"')
    assert len(open_source(path)) == 2
    put("a.jsonl", b'{"text":"0"}\n{"text":"1"}\n')
    assert [sample.text for sample in open_source(path).read(0, 2)] == ["0", "1"]


def test_blank_lines_are_remembered_when_lines_are_appended(put):
    """Without it line numbers in messages would be wrong after the file has grown."""
    path = put("a.jsonl", b"\n" + LINES[0])
    assert open_source(path).where(0) == f"{path}:2"
    put("a.jsonl", b"\n" + b"".join(LINES[:2]))
    assert [open_source(path).where(index) for index in (0, 1)] == [f"{path}:2", f"{path}:3"]


def test_an_edited_row_changes_its_block_only(put):
    """Without it one corrected row would cost measuring the whole file."""
    path = put("a.jsonl", b"".join(LINES))
    old, fingerprint = _blocks(path), open_source(path).fingerprint
    put("a.jsonl", b"".join(LINES).replace(b'"2"', b'"two"'))
    new = _blocks(path)
    assert (new[0], new[2]) == (old[0], old[2])
    assert new[1][2] != old[1][2]
    assert open_source(path).fingerprint != fingerprint


def test_an_edited_byte_of_equal_size_is_seen(put):
    """Without it an edit that keeps the size would be served from the old index."""
    path = put("a.jsonl", b"".join(LINES))
    old, fingerprint = _blocks(path), open_source(path).fingerprint
    put("a.jsonl", b"".join(LINES).replace(b'"3"', b'"9"'))
    new = _blocks(path)
    assert open_source(path).fingerprint != fingerprint
    assert (new[0], new[2]) == (old[0], old[2])
    assert new[1] == _block(2, 4, LINES[2] + LINES[3].replace(b"3", b"9"))
    assert open_source(path)[3].text == "9"


def test_an_edit_before_appended_lines_is_seen(put):
    """Without it an edited row would keep its old fingerprint, and so its old length, if the file also grew."""
    path = put("a.jsonl", b"".join(LINES[:3]))
    open_source(path)
    edited = [LINES[0].replace(b"0", b"9"), *LINES[1:]]
    put("a.jsonl", b"".join(edited))
    assert _blocks(path) == [_block(0, 2, edited[0] + edited[1]), _block(2, 4), _block(4, 6)]


def test_a_shorter_file_is_indexed_anew(put):
    """Without it samples that were deleted would be read from the index."""
    path = put("a.jsonl", b"".join(LINES))
    assert len(open_source(path)) == 6
    put("a.jsonl", b"".join(LINES[:2]))
    assert _blocks(path) == [_block(0, 2)]


def test_the_fingerprint_stays_for_a_copy_a_touch_and_an_archive(put, tmp_path):
    """Without it moving, copying, unpacking or touching a data set would throw its lengths away."""
    path = put("a.jsonl", b"".join(LINES))
    source = open_source(path)
    state = (source.fingerprint, source.blocks)
    elsewhere = shutil.copy(path, tmp_path / "copy.jsonl")
    archive = put("b.jsonl.gz", gzip.compress(b"".join(LINES)))
    for other in (elsewhere, archive):
        assert (open_source(other).fingerprint, open_source(other).blocks) == state
    os.utime(path, (1, 1))
    touched = open_source(path)
    assert (touched.fingerprint, touched.blocks) == state


def test_an_index_is_made_once(put, monkeypatch):
    """Without it every rank and every worker would scan the file again."""
    path = put("a.jsonl", b"".join(LINES))
    archive = put("b.jsonl.gz", gzip.compress(b"".join(LINES)))  # its copy is trusted at any age
    open_source(archive)
    monkeypatch.setattr(line_index, "_SETTLED_NS", -(10**9))
    open_source(path)
    monkeypatch.setattr(line_index, "index_of_lines", lambda *_, **__: pytest.fail("scanned again"))
    assert len(open_source(path)) == len(open_source(archive)) == 6


@pytest.mark.parametrize("jump_seconds", [0, -3600], ids=["no jump", "an hour back"])
def test_an_index_of_a_file_that_is_young_is_not_trusted(tmp_path, monkeypatch, jump_seconds):
    """Written again within the tick of its clock it has the same size and times: rows would be cut where others ended."""
    path, now = str(tmp_path / "a.jsonl"), time.time_ns()
    monkeypatch.setattr("time.time_ns", lambda: now + jump_seconds * 10**9)
    (tmp_path / "a.jsonl").write_bytes(b"aaaa\nbb\n")
    stamp = Stamp.of(path)
    monkeypatch.setattr(Stamp, "of", lambda _: stamp)
    JsonLines(path, original=path)
    with open(path, "r+b") as file:
        file.write(b"cc\ndddd\n")
    assert JsonLines(path, original=path)._index.starts.tolist() == [0, 3]


def test_a_broken_index_is_made_anew(put, tmp_path):
    """Without it a damaged cache file would keep a good data set from being opened."""
    path = put("a.jsonl", b"".join(LINES))
    first = open_source(path, cache_dir=tmp_path / "cache")
    (index,) = (tmp_path / "cache" / "indexes").glob("*.arrow")
    for garbage in (b"", b"garbage", index.read_bytes()[:100]):
        index.write_bytes(garbage)
        again = open_source(path, cache_dir=tmp_path / "cache")
        assert (again.fingerprint, len(again)) == (first.fingerprint, 6)


def test_a_flipped_byte_of_an_index_is_never_believed(put, tmp_path):
    """Without it rows would be cut elsewhere or left out, and their lengths be whatever lay in memory."""
    path = put("a.jsonl", b"".join(LINES))
    first = open_source(path, cache_dir=tmp_path / "cache")
    (index,) = (tmp_path / "cache" / "indexes").glob("*.arrow")
    data = index.read_bytes()
    for at in range(0, len(data), 31):
        index.write_bytes(data[:at] + bytes([data[at] ^ 2]) + data[at + 1 :])
        again = open_source(path, cache_dir=tmp_path / "cache")
        assert (again.fingerprint, again.blocks) == (first.fingerprint, first.blocks)
        assert [sample.text for sample in again.read(0, 6)] == list("012345")


def test_chunks_of_the_scan_do_not_show(put, monkeypatch):
    """Without it a line across the edge of a 64 MiB chunk would be cut or lost."""
    whole = _blocks(put("a.jsonl", b"\n".join(LINES)))
    for size in (1, 5, 13, 14):
        monkeypatch.setattr(line_index, "_CHUNK", size)
        path = put(f"{size}.jsonl", b"\n".join(LINES[:3]))
        assert len(open_source(path)) == 3
        put(f"{size}.jsonl", b"\n".join(LINES))
        source = open_source(path)
        assert source.rows.files[0].fingerprint == fingerprint_bytes(b"\n".join(LINES))  # type: ignore[attr-defined]
        assert [sample.text for sample in source.read(0, 6)] == list("012345")
        assert source.where(5) == f"{path}:11"
    assert [block[:2] for block in whole] == [(0, 2), (2, 4), (4, 6)]
