"""A blob is there whole or not at all, and of several first writers exactly one wins."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import threading
import uuid

import pytest

from brimful import store as store_module
from brimful.errors import SettingsError, StoreError, StoreFullError
from brimful.store import FsspecStore, LocalStore, atomic_file, open_store


def _files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def _full_disk(*_args):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture(params=["local", "memory"])
def store(request, tmp_path):
    if request.param == "local":
        yield open_store(tmp_path / "store")
        return
    made = open_store(f"memory://{uuid.uuid4().hex}")
    assert isinstance(made, FsspecStore)
    yield made
    made._fs.rm(made._root, recursive=True)


def test_every_operation_of_a_store(store):
    """Without it a directory and an object store would behave differently under the same calls."""
    assert (store.list("log/"), store.size("log/1"), store.exists("log/1")) == ([], None, False)
    store.put_atomic("log/2", b"two")
    assert store.put_if_absent("log/1", b"first") is True
    assert store.put_if_absent("log/1", b"second") is False
    store.put_atomic("log/2", b"TWO!")
    store.put_atomic("shards/00/a", memoryview(b"0123456789"))
    store.put_atomic("log/empty", b"")
    assert store.get("log/1") == b"first"
    assert store.get("log/2") == b"TWO!"
    assert store.get("log/empty") == b""
    assert store.get_range("shards/00/a", 3, 4) == b"3456"
    assert (store.size("log/2"), store.exists("log/2")) == (4, True)
    assert store.list("log/") == store.list("log") == ["log/1", "log/2", "log/empty"]
    store.delete("log/1")
    store.delete("log/1")
    assert store.list("log/") == ["log/2", "log/empty"]
    assert store.list("tmp/") == []
    with pytest.raises(FileNotFoundError):
        store.get("log/1")


def test_put_if_absent_of_eight_threads_has_exactly_one_winner(store):
    """Without it two jobs could both believe that their commit counts, and one would be lost."""
    for round_number in range(5):
        barrier = threading.Barrier(8)
        won: list[int] = []

        def put(
            number: int, key: str = f"log/{round_number}", barrier: threading.Barrier = barrier, won: list[int] = won
        ) -> None:
            barrier.wait()
            if store.put_if_absent(key, b"%d" % number):
                won.append(number)

        threads = [threading.Thread(target=put, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        assert store.get(f"log/{round_number}") == b"%d" % won[0]
    assert store.list("tmp/") == []


def test_put_if_absent_without_hard_links_has_one_winner_too(tmp_path, monkeypatch):
    """Without it a file system that refuses links (exFAT, some FUSE) would end the job or lose the rule."""

    def no_links(*_args, **_kwargs):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    store = LocalStore(tmp_path)
    assert (store.put_if_absent("a", b"1"), store.put_if_absent("a", b"2"), store.get("a")) == (True, False, b"1")
    late = tmp_path / "late"  # of a writer that looked before the other one published
    late.write_bytes(b"3")
    assert store_module._exclusive_copy(late, tmp_path / "a") is False
    assert store.get("a") == b"1"


def test_a_link_whose_answer_was_lost_still_wins(tmp_path, monkeypatch):
    """Without it NFS could publish our blob and tell us that somebody else had won."""
    real = os.link

    def answer_lost(source, target):
        real(source, target)
        raise FileExistsError(errno.EEXIST, "File exists")

    monkeypatch.setattr(os, "link", answer_lost)
    assert LocalStore(tmp_path).put_if_absent("a", b"mine") is True


@pytest.mark.parametrize("operation", ["put_atomic", "put_if_absent"])
def test_a_full_disk_leaves_nothing_and_loses_nothing(tmp_path, monkeypatch, operation):
    """Without it a full disk would leave half a blob, garbage in tmp/, or take the old blob with it."""
    store = LocalStore(tmp_path)
    store.put_atomic("log/old", b"old")
    key = "log/old" if operation == "put_atomic" else "log/new"
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", _full_disk)
        with pytest.raises(StoreFullError) as caught:
            getattr(store, operation)(key, b"new")
    assert caught.value.errno == errno.ENOSPC
    assert str(tmp_path / key) in str(caught.value)
    assert "nothing that was committed is lost; free some space and run the same command again" in str(caught.value)
    assert _files(tmp_path) == ["log/old"]
    assert store.get("log/old") == b"old"


def test_a_disk_that_fills_in_the_middle_of_a_blob(tmp_path, monkeypatch):
    """Without it the first half of a blob could appear under its name."""
    real, calls = os.write, []

    def half(descriptor, data):
        calls.append(len(data))
        return real(descriptor, data[:2]) if len(calls) == 1 else _full_disk()

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", half)
        with pytest.raises(StoreFullError):
            LocalStore(tmp_path).put_atomic("a", b"12345")
    assert calls == [5, 3]
    assert _files(tmp_path) == []


def test_other_failures_keep_their_own_error(tmp_path, monkeypatch):
    """Without it a permission problem would be reported as a full disk."""

    def denied(*_args):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", denied)
        with pytest.raises(OSError) as caught:
            LocalStore(tmp_path).put_atomic("a", b"1")
    assert (type(caught.value), caught.value.errno, _files(tmp_path)) == (OSError, errno.EIO, [])


def test_a_short_write_is_continued(tmp_path, monkeypatch):
    """Without it a write that takes fewer bytes than given would publish a cut blob."""
    real = os.write
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:3]))
        LocalStore(tmp_path).put_atomic("a", b"0123456789")
    assert (tmp_path / "a").read_bytes() == b"0123456789"


def test_a_file_system_without_exclusive_creation_is_refused():
    """Without it two writers on such a file system would both win and one's packs would vanish."""
    store = FsspecStore(f"memory://{uuid.uuid4().hex}")
    real = store._fs.pipe_file

    class Forgetful:
        def __getattr__(self, name):
            return getattr(type(store._fs_real)(), name) if name != "pipe_file" else self.overwrite

        def overwrite(self, path, value, mode="overwrite"):
            return real(path, value)

    store._fs_real = store._fs
    store._fs = Forgetful()
    with pytest.raises(StoreError, match="lets two writers create the same name"):
        store.put_if_absent("log/1", b"first")
    assert store.list("log/") == store.list("tmp/") == []


