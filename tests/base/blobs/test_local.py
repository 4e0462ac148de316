"""A blob is there whole or not at all, and of several first writers exactly one wins."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from brimful.base.blobs import Blob, BlobStore, LocalBlobStore, PromisedBlobs, local, open_blob_store
from brimful.base.blobs.local import _exclusive_claim
from brimful.base.locks import exclusive, lock
from brimful.base.plain_files import read_plain
from brimful.errors import StoreError, StoreFullError
from brimful.testing.contracts import BlobStoreContract
from tests.base.blobs.tools import files, full_disk


class TestLocalBlobStore(BlobStoreContract):
    @pytest.fixture
    def store(self, tmp_path):
        return open_blob_store(tmp_path / "store")


def test_a_range_beyond_the_end_names_its_blob(tmp_path):
    """Without it a shard that was cut short would be read as shorter samples."""
    store = LocalBlobStore(tmp_path)
    store.put_if_absent("a", b"abc")
    assert store.get_range("a", 1, 3) == b"bc"
    with pytest.raises(StoreError, match=r"a ends before byte 5$"):
        store.get_range("a", 1, 5)


def test_a_promised_blob_is_awaited_once(tmp_path, monkeypatch):
    """A mount that keeps listings shows it after its record; one that is lost must not hold up each pack."""
    store, slept = LocalBlobStore(tmp_path), []

    def sleep(seconds):
        slept.append(seconds)
        if len(slept) == 3:
            store.put_atomic("late", b"abc")

    monkeypatch.setattr("time.sleep", sleep)
    monkeypatch.setattr("brimful.base.blobs.interface._LATE_PAUSES", (1, 2, 4, 8))
    promised = PromisedBlobs(store)
    assert [promised.size("late"), promised.size("late"), len(slept)] == [3, 3, 3]
    assert [promised.size("lost"), promised.size("lost"), slept[3:]] == [None, None, [1, 2, 4, 8]]
    store.put_atomic("lost", b"a")
    assert promised.size("lost") == 1


def test_a_store_without_one_of_its_methods_is_refused_when_it_is_made():
    """And not by the first job that needs it."""
    assert BlobStore.__abstractmethods__ == {
        *("blob", "put_if_absent", "get", "get_range", "size", "folders", "list", "delete")
    }
    assert Blob.__abstractmethods__ == {"_write", "publish"}


def no_links(*_args, **_kwargs):
    raise OSError(errno.EPERM, "Operation not permitted")


def test_put_if_absent_without_hard_links_has_one_winner_too(tmp_path, monkeypatch):
    """Without it a file system that refuses links (exFAT, some FUSE) would end the job or lose the rule."""
    monkeypatch.setattr(os, "link", no_links)
    store = LocalBlobStore(tmp_path)
    assert (store.put_if_absent("a", b"1"), store.put_if_absent("a", b"2"), store.get("a")) == (True, False, b"1")
    late = tmp_path / "late"  # of a writer that looked before the other one published
    late.write_bytes(b"3")
    assert _exclusive_claim(late, tmp_path / "a") is False
    assert store.get("a") == b"1"


@pytest.mark.parametrize("code", ["EPERM", "ENOTSUP", "EMLINK", "ENOSYS", "EACCES", "EXDEV"])
def test_every_way_to_have_no_hard_links_is_known(tmp_path, monkeypatch, code):
    """Without it a file system in user space (ENOSYS), or one that links within a folder alone (EXDEV), takes no packs."""

    def link(*_args, **_kwargs):
        raise OSError(getattr(errno, code), os.strerror(getattr(errno, code)))

    monkeypatch.setattr(os, "link", link)
    store = LocalBlobStore(tmp_path)
    assert (store.put_if_absent("a", b"1"), store.put_if_absent("a", b"2"), store.get("a")) == (True, False, b"1")
    assert files(tmp_path) == ["a"]


def test_a_claim_that_stays_empty_is_taken_over_and_a_held_one_is_not(tmp_path, monkeypatch):
    """Its writer was killed before the bytes came: without it the name could never be written."""
    monkeypatch.setattr(local, "_CLAIM_PAUSES", (0.0, 0.001))
    store = LocalBlobStore(tmp_path)
    (tmp_path / "killed").touch()
    assert (store.put_if_absent("killed", b"1"), store.put_if_absent("killed", b"2")) == (True, False)
    assert store.get("killed") == b"1"
    claim, outcome = os.open(tmp_path / "held", os.O_WRONLY | os.O_CREAT), []
    lock(claim)  # of a writer that lives, and is slow
    thread = threading.Thread(target=lambda: outcome.append(store.put_if_absent("held", b"2")))
    thread.start()
    thread.join(0.1)
    (tmp_path / "bytes").write_bytes(b"1")
    os.replace(tmp_path / "bytes", tmp_path / "held")
    os.close(claim)
    thread.join()
    assert (outcome, store.get("held")) == ([False], b"1")
    assert store.put_if_absent("empty", b"")
    assert not store.put_if_absent("empty", b"")


def test_a_claim_that_its_writer_gives_up_is_free_for_the_one_that_waits(tmp_path, monkeypatch):
    """Without it that one would take the name for the other's, which wrote nothing."""
    (tmp_path / "a").touch()
    monkeypatch.setattr("time.sleep", lambda _: (tmp_path / "a").unlink(missing_ok=True))
    assert LocalBlobStore(tmp_path).put_if_absent("a", b"1") is True
    assert (tmp_path / "a").read_bytes() == b"1"


