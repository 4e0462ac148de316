"""Copies of remote blobs: one download a machine, whole and checked, bounded, and never taken from who uses them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from brimful.base.blobs import LocalBlobStore
from brimful.base.locks import lock, try_lock
from brimful.clusters import local_copies
from brimful.clusters.local_copies import CACHE_BYTES, LocalCopies
from brimful.errors import CorruptFileError, SettingsError, StoreFullError
from tests.base.blobs.tools import full_disk

DATA = {name: bytes([number]) * 1000 for number, name in enumerate("abcde", 1)}


class Origin(LocalBlobStore):
    """A store that counts what is read of it."""

    def __init__(self, directory):
        super().__init__(directory)
        self.reads = []
        for key, data in DATA.items():
            self.put_atomic(key, data)

    def get_range(self, key, start, stop):
        self.reads.append(key)
        return super().get_range(key, start, stop)


@pytest.fixture
def origin(tmp_path):
    return Origin(tmp_path / "origin")


def opened(copies, key):
    return copies.open(key, size=1000, xxh3_128=xxhash.xxh3_128_hexdigest(DATA[key]))


def names(folder):
    """Keys of the copies that lie there."""
    digests = {xxhash.xxh3_128_hexdigest(data): key for key, data in DATA.items()}
    return "".join(sorted(digests[path.stem] for path in folder.glob("*.arrow")))


def test_a_blob_is_downloaded_once_for_all_who_ask_at_once(origin, tmp_path):
    """Eight ranks of a node that each download a terabyte would share the line by eight."""
    barrier = threading.Barrier(8)

    def read(number):
        copies = LocalCopies(origin, tmp_path / "cache")
        barrier.wait()
        with contextlib.closing(opened(copies, "a")) as copy:
            assert Path(copy.path).read_bytes() == DATA["a"]
        return copies.num_downloads

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(read, range(8))) == 1
    assert origin.reads == ["a"]
    assert sorted(os.listdir(tmp_path / "cache")) == [".lock", f"{xxhash.xxh3_128_hexdigest(DATA['a'])}.arrow"]


def test_what_was_used_longest_ago_goes_first(origin, tmp_path):
    """Copies would fill the disk, or the one that is needed next would go."""
    copies = LocalCopies(origin, tmp_path / "cache", max_bytes=3000)
    for time_of_use, key in enumerate("abcab"):
        copy = opened(copies, key)
        os.utime(copy.path, (time_of_use, time_of_use))
        copy.close()
    opened(copies, "d").close()
    assert names(copies.directory) == "abd"
    assert origin.reads == ["a", "b", "c", "d"]


def test_a_copy_in_use_stays_and_is_reported(origin, tmp_path, logged):
    """A file removed under its reader is downloaded again and again, and its room is free on paper only."""
    copies, others = (LocalCopies(origin, tmp_path / "cache", max_bytes=2000) for _ in range(2))
    used = [opened(copies, "a"), opened(others, "b")]
    opened(copies, "c").close()
    opened(others, "c").close()
    assert names(copies.directory) == "abc"
    (message,) = logged
    assert "the copies that are in use exceed cache_bytes=2000 by 1000 bytes" in message
    used[0].close()
    opened(copies, "d").close()
    assert names(copies.directory) == "bd"
    used[1].close()


@settings(max_examples=30)
@given(st.lists(st.tuples(st.sampled_from("abcde"), st.booleans()), max_size=12), st.integers(1, 5))
def test_the_bound_holds_for_what_nobody_uses(tmp_path_factory, steps, room):
    """In whatever order copies are opened and closed, the ones in use stay, and each download makes the rest fit."""
    folder = tmp_path_factory.mktemp("copies")
    copies = LocalCopies(Origin(folder / "origin"), folder / "cache", max_bytes=1000 * room)
    used = {}
    for key, stays_open in steps:
        is_download = key not in names(copies.directory)
        copy = opened(copies, key)
        if stays_open and key not in used:
            used[key] = copy
        else:
            copy.close()
        present = names(copies.directory)
        assert set(used) | {key} <= set(present)
        if is_download:
            assert len(present) <= max(room, len(set(used) | {key}))
    for copy in used.values():
        copy.close()


def test_other_bytes_than_were_committed_are_found_before_use(origin, tmp_path, monkeypatch):
    """A truncated, flipped, foreign or missing shard would be trained on, or end the process by SIGBUS."""
    monkeypatch.setattr("brimful.clusters.local_copies.time.sleep", lambda seconds: None)
    copies = LocalCopies(origin, tmp_path / "cache")
    damages = {
        DATA["a"][:-1]: r"/a has 999 bytes and was committed with 1,000 bytes: write it again",
        DATA["a"][:-1] + b"\x00": r"/a has other bytes than were committed: their hash is",
        DATA["b"]: r"/a has other bytes than were committed",
        b"": r"/a has 0 bytes",
        None: r"/a is missing and was committed with 1,000 bytes",
    }
    for data, message in damages.items():
        if data is None:
            origin.delete("a")
        else:
            origin.put_atomic("a", data)
        with pytest.raises(CorruptFileError, match=message):
            opened(copies, "a")
        assert os.listdir(copies.directory) == [".lock"]
    origin.put_atomic("a", DATA["a"])
    opened(copies, "a").close()


def test_a_stale_view_of_a_blob_passes(origin, tmp_path, monkeypatch):
    """A cache of a network mount may show the old bytes for seconds: that is a delay, no damage."""
    origin.put_atomic("a", DATA["b"])
    monkeypatch.setattr("brimful.clusters.local_copies.time.sleep", lambda seconds: origin.put_atomic("a", DATA["a"]))
    copies = LocalCopies(origin, tmp_path / "cache")
    opened(copies, "a").close()
    assert copies.num_downloads == 1


def test_a_copy_that_was_cut_short_is_downloaded_again(origin, tmp_path):
    """Mapped as it lies there it would end the process by SIGBUS."""
    copies = LocalCopies(origin, tmp_path / "cache")
    copy = opened(copies, "a")
    copy.close()
    for size in (10, 999, 1001):
        os.truncate(copy.path, size)
        with contextlib.closing(opened(copies, "a")) as copy:
            assert Path(copy.path).read_bytes() == DATA["a"]
    assert copies.num_downloads == 4
    assert os.stat(copy.path).st_mode & 0o777 == 0o644 & ~umask()


def umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_copy_that_turned_out_damaged_is_removed(origin, tmp_path):
    copies, digest = LocalCopies(origin, tmp_path / "cache"), xxhash.xxh3_128_hexdigest(DATA["a"])
    assert not copies.discard(digest)
    opened(copies, "a").close()
    assert copies.discard(digest)
    assert names(copies.directory) == ""


def test_a_copy_that_is_removed_before_it_is_locked_is_downloaded_again(origin, tmp_path, monkeypatch):
    """Another process may need the room in between: a copy without a name is in nobody's bound."""
    copies, real, removed = LocalCopies(origin, tmp_path / "cache"), lock, []

    def late(file, *, shared=False):
        found = list(copies.directory.glob("*.arrow"))
        if shared and found and not removed:
            removed.append(found[0].unlink())
        return real(file, shared=shared)

    monkeypatch.setattr(local_copies, "lock", late)
    with contextlib.closing(opened(copies, "a")) as copy:
        assert Path(copy.path).read_bytes() == DATA["a"]
    assert copies.num_downloads == 2


