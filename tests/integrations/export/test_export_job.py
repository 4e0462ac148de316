"""Exports as jobs: the same bytes, whole or not at all, refused where another export lies."""

import json
import os
import subprocess
import sys
from itertools import count
from typing import Any

import pytest

from brimful import open_packs
from brimful.base.blobs import LocalBlobStore
from brimful.base.execute import Execution, Resources
from brimful.base.progress import Progress
from brimful.errors import (
    CorruptFileError,
    NotAPackStoreError,
    SettingsError,
    StoreMismatchError,
    UnfinishedSharesError,
    UnfinishedStoreError,
)
from brimful.integrations.export import LAYOUTS, check_export, export_job, export_packs
from brimful.integrations.export.megatron import MegatronLayout
from brimful.integrations.export.record import ExportRecords
from brimful.report.store_check import check_store
from brimful.testing.toys import ToyPacks
from tests.integrations.export.stores import some_packs, tree
from tests.marks import long_but
from tests.store.stores import written

OF_TOKENS = [name for name, layout in LAYOUTS.items() if not layout.takes_source]


@pytest.mark.parametrize("name", OF_TOKENS)
def test_the_same_packs_give_the_same_bytes(name, tmp_path):
    """Also with several processes, so that exports of two machines are one."""
    written(tmp_path / "packs", [30, 30, 50, 60, 24, 24, 40, 41], capacity=70)
    first = export_packs(tmp_path / "packs", to=name, directory=tmp_path / "a", packs_per_shard=2)
    second = export_packs(tmp_path / "packs", to=name, directory=tmp_path / "b", packs_per_shard=2)
    assert first.shards_written == second.shards_written == 3
    assert tree(tmp_path / "a") == tree(tmp_path / "b")
    assert (first.packs, first.tokens) == (5, 299)
    assert check_store(tmp_path / "packs").tokens == first.tokens


def test_processes_change_no_byte(tmp_path):
    written(tmp_path / "packs", [30, 30, 50, 60, 24, 24, 40, 41], capacity=70)
    for number in (1, 2):
        export_packs(
            tmp_path / "packs", to="bridge", directory=tmp_path / str(number), packs_per_shard=2, num_proc=number
        )
    assert tree(tmp_path / "1") == tree(tmp_path / "2")


@pytest.mark.parametrize("name", OF_TOKENS)
def test_a_second_call_writes_nothing(name, tmp_path):
    packs = some_packs(5)
    export_packs(packs, to=name, directory=tmp_path, packs_per_shard=2)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    assert export_packs(packs, to=name, directory=tmp_path, packs_per_shard=2).shards_written == 0
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("name", "point"),
    long_but(
        {"megatron"},
        [("energon", "after-export-shard"), ("megatron", "before-export-end"), ("huggingface", "mid-write")],
    ),
)
def test_a_killed_export_goes_on(name, point, tmp_path):
    """Whatever was written when the process died: the same call ends with the bytes of one that was not killed."""
    code = (
        "import os, sys\nfrom brimful.base.blobs import crash_points\nfrom brimful.integrations.export import export_packs\n"
        "from tests.integrations.export.stores import some_packs\n"
        f"count = 0\ndef die(name):\n    global count\n    count += name == {point!r}\n"
        "    if count == 2 or (count and name == 'before-export-end'): os._exit(9)\n"
        "crash_points.reach = die\n"
        "import brimful.base.blobs.local, brimful.integrations.export.export_job\n"
        f"export_packs(some_packs(5), to={name!r}, directory={str(tmp_path / 'killed')!r}, packs_per_shard=2)\n"
    )
    path = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), os.getcwd()])
    result = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, capture_output=True)
    assert result.returncode == 9, result.stderr
    with pytest.raises(UnfinishedStoreError):
        check_export(tmp_path / "killed", some_packs(5))
    export_packs(some_packs(5), to=name, directory=tmp_path / "killed", packs_per_shard=2)
    export_packs(some_packs(5), to=name, directory=tmp_path / "whole", packs_per_shard=2)
    assert tree(tmp_path / "killed") == tree(tmp_path / "whole")


@pytest.mark.parametrize(
    ("owner", "method", "occurrence"), [(ExportRecords, "outcomes", 2), (MegatronLayout, "finish", 1)]
)
def test_of_two_shares_that_end_at_once_both_end_well(tmp_path, monkeypatch, owner, method, occurrence):
    """Without it the second one misses the parts that the first has joined and removed."""
    packs = some_packs(5)
    options: dict[str, Any] = {"to": "megatron", "packs_per_shard": 2}
    shares = [Execution(task_index=index, num_tasks=2) for index in range(2)]
    if method == "finish":
        with pytest.raises(UnfinishedSharesError):
            export_packs(packs, directory=tmp_path / "shares", execution=shares[0], **options)
    real, numbers = getattr(owner, method), count(1)

    def late(*arguments, **named):
        if next(numbers) == occurrence:
            assert export_packs(packs, directory=tmp_path / "shares", execution=shares[0], **options).packs == 5
        return real(*arguments, **named)

    monkeypatch.setattr(owner, method, late)
    assert export_packs(packs, directory=tmp_path / "shares", execution=shares[1], **options).packs == 5
    export_packs(packs, directory=tmp_path / "whole", **options)
    assert tree(tmp_path / "shares") == tree(tmp_path / "whole")


