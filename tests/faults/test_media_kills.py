"""Jobs with media that are killed at every labelled point, and go on."""

import multiprocessing
import os
import signal

import pytest

from brimful import pack_dataset
from brimful.plan import Plan, PlanSettings
from brimful.report.store_check import check_store
from brimful.sources import open_source
from tests.faults.planted import MEDIA_CRASH_POINTS, die_at
from tests.marks import long_but
from tests.store.pictures import PictureEncoder, chat, picture, write_pictures
from tests.store.stores import tree


def job(directory, home):
    rows = [chat("ab", *[f"p{n % 9}.png"] * (n % 2), *[picture(20 + n % 5)] * (n % 3 == 0)) for n in range(80)]
    source = open_source(rows, media=True, media_dir=home / "data")
    settings = PlanSettings(capacity=64)
    options = {"shard_bytes": 4 * 64 * 2, "num_proc": 1, "cache_dir": home / "cache"}
    pack_dataset(source, PictureEncoder(), directory, settings, media_storage="bytes", **options)


def killed_job(directory, home, point, occurrence):
    die_at(point, occurrence)
    job(directory, home)
    os._exit(0)


@pytest.mark.parametrize("point", long_but({"after-media", "after-shard"}, MEDIA_CRASH_POINTS))
def test_killed_at_every_point_the_same_call_finishes(tmp_path, point):
    """SIGKILL at each step of a commit: no medium lost, none twice, the same bytes in shards and containers."""
    write_pictures(tmp_path / "data", range(9))
    job(tmp_path / "whole", tmp_path)
    context = multiprocessing.get_context("fork")
    occurrence = 4 if point in ("before-write", "mid-write", "before-rename", "after-rename") else 2
    for passed in (occurrence, 1):  # killed again on the way of its recovery
        process = context.Process(target=killed_job, args=(tmp_path / "killed", tmp_path, point, passed))
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL, "the fault was not hit: the test proves nothing"
    job(tmp_path / "killed", tmp_path)
    assert tree(tmp_path / "killed") == tree(tmp_path / "whole")
    plan = Plan.open(tmp_path / "killed" / "plan.arrow")
    assert check_store(tmp_path / "killed", plan=plan).media == 40 + 27
    assert not (tmp_path / "killed" / "tmp").exists()
