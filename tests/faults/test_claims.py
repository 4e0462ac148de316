"""A job that is killed between the claim of a name and its bytes, on a file system without hard links, goes on."""

from __future__ import annotations

import errno
import os
import re
import signal

import pytest

from brimful import open_packs, open_source, pack_dataset
from brimful.base.blobs import local
from brimful.errors import NotAPackStoreError, StreamTimeoutError, UnfinishedStoreError
from brimful.stream import StreamLoader
from brimful.stream.producer import PackingProducer
from brimful.testing.toys import toy_chat_encoder
from tests.faults.processes import forked
from tests.store.stores import tree

ROWS = [{"text": chr(97 + number % 26) * (2 + number % 19)} for number in range(60)]


def _pack(directory):
    pack_dataset(open_source(ROWS), toy_chat_encoder(), directory, capacity=32, shard_bytes=2048)


def _produce(directory):
    PackingProducer(ROWS, toy_chat_encoder(), directory, capacity=32, packs_per_shard=16).run(close=True)


def _without_links(*_args, **_options):
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


def _die_at_claim(occurrence, work, directory):
    """Run a job without hard links, in a process that is killed once it has claimed its nth name."""
    real, claims = os.replace, []

    def replace(source, target):
        if os.path.exists(target) and not os.path.getsize(target):
            claims.append(target)
            if len(claims) == occurrence:
                os.kill(os.getpid(), signal.SIGKILL)
        real(source, target)

    patch = pytest.MonkeyPatch()  # never undone: the process ends
    patch.setattr(os, "link", _without_links)
    patch.setattr(os, "replace", replace)
    work(directory)


@pytest.mark.parametrize("work", [_pack, _produce])
def test_a_job_goes_on_after_a_kill_at_any_claim(tmp_path, monkeypatch, work):
    """Without it one empty file ends every later run and every reader, and nothing says that it may be deleted."""
    monkeypatch.setattr(local, "_CLAIM_PAUSES", (0.0, 0.001))
    work(tmp_path / "whole")
    num_killed = 0
    while True:
        directory = tmp_path / str(num_killed)
        _, status = os.waitpid(forked(_die_at_claim, num_killed + 1, work, directory), 0)
        if status == 0:
            break
        assert os.WTERMSIG(status) == signal.SIGKILL
        num_killed += 1
        # Shards are committed by threads, so a kill can meet more than one claim.
        empty = {path for path in directory.rglob("*.json") if not path.stat().st_size}
        assert empty
        with pytest.raises((NotAPackStoreError, UnfinishedStoreError)) as caught:
            open_packs(directory)
        awaited = re.search(r"waits for (\S+)( \(empty: its writer was killed\))?", str(caught.value))
        if awaited:
            is_awaited = directory / awaited[1] in empty
            assert bool(awaited[2]) == is_awaited
            with pytest.raises(StreamTimeoutError, match="its writer was killed" if is_awaited else "so for log/"):
                list(StreamLoader(directory, timeout=0))
        work(directory)
        assert tree(directory / "shards") == tree(tmp_path / "whole" / "shards")
        assert [len(pack) for pack in open_packs(directory)] == [len(pack) for pack in open_packs(tmp_path / "whole")]
    assert num_killed >= 4, "header, records and end"
