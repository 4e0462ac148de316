"""Loading begins before the command, where a job will need it and nowhere else."""

import gc
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from brimful import preloading
from brimful.cli import early_start
from brimful.execute import workers
from brimful.preloading import TOKENIZER
from brimful.sources import rows


@pytest.fixture(autouse=True)
def process_as_before(monkeypatch):
    """The program may change its process; this one has other tests to run."""
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


@pytest.fixture
def servers(monkeypatch):
    """Preloads of the servers that were started."""
    calls = []
    monkeypatch.setattr(workers, "fresh_processes", calls.append)
    monkeypatch.setattr(early_start, "available_cores", lambda: 2)
    monkeypatch.setattr(preloading, "_SMALL_BYTES", 10)
    monkeypatch.setattr(early_start, "ONE_PROCESS_BYTES", 20)
    return calls


@pytest.fixture
def loads(monkeypatch):
    """Directories whose fast tokenizers are loaded in this process."""
    calls = []
    monkeypatch.setattr(early_start, "begin_to_load", calls.append)
    return calls


@pytest.mark.parametrize(("name", "size"), [("a.jsonl", 20), ("a.jsonl.gz", 5), ("a.jsonl.zst", 5), ("a.parquet", 7)])
def test_compressed_files_hold_more_text_than_bytes(put, servers, loads, tmp_path, name, size):
    """Without it the library is loaded in this process, and then again in the server of the workers."""
    early_start.start_early(["pack", put(name, "x" * (size - 1)), "-o", "packs", f"--tokenizer={tmp_path}"])
    assert not servers
    early_start.start_early(["pack", put(name, "x" * size), "-o", "packs", f"--tokenizer={tmp_path}"])
    assert len(servers) == 1


def test_a_parquet_file_of_few_row_groups_is_for_one_process(servers, loads, tmp_path, monkeypatch):
    """A block is a row group at least: one process has them all, and loads the library for itself."""
    monkeypatch.setattr(rows, "BLOCK_ROWS", 2)
    for num_groups, expected in ((3, (0, 1)), (4, (1, 1))):
        data = tmp_path / f"{num_groups}.parquet"
        pq.write_table(pa.table({"text": ["x" * 50] * 2 * num_groups}), data, row_group_size=2)
        early_start.start_early(["pack", str(data), "-o", "packs", f"--tokenizer={tmp_path}"])
        assert (len(servers), len(loads)) == expected


def test_large_files_and_the_directory_of_a_tokenizer(put, servers, loads, tmp_path):
    """Two seconds of imports and loading then pass while the data is opened."""
    data = put("a.jsonl", "x" * 20)
    early_start.start_early(["pack", data, "-o", "packs", f"--tokenizer={tmp_path}"])
    (preload,) = servers
    assert preload["brimful.encode.preload"] == {TOKENIZER: str(tmp_path.resolve())}
    assert loads == []


@pytest.mark.parametrize(
    ("num_bytes", "options"), [(10, []), (19, []), (10, ["--num-proc", "1"]), (20, ["--num-proc=1"])]
)
def test_one_process_loads_by_itself(put, servers, loads, tmp_path, num_bytes, options):
    """Its fast library loads without Python, while the rest is imported."""
    data = put("a.jsonl", "x" * num_bytes)
    early_start.start_early(["pack", data, "-o", "packs", "--tokenizer", str(tmp_path), *options])
    assert (servers, loads) == ([], [str(tmp_path)])


@pytest.mark.parametrize("options", [[], ["--num-proc", "1"], ["--num-proc=2"]])
def test_little_data_is_for_the_reference(put, servers, loads, tmp_path, options):
    """It has encoded it before the fast library would be loaded."""
    early_start.start_early(["pack", put("a.jsonl", "x" * 9), "--tokenizer", str(tmp_path), *options])
    assert (servers, loads) == ([], [])


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["inspect", "DATA", "--tokenizer", "HERE"],
        ["pack", "small.jsonl", "--tokenizer", "HERE"],
        ["pack", "DATA", "--tokenizer", "owner/name"],
        ["pack", "DATA"],
        ["pack", "SOME", "--tokenizer", "HERE", "--num-proc", "2"],
        ["pack", "EMPTY", "--tokenizer", "HERE"],
        ["pack", "DATA", "--tokenizer", "HERE", "--no-fast"],
        ["pack", "DATA", "--tokenizer", "HERE", "--chat-template", "a.jinja"],
        ["pack", "DATA", "--tokenizer", "HERE", "--help"],
    ],
)
def test_jobs_that_do_not_need_it(put, servers, loads, tmp_path, words):
    """A process that nobody needs would load a tokenizer beside the work."""
    files = {name: put(f"{name}.jsonl", "x" * size) for name, size in (("DATA", 20), ("SOME", 10), ("EMPTY", 0))}
    early_start.start_early([{**files, "HERE": str(tmp_path)}.get(word, word) for word in words])
    assert (servers, loads) == ([], [])


@pytest.mark.parametrize(
    ("command", "is_changed"), [("pack", True), ("measure", True), ("verify", False), ("demo", False)]
)
def test_only_commands_that_train_nothing_leave_numpy_one_thread(command, is_changed):
    """A model that is trained in this process needs all cores, and the collector as it is."""
    before = gc.get_threshold()
    early_start.start_early([command])
    assert ("OPENBLAS_NUM_THREADS" in os.environ) == is_changed
    assert (gc.get_threshold() != before) == is_changed


def test_the_number_of_threads_that_a_user_chose_stays(monkeypatch):
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "3")
    early_start.start_early(["pack"])
    assert os.environ["OPENBLAS_NUM_THREADS"] == "3"
