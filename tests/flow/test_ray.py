"""Jobs on two nodes of Ray give the bytes of a local run, also when a node is killed.

Both nodes are processes of this machine (``ray.cluster_utils.Cluster``); Ray may lie in a folder on PYTHONPATH.
"""

import json
import os
import signal
import subprocess
import sys
import time
import warnings

import pytest

from brimful import PlanSettings, measure_lengths, open_source
from brimful.base.progress import Progress
from brimful.errors import BadSampleError, SettingsError, TaskFailedError
from brimful.integrations.export import export_packs
from brimful.media.encode.processor import ProcessorReference
from brimful.sources import line_index
from brimful.store import pack_dataset
from brimful.testing.toys import toy_chat_encoder
from tests.flow.slow_encoder import Slow
from tests.integrations.export.stores import tree as exported
from tests.store.stores import tree

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    ray = pytest.importorskip("ray", reason="the engine Ray: pip install 'brimful[ray]'")
    cluster_utils = pytest.importorskip("ray.cluster_utils")


@pytest.fixture(scope="module")
def cluster():
    """Two nodes of one core, whose workers find this package and these tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_worker_niceness", "0")  # else 15: on a machine with other work they would stand still
        patch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
        nodes = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        nodes.add_node(num_cpus=1)
        patch.setenv("RAY_ADDRESS", nodes.address)
        yield nodes
        ray.shutdown()
        nodes.shutdown()


@pytest.fixture
def data(tmp_path, monkeypatch):
    """Sixty texts, two a block."""
    monkeypatch.setattr(line_index, "BLOCK_ROWS", 2)
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps({"text": "x" * (2 + number * 7 % 11)}) + "\n" for number in range(60)))
    return path


class _At(Progress):
    """Does something once, after a given number of units of a stage; keeps what is said."""

    def __init__(self, name="", done=0, action=lambda: None):
        super().__init__()
        self.name, self.done, self.action, self.lines = name, done, action, []

    def say(self, text):
        self.lines.append(text)

    def _advanced(self, record):
        if record.name == self.name and record.done >= self.done:
            self.name = ""
            self.action()


def packed(data, folder, encoder, **options):
    pack_dataset(
        data,
        encoder,
        folder / "packs",
        PlanSettings(capacity=24),
        shard_bytes=96,
        cache_dir=folder / "cache",
        **options,
    )
    export_packs(
        folder / "packs",
        to="megatron",
        directory=folder / "exported",
        packs_per_shard=2,
        execution=options.get("execution", "local"),
    )
    return tree(folder / "packs"), exported(folder / "exported")


def test_bytes_are_those_of_a_local_run(cluster, data, tmp_path):
    """Lengths, plan, shards, export."""
    local = packed(data, tmp_path / "local", toy_chat_encoder())
    assert packed(data, tmp_path / "ray", Slow(), execution="ray") == local
    names = set(local[0])
    assert {"plan.arrow", "lengths.arrow"} < names
    assert sum(name.startswith("shards/") for name in names) > 5


@pytest.fixture
def pictures(tmp_path, monkeypatch):
    """Twelve chats with a picture each, two a block, and an encoder whose processor can be loaded and compared with."""
    pytest.importorskip("transformers")
    pytest.importorskip("PIL")
    from brimful.media.encode.media_chat import MediaChatEncoder
    from brimful.media.families import open_family
    from brimful.testing.toys import toy_media_tokenizer, toy_picture

    monkeypatch.setattr(line_index, "BLOCK_ROWS", 2)
    rows = []
    for number in range(12):
        (tmp_path / f"{number}.png").write_bytes(toy_picture(40 + 12 * number, 60))
        turns = [{"role": "user", "content": "<image>What?"}, {"role": "assistant", "content": "A square."}]
        rows.append({"messages": turns, "images": [f"{number}.png"]})
    path = tmp_path / "chats.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = {"image_processor_type": "Qwen2VLImageProcessor", "video_processor_type": "Qwen2VLVideoProcessor"}
    (tmp_path / "processor").mkdir()
    (tmp_path / "processor/preprocessor_config.json").write_text(
        json.dumps({**files, "min_pixels": 784, "max_pixels": 7840})
    )
    encoder = MediaChatEncoder(toy_media_tokenizer(), open_family("qwen2-vl", tmp_path / "processor"))
    return open_source(path, media=True), encoder


def test_media_are_measured_and_compared_as_here(cluster, pictures, tmp_path, monkeypatch):
    """Files of pictures are looked at by the workers, and a share goes through the model's own processor here."""
    source, encoder = pictures
    compared = []
    difference = ProcessorReference.difference

    def record(self, sample, length):
        compared.append(sample.sample_id)
        return difference(self, sample, length)

    monkeypatch.setattr(ProcessorReference, "difference", record)
    # Few rows are encoded by the reference alone: here faster libraries encode, and a share is encoded by both.
    monkeypatch.setattr("brimful.measure.pending._SMALL_BYTES", 0)
    tables = {}
    for engine in ("local", "ray"):
        path, cache = tmp_path / f"{engine}.arrow", tmp_path / engine
        tables[engine] = measure_lengths(source, encoder, path=path, cache_dir=cache, num_proc=2, execution=engine)
        assert compared, f"nothing was compared: {engine}"
        compared.clear()
        for suffix in (".compared", ".processor"):
            records = list((cache / "lengths").glob(f"*/parts/*/*{suffix}"))
            assert len(records) == 6, f"each block was compared in both ways: {engine}"
    assert (tmp_path / "ray.arrow").read_bytes() == (tmp_path / "local.arrow").read_bytes()
    assert (tables["ray"].tokens > 0).all()
    # A file that changed since is found by the workers, and its block measured again.
    (tmp_path / "3.png").write_bytes((tmp_path / "9.png").read_bytes())
    again = measure_lengths(source, encoder, cache_dir=tmp_path / "ray", num_proc=2, execution="ray")
    assert again.tokens[3] == again.tokens[9] != tables["ray"].tokens[3]