def test_a_name_without_hard_links_is_seen_empty_or_whole(tmp_path, monkeypatch):
    """Half a record would end every reader that looks in between: it reads no byte, and then all of them."""
    store, real, sizes = LocalBlobStore(tmp_path), os.replace, []

    def replace(source, target):
        sizes.append(os.path.getsize(target))
        if len(sizes) == 2:
            raise OSError(errno.EIO, "Input/output error")
        real(source, target)

    monkeypatch.setattr(os, "link", no_links)
    monkeypatch.setattr(os, "replace", replace)
    assert store.put_if_absent("a", b"12") is True
    with pytest.raises(OSError, match="Input/output error"):
        store.put_if_absent("b", b"34")
    assert (sizes, files(tmp_path)) == ([0, 0], ["a"]), "a name whose bytes did not come is free again"
    (tmp_path / "c").touch()  # claimed by another writer, whose bytes come while somebody waits
    monkeypatch.setattr("time.sleep", lambda _: (tmp_path / "c").write_bytes(b"56"))
    assert (store.get("a"), store.get("c")) == (b"12", b"56")


def test_an_absence_that_a_mount_keeps_is_looked_at_again(tmp_path, monkeypatch):
    """NFS keeps it for up to a minute: readers that ask for the next record by its name would see each so much later."""
    kept, real_open = set(), os.open

    def keeping(look):
        def kept_look(path, *args, **options):
            if str(path) in kept:
                raise FileNotFoundError(errno.ENOENT, "an absence that is kept", str(path))
            try:
                return look(path, *args, **options)
            except FileNotFoundError:
                kept.add(str(path))
                raise

        return kept_look

    def open_of_mount(path, flags, *args, **options):
        # To open a folder is to ask the server for its names.
        if os.path.isdir(path):
            kept.difference_update([name for name in kept if os.path.dirname(name) == str(path)])
        return real_open(path, flags, *args, **options)

    store = LocalBlobStore(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", keeping(os.stat))
        patched.setattr(local, "read_plain", keeping(read_plain))
        patched.setattr(os, "open", open_of_mount)
        for key in ("log/0", "log/1"):
            assert store.size(key) is None
            with pytest.raises(FileNotFoundError):
                store.get(key)
            # By another machine: nothing here is told of it.
            os.makedirs(f"{tmp_path}/log", exist_ok=True)
            with open(f"{tmp_path}/{key}", "wb") as file:
                file.write(b"record")
            assert (store.size(key), store.get(key)) == (6, b"record")


def test_a_link_whose_answer_was_lost_still_wins(tmp_path, monkeypatch):
    """Without it NFS could publish our blob and report that another process had won."""
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
        patched.setattr(os, "write", full_disk)
        with pytest.raises(StoreFullError) as caught:
            getattr(store, operation)(key, b"new")
    assert caught.value.errno == errno.ENOSPC
    assert str(tmp_path / key) in str(caught.value)
    assert "nothing that was committed is lost; free some space and run the same command again" in str(caught.value)
    assert files(tmp_path) == ["log/old"]
    assert store.get("log/old") == b"old"


def test_a_full_disk_is_told_of_the_blob_that_met_it(tmp_path, monkeypatch):
    """Of two that are open at once the other has room enough."""
    store = LocalBlobStore(tmp_path)

    def fill(media):
        with store.blob("shards/0"):
            media.write(b"a" * (1 << 22))

    monkeypatch.setattr(os, "write", full_disk)
    with (
        store.blob("media/0") as media,
        pytest.raises(StoreFullError, match=r"no space left while writing .*/media/0 "),
    ):
        fill(media)


def test_a_disk_that_fills_in_the_middle_of_a_blob(tmp_path, monkeypatch):
    """Without it the first half of a blob could appear under its name."""
    real, calls = os.write, []

    def half(descriptor, data):
        calls.append(len(data))
        return real(descriptor, data[:2]) if len(calls) == 1 else full_disk()

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", half)
        with pytest.raises(StoreFullError):
            LocalBlobStore(tmp_path).put_atomic("a", b"12345")
    assert calls == [5, 3]
    assert files(tmp_path) == []


def test_other_failures_keep_their_own_error(tmp_path, monkeypatch):
    """Without it a permission problem would be reported as a full disk."""

    def denied(*_args):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", denied)
        with pytest.raises(OSError) as caught:
            LocalBlobStore(tmp_path).put_atomic("a", b"1")
    assert (type(caught.value), caught.value.errno, files(tmp_path)) == (OSError, errno.EIO, [])


def test_a_short_write_is_continued(tmp_path, monkeypatch):
    """Without it a write that takes fewer bytes than given would publish a cut blob."""
    real = os.write
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:3]))
        LocalBlobStore(tmp_path).put_atomic("a", b"0123456789")
    assert (tmp_path / "a").read_bytes() == b"0123456789"


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
    assert files(tmp_path) == ["a"]
    assert not (tmp_path / "tmp").exists()


