"""The server of worker processes starts before the command, where a job will need it and nowhere else."""

import pytest

from brimful.cli import early_start
from brimful.execute import workers
from brimful.preloading import TOKENIZER


@pytest.fixture
def started(monkeypatch):
    """Preloads of the servers that were started."""
    calls = []
    monkeypatch.setattr(workers, "fresh_processes", calls.append)
    monkeypatch.setattr(early_start, "available_cores", lambda: 2)
    monkeypatch.setattr(early_start, "_MIN_BYTES", 10)
    return calls


def test_large_files_and_the_directory_of_a_tokenizer(put, started, tmp_path):
    """Two seconds of imports and loading then pass while the data is opened."""
    data = put("a.jsonl", "x" * 10)
    early_start.start_processes_early(["pack", data, "-o", "packs", f"--tokenizer={tmp_path}"])
    (preload,) = started
    assert preload["brimful.encode.preload"] == {TOKENIZER: str(tmp_path.resolve())}


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["inspect", "DATA", "--tokenizer", "HERE"],
        ["pack", "small.jsonl", "--tokenizer", "HERE"],
        ["pack", "DATA", "--tokenizer", "owner/name"],
        ["pack", "DATA"],
        ["pack", "DATA", "--tokenizer", "HERE", "--num-proc", "1"],
        ["pack", "DATA", "--tokenizer", "HERE", "--num-proc=1"],
        ["pack", "DATA", "--tokenizer", "HERE", "--no-fast"],
        ["pack", "DATA", "--tokenizer", "HERE", "--chat-template", "a.jinja"],
        ["pack", "DATA", "--tokenizer", "HERE", "--help"],
    ],
)
def test_jobs_that_do_not_need_it(put, started, tmp_path, words):
    """A process that nobody needs would load a tokenizer beside the work."""
    data = put("a.jsonl", "x" * 10)
    early_start.start_processes_early([{"DATA": data, "HERE": str(tmp_path)}.get(word, word) for word in words])
    assert started == []
