"""Blobs at a URL of fsspec."""

from __future__ import annotations

import copy
import os
import uuid
from types import SimpleNamespace
from typing import Any

import fsspec
import pytest

from brimful.base.blobs import LocalBlobStore, open_blob_store
from brimful.clusters.remote_blobs import FsspecBlobStore, RemoteFile, filesystem_of, telling
from brimful.errors import MissingExtraError, SettingsError, SourceError, SourceNotFoundError, StoreError
from brimful.testing.contracts import BlobStoreContract
from tests.clusters.s3 import _s3_server, bucket  # noqa: F401 - fixtures
from tests.faults.planted import FaultyFileSystem


@pytest.fixture
def url():
    """A URL in the memory of this process."""
    url = f"memory://{uuid.uuid4().hex}"
    yield url
    filesystem, root = fsspec.core.url_to_fs(url)
    if filesystem.exists(root):
        filesystem.rm(root, recursive=True)


@pytest.fixture
def waits(monkeypatch):
    """Seconds that requests would have waited before they were made again."""
    seconds = []
    monkeypatch.setattr("brimful.clusters.retries.time.sleep", seconds.append)
    return seconds


class TestFsspecBlobStore(BlobStoreContract):
    @pytest.fixture
    def store(self, url):
        made = open_blob_store(url)
        assert isinstance(made, FsspecBlobStore)
        return made


class TestS3(BlobStoreContract):
    """Against a server that speaks S3, by the real library."""

    @pytest.fixture
    def store(self, bucket):  # noqa: F811
        return open_blob_store(f"{bucket}/store")


FAULTS: dict[str, dict[str, Any]] = {
    "short reads": {"short_reads": True},
    "requests that fail": {"fails": 2},
    "answers that are lost": {"loses_answers": 1},
    "all of them": {"short_reads": True, "fails": 1, "loses_answers": 1},
}


class TestFaults(BlobStoreContract):
    """Whatever a network does to single requests, callers see none of it."""

    @pytest.fixture(params=FAULTS)
    def store(self, url, request, waits):
        filesystem, root = fsspec.core.url_to_fs(url)
        return FsspecBlobStore(url, filesystem=FaultyFileSystem(filesystem, **FAULTS[request.param]), root=root)


def faulty(url, **faults):
    filesystem, root = fsspec.core.url_to_fs(url)
    faulty_filesystem = FaultyFileSystem(filesystem, **faults)
    return FsspecBlobStore(url, filesystem=faulty_filesystem, root=root), faulty_filesystem


def test_a_creation_whose_answer_was_lost_is_ours_and_that_of_another_is_not(url, waits):
    """Without it a commit that succeeded would be taken for another writer's, and its work done twice."""
    store, filesystem = faulty(url, loses_answers=1)
    assert store.put_if_absent("log/0", b"mine") is True
    assert filesystem.num_faults > 0
    assert store.put_if_absent("log/0", b"theirs") is False
    assert store.get("log/0") == b"mine"


def test_failures_are_logged_once_and_counted(url, waits, logged):
    """A line for every repeated request would fill the log; none at all would hide a bad network."""
    store, _ = faulty(url, fails=1)
    store._probed = True  # by an earlier job of this process
    with store.used():
        for number in range(5):
            store.put_atomic(f"log/{number}", b"x")
    assert store.retries.num_repeated == len(waits) == 5
    first, last = logged
    assert first == f"{url}: write log/0 failed and is repeated: TimeoutError: no answer (planted)"
    assert last == f"{url}: 5 requests were repeated, last after TimeoutError: no answer (planted)"


def test_a_request_that_never_succeeds_ends_with_its_reason(url, waits):
    """Without a bound a job would hang on a store that is gone."""
    store, _ = faulty(url, fails=10**9)
    with pytest.raises(StoreError, match=r"cannot list log/: failed 8 times, last with TimeoutError: no answer"):
        store.list("log/")
    assert len(waits) == 7
    assert waits[0] < 0.2 < 2 < waits[-1] < 9


