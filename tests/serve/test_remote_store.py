"""Pack stores at a URL: written, read, inspected and checked as local ones."""

from __future__ import annotations

import json
import multiprocessing
import os

import pytest

from brimful import PackedDataset, open_packs, pack_dataset
from brimful.errors import CorruptFileError, SettingsError, StoreError, StoreMismatchError
from brimful.report.store_check import check_store
from brimful.testing.toys import toy_chat_encoder
from tests.cli.tools import result_of, run
from tests.clusters.s3 import _s3_server, bucket  # noqa: F401 - fixtures
from tests.store.stores import texts, written


@pytest.fixture
def waits(monkeypatch):
    monkeypatch.setattr("brimful.clusters.local_copies.time.sleep", lambda seconds: None)


def as_lists(packs):
    return [(pack.input_ids.tolist(), pack.labels.tolist(), pack.sample_ids.tolist()) for pack in packs]


def read_all(arguments):
    url, cache = arguments
    packs = open_packs(url, cache_dir=cache)
    found = as_lists(packs)
    return found, vars(packs._files.copies)["num_downloads"]


def test_packs_on_s3_are_those_of_a_local_store(bucket, tmp_path):  # noqa: F811
    """Another byte on the way to or from the object store would be another training."""
    written(tmp_path / "local", range(2, 60), 64)
    written(f"{bucket}/packs", range(2, 60), 64)
    local, remote = open_packs(tmp_path / "local"), open_packs(f"{bucket}/packs", cache_dir=tmp_path / "cache")
    assert as_lists(remote) == as_lists(local)
    assert (remote.fingerprint, remote.num_shards, len(remote)) == (local.fingerprint, local.num_shards, len(local))
    assert as_lists(PackedDataset(f"{bucket}/packs", cache_dir=tmp_path / "cache")[3:5]) == as_lists(local[3:5])
    assert check_store(f"{bucket}/packs") == check_store(tmp_path / "local")
    # A path with a directory of copies is read from there too: network mounts are slow.
    assert as_lists(open_packs(tmp_path / "local", cache_dir=tmp_path / "copies")) == as_lists(local)
    assert len(list((tmp_path / "copies").glob("*.arrow"))) == local.num_shards


def test_processes_of_a_node_share_the_copies(bucket, tmp_path):  # noqa: F811
    """Every rank and every worker of a loader would download the whole store for itself."""
    written(f"{bucket}/packs", range(2, 60), 64)
    expected = as_lists(open_packs(f"{bucket}/packs", cache_dir=tmp_path / "other"))
    with multiprocessing.get_context("fork").Pool(2) as pool:
        results = pool.map(read_all, [(f"{bucket}/packs", str(tmp_path / "cache"))] * 2, chunksize=1)
    assert [found for found, _ in results] == [expected] * 2
    num_shards = open_packs(f"{bucket}/packs", cache_dir=tmp_path / "cache").num_shards
    assert num_shards <= sum(num for _, num in results) <= 2 * num_shards


