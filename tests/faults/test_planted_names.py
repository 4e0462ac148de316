"""Whatever another user has put under a name that a job writes: no file is written through it, and nothing waits for it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from brimful import open_source, pack_dataset
from brimful.base.blobs import LocalBlobStore, local
from brimful.base.locks import exclusive
from brimful.base.progress import Progress
from brimful.clusters.epoch_plans import DocumentWriter
from brimful.errors import BrimfulError
from brimful.integrations.export import export_packs
from brimful.plan import plan_packs
from brimful.stream.producer import PackingProducer
from brimful.testing.toys import toy_chat_encoder, toy_packs
from tests.faults.test_foreign_caches import KINDS, ROWS, _plan, home  # noqa: F401  (a fixture)

_opened: list[str] | None = None


def _note(event, arguments):
    """Note the names that a job opens for writing, or gives to a file."""
    if _opened is None:
        return
    if (
        event == "open"
        and isinstance(arguments[0], (str, Path))
        and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    ):
        _opened.append(os.fspath(arguments[0]))
    elif event in ("os.rename", "os.link"):
        _opened.append(os.fspath(arguments[1]))


sys.addaudithook(_note)


def _document(_, cache):
    writer = DocumentWriter(cache / "jobs" / "a.json")
    writer.write({"epochs": {}})
    writer.close()


def _lock(_, cache):
    with exclusive(cache / "a"):
        pass


def _blobs(_, cache):
    store = LocalBlobStore(cache)
    with store.used():
        store.put_atomic("a", b"1")
        store.put_if_absent("log/0", b"1")


def _pack(_, cache):
    pack_dataset(open_source(ROWS), toy_chat_encoder(), cache, capacity=32, shard_bytes=2048)


def _produce(_, cache):
    PackingProducer(ROWS, toy_chat_encoder(), cache, capacity=32, packs_per_shard=16).run(close=True)


def _export(_, cache):
    export_packs(toy_packs(3), to="jsonl", directory=cache, progress=Progress())


def _save(_, cache):
    plan_packs([1, 2, 3], capacity=4).save(cache / "plan.arrow")


_JOBS = [_plan, _pack, _produce, _export]
"""Writers of many names."""

WRITERS = [
    *(kind for kind in KINDS if kind is not _plan),
    *(_document, _lock, _blobs, _save),
    *(pytest.param(job, marks=pytest.mark.long) for job in _JOBS),
]


def _names(work, home, cache):  # noqa: F811
    """Return the names below a folder that a job writes."""
    global _opened
    _opened = []
    try:
        work(home, cache)
        return sorted({name for name in _opened if Path(name).is_relative_to(cache)})
    finally:
        _opened = None


def _too_long(*_):
    raise AssertionError("it waits for a pipe")


@pytest.mark.parametrize("work", WRITERS)
def test_nothing_is_written_through_a_name_that_was_taken(home, monkeypatch, work):  # noqa: F811
    """Without it who may write to a shared folder overwrites any file of who runs a job there, or stops it for ever."""
    assert threading.current_thread() is threading.main_thread()
    monkeypatch.setenv("BRIMFUL_CACHE", str(home / "cache"))
    monkeypatch.setattr(local, "_CLAIM_PAUSES", (0.0, 0.001))
    signal.signal(signal.SIGALRM, _too_long)
    names = _names(work, home, home / "first")
    assert names, "it writes nothing"
    victim, nowhere = home / "victim", home / "nowhere"
    for number, name in enumerate(names):
        for kind in ("link", "dangling", "pipe", "folder"):
            victim.write_bytes(b"precious")
            cache = home / f"{number}-{kind}"
            path = cache / Path(name).relative_to(home / "first")
            path.parent.mkdir(parents=True)
            if kind == "pipe":
                os.mkfifo(path)
            elif kind == "folder":
                path.mkdir()
            else:
                path.symlink_to(victim if kind == "link" else nowhere)
            signal.alarm(20)
            try:
                with contextlib.suppress(BrimfulError):
                    work(home, cache)
            finally:
                signal.alarm(0)
            assert victim.read_bytes() == b"precious", (path, kind)
            assert not nowhere.exists(), (path, kind)