def test_a_download_that_another_takes_for_abandoned_is_begun_again(origin, tmp_path, monkeypatch):
    """Between its creation and its lock a file looks like that of a process that died."""
    copies, real, taken = LocalCopies(origin, tmp_path / "cache"), try_lock, []

    def late(file):
        found = list(copies.directory.glob("*.part"))
        if found and not taken:
            taken.append(found[0].unlink())
        return real(file)

    monkeypatch.setattr(local_copies, "try_lock", late)
    opened(copies, "a").close()
    assert names(copies.directory) == "a"
    assert taken


def test_what_is_gone_is_removed(tmp_path):
    """By another process, while both make room."""
    assert local_copies._remove_unused(tmp_path / "gone.arrow")


def test_copies_lie_in_the_cache_by_default(origin, tmp_path, monkeypatch):
    monkeypatch.setenv("BRIMFUL_CACHE", str(tmp_path / "cache"))
    copies = LocalCopies(origin)
    with contextlib.closing(opened(copies, "a")) as copy:
        assert Path(copy.path).parent == copies.directory == tmp_path / "cache" / "packs"
    assert copies.max_bytes == CACHE_BYTES


def test_files_that_are_no_copies_stay(origin, tmp_path):
    """Room is made of copies alone, and a link leads out of the folder."""
    copies = LocalCopies(origin, tmp_path / "cache", max_bytes=1000)
    (tmp_path / "own").write_bytes(bytes(5000))
    (copies.directory / "link.arrow").symlink_to(tmp_path / "own")
    (copies.directory / "notes.txt").write_bytes(bytes(5000))
    (copies.directory / "folder.arrow").mkdir()
    (copies.directory / "old.part").write_bytes(bytes(10))
    opened(copies, "a").close()
    opened(copies, "b").close()
    assert names_of_files(copies.directory) == ["folder.arrow", "link.arrow", "notes.txt"]


