"""A blob is there whole or not at all, and of several first writers exactly one wins."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import uuid

import pytest

from brimful.blobs import FsspecBlobStore, LocalBlobStore, atomic_file, folder_use, open_blob_store
from brimful.blobs.local import _exclusive_copy
from brimful.cache import exclusive
from brimful.errors import SettingsError, StoreError, StoreFullError
from brimful.testing.contracts import BlobStoreContract


def _files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def _full_disk(*_args):
    raise OSError(errno.ENOSPC, "No space left on device")


class TestLocalBlobStore(BlobStoreContract):
    @pytest.fixture
    def store(self, tmp_path):
        return open_blob_store(tmp_path / "store")


class TestFsspecBlobStore(BlobStoreContract):
    @pytest.fixture
    def store(self):
        made = open_blob_store(f"memory://{uuid.uuid4().hex}")
        assert isinstance(made, FsspecBlobStore)
        yield made
        with contextlib.suppress(FileNotFoundError):
            made._fs.rm(made._root, recursive=True)


def test_put_if_absent_without_hard_links_has_one_winner_too(tmp_path, monkeypatch):
    """Without it a file system that refuses links (exFAT, some FUSE) would end the job or lose the rule."""

    def no_links(*_args, **_kwargs):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    store = LocalBlobStore(tmp_path)
    assert (store.put_if_absent("a", b"1"), store.put_if_absent("a", b"2"), store.get("a")) == (True, False, b"1")
    late = tmp_path / "late"  # of a writer that looked before the other one published
    late.write_bytes(b"3")
    assert _exclusive_copy(late, tmp_path / "a") is False
    assert store.get("a") == b"1"


def test_a_link_whose_answer_was_lost_still_wins(tmp_path, monkeypatch):
    """Without it NFS could publish our blob and tell us that somebody else had won."""
    real = os.link

    def answer_lost(source, target):
        real(source, target)
        raise FileExistsError(errno.EEXIST, "File exists")

    monkeypatch.setattr(os, "link", answer_lost)
    assert LocalBlobStore(tmp_path).put_if_absent("a", b"mine") is True


@pytest.mark.parametrize("operation", ["put_atomic", "put_if_absent"])
def test_a_full_disk_leaves_nothing_and_loses_nothing(tmp_path, monkeypatch, operation):
    """Without it a full disk would leave half a blob, garbage in tmp/, or take the old blob with it."""
    store = LocalBlobStore(tmp_path)
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
            LocalBlobStore(tmp_path).put_atomic("a", b"12345")
    assert calls == [5, 3]
    assert _files(tmp_path) == []


def test_other_failures_keep_their_own_error(tmp_path, monkeypatch):
    """Without it a permission problem would be reported as a full disk."""

    def denied(*_args):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", denied)
        with pytest.raises(OSError) as caught:
            LocalBlobStore(tmp_path).put_atomic("a", b"1")
    assert (type(caught.value), caught.value.errno, _files(tmp_path)) == (OSError, errno.EIO, [])


def test_a_short_write_is_continued(tmp_path, monkeypatch):
    """Without it a write that takes fewer bytes than given would publish a cut blob."""
    real = os.write
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:3]))
        LocalBlobStore(tmp_path).put_atomic("a", b"0123456789")
    assert (tmp_path / "a").read_bytes() == b"0123456789"


def test_a_file_system_without_exclusive_creation_is_refused():
    """Without it two writers on such a file system would both win and one's packs would vanish."""
    store = FsspecBlobStore(f"memory://{uuid.uuid4().hex}")
    real = store._fs.pipe_file

    class Forgetful:
        def __getattr__(self, name):
            return getattr(type(store._fs_real)(), name) if name != "pipe_file" else self.overwrite  # type: ignore[attr-defined]

        def overwrite(self, path, value, mode="overwrite"):
            return real(path, value)

    store._fs_real = store._fs  # type: ignore[attr-defined]
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


def _abandoned(folder):
    """What a killed job leaves in ``tmp/``: a blob of its own name, and tokens in a folder."""
    (folder / "tmp" / "encoded").mkdir(parents=True)
    (folder / "tmp" / "encoded" / "a.arrow").write_bytes(b"tokens")
    (folder / "tmp" / "host-1-aa").write_bytes(b"half")


def test_a_job_that_finishes_clears_what_killed_ones_left(tmp_path):
    """Without it half-written shards and the tokens of a killed job would stay for ever."""
    _abandoned(tmp_path)
    with LocalBlobStore(tmp_path).used():
        LocalBlobStore(tmp_path).put_atomic("a", b"1")
        assert (tmp_path / "tmp" / "encoded" / "a.arrow").exists()
    assert _files(tmp_path) == ["a"]
    assert not (tmp_path / "tmp").exists()


