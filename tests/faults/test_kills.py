"""Jobs that are killed, at every labelled point and at random moments, and go on."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from brimful import measure_lengths, open_source, pack_dataset, plan_packs, write_packs
from brimful.plan import Plan
from brimful.report.store_check import check_store
from brimful.testing.toys import toy_chat_encoder
from tests.faults.planted import CRASH_POINTS, die_at
from tests.marks import long_but
from tests.store.stores import tree
from tests.trees.plans import written_trees

ROWS = [{"text": chr(97 + number % 26) * (2 + number % 19)} for number in range(120)]


def job(directory):
    source, encoder = open_source(ROWS), toy_chat_encoder()
    plan = plan_packs(measure_lengths(source, encoder), capacity=32)
    write_packs(plan, source, encoder, directory, shard_bytes=32 * 4 * 8, num_proc=1)
    return plan


def job_of_trees(directory):
    """Of texts of one letter, each begins with all shorter ones."""
    texts = [row["text"] for row in ROWS]
    groups = [
        [number for number, text in enumerate(texts) if text[0] == letter] for letter in sorted({*"".join(texts)})
    ]
    return written_trees(directory, texts, groups, capacity=32, packs_per_shard=4)


def killed_job(job, directory, point, occurrence):
    die_at(point, occurrence)
    job(directory)
    os._exit(0)


CASES = [*((job, point) for point in CRASH_POINTS), (job_of_trees, "mid-write")]


@pytest.mark.parametrize(
    ("job", "point"),
    long_but({(job, "mid-write"), (job, "after-rename"), (job, "after-commit"), (job_of_trees, "mid-write")}, CASES),
)
def test_killed_at_every_point_the_same_call_finishes(tmp_path, job, point):
    """SIGKILL at each step of a commit, early and late in the job: nothing lost, nothing twice, the same bytes."""
    plan = job(tmp_path / "whole")
    context = multiprocessing.get_context("fork")
    for occurrence in (1, 4):
        directory = tmp_path / f"killed-{occurrence}"
        for passed in (occurrence, 1):  # killed again on the way of its recovery
            process = context.Process(target=killed_job, args=(job, directory, point, passed))
            process.start()
            process.join()
            assert process.exitcode == -signal.SIGKILL, "the fault was not hit: the test proves nothing"
        job(directory)
        assert tree(directory) == tree(tmp_path / "whole")
        assert check_store(directory, plan=plan).samples == len(ROWS)
        assert not (directory / "tmp").exists()


def killed_when_it_publishes(directory, place, options):
    real = os.replace

    def replace(source, target):
        if place in str(target):
            os.kill(os.getpid(), signal.SIGKILL)
        real(source, target)

    os.replace = replace  # type: ignore[assignment]
    pack_dataset(open_source(ROWS), toy_chat_encoder(), directory, capacity=32, **options)
    os._exit(0)


def _everything(*folders):
    return sorted(str(path) for folder in folders for path in folder.rglob("*") if path.name[-5:] != ".lock")


@pytest.mark.parametrize("options", [{}, {"share": "prefixes", "least_shared": 2}], ids=["flat", "trees"])
def test_a_job_that_finishes_leaves_nothing_temporary(tmp_path, monkeypatch, options):
    """Killed while it writes a table, a block or a shard: the files of the killed ones go with the job that finishes."""
    monkeypatch.setenv("BRIMFUL_CACHE", str(tmp_path / "cache"))
    context = multiprocessing.get_context("fork")
    folders = (tmp_path / "packs", tmp_path / "cache")
    finding = ["/prefixes/"] * bool(options)
    for place in ("/encoded/", "/parts/", *finding, "/lengths.arrow", "/plan.arrow", "/shards/", "/summary.json"):
        process = context.Process(target=killed_when_it_publishes, args=(tmp_path / "packs", place, options))
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL, "the fault was not hit: the test proves nothing"
    left = _everything(*folders)
    assert any("/packs/tmp/" in path for path in left)
    pack_dataset(open_source(ROWS), toy_chat_encoder(), tmp_path / "packs", capacity=32, **options)
    left = _everything(*folders)
    monkeypatch.setenv("BRIMFUL_CACHE", str(tmp_path / "whole" / "cache"))
    pack_dataset(open_source(ROWS), toy_chat_encoder(), tmp_path / "whole" / "packs", capacity=32, **options)
    whole = _everything(tmp_path / "whole" / "packs", tmp_path / "whole" / "cache")
    assert left == [path.replace("/whole/", "/") for path in whole]


SCRIPT = """
import sys
from brimful import open_source, pack_dataset
from tests.faults.test_kills import ROWS, SlowEncoder
if __name__ == "__main__":
    pack_dataset(open_source(ROWS * 100), SlowEncoder(), sys.argv[1], capacity=64, num_proc=2, shard_bytes=4096)
"""


class SlowEncoder(type(toy_chat_encoder())):
    """Takes long enough that a kill lands in the middle."""

    def encode_batch(self, samples):
        time.sleep(0.15)
        return super().encode_batch(samples)


@pytest.mark.chaos
def test_killed_at_random_moments_with_worker_processes(tmp_path, record_property):
    """The parent dies alone; its workers must end by themselves, and the job goes on from its finished blocks."""
    pack_dataset(open_source(ROWS * 100), toy_chat_encoder(), tmp_path / "whole", capacity=64, shard_bytes=4096)
    script = tmp_path / "job.py"
    script.write_text(SCRIPT)
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root), "BRIMFUL_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, str(script), str(tmp_path / "packs")]
    for seconds in (2.5, 3.2, 4.0):
        process = subprocess.Popen(command, env=environment, cwd=root, start_new_session=True)
        time.sleep(seconds)
        process.kill()
        process.wait()
        assert _group_ends(process.pid), "worker processes outlived their parent"
    subprocess.run(command, env=environment, cwd=root, check=True, timeout=120)
    plan = Plan.open(tmp_path / "packs" / "plan.arrow")
    assert check_store(tmp_path / "packs", plan=plan).samples == len(ROWS) * 100
    shards = lambda name: {k: v for k, v in tree(tmp_path / name).items() if k.startswith("shards")}  # noqa: E731
    assert shards("packs") == shards("whole")
    record_property("kills", 3)


def _group_ends(group):
    """Whether all processes of a process group are gone within ten seconds."""
    for _ in range(100):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False