def test_an_atomic_file_appears_at_the_end_of_its_block(tmp_path):
    """Without it a reader could open a table that is still being written."""
    path = tmp_path / "deep" / "t.bin"
    with atomic_file(path) as file:
        file.write(b"whole")
        file.flush()
        assert not path.exists()
    assert (path.read_bytes(), _files(tmp_path)) == (b"whole", ["deep/t.bin"])


def test_an_atomic_file_leaves_nothing_on_an_error(tmp_path):
    """Without it a failed job would leave half a file, or take the old one with it."""
    path = tmp_path / "t.bin"
    path.write_bytes(b"old")

    def fail():
        with atomic_file(path) as file:
            file.write(b"half")
            raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        fail()
    assert (path.read_bytes(), _files(tmp_path)) == (b"old", ["t.bin"])


def test_an_atomic_file_says_that_the_disk_is_full(tmp_path, monkeypatch):
    """Without it the message would not say that the same command goes on."""
    path = tmp_path / "t.bin"
    monkeypatch.setattr(os, "fsync", _full_disk)
    with pytest.raises(StoreFullError, match=r"no space left while writing .*t\.bin"), atomic_file(path) as file:
        file.write(b"1")
    assert _files(tmp_path) == []


def test_only_old_files_of_dead_processes_of_this_host_are_removed(tmp_path):
    """Without it tmp/ would grow for ever, or a running writer would lose its file."""
    store = LocalStore(tmp_path)
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    host, old = socket.gethostname(), 1_000_000_000.0
    for name, time in [
        (f"{host}-{dead.pid}-aa", old),
        (f"{host}-{dead.pid}-bb", None),
        (f"{host}-{os.getpid()}-cc", old),
        (f"other-{dead.pid}-dd", old),
        ("notes.txt", old),
    ]:
        store.put_atomic(f"tmp/{name}", b"")
        if time is not None:
            os.utime(tmp_path / "tmp" / name, (time, time))
    kept = [f"tmp/{host}-{dead.pid}-bb", f"tmp/{host}-{os.getpid()}-cc", f"tmp/other-{dead.pid}-dd", "tmp/notes.txt"]
    assert store.remove_stale_tmp() == 1
    assert store.list("tmp/") == sorted(kept)


def test_the_store_behind_a_path_or_url(tmp_path):
    """Without it a file:// URL would make a directory named 'file:'."""
    assert isinstance(open_store(tmp_path), LocalStore)
    assert open_store(f"file://{tmp_path}").url == open_store(str(tmp_path)).url == str(tmp_path)
    assert open_store(tmp_path).local_path("a/b") == f"{tmp_path}/a/b"
    assert open_store("memory://x").local_path("a/b") is None
    assert repr(open_store("memory://x/")) == "FsspecStore('memory://x')"
    with pytest.raises(SettingsError, match="the path of a store is empty"):
        open_store("")


def test_the_cache_is_where_the_argument_then_the_environment_says(tmp_path, monkeypatch):
    """Without it derived files would land in the home directory of a cluster node."""
    from brimful.cache import cache_dir

    monkeypatch.setenv("BRIMFUL_CACHE", "/named")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert [str(cache_dir(given)) for given in (tmp_path, None)] == [str(tmp_path), "/named"]
    monkeypatch.delenv("BRIMFUL_CACHE")
    assert str(cache_dir()) == "/xdg/brimful"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert str(cache_dir()) == "/home/me/.cache/brimful"