def test_a_failure_that_stays_is_not_repeated(url, waits, monkeypatch):
    """Wrong credentials do not become right: twenty seconds of waiting would only hide the reason."""
    store = FsspecBlobStore(url)

    def denied(*args, **kwargs):
        raise PermissionError("Access Denied")

    monkeypatch.setattr(type(store._fs), "pipe_file", denied)
    with pytest.raises(StoreError, match=rf"{url}: cannot write a: PermissionError: Access Denied"):
        store.put_atomic("a", b"1")
    assert waits == []


def test_a_file_system_without_exclusive_creation_is_refused(url, waits):
    """Without it two writers on such a file system would both win and one's packs would vanish."""
    store, _ = faulty(url, ignores_conditions=True)
    with pytest.raises(StoreError, match="lets two writers create the same name"):
        store.put_if_absent("log/1", b"first")
    assert store.list("log/") == store.list("tmp/") == []


def test_a_protocol_that_looks_before_it_writes_is_refused_by_name(tmp_path):
    """fsspec's default for a creation looks and then writes: one after the other it passes the probe."""
    store = FsspecBlobStore(f"dir::file://{tmp_path}")
    with pytest.raises(StoreError, match=r"dir::file:// is read only here: .* one of s3, s3a, gs, gcs, abfs"):
        store.put_if_absent("log/1", b"first")


def test_ranges(url, waits):
    """Without it a reader of ranges would get a part, or the whole blob, and call it the range."""
    for store in (open_blob_store(url), faulty(url, short_reads=True)[0]):
        store.put_atomic("a", bytes(range(100)))
        assert store.get_range("a", 10, 60) == bytes(range(10, 60))
        assert store.get_range("a", 10, 10) == b""
        assert store.get_many(["a"] * 20) == [bytes(range(100))] * 20
    with pytest.raises(StoreError, match="no bytes from 100 on"):
        store.get_range("a", 90, 110)
    with pytest.raises(FileNotFoundError):
        store.get_range("b", 0, 1)


def test_another_process_opens_it_itself(url):
    """Connections cannot be sent: a store that is part of a task must be opened by its user."""
    store = open_blob_store(url)
    store.put_atomic("a", b"1")
    assert copy.deepcopy(store).get("a") == b"1"


def test_large_blobs_on_s3_go_and_come_in_parts(bucket, monkeypatch):  # noqa: F811
    """A blob of one part only would leave the loops over parts untested against a server."""
    monkeypatch.setattr("brimful.clusters.remote_blobs._PIECE_BYTES", 1000)
    store = open_blob_store(f"{bucket}/store")
    data = bytes(range(256)) * 40
    store.put_atomic("shards/a", data)
    assert store.get("shards/a") == data
    assert store.get_range("shards/a", 999, 5001) == data[999:5001]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ImportError("x"), "needs s3, which is not installed: pip install s3"),
        (ImportError("x", name="s3fs"), "needs s3fs, which is not installed: pip install s3fs"),
        (ValueError("bad option"), "s3://a/b: bad option"),
    ],
)
def test_a_protocol_without_its_library_names_it(error, words, monkeypatch):
    """fsspec's own error names the protocol, and its cause the package."""

    def raises(*_, **__):
        raise error

    monkeypatch.setattr(fsspec.core, "url_to_fs", raises)
    with pytest.raises((MissingExtraError, SettingsError), match=words):
        filesystem_of("s3://a/b")
    if isinstance(error, ImportError):
        error.__cause__ = ModuleNotFoundError("y", name="boto")
        with pytest.raises(MissingExtraError, match=r"needs boto, .* pip install boto"):
            filesystem_of("s3://a/b")


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (SettingsError("ours"), SettingsError, "^ours$"),
        (FileNotFoundError("x"), SourceNotFoundError, "^memory://a: no such file$"),
        (OSError("one\ntwo"), SourceError, "^memory://a cannot be read: OSError: one$"),
        (RuntimeError(), SourceError, r"^memory://a cannot be read: RuntimeError: RuntimeError\(\)$"),
    ],
)
def test_errors_of_a_file_at_a_url_are_one_line(error, kind, words):
    """Libraries of clouds have classes of their own, and tracebacks of pages."""
    with pytest.raises(kind, match=words), telling("memory://a"):
        raise error


