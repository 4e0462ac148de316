"""A store is checked byte by byte against its log and its plan."""

import shutil
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from brimful import open_packs, open_source, plan_packs, write_packs
from brimful.base.progress import Progress
from brimful.errors import (
    CorruptFileError,
    UnfinishedStoreError,
)
from brimful.report.store_check import StoreCheck, _is_planned, check_store
from brimful.store.shards import StreamLog
from brimful.testing.toys import toy_chat_encoder
from brimful.trees.plan.plan_trees import PlanTrees
from tests.store.stores import texts, written
from tests.trees.plans import written_trees

Stub: Any = SimpleNamespace
"""An object of which only some attributes are asked."""


def test_check_store_finds_a_swapped_shard(tmp_path):
    """A whole, valid shard of another job under the right name has the right size and wrong bytes."""
    written(tmp_path / "a", [5] * 9, 5, seed=None)
    _, _, plan = written(tmp_path / "b", [5] * 9, 5, seed=1)
    mine, theirs = (sorted((tmp_path / name / "shards").iterdir())[0] for name in "ab")
    assert mine.stat().st_size == theirs.stat().st_size
    shutil.copy(mine, theirs)
    with pytest.raises(CorruptFileError, match="other bytes than were committed"):
        check_store(tmp_path / "b", plan=plan)


def test_a_shard_that_is_gone_is_named(tmp_path):
    """A store that lost a file is damaged, and the file is in the message."""
    written(tmp_path, [5] * 9, 5)
    path = sorted((tmp_path / "shards").iterdir())[1]
    path.unlink()
    with pytest.raises(CorruptFileError, match=f"{path.name} is missing: its packs were committed"):
        check_store(tmp_path)


def test_totals_count_a_split_sample_once(tmp_path):
    """Eight samples of 5 tokens and one of 12, which three packs share."""
    progress = Progress()
    _, _, plan = written(tmp_path, [5] * 8 + [12], 5, overflow="split", seed=None)
    assert check_store(tmp_path, plan=plan, progress=progress) == StoreCheck(
        shards=4, packs=11, tokens=52, samples=9, media=0
    )
    (stage,) = progress.stages
    assert (stage.name, stage.done, stage.total) == ("check", 11, 11)
    assert check_store(tmp_path) == check_store(tmp_path, plan=plan)


def test_a_store_without_an_end_says_how_far_it_is(tmp_path):
    written(tmp_path, [5] * 9, 5)
    sorted((tmp_path / "log").iterdir())[-1].unlink()
    with pytest.raises(UnfinishedStoreError, match="has no end yet: 3 shards so far; run the job again"):
        check_store(tmp_path)


def test_the_plan_of_other_packs_is_refused(tmp_path):
    """By its fingerprint, and by its capacity alone, which the fingerprint does not hold."""
    _, _, plan = written(tmp_path, [5] * 9, 5, seed=None)
    others = [plan_packs([5] * 9, capacity=5, seed=seed) for seed in range(4)]
    assert len({other.fingerprint < plan.fingerprint for other in others}) == 2
    for other in (*others, replace(plan, capacity=4), replace(plan, capacity=6)):
        with pytest.raises(CorruptFileError, match="the plan next to the packs is not the one they were written from"):
            check_store(tmp_path, plan=other)


def test_a_pack_has_the_tree_of_the_plan(tmp_path):
    """A branch below another trunk of the same depth is another sample; a flat pack has none."""
    plan = written_trees(tmp_path, ["aab", "aac", "bbd"], [[0, 1, 2]])
    assert check_store(tmp_path, plan=plan).samples == 3
    pack, arrays = open_packs(tmp_path)[0], {name: getattr(plan, name) for name in ("sample_ids", "starts", "lengths")}
    parents = plan.sharing.parents
    others = [PlanTrees(parents), PlanTrees(np.where(parents == 0, -1, parents)), None]
    planned = [_is_planned(Stub(offsets=plan.offsets, sharing=other, **arrays), 0, pack) for other in others]
    assert planned == [True, False, False]
    flat = replace(pack, sharing=None)
    assert [_is_planned(Stub(offsets=plan.offsets, sharing=other, **arrays), 0, flat) for other in others] == [
        *(False, False, True)
    ]


@pytest.mark.parametrize("part", ["sample_ids", "starts", "lengths"])
def test_a_pack_has_the_segments_of_the_plan(tmp_path, part):
    """Samples, where they begin, and how long they are."""
    _, _, plan = written(tmp_path, [2, 3, 9, 1], 5, overflow="split", seed=None)
    packs = open_packs(tmp_path)
    assert [_is_planned(plan, index, packs[index]) for index in range(len(packs))] == [True] * 3
    columns = {name: np.array(getattr(plan, name)) for name in ("sample_ids", "starts", "lengths")}
    columns[part][-1] += 1
    other = Stub(offsets=plan.offsets, sharing=None, **columns)
    assert [_is_planned(other, index, packs[index]) for index in range(len(packs))] == [True, True, False]


def test_rows_are_named_by_their_place_in_the_file_and_in_the_plan(tmp_path, monkeypatch):
    """The second row of the second shard is pack 4."""
    _, _, plan = written(tmp_path, [5] * 9, 5, seed=None)
    monkeypatch.setattr("brimful.report.store_check._is_planned", lambda plan, index, pack: index != 4)
    with pytest.raises(CorruptFileError, match=r"00000001-.*: row 1 does not hold the segments of pack 4 of the plan"):
        check_store(tmp_path, plan=plan)


def test_a_pack_above_the_capacity_is_named(tmp_path, monkeypatch):
    written(tmp_path, [5] * 9, 5)
    monkeypatch.setattr(StreamLog, "header", lambda log: {"identity": {"capacity": 4}, "notes": {}})
    with pytest.raises(CorruptFileError, match=r"00000000-.*: row 0 holds 5 tokens, above the capacity"):
        check_store(tmp_path)


def test_the_end_counts_what_is_there(tmp_path, monkeypatch):
    """A log whose end promises other packs or tokens is damaged."""
    written(tmp_path, [5] * 9, 5)
    records = StreamLog.records
    for change in ({"packs": 8}, {"packs": 10}, {"tokens": 44}, {"tokens": 46}):

        def damaged(log, change=change):
            shards, end = records(log)
            assert end is not None
            return shards, replace(end, **change)

        monkeypatch.setattr(StreamLog, "records", damaged)
        with pytest.raises(CorruptFileError, match=f"holds 9 packs, its end counts {change.get('packs', 9)}"):
            check_store(tmp_path)


def test_a_store_behind_a_url_is_read_there(tmp_path):
    pytest.importorskip("fsspec")
    source, encoder = open_source(texts(*[5] * 9)), toy_chat_encoder()
    plan = plan_packs([5] * 9, capacity=5, seed=None)
    url = f"memory://{tmp_path.name}"
    write_packs(plan, source, encoder, url, shard_bytes=60)
    assert check_store(url, plan=plan) == StoreCheck(shards=3, packs=9, tokens=45, samples=9)