def test_a_job_that_fails_leaves_what_it_goes_on_from(tmp_path):
    """Without it an error or Ctrl-C would cost all tokens that were made so far."""
    _abandoned(tmp_path)
    with pytest.raises(KeyboardInterrupt), LocalBlobStore(tmp_path).used("encoded"):
        raise KeyboardInterrupt
    assert _files(tmp_path) == ["tmp/encoded/a.arrow", "tmp/host-1-aa"]


def test_a_job_that_fails_with_nothing_to_go_on_from_leaves_nothing(tmp_path):
    """Without it a job that is refused would leave a folder of locks in a store that is not its own."""
    with (
        pytest.raises(ValueError, match="refused"),
        LocalBlobStore(tmp_path).used(),
        exclusive(tmp_path / "tmp" / "plan"),
    ):
        raise ValueError("refused")
    assert list(tmp_path.iterdir()) == []


def test_the_last_of_several_jobs_clears(tmp_path):
    """Without it the first of two jobs that finishes would delete what the other reads."""
    store = LocalBlobStore(tmp_path)
    with store.used():
        _abandoned(tmp_path / "x")
        os.rename(tmp_path / "x" / "tmp" / "encoded", tmp_path / "tmp" / "encoded")
        with store.used("encoded"):
            pass
        store.put_atomic("a", b"1")
        assert (tmp_path / "tmp" / "encoded" / "a.arrow").exists()
    assert not (tmp_path / "tmp").exists()


def test_a_blob_beside_a_job_that_finishes_keeps_its_file(tmp_path):
    """Without it a job could delete the file that another process is writing, which would then fail."""
    store = LocalBlobStore(tmp_path)
    with store.blob("a") as blob:
        with store.used():
            pass
        blob.write(b"1")
        blob.publish("a")
    assert _files(tmp_path) == ["a"]


def test_a_job_that_waited_for_a_folder_that_went_uses_the_new_one(tmp_path):
    """Without it a job that begins while another clears would hold a lock on a deleted file, and protect nothing."""
    from brimful.locks import lock

    (tmp_path / "tmp").mkdir()
    path = tmp_path / "tmp" / ".in-use"
    entered, leave = threading.Event(), threading.Event()

    def job():
        with LocalBlobStore(tmp_path).used():
            entered.set()
            leave.wait(10)

    with open(path, "ab") as file:
        lock(file)
        thread = threading.Thread(target=job)
        thread.start()
        assert not entered.wait(0.1)
        path.unlink()
    assert entered.wait(10)
    _abandoned(tmp_path / "x")
    os.rename(tmp_path / "x" / "tmp" / "encoded", tmp_path / "tmp" / "encoded")
    with LocalBlobStore(tmp_path).used():
        pass
    assert (tmp_path / "tmp" / "encoded").exists(), "the job that waited is not seen"
    leave.set()
    thread.join()


def test_without_locks_only_what_a_job_names_goes(tmp_path, monkeypatch):
    """Without it a job on a mount without locks could delete what another one needs, or would leave its tokens."""
    monkeypatch.setattr(folder_use, "lock", lambda file, shared=False: False)
    monkeypatch.setattr(folder_use, "try_lock", lambda file: False)
    _abandoned(tmp_path)
    with LocalBlobStore(tmp_path).used("encoded"):
        pass
    assert _files(tmp_path) == ["tmp/.in-use", "tmp/host-1-aa"]


def test_an_atomic_file_clears_what_killed_writers_of_it_left(tmp_path):
    """Without it every kill would leave another copy of a table beside it."""
    from brimful.locks import lock

    mine, used, others = ".t.bin.7-0a1b.tmp", ".t.bin.8-0a1c.tmp", [".t.bin.x.9-0a.tmp", ".u.bin.9-0a.tmp", "t.tmp"]
    for name in (mine, used, *others):
        (tmp_path / name).write_bytes(b"half")
    with open(tmp_path / used, "r+b") as file:
        lock(file)  # of a writer that lives
        with atomic_file(tmp_path / "t.bin") as new:
            new.write(b"whole")
            held = {path.name for path in tmp_path.glob(".t.bin.*.tmp")} - {used}
            with atomic_file(tmp_path / "t.bin") as other:
                other.write(b"other")
            assert held <= set(_files(tmp_path)), "a writer took the file of another one"
    assert _files(tmp_path) == sorted([used, *others, "t.bin"])
    assert (tmp_path / "t.bin").read_bytes() == b"whole"


def test_the_store_behind_a_path_or_url(tmp_path):
    """Without it a file:// URL would make a directory named 'file:'."""
    assert isinstance(open_blob_store(tmp_path), LocalBlobStore)
    assert open_blob_store(f"file://{tmp_path}").url == open_blob_store(str(tmp_path)).url == str(tmp_path)
    assert open_blob_store(tmp_path).local_path("a/b") == f"{tmp_path}/a/b"
    assert open_blob_store("memory://x").local_path("a/b") is None
    assert repr(open_blob_store("memory://x/")) == "FsspecBlobStore('memory://x')"
    with pytest.raises(SettingsError, match="the path of a store is empty"):
        open_blob_store("")


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