def test_a_file_at_a_url_has_a_version_that_changes_with_it(url):
    """Otherwise a changed file would be taken for the measured one."""
    store, versions = open_blob_store(url), []
    for data in (b"1", b"22"):
        store.put_atomic("a", data)
        file = RemoteFile(f"{url}/a")
        with file.open() as opened:
            assert opened.read() == data
        versions.append(file.version())
    assert len(set(versions)) == 2
    with pytest.raises(SourceNotFoundError, match="no such file"):
        RemoteFile(f"{url}/b").open()


def test_a_forked_process_opens_its_own_connections(url):
    """One connection in two processes mixes their answers."""
    store = FsspecBlobStore(url)
    for pid in (os.getpid() - 1, os.getpid() + 1):
        store._opened = (pid, "of another process")
        assert store._fs != "of another process"
        assert store._opened == (os.getpid(), store._fs)
    store._opened = (os.getpid(), "mine")
    assert store._fs == "mine"


class Stubborn:
    """A file system that answers every request with the same."""

    def __init__(self, creation=None, content=b"whole blob", size=10):
        self.creation, self.content, self.num_bytes = creation, content, size

    def pipe_file(self, path, data, mode="overwrite"):
        if mode == "create" and self.creation is not None:
            raise self.creation

    def cat_file(self, path, start, end):
        return self.content

    def size(self, path):
        if self.num_bytes is None:
            raise FileNotFoundError(path)
        return self.num_bytes

    def rm_file(self, path):
        raise FileNotFoundError(path)


def test_servers_that_do_what_they_were_not_asked_are_refused(waits):
    """A range that is the whole blob, and a name that always exists, or that two writers get."""

    def store(**answers):
        return FsspecBlobStore("s3://a", filesystem=Stubborn(**answers), root="a")

    with pytest.raises(StoreError, match="gives whole blobs where 5 bytes were asked for"):
        store().get_range("b", 3, 8)
    assert store().get_range("b", 0, 10) == b"whole blob"
    for creation in (FileExistsError("x"), None):
        with pytest.raises(StoreError, match=r"two writers create the same name.*If-None-Match of S3"):
            store(creation=creation).put_if_absent("b", b"1")
    with pytest.raises(StoreError, match=r"cannot create b: .*b exists and cannot be read yet"):
        store(creation=FileExistsError("x"), size=None)._create("b", b"1")
    assert store(creation=OSError("412"))._create("b", b"whole blob") is True
    assert store(creation=RuntimeError("412"))._create("b", b"another") is False
    with pytest.raises(StoreError, match="cannot create b: ValueError: wrong"):
        store(creation=ValueError("wrong"))._create("b", b"whole blob")
    assert store().get_many([]) == []
    assert store().get_many(["b"]) == [b"whole blob"]
    with pytest.raises(FileNotFoundError, match="s3://a/b"):
        store(size=None).get("b")


def test_a_bucket_that_is_not_there_is_named():
    """Its library says ``The specified bucket does not exist``, and not which."""

    def absent(*_, **__):
        raise FileNotFoundError("The specified bucket does not exist")

    filesystem = SimpleNamespace(pipe_file=absent, size=absent)
    store = FsspecBlobStore("memory://absent/packs", filesystem=filesystem, root="absent/packs")
    for write in (store.put, store.put_if_absent):
        with pytest.raises(FileNotFoundError, match=r"The specified bucket does not exist: 'memory://absent/packs'$"):
            write("a", b"1")


def test_the_store_behind_a_path_or_url(tmp_path):
    """Without it a file:// URL would make a directory named 'file:'."""
    assert isinstance(open_blob_store(tmp_path), LocalBlobStore)
    assert open_blob_store(f"file://{tmp_path}").url == open_blob_store(str(tmp_path)).url == str(tmp_path)
    assert open_blob_store(tmp_path).local_path("a/b") == f"{tmp_path}/a/b"
    assert open_blob_store("memory://x").local_path("a/b") is None
    assert repr(open_blob_store("memory://x/")) == "FsspecBlobStore('memory://x')"
    with pytest.raises(SettingsError, match="the path of a store is empty"):
        open_blob_store("")