@pytest.mark.parametrize("name", ["energon", "jsonl", "megatron"])
def test_what_was_deleted_is_written_again(name, tmp_path):
    packs = some_packs(5)
    export_packs(packs, to=name, directory=tmp_path, packs_per_shard=2)
    whole = tree(tmp_path)
    path = tmp_path / {"energon": "packs-000001.tar", "jsonl": "chunk_00002.jsonl", "megatron": "packs.bin"}[name]
    for damaged in (None, path.read_bytes()[:-1], path.read_bytes() + b"1"):
        path.unlink()
        if damaged is not None:
            path.write_bytes(damaged)
        with pytest.raises(UnfinishedStoreError, match="is not a finished export"):
            check_export(tmp_path, packs)
        export_packs(packs, to=name, directory=tmp_path, packs_per_shard=2)
        assert tree(tmp_path) == whole


@pytest.mark.parametrize(
    ("name", "content"),
    [("export", text) for text in ("{", "[]", "{}", '{"format": "brimful.export", "version": 1, "identity": 3}')]
    + [
        ("export", json.dumps({"format": name, "version": version, "identity": {}}))
        for name, version in (("brimful.export", 0), ("brimful.export", 2), ("a", 1), ("z", 1))
    ]
    + [(name, text) for name in ("00000000", "finished") for text in ("{", "[]", '{"files": []}')],
)
def test_a_damaged_record_is_named(name, content, tmp_path):
    """With the way out; a later version's is not taken for ours."""
    export_packs(some_packs(3), to="jsonl", directory=tmp_path)
    (tmp_path / ".brimful" / f"{name}.json").write_text(content)
    with pytest.raises(CorruptFileError, match=rf"\.brimful/{name}\.json cannot be read: delete it"):
        check_export(tmp_path, some_packs(3))


@pytest.mark.parametrize("capacity", [None, 100])
def test_a_shard_has_its_megabytes(capacity, tmp_path, monkeypatch):
    """Four bytes a token of full packs, of a usual capacity where packs have none."""
    packs = some_packs(5)
    packs.capacity = capacity
    monkeypatch.setattr(export_job, "_SHARD_BYTES", 3 * 4 * (capacity or export_job._USUAL_CAPACITY) - 1)
    assert export_packs(packs, to="jsonl", directory=tmp_path).shards == 3


@pytest.mark.parametrize(("capacity", "num_tokens"), [(None, None), (7, None), (7, 20)])
def test_a_small_export_stays_in_one_process(capacity, num_tokens, tmp_path, monkeypatch):
    """Processes start for seconds: they are started where the tokens, or as many as packs may hold, take longer."""
    packs, asked = some_packs(3), []
    packs.capacity = capacity
    if num_tokens is not None:
        packs.num_tokens = num_tokens
    real = Resources.for_work
    monkeypatch.setattr(
        Resources, "for_work", lambda self, *, is_small: asked.append(is_small) or real(self, is_small=True)
    )
    tokens = num_tokens or 3 * (capacity or export_job._USUAL_CAPACITY)
    for limit in (tokens, tokens + 1):
        monkeypatch.setattr(export_job, "_IN_PROCESS_TOKENS", limit)
        export_packs(packs, to="jsonl", directory=tmp_path / str(limit))
    assert asked == [False, True]


def test_packs_that_are_longer_than_a_shard_should_be_have_a_shard_each(tmp_path):
    """A shard has few enough packs to be easy to copy, and at least one."""
    packs = some_packs(3)
    packs.capacity = 1 << 40
    export_packs(packs, to="jsonl", directory=tmp_path, num_proc=1)
    assert len(list(tmp_path.glob("chunk_*.jsonl"))) == 3


def test_a_directory_with_another_export_is_refused(tmp_path):
    """Two exports in one folder would be read as one; later versions know this one by its header."""
    export_packs(some_packs(5), to="jsonl", directory=tmp_path)
    header = json.loads((tmp_path / ".brimful" / "export.json").read_text())
    assert (header["format"], header["version"]) == ("brimful.export", 1)
    with pytest.raises(StoreMismatchError, match="layout \\('jsonl' there, 'bridge' now\\)"):
        export_packs(some_packs(5), to="bridge", directory=tmp_path)
    with pytest.raises(StoreMismatchError, match="packs \\(5 there, 6 now\\)"):
        export_packs(some_packs(6), to="jsonl", directory=tmp_path)
    for other in range(6, 12):  # fingerprints before and after it
        with pytest.raises(StoreMismatchError, match="exported from other packs"):
            check_export(tmp_path, some_packs(other))