def names_of_files(folder):
    digests = [xxhash.xxh3_128_hexdigest(data) for data in DATA.values()]
    return sorted(name for name in os.listdir(folder) if name != ".lock" and name.partition(".")[0] not in digests)


def test_a_large_blob_comes_in_parts(origin, tmp_path, monkeypatch):
    monkeypatch.setattr("brimful.clusters.local_copies._PIECE_BYTES", 300)
    real, short = os.pwrite, lambda descriptor, view, position: real(descriptor, view[:7], position)
    monkeypatch.setattr(os, "pwrite", short)  # a call may write less than it is given
    with contextlib.closing(opened(LocalCopies(origin, tmp_path / "cache"), "a")) as copy:
        assert Path(copy.path).read_bytes() == DATA["a"]
    assert origin.reads == ["a"] * 4


@pytest.mark.parametrize("num_bad", [1, 2, 3])
def test_a_blob_is_asked_for_three_times(origin, tmp_path, monkeypatch, num_bad):
    """A fifth of a second, then four fifths: a view of a mount that stays stale is damage."""
    waits = []

    def wait(seconds):
        waits.append(seconds)
        if len(waits) == num_bad:
            origin.put_atomic("a", DATA["a"])

    origin.put_atomic("a", DATA["b"])
    monkeypatch.setattr("brimful.clusters.local_copies.time.sleep", wait)
    copies = LocalCopies(origin, tmp_path / "cache")
    with pytest.raises(CorruptFileError) if num_bad == 3 else contextlib.nullcontext():
        opened(copies, "a").close()
    assert waits == pytest.approx([0.2, 0.8][:num_bad])


KILLED = """
import os, signal, sys
from brimful.base.blobs import LocalBlobStore
from brimful.clusters.local_copies import LocalCopies

class Slow(LocalBlobStore):
    def get_range(self, key, start, stop):
        if start:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().get_range(key, start, stop)

import brimful.clusters.local_copies
brimful.clusters.local_copies._PIECE_BYTES = 400
brimful.clusters.local_copies._REQUESTS_AT_ONCE = 1
LocalCopies(Slow(sys.argv[1]), sys.argv[2]).open("a", size=1000, xxh3_128=sys.argv[3])
"""


def test_a_killed_download_is_taken_over(origin, tmp_path):
    """The others of the node would wait for a dead process, or take half a file for the whole."""
    digest = xxhash.xxh3_128_hexdigest(DATA["a"])
    command = [sys.executable, "-c", KILLED, origin.url, str(tmp_path / "cache"), digest]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert sorted(os.listdir(tmp_path / "cache")) == [".lock", f"{digest}.part"]
    copies = LocalCopies(origin, tmp_path / "cache", max_bytes=1000)
    opened(copies, "b").close()  # the half download is nobody's, so its room is free
    assert names(copies.directory) == "b"
    opened(copies, "a").close()
    assert sorted(os.listdir(tmp_path / "cache")) == [".lock", f"{digest}.arrow"]


def test_a_full_disk_says_so_and_leaves_nothing(origin, tmp_path, monkeypatch):
    """Half a copy on a full disk would keep it full."""
    copies = LocalCopies(origin, tmp_path / "cache")
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full_disk)
        with pytest.raises(StoreFullError, match="no space left while writing"):
            opened(copies, "a")
    assert os.listdir(copies.directory) == [".lock"]


def test_a_file_system_without_locks_is_refused(origin, tmp_path, monkeypatch):
    """Without locks no copy would ever be known as unused: the bound would be a word."""
    monkeypatch.setattr("brimful.clusters.local_copies.lock", lambda file, shared: False)
    with pytest.raises(SettingsError, match=r"cache_dir=.*/cache\": this file system has no locks"):
        LocalCopies(origin, tmp_path / "cache")
    with pytest.raises(SettingsError, match="cache_bytes must be at least 1 and is 0"):
        LocalCopies(origin, tmp_path / "cache", max_bytes=0)