@pytest.mark.parametrize("stage", ["measure", "write"])
def test_a_node_is_killed_half_way(cluster, data, tmp_path, stage):
    """Its raylet and workers get SIGKILL in the midst of their tasks; the others do them again."""
    local = packed(data, tmp_path / "local", toy_chat_encoder())
    node = cluster.add_node(num_cpus=2)
    progress = _At(stage, 16 if stage == "measure" else 6, lambda: cluster.remove_node(node, allow_graceful=False))
    # Tokens that measuring kept are not made again: the slow encoder is slow in measuring alone, and writing is quick.
    result = packed(data, tmp_path / "ray", Slow(0.4), execution="ray", progress=progress)
    assert progress.name == "", "the node was killed"
    assert result == local
    if stage == "measure":
        assert any("died" in line and line.endswith("; their tasks are run again") for line in progress.lines)


def test_a_bad_row_is_named_as_here(cluster, data, tmp_path):
    with open(data, "a") as file:
        file.write(json.dumps({"text": "refuse me"}) + "\n")
    with pytest.raises(BadSampleError, match=r"data.jsonl:61 \(sample 60\): asks to be refused") as caught:
        measure_lengths(data, Slow(), cache_dir=tmp_path / "cache", execution="ray")
    assert "in measure_block" in str(caught.value.__cause__)


def test_a_row_that_kills_its_workers_is_refused_by_name(cluster, data, tmp_path):
    """As one that needs more memory than a node has."""
    with open(data, "a") as file:
        file.write(json.dumps({"text": "kill me"}) + "\n")
    progress = _At()
    with pytest.raises(TaskFailedError, match="samples 60 to 60: 3 workers died at this task, the last on "):
        measure_lengths(data, Slow(), cache_dir=tmp_path / "cache", execution="ray", progress=progress)
    assert sum("1 worker died, the last on " in line for line in progress.lines) == 2
    # Without the row the job goes on with what was measured.
    data.write_text("".join(data.read_text().splitlines(keepends=True)[:60]))
    progress = _At()
    measure_lengths(data, Slow(), cache_dir=tmp_path / "cache", execution="ray", progress=progress)
    assert progress.stages[0].resumed > 20


@pytest.mark.parametrize("presses", [1, 2])
def test_ctrl_c_ends_the_job_and_its_workers(cluster, tmp_path, presses):
    """The program ends at once with one line; Ray ends the workers of a program that is gone."""
    marks = tmp_path / "marks"
    marks.mkdir()
    script = tmp_path / "job.py"
    script.write_text(
        "import sys, pathlib\n"
        "from brimful.base.stopping import end_at_signals\n"
        "end_at_signals()\n"
        "from brimful.base.execute import Resources, run_tasks, as_execution\n"
        "from tests.flow.test_ray import stay\n"
        f"list(run_tasks(stay, range(9), context=pathlib.Path({str(marks)!r}), resources=Resources(execution=as_execution('ray'))))\n"
    )
    process = subprocess.Popen([sys.executable, script], stderr=subprocess.PIPE, text=True, start_new_session=True)
    _wait_until(lambda: any(marks.iterdir()))
    for _ in range(presses):
        os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (130, "stopped; what was finished is kept, run the same command to go on\n")
    _wait_until(lambda: not any(_runs(int(mark.name)) for mark in marks.iterdir()))


def stay(folder, _task):
    """Say which process this is, and stay."""
    (folder / str(os.getpid())).touch()
    time.sleep(600)


def _runs(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _wait_until(condition):
    for _ in range(600):
        if condition():
            return
        time.sleep(0.1)
    raise AssertionError("nothing happened for a minute")


def test_zero_workers_are_refused(cluster, data):
    with pytest.raises(SettingsError, match="num_proc must be at least 1 and is 0"):
        measure_lengths(data, Slow(), num_proc=0, execution="ray")
