"""Two jobs at once in one directory: both end well, with the same bytes."""

from __future__ import annotations

import threading

from brimful import open_source, pack_dataset
from brimful.plan import Plan
from brimful.store import check_store
from brimful.store import packing_job as job_module
from brimful.testing.toys import toy_chat_encoder
from tests.store.stores import tree

ROWS = [{"text": chr(97 + number % 26) * (2 + number % 19)} for number in range(120)]


def _pack(directory, **options):
    return pack_dataset(open_source(ROWS), toy_chat_encoder(), directory, capacity=32, shard_bytes=512, **options)


def test_a_job_that_finishes_takes_nothing_from_one_that_still_runs(tmp_path, monkeypatch):
    """Without it the second of two identical jobs ends because its tokens were deleted under it."""
    real, waiting, go_on = job_module.write_plan, threading.Event(), threading.Event()  # type: ignore[attr-defined]
    slow: list[object] = []

    def write(*args, **options):
        if threading.current_thread() is thread:
            waiting.set()
            assert go_on.wait(30)
        return real(*args, **options)

    monkeypatch.setattr(job_module, "write_plan", write)
    thread = threading.Thread(target=lambda: slow.append(_pack(tmp_path / "packs")))
    thread.start()
    assert waiting.wait(30)
    _pack(tmp_path / "packs")
    assert list((tmp_path / "packs" / "tmp" / "encoded").iterdir()), "tokens of the job that still runs are gone"
    for path in (tmp_path / "packs" / "shards").iterdir():
        path.unlink()  # so that the slow one has to write all of them, from its tokens
    go_on.set()
    thread.join()
    assert len(slow) == 1, "the second job failed"
    monkeypatch.undo()
    _pack(tmp_path / "whole")
    assert tree(tmp_path / "packs") == tree(tmp_path / "whole")
    assert not (tmp_path / "packs" / "tmp").exists()


def test_of_two_jobs_one_plans(tmp_path, monkeypatch):
    """Without it two searches that find different packs would leave the packs of one beside the plan of the other."""
    real, entered, plans = job_module.plan_with, threading.Barrier(2), []  # type: ignore[attr-defined]

    def plan_with(table, settings, **options):
        plan = real(table, settings, **options)
        plans.append(plan)
        return plan

    monkeypatch.setattr(job_module, "plan_with", plan_with)
    failed: list[BaseException] = []

    def run():
        entered.wait()
        try:
            _pack(tmp_path / "packs")
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (failed, len(plans)) == ([], 1)
    check_store(tmp_path / "packs", plan=Plan.open(tmp_path / "packs" / "plan.arrow"))
    assert not (tmp_path / "packs" / "tmp").exists()