@pytest.mark.parametrize("name", ["megatron", "bridge", "jsonl"])
def test_media_are_not_lost_in_silence(name, tmp_path):
    """A layout of tokens alone would train on placeholders."""
    with pytest.raises(SettingsError, match=rf"pack 0 has media, which {name} has no place for: choose to=\"energon\""):
        export_packs(some_packs(3, with_media=True), to=name, directory=tmp_path / "export")
    assert not (tmp_path / "export" / ".brimful").exists()
    packs = some_packs(3, with_media=True)
    packs.attachment_features = {}
    with pytest.raises(SettingsError, match=r"pack 0 has media as features, and an export needs their bytes"):
        export_packs(packs, to="energon", directory=tmp_path / "export")
    packs.attachment_features = None
    (line, _) = export_packs(packs, to="energon", directory=tmp_path / "export").lines()
    assert "3 packs, 27 tokens, 9 segments, media: 6, in 1 shard as energon; 1 written now" in line


def test_a_damaged_export_is_found(tmp_path):
    packs = some_packs(3)
    export_packs(packs, to="jsonl", directory=tmp_path)
    path = tmp_path / "chunk_00000.jsonl"
    first_token = str(packs[0].input_ids[0])
    other = "1" * len(first_token)
    path.write_text(path.read_text().replace(first_token, other, 1))
    with pytest.raises(CorruptFileError, match="pack 0 has other input_ids than the store"):
        check_export(tmp_path, packs)


def test_wrong_settings(tmp_path):
    with pytest.raises(SettingsError, match="to 'tfrecord' is unknown: use one of energon, webdataset"):
        export_packs(some_packs(1), to="tfrecord", directory=tmp_path)
    with pytest.raises(SettingsError, match="packs_per_shard must be at least 1"):
        export_packs(some_packs(1), to="jsonl", directory=tmp_path, packs_per_shard=0)
    with pytest.raises(SettingsError, match="has no packs"):
        export_packs(ToyPacks(), to="jsonl", directory=tmp_path)
    with pytest.raises(SettingsError, match="jsonl is written from tokens: leave out source"):
        export_packs(some_packs(1), to="jsonl", directory=tmp_path, source=[{"text": "a"}])
    with pytest.raises(SettingsError, match="packed-chats holds the texts of samples"):
        export_packs(some_packs(1), to="packed-chats", directory=tmp_path)
    with pytest.raises(NotAPackStoreError, match="holds no export"):
        ExportRecords(LocalBlobStore(tmp_path)).identity()


@pytest.mark.parametrize("name", OF_TOKENS)
def test_an_export_to_a_url(name, tmp_path):
    """The same files through fsspec, but for the index that is made of local tars."""
    fsspec = pytest.importorskip("fsspec")
    packs = some_packs(5)
    export_packs(packs, to=name, directory=tmp_path / "local", packs_per_shard=2)
    url = f"memory://{tmp_path.name}/{name}"
    export_packs(packs, to=name, directory=url, packs_per_shard=2)
    system = fsspec.filesystem("memory")
    remote = {path.split(f"/{name}/", 1)[1]: system.cat(path) for path in system.find(url.removeprefix("memory:/"))}
    local = {path: data for path, data in tree(tmp_path / "local").items() if not path.endswith("index.sqlite")}
    differing_paths = {path for path in local.keys() | remote.keys() if local.get(path) != remote.get(path)}
    assert differing_paths <= {".brimful/finished.json"}


def test_packs_on_the_fly(tmp_path):
    """Without a pack store: samples are encoded as they are exported."""
    from brimful import PackedDataset

    source, encoder, plan = written(tmp_path / "packs", [30, 30, 50, 60, 24, 24], capacity=70)
    export_packs(tmp_path / "packs", to="jsonl", directory=tmp_path / "a", packs_per_shard=2)
    dataset = PackedDataset.from_plan(source, encoder, plan)
    export_packs(dataset, to="jsonl", directory=tmp_path / "b", packs_per_shard=2)
    assert tree(tmp_path / "a") == tree(tmp_path / "b")
    export_packs(dataset, to="bridge", directory=tmp_path / "c")
    assert check_export(tmp_path / "c", open_packs(tmp_path / "packs")).packs == 4


def test_progress_knows_what_was_there(tmp_path):
    """Rate and remaining time are of the packs that cost work."""
    written(tmp_path / "packs", [30, 30, 50, 60, 24, 24, 40, 41], capacity=70)
    packs = open_packs(tmp_path / "packs")
    export_packs(packs, to="jsonl", directory=tmp_path / "a", packs_per_shard=2)
    (tmp_path / "a" / "chunk_00001.jsonl").unlink()
    progress = Progress()
    export_packs(packs, to="jsonl", directory=tmp_path / "a", packs_per_shard=2, progress=progress)
    (stage,) = progress.stages
    assert (stage.total, stage.done, stage.resumed) == (5, 5, 3)