def test_a_forked_worker_reads_on(bucket, tmp_path):  # noqa: F811
    """Loaders fork after the store was opened: a connection of the parent would answer the wrong child, or hang."""
    written(f"{bucket}/packs", range(2, 60), 64)
    packs = open_packs(f"{bucket}/packs", cache_dir=tmp_path / "cache")
    first = as_lists(packs[:1])
    pid = os.fork()
    if pid == 0:
        os._exit(0 if as_lists(packs)[:1] == first else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert as_lists(packs)[:1] == first


def test_a_shard_that_was_damaged_there_is_found_before_use(bucket, tmp_path, waits):  # noqa: F811
    """R1: truncated, flipped, foreign, missing."""
    import fsspec

    written(f"{bucket}/packs", range(2, 60), 64)
    packs = open_packs(f"{bucket}/packs", cache_dir=tmp_path / "cache")
    key = f"{bucket}/packs/{packs._records[1].file}"
    filesystem, path = fsspec.core.url_to_fs(key)
    whole, other = (
        filesystem.cat_file(path),
        filesystem.cat_file(f"{path.rsplit('/', 1)[0]}/" + packs._records[0].file[7:]),
    )
    for data in (whole[:-1], whole[:500] + bytes([whole[500] ^ 1]) + whole[501:], other, b""):
        filesystem.pipe_file(path, data)
        with pytest.raises(CorruptFileError, match=f"{key} has "):
            packs[3]
        with pytest.raises(CorruptFileError, match=f"{key} has "):
            check_store(f"{bucket}/packs")
    filesystem.rm_file(path)
    with pytest.raises(CorruptFileError, match=f"{key} is missing"):
        packs[3]
    filesystem.pipe_file(path, whole)
    assert as_lists(packs[3:4]) == as_lists(open_packs(f"{bucket}/packs", cache_dir=tmp_path / "second")[3:4])


def test_a_copy_that_was_damaged_here_is_downloaded_again(bucket, tmp_path):  # noqa: F811
    """A power cut leaves files of zeros with the right names and sizes."""
    written(f"{bucket}/packs", range(2, 60), 64)
    expected = as_lists(open_packs(f"{bucket}/packs", cache_dir=tmp_path / "cache"))
    for path in (tmp_path / "cache").glob("*.arrow"):
        path.write_bytes(bytes(path.stat().st_size))
    packs = open_packs(f"{bucket}/packs", cache_dir=tmp_path / "cache")
    assert as_lists(packs) == expected
    assert vars(packs._files.copies)["num_downloads"] == packs.num_shards


def test_the_whole_job_behind_a_url(bucket, tmp_path, monkeypatch):  # noqa: F811
    """``brimful pack … -o s3://…`` killed and started on another machine must end in the same store."""
    import fsspec

    url = f"{bucket}/job"
    summary = pack_dataset(texts(*range(2, 40)), toy_chat_encoder(), url, capacity=64)
    filesystem, path = fsspec.core.url_to_fs(url)
    names = {name.rsplit("/", 1)[-1] for name in filesystem.ls(path, detail=False)}
    assert names == {"stream.json", "log", "shards", "plan.arrow", "lengths.arrow", "summary.json"}
    expected = as_lists(open_packs(url))
    # Another machine, which knows nothing of the job, finds the log without its end.
    filesystem.rm_file(sorted(filesystem.ls(f"{path}/log", detail=False))[-1])
    monkeypatch.setenv("BRIMFUL_CACHE", str(tmp_path / "another machine"))
    again = pack_dataset(texts(*range(2, 40)), toy_chat_encoder(), url, capacity=64)
    assert again.plan.fingerprint == summary.plan.fingerprint
    assert as_lists(open_packs(url)) == expected
    with pytest.raises(
        StoreMismatchError, match=r"already holds packs made differently: capacity \(64 there, 48 now\)"
    ):
        pack_dataset(texts(*range(2, 40)), toy_chat_encoder(), url, capacity=48)


def test_the_command_line_takes_urls(bucket, tmp_path, put, small_qwen):  # noqa: F811
    """Users of the command line have stores on S3 too."""
    data = put("texts.jsonl", "".join(json.dumps({"text": "word " * number}) + "\n" for number in range(1, 30)))
    url = f"{bucket}/cli"
    run("pack", data, "-o", url, "--tokenizer", small_qwen, "--max-length", "64", "--overflow", "split", "--quiet")
    assert result_of("inspect", url)["capacity"] == 64
    assert any(line.startswith("checked ") for line in run("inspect", url, "--check")[0])


def test_errors_are_one_line(bucket, tmp_path):  # noqa: F811
    """Errors of clouds are pages of traces, and say nothing of the setting to change."""
    written(f"{bucket}/packs", range(2, 5), 32)
    packs = open_packs(f"{bucket}/packs", cache_bytes=0)
    with pytest.raises(SettingsError, match="cache_bytes must be at least 1 and is 0"):
        packs[0]
    with pytest.raises(StoreError, match="is not a pack store"):
        open_packs(f"{bucket}/nothing")
    with pytest.raises(StoreError, match=r"read only here: two writers could create the same name"):
        written("http://127.0.0.1:1/packs", range(1, 5), 32)
