"""P4: a disk that is full at any place loses nothing, says what to do, and the same producer goes on once the disk has room.

On a file system that is really full where one can be mounted (as root), and with writes that fail elsewhere.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from pathlib import Path

import pytest

from brimful.errors import StoreFullError
from brimful.stream import StreamLoader
from tests.faults.planted import full_disk
from tests.stream.producer.streams import hashes_of, producer, records_of, samples_of, texts

ROWS = texts([7, 4, 3, 6, 9, 2, 8, 5, 4, 4, 7, 3, 6, 2, 9, 5])

MESSAGE = re.compile(
    r"no space left while writing (?P<path>\S+) \((?P<bytes>[\d,]+) bytes? of it were written\): nothing that was committed "
    r"is lost; free some space and run the same command again to resume"
)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 256 KiB in memory."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(path: Path, spare_bytes: int) -> None:
    """Take the disk but for some bytes."""
    disk = os.statvfs(path.parent)
    path.write_bytes(b"x" * max(0, disk.f_bavail * disk.f_frsize - spare_bytes))


def steps(one):
    """Step to the end of the stream."""
    while not one.is_finished:
        one.step(close=True)


@pytest.mark.parametrize("spare_kib", [0, 4, 8, 12, 16])
def test_a_file_system_that_is_really_full(small_disk, tmp_path, spare_kib):
    """Whichever file meets the end of the disk: carry-over, shard or record."""
    steps(producer(iter(ROWS), tmp_path / "whole"))
    stream = small_disk / "stream"
    one = producer(iter(ROWS), stream)
    while not one._records:
        one.step()
    num_committed = len(one._records)
    fill(small_disk / "others", spare_kib << 10)
    with pytest.raises(StoreFullError) as caught:
        steps(one)
    match = MESSAGE.fullmatch(str(caught.value))
    assert match is not None, str(caught.value)
    assert match["path"].startswith(str(stream))
    assert len(records_of(stream)[0]) >= num_committed
    assert [path for path in (stream / "tmp").glob("*") if path.stat().st_size] == []
    os.unlink(small_disk / "others")
    steps(one)
    assert hashes_of(stream) == hashes_of(tmp_path / "whole")
    assert sorted(samples_of(stream)) == list(range(len(ROWS)))


def test_an_acknowledgement_on_a_full_disk(small_disk):
    """A checkpoint was written and its acknowledgement was not: the next one counts, and nothing was removed too early."""
    stream = small_disk / "stream"
    steps(producer(iter(ROWS), stream))
    loader = StreamLoader(stream)
    next(iter(loader))
    (small_disk / "others").write_bytes(b"")
    fill(small_disk / "others", 0)
    with pytest.raises(StoreFullError, match=r"no space left while writing \S+/acks/run-1/000000000000001.json"):
        loader.ack("run-1")
    os.unlink(small_disk / "others")
    loader.ack("run-1")
    assert [path.name for path in (stream / "acks/run-1").iterdir()] == ["000000000000001.json"]


@pytest.mark.parametrize("place", ["carry", "shards", "log"])
def test_the_file_that_met_the_end_of_the_disk_is_named(tmp_path, monkeypatch, place):
    """By writes that fail, where nothing can be mounted: each of the three files of a commit in turn."""
    steps(producer(iter(ROWS), tmp_path / "whole"))
    one = producer(iter(ROWS), tmp_path / "stream")
    one.step()
    real = one._store.blob

    @contextlib.contextmanager
    def blob(title):
        with full_disk(after_bytes=10) if title.startswith(place) else contextlib.nullcontext(), real(title) as opened:
            yield opened

    with monkeypatch.context() as patched:
        patched.setattr(one._store, "blob", blob)
        with pytest.raises(StoreFullError) as caught:
            steps(one)
    match = MESSAGE.fullmatch(str(caught.value))
    assert match is not None, str(caught.value)
    assert match["path"].startswith(str(tmp_path / "stream" / place))
    assert match["bytes"] == "10"
    steps(one)
    assert hashes_of(tmp_path / "stream") == hashes_of(tmp_path / "whole")
