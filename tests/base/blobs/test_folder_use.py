"""Temporary files go with the last job that uses their folder."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from brimful.base.blobs import LocalBlobStore, folder_use
from brimful.base.cache import exclusive
from tests.base.blobs.tools import files


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
    from brimful.base.locks import lock

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
    with folder_use.use_folder(tmp_path / "tmp") as use:
        assert use.alone()
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError), folder_use.use_folder(tmp_path / "file"):
        pass