def test_a_job_that_fails_leaves_what_it_goes_on_from(tmp_path):
    """Without it an error or Ctrl-C would cost all tokens that were made so far."""
    _abandoned(tmp_path)
    with pytest.raises(KeyboardInterrupt), LocalBlobStore(tmp_path).used("encoded"):
        raise KeyboardInterrupt
    assert files(tmp_path) == ["tmp/encoded/a.arrow", "tmp/host-1-aa"]


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
    assert files(tmp_path) == ["a"]


def test_a_job_that_waited_for_a_folder_that_went_uses_the_new_one(tmp_path):
    """Without it a job that begins while another clears would hold a lock on a deleted file, and protect nothing."""
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
    monkeypatch.setattr(local, "lock", lambda file, shared=False: False)
    monkeypatch.setattr(local, "try_lock", lambda file: False)
    _abandoned(tmp_path)
    with LocalBlobStore(tmp_path).used("encoded"):
        pass
    assert files(tmp_path) == ["tmp/.in-use", "tmp/host-1-aa"]


def test_a_folder_that_goes_while_it_is_made_is_made_again(tmp_path, monkeypatch):
    """``Path.mkdir`` says that it exists, looks, and finds nothing: seen once in some hundred kills."""
    real, calls = Path.mkdir, []

    def mkdir(self, *args, **options):
        calls.append(self)
        if len(calls) == 1:
            raise FileExistsError(self)
        real(self, *args, **options)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    with local.use_folder(tmp_path / "tmp") as use:
        assert use is not None
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError), local.use_folder(tmp_path / "file"):
        pass
