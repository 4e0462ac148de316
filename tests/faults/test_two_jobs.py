"""Two jobs at once in one directory: both end well, with the same bytes."""

from __future__ import annotations

import os
import threading

import pytest

from brimful import measure_lengths, open_source, pack_dataset
from brimful.errors import BrimfulError, CacheMismatchError, StoreMismatchError
from brimful.measure import job as measure_module
from brimful.plan import Plan
from brimful.report.store_check import check_store
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
    """Without it two searches that find different packs would leave the packs of one with the plan of the other."""
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


_CHANGES = {
    "capacity": {"capacity": 64},
    "overflow": {"overflow": "truncate"},
    "seed": {"seed": 1},
    "algorithm": {"algorithm": "next_fit"},
    "budgets": {"budgets": {"loss_tokens": 24}},
    "no_target": {"no_target": "drop"},
    "epoch": {"epoch": 1},
    "share": {"share": "prefixes"},
    "shard_bytes": {"shard_bytes": 2048},
    "rows": {"rows": ROWS[:-1]},
    "encoder": {"encoder": toy_chat_encoder(1)},
    "nothing": {},
}


def _outcome(directory, changes):
    """What a job says of a directory: the name of its error, and its text without the directory."""
    options = {"capacity": 32, "shard_bytes": 512, **changes}
    rows, encoder = options.pop("rows", ROWS), options.pop("encoder", None) or toy_chat_encoder()
    try:
        summary = pack_dataset(open_source(rows), encoder, directory, **options)
    except BrimfulError as error:
        return type(error), str(error).replace(str(directory), "")
    return summary.plan.fingerprint, summary.capacity


@pytest.mark.parametrize("second", _CHANGES)
@pytest.mark.parametrize("first", ["nothing", "capacity", "share"])
def test_a_job_that_began_before_another_claimed_its_directory_ends_as_one_that_comes_after(
    tmp_path, monkeypatch, first, second
):
    """Without it its settings are ignored: it exits with 0, and its summary says what is not there."""
    told = _outcome(tmp_path / "after", _CHANGES[first])
    whole = tree(tmp_path / "after")
    due = _outcome(tmp_path / "after", _CHANGES[second])
    assert (first == second) == (due == told)
    real, others = job_module.exclusive, []  # type: ignore[attr-defined]

    def exclusive(*args):
        if not others:
            # The other job runs as a whole, after this one has found the directory free.
            others.append(None)
            others[0] = _outcome(tmp_path / "race", _CHANGES[first])
        return real(*args)

    monkeypatch.setattr(job_module, "exclusive", exclusive)
    assert _outcome(tmp_path / "race", _CHANGES[second]) == due
    assert others == [told]
    assert tree(tmp_path / "race") == (whole if due[0] is StoreMismatchError else tree(tmp_path / "after"))


def test_of_two_jobs_that_measure_into_one_file_the_later_is_told(tmp_path, monkeypatch):
    """Without it the lengths of one are gone without a word, and the other's are planned for both."""
    path, encoders = tmp_path / "lengths.arrow", [toy_chat_encoder(), toy_chat_encoder(1)]
    real, others = measure_module.assembled_table, []  # type: ignore[attr-defined]

    def assembled_table(*args):
        if not others:
            others.append(None)
            measure_lengths(ROWS, encoders[0], path=path)
            others[0] = path.read_bytes()
        return real(*args)

    monkeypatch.setattr(measure_module, "assembled_table", assembled_table)
    with pytest.raises(CacheMismatchError, match="was measured with other settings or data"):
        measure_lengths(ROWS, encoders[1], path=path)
    assert path.read_bytes() == others[0]
    assert sorted(os.listdir(tmp_path)) == ["lengths.arrow"]
    others.clear()
    path.unlink()
    measure_lengths(ROWS, encoders[0], path=path)
    assert path.read_bytes() == others[0], "an equal one is not refused"
    others.clear()
    measure_lengths(ROWS, encoders[1], path=path, on_mismatch="rebuild")
    assert path.read_bytes() != others[0]
