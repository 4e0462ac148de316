"""A cache that another user made: what can be read of it is used, nothing in it changes, and a line says that nothing is kept."""

from __future__ import annotations

import gzip
import hashlib
import json
import logging
import os
import resource
import shutil
import signal
import tarfile
import tempfile
from pathlib import Path

import fsspec
import pytest

from brimful import PlanSettings, measure_lengths, open_source
from brimful.base import locks
from brimful.base.fingerprint import fingerprint_bytes
from brimful.base.progress import Progress
from brimful.clusters import shared_plan
from brimful.clusters.local_copies import LocalCopies
from brimful.clusters.ranks import arguments_of
from brimful.clusters.remote_blobs import FsspecBlobStore
from brimful.encode import verdicts
from brimful.errors import StoreFullError
from brimful.sources import answers, line_index, lines
from brimful.store.claim import JobHome
from brimful.testing.toys import toy_chat_encoder
from tests.faults.processes import forked

ROWS = [{"text": chr(97 + number % 26) * (2 + number % 19)} for number in range(60)]
CHATS = [{"messages": [{"role": role, "content": "abc"} for role in ("user", "assistant") * 2]}] * 8
NOBODY = 65534


@pytest.fixture
def home(monkeypatch):
    """A folder that every user may enter; files of lines are indexed, and answers kept, however few they are."""
    monkeypatch.setattr(lines, "_SMALL_BYTES", 0)
    monkeypatch.setattr(line_index, "_SETTLED_NS", -1)
    monkeypatch.setattr(answers, "_FEW_ROWS", 0)
    monkeypatch.setattr(answers, "_FEW_BYTES", 0)
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o755)
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    (folder / "chats.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in CHATS))
    (folder / "rows.jsonl.gz").write_bytes(gzip.compress((folder / "rows.jsonl").read_bytes()))
    with tarfile.open(folder / "texts.tar", "w") as tar:
        tar.add(folder / "rows.jsonl", "0.txt")
    yield folder
    for path in [folder / "cache", *(folder / "cache").rglob("*")]:
        if path.is_dir():
            path.chmod(0o755)
    shutil.rmtree(folder)


def _lengths(home, cache):
    return measure_lengths(ROWS, toy_chat_encoder(), cache_dir=cache).tokens.tolist()


def _prefixes(home, cache):
    table = measure_lengths(ROWS, toy_chat_encoder(), cache_dir=cache, share="prefixes", least_shared=1)
    return table.sharing.shared.tolist()


def _index(home, cache):
    return [row["text"] for row in open_source(home / "rows.jsonl", cache_dir=cache).rows.read(0, 60)]


def _unpacked(home, cache):
    return [row["text"] for row in open_source(home / "rows.jsonl.gz", cache_dir=cache).rows.read(0, 60)]


def _spooled(home, cache):
    return [row["text"] for row in open_source(iter(ROWS), cache_dir=cache).rows.read(0, 60)]


def _answers(home, cache):
    return len(open_source(home / "chats.jsonl", per_turn=True, cache_dir=cache))


def _fingerprint(home, cache):
    source = open_source(home / "rows.jsonl", cache_dir=cache)
    return arguments_of(source, toy_chat_encoder(), PlanSettings(capacity=32), cache)


def _plan(home, cache):
    settings = PlanSettings(capacity=32)
    with shared_plan(
        ROWS,
        toy_chat_encoder(),
        settings,
        cache_dir=cache,
        ahead=False,
        progress=Progress(),
        domains=["a", "b"] * 30,
    ) as shared:
        return shared.metadata.fingerprint


def _copy(home, cache):
    fsspec.filesystem("memory").pipe_file("/store/shards/a", b"0123")
    copies = LocalCopies(FsspecBlobStore("memory://store"), cache / "packs")
    copy = copies.open("shards/a", size=4, xxh3_128=fingerprint_bytes(b"0123"))
    return Path(copy.path).read_bytes()


def _home_of_job(home, cache):
    job = JobHome(FsspecBlobStore("memory://store"), cache)
    with job.local.used():
        job.local.put_atomic("plan.arrow", b"1")
    return job.path("plan.arrow").read_bytes()


def _verdict(home, cache):
    os.environ["BRIMFUL_CACHE"] = str(cache)
    found = verdicts.load_verdict(["a subject"])
    verdicts.save_verdict(["a subject"], {"reason": "it differs"})
    return found in (None, {"reason": "it differs"})


KINDS = [_lengths, _prefixes, _index, _unpacked, _spooled, _answers, _fingerprint, _plan, _copy, _home_of_job, _verdict]


def _state(folder):
    """Every file below, with its content and time."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path): (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest()) for path in files}


def _as_other_user(work, home, result):
    """Do a job as a user who may write below ``own`` alone; the cache is read-only for the same user if this one is not root."""
    own = home / "own"
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    tempfile.tempdir, locks._own_folders[:] = str(own), []
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("brimful").addHandler(handler)
    answer = work(home, home / "cache")
    made = [str(path.relative_to(own)) for path in own.rglob("*") if path.is_file() and not path.is_symlink()]
    result.write_text(repr((answer, said, [name for name in made if not name.endswith((".lock", ".in-use"))])))


def _protect(cache):
    for folder in [cache, *(path for path in cache.rglob("*") if path.is_dir())]:
        folder.chmod(0o555)


def _done_by_other(work, home):
    """Return the answer, what was said, and the files that were made elsewhere."""
    own = home / "own"
    shutil.rmtree(own, ignore_errors=True)
    own.mkdir()
    own.chmod(0o777)
    _, status = os.waitpid(forked(_as_other_user, work, home, own / "result"), 0)
    assert status == 0
    return eval((own / "result").read_text(), {"__builtins__": {}})


@pytest.mark.parametrize("state", ["whole", "empty", "private", "sticky"])
@pytest.mark.parametrize("work", KINDS)
def test_a_cache_of_another_user_serves_what_it_has_and_is_not_touched(home, monkeypatch, work, state):
    """Without it a team with one cache meets ``Permission denied`` on its first day, at a block that it could read."""
    monkeypatch.setenv("BRIMFUL_CACHE", str(home / "cache"))
    cache = home / "cache"
    due = work(home, cache)
    if state == "empty":
        shutil.rmtree(cache)
        cache.mkdir()
    _protect(cache)
    if state == "private":
        cache.chmod(0o000)
    if state == "sticky":
        if os.geteuid():
            pytest.skip("only root can make files of another user")
        for folder in [cache, *(path for path in cache.rglob("*") if path.is_dir())]:
            folder.chmod(0o1777)
    before = _state(cache)
    answer, said, made = _done_by_other(work, home)
    after = _state(cache)
    assert answer == due
    assert {name: after[name] for name in before} == before
    if state == "sticky":
        return  # new files may be made there
    assert len(after) == len(before)
    if state == "whole" and work not in (_spooled, _home_of_job):
        assert made == [], "it did again what it could read"
    if work is not _verdict:  # nothing is lost by it but time
        assert len(said) == 1
        assert "cannot be written by this user: what can be read of the cache is used, and nothing is kept" in said[0]


def _on_a_full_disk(work, home, due):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    try:
        assert work(home, home / "cache") == due
    except StoreFullError:
        return


@pytest.mark.parametrize("work", KINDS)
def test_a_full_disk_below_a_cache_is_one_line(home, monkeypatch, work):
    """Without it the error of a full disk has no way out, or a traceback."""
    monkeypatch.setenv("BRIMFUL_CACHE", str(home / "cache"))
    due = work(home, home / "cache")
    shutil.rmtree(home / "cache")
    _, status = os.waitpid(forked(_on_a_full_disk, work, home, due), 0)
    assert status == 0
