"""A source that is written over while it is read gives its own rows or none: never new ones under the old name."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import tarfile
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from brimful.clusters.ranks import kept_fingerprint
from brimful.errors import SourceError
from brimful.measure import measure_lengths
from brimful.sources import arrow_files, line_index, lines, open_source
from brimful.sources.source import Source
from brimful.sources.stamp import Stamp
from tests.measure.encoders import Letters

TEXTS = [f"text {number}" for number in range(6)]
OTHERS = [text.replace("t", "T") for text in TEXTS]
"""As long as the texts: their files differ in nothing but their bytes."""


def _lines(texts):
    return "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()


def _parquet(texts):
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"text": texts}), sink, row_group_size=2)
    return sink.getvalue().to_pybytes()


def _stream(texts):
    sink = pa.BufferOutputStream()
    table = pa.table({"text": texts})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def _overwrite(path, data):
    """As ``cp`` does it: the same file, other bytes."""
    with open(path, "r+b") as file:
        file.write(data)
        file.truncate()
    os.utime(path, ns=(0, os.stat(path).st_mtime_ns + 1))


@pytest.fixture(params=["jsonl", "txt", "parquet", "files", "saved"])
def case(request, tmp_path, monkeypatch):
    """A data set, one file of it, and what makes the bytes of that file from texts."""
    monkeypatch.setattr(lines, "_PIECE_ROWS", 2)
    monkeypatch.setattr(arrow_files, "_ROWS_AT_ONCE", 2)
    kind = request.param
    if kind == "files":
        for number, text in enumerate(TEXTS):
            (tmp_path / "files" / f"{number}.txt").parent.mkdir(exist_ok=True)
            (tmp_path / "files" / f"{number}.txt").write_text(text)
        return tmp_path / "files", tmp_path / "files" / "4.txt", lambda texts: texts[4].encode()
    if kind == "saved":
        datasets = pytest.importorskip("datasets", reason="needs the extra brimful[huggingface]")
        datasets.Dataset.from_dict({"text": TEXTS}).save_to_disk(tmp_path / "saved")
        (file,) = (tmp_path / "saved").glob("*.arrow")
        return tmp_path / "saved", file, _stream
    path = tmp_path / f"data.{kind}"
    make = {"jsonl": _lines, "txt": lambda texts: "\n".join(texts).encode(), "parquet": _parquet}[kind]
    path.write_bytes(make(TEXTS))
    return path, path, make


@pytest.mark.parametrize("damage", ["overwritten", "emptied", "replaced", "deleted"])
def test_rows_behind_a_change_are_refused(case, damage):
    """Without it a store would hold old and new samples under the fingerprint of the old ones, or the process die."""
    data, file, make = case
    unit = {"text_unit": "line"} if file.name == "data.txt" else {}
    source = open_source(data, format="text", **unit)  # type: ignore[arg-type]
    assert source.fingerprint == open_source(data, format="text", **unit).fingerprint  # type: ignore[arg-type]
    worker = pickle.dumps(source)
    reader = source.read(0, 6)
    first = [next(reader).text for _ in range(2)]
    assert first == TEXTS[:2]
    if damage == "overwritten":
        _overwrite(file, make(OTHERS))
    elif damage == "emptied":
        _overwrite(file, b"")
    elif damage == "replaced":
        (file.parent / "new").write_bytes(make(OTHERS))
        stamp = os.stat(file)
        os.replace(file.parent / "new", file)
        os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    else:
        file.unlink()
    rest = []
    with pytest.raises(SourceError, match=r"^\S* (changed|was deleted) while it was being read: run"):
        rest.extend(sample.text for sample in reader)
    assert rest == TEXTS[2 : 2 + len(rest)], "rows of the new file were handed out"
    with pytest.raises(SourceError, match="while it was being read: run the command again"):
        _ = source[4]
    with pytest.raises(SourceError, match="while it was being read: run the command again"):
        _ = pickle.loads(worker)[4]


class Overwriting(Letters):
    """Writes over the source when it has seen the first samples."""

    def __init__(self, path, data):
        super().__init__()
        self.path, self.data = path, data

    def encode_batch(self, samples):
        if self.data is not None:
            _overwrite(self.path, self.data)
            self.data = None
        return super().encode_batch(samples)


def test_a_job_over_a_changing_source_stops_and_publishes_nothing_of_it(tmp_path, monkeypatch):
    """Without it new lengths would be kept under the name of the old rows, and served for them for ever."""
    from brimful.measure import block_task

    monkeypatch.setattr(block_task, "_BATCH_SAMPLES", 2)
    monkeypatch.setattr(lines, "_PIECE_ROWS", 2)
    path = tmp_path / "data.jsonl"
    path.write_bytes(_lines(TEXTS))
    cache = tmp_path / "cache"
    encoder = Overwriting(path, _lines(OTHERS))
    with pytest.raises(SourceError, match=r"data\.jsonl changed while it was being read"):
        measure_lengths(open_source(path, format="text", cache_dir=cache), encoder, cache_dir=cache)
    assert list((cache / "lengths").rglob("*.arrow")) == []


def test_a_file_that_is_written_while_it_is_indexed_is_refused(tmp_path, monkeypatch):
    """Without it the index would name bytes by a fingerprint that no state of the file ever had."""
    path = tmp_path / "data.jsonl"
    path.write_bytes(_lines(TEXTS))
    real = line_index._blocks_of

    def cut(*args):
        _overwrite(path, _lines(OTHERS))
        real(*args)

    monkeypatch.setattr(line_index, "_blocks_of", cut)
    cache = tmp_path / "cache"
    with pytest.raises(SourceError, match="changed while it was being read"):
        open_source(path, cache_dir=cache)
    assert list(cache.rglob("*.arrow")) == []
    monkeypatch.undo()
    assert open_source(path)[0].text == OTHERS[0]


def test_a_stamp_is_size_time_and_file(tmp_path):
    """Without one of the three a file that was written over, touched or moved there would pass for the old one."""
    path = tmp_path / "a"
    path.write_bytes(b"12")
    stamp = Stamp.of(path)
    status = os.stat(path)
    assert stamp == Stamp(2, status.st_mtime_ns, status.st_ino, status.st_ctime_ns)
    stamp.check(path)
    for other in (replace(stamp, size=3), replace(stamp, mtime_ns=1), replace(stamp, inode=1)):
        with pytest.raises(SourceError) as caught:
            other.check(path, "data")
        assert str(caught.value) == "data changed while it was being read: run the command again"
    Path(path).unlink()
    with pytest.raises(SourceError, match="was deleted while it was being read"):
        stamp.check(path)


def _changed_with_its_times(file, data):
    """Write over a file, and set its times back, as a tool may; the system's own it cannot."""
    stamp = os.stat(file)
    with open(file, "r+b") as opened:
        opened.write(data)
    os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))


def test_a_file_of_old_size_and_times_is_read_again(case):
    """Without it a store would name the old contents."""
    data, file, make = case
    before = open_source(data, format="text").fingerprint
    _changed_with_its_times(file, make(OTHERS))
    assert open_source(data, format="text").fingerprint != before


def test_a_file_whose_mode_changes_is_read_to_its_end(case):
    """Without it a ``chmod`` or a hard link would stop a training; it costs one look at the bytes, of the next job."""
    data, file, _ = case
    source = open_source(data, format="text")
    before, worker = source.fingerprint, pickle.dumps(source)
    os.chmod(file, 0o640)
    assert source[0].text == pickle.loads(worker)[0].text
    assert open_source(data, format="text").fingerprint == before


def test_a_fingerprint_is_taken_once_for_each_state_of_the_files(case, monkeypatch):
    """Without it every rank of a job would read all bytes to compare its source with rank 0's."""
    data, file, make = case
    before = kept_fingerprint(open_source(data, format="text"))
    with monkeypatch.context() as patch:
        patch.setattr(Source, "fingerprint", property(lambda _: pytest.fail("read again")))
        assert kept_fingerprint(open_source(data, format="text")) == before
    _changed_with_its_times(file, make(OTHERS))
    changed = kept_fingerprint(open_source(data, format="text"))
    assert changed == open_source(data, format="text").fingerprint != before


def test_rows_in_memory_are_not_known_by_a_file_of_their_title(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("memory").touch()
    first, second = (open_source([{"text": text}]) for text in TEXTS[:2])
    assert kept_fingerprint(first) != kept_fingerprint(second)


def _gzipped(folder, text):
    return folder / "a.jsonl.gz", gzip.compress(_lines([text]), compresslevel=0, mtime=0)


def _paired(folder, text):
    (folder / "a.png").write_bytes(b"png")
    return folder / "a.json", json.dumps({"text": text}).encode()


def _tarred(folder, text):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in (("a.png", b"png"), ("a.json", json.dumps({"text": text}).encode())):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return folder / "a.tar", buffer.getvalue()


@pytest.mark.parametrize("make", [_gzipped, _paired, _tarred])
def test_what_is_kept_of_a_file_is_made_again_when_its_contents_change(tmp_path, make):
    """An unpacked copy and a catalogue are trusted by the same times as an index."""
    for text in TEXTS[0], OTHERS[0]:
        file, data = make(tmp_path, text)
        if file.exists():
            _changed_with_its_times(file, data)
        else:
            file.write_bytes(data)
        opened = file.parent if make is _paired else file
        assert open_source(opened, format="text", media=True).rows.get(0)["text"] == text
