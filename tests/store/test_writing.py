"""Writing packs: round trip, checks, and jobs that go on."""

import pickle
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brimful import PackedDataset, Plan, measure_lengths, open_packs, open_source, plan_packs, write_packs
from brimful.base.blobs import open_blob_store
from brimful.base.progress import Progress
from brimful.errors import (
    CorruptFileError,
    LengthChangedError,
    PlanMismatchError,
    StoreFullError,
)
from brimful.report.store_check import check_store
from brimful.store import writing as shard_task
from brimful.store.shards import EndRecord, StreamLog
from brimful.testing.toys import toy_chat_encoder
from tests.faults.planted import full_disk
from tests.store.stores import texts, tree, written


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=40),
    policy=st.sampled_from(["drop", "truncate", "truncate_left", "split"]),
    capacity=st.integers(4, 20),
)
def test_store_and_on_the_fly_packs_are_the_encoded_samples(tmp_path_factory, lengths, policy, capacity):
    """Round trip: what is read is, segment by segment, what the encoder says, cut as the plan says."""
    if policy == "drop" and min(lengths) > capacity:
        lengths = [*lengths, 1]
    directory = tmp_path_factory.mktemp("store")
    source, encoder, plan = written(directory, lengths, capacity, overflow=policy)
    store, on_the_fly = open_packs(directory), PackedDataset.from_plan(source, encoder, plan)
    assert len(store) == len(on_the_fly) == plan.num_packs
    for index, segments in enumerate(plan):
        ids = [encoder.encode(source[s.sample_id]).input_ids[s.start : s.start + s.length] for s in segments]
        for pack in (store[index], on_the_fly[index]):
            assert pack.input_ids.tolist() == np.concatenate(ids).tolist()
            assert pack.sample_ids.tolist() == [segment.sample_id for segment in segments]
            assert pack.starts.tolist() == [segment.start for segment in segments]
            assert np.diff(pack.cu_seqlens).tolist() == [segment.length for segment in segments]
            assert not pack.loss_mask[pack.cu_seqlens[:-1]].any()
    check = check_store(directory, plan=plan)
    assert (check.packs, check.tokens) == (plan.num_packs, plan.ledger.tokens_packed)


def test_processes_and_repetition_change_no_byte(tmp_path):
    """Two processes, one process, and a second call give the same files."""
    source, encoder = open_source(texts(*range(2, 61))), toy_chat_encoder()
    plan = plan_packs(measure_lengths(source, encoder), capacity=64)
    plan.save(tmp_path / "plan.arrow")
    for name, num_proc in (("one", 1), ("two", 2)):
        assert write_packs(plan, source, encoder, tmp_path / name, shard_bytes=2048, num_proc=num_proc) > 2
        assert write_packs(plan, source, encoder, tmp_path / name, shard_bytes=2048, num_proc=num_proc) == 0
    assert tree(tmp_path / "one") == tree(tmp_path / "two")


def test_a_sample_that_changed_since_it_was_measured_stops_the_job(tmp_path):
    """Training on other tokens than were planned would go unnoticed; the sample is named."""
    rows = texts(3, 5, 4)
    encoder = toy_chat_encoder()
    plan = plan_packs(measure_lengths(open_source(rows), encoder), capacity=8)
    rows[1] = {"text": "longer than before"}
    with pytest.raises(
        LengthChangedError, match=r"memory\[1\] \(sample 1\) encodes to 18 tokens and was planned with 5"
    ):
        write_packs(plan, open_source(rows), encoder, tmp_path / "packs")
    with pytest.raises(LengthChangedError, match=r"sample 1"):
        list(PackedDataset.from_plan(open_source(rows[:1] + texts(2, 2)[1:] + rows[2:]), encoder, plan))


CUTTING = [
    {"overflow": "split"},
    {"overflow": "truncate"},
    {"overflow": "truncate_left"},
    {"overflow": "drop"},
    {"overflow": "split", "algorithm": "concat_split"},
    {"overflow": "truncate", "algorithm": "concat_split"},
]


@settings(max_examples=40)
@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=6),
    capacity=st.integers(1, 12),
    options=st.sampled_from(CUTTING),
    by=st.sampled_from([-5, -1, 1, 3, 20]),
    data=st.data(),
)
def test_a_sample_of_another_length_is_never_cut_to_the_planned_one(
    lengths, capacity, options, by, data, tmp_path_factory
):
    """However the plan cuts: what a sample gained since would be gone in silence. Written and on the fly."""
    encoder, rows = toy_chat_encoder(), texts(*lengths)
    if options["overflow"] == "drop":
        capacity = max(lengths)
    plan = plan_packs(measure_lengths(open_source(rows), encoder, targets=False), capacity=capacity, **options)
    at = data.draw(st.sampled_from(sorted(set(plan.sample_ids.tolist()))))
    now = max(1, lengths[at] + by)
    rows[at] = {"text": "x" * now}
    source = open_source(rows)

    def on_the_fly():
        return [pack.input_ids.tolist() for pack in PackedDataset.from_plan(source, encoder, plan)]

    directory = tmp_path_factory.mktemp("store")
    if now == lengths[at]:
        write_packs(plan, source, encoder, directory)
        assert [pack.input_ids.tolist() for pack in open_packs(directory)] == on_the_fly()
        return
    message = rf"sample {at}\) encodes to {now} tokens and was planned with {lengths[at]}:"
    with pytest.raises(LengthChangedError, match=message):
        write_packs(plan, source, encoder, directory)
    with pytest.raises(LengthChangedError, match=message):
        on_the_fly()


def test_a_plan_that_was_saved_over_is_not_written_under_the_name_of_the_other(tmp_path):
    """Processes open the plan's file themselves: the packs of one plan would stand under the header of another."""
    source, encoder = open_source(texts(3, 5, 4, 2)), toy_chat_encoder()
    table = measure_lengths(source, encoder)
    path = tmp_path / "plan.arrow"
    plan, other = plan_packs(table, capacity=10, seed=0), plan_packs(table, capacity=9, seed=0)
    plan.save(path)
    write_packs(plan, source, encoder, tmp_path / "whole", num_proc=2)  # one shard: a process is not worth it
    others = [other, *(plan_packs(table, capacity=capacity) for capacity in (11, 12))]
    assert len({there.fingerprint < plan.fingerprint for there in others}) == 2
    for there in others:
        there.save(path)
        shard_task._open_plan.cache_clear()
        message = rf"plan\.arrow holds plan {there.fingerprint[:7]} now, and the packs"
        with pytest.raises(PlanMismatchError, match=message):
            write_packs(plan, source, encoder, tmp_path / "packs", num_proc=2)
    write_packs(plan, source, encoder, tmp_path / "alone", num_proc=1)  # one process has the plan in memory
    assert tree(tmp_path / "alone") == tree(tmp_path / "whole")
    path.unlink()
    with pytest.raises(PlanMismatchError, match=r"plan\.arrow was removed while its packs were written"):
        write_packs(plan, source, encoder, tmp_path / "packs", num_proc=2)
    other.save(path)
    assert write_packs(other, source, encoder, tmp_path / "others", num_proc=2) == 1
    check_store(tmp_path / "others", plan=other)
    plan.save(path)
    write_packs(plan, source, encoder, tmp_path / "packs", num_proc=2)  # the process has opened the other before
    assert tree(tmp_path / "packs") == tree(tmp_path / "whole")


def test_a_plan_that_was_never_saved_goes_to_processes():
    """It has no file that they could open: for processes that write, and for the workers of a loader."""
    source, encoder = open_source(texts(3, 5, 4, 2)), toy_chat_encoder()
    plan = plan_packs(measure_lengths(source, encoder), capacity=8)
    copy = pickle.loads(pickle.dumps(plan))
    assert (repr(copy), list(copy), copy.length_fingerprint) == (repr(plan), list(plan), plan.length_fingerprint)
    made = PackedDataset.from_plan(source, encoder, plan)
    again = pickle.loads(pickle.dumps(made))
    assert [pack.input_ids.tolist() for pack in again] == [pack.input_ids.tolist() for pack in made]


def test_a_damaged_plan_serves_nothing(tmp_path):
    """One number changed in its file: a sample would come twice and another never."""
    rows = texts(*range(1000, 1009))
    source, encoder = open_source(rows), toy_chat_encoder()
    path = tmp_path / "plan.arrow"
    plan_packs(measure_lengths(source, encoder), capacity=9999, algorithm="next_fit").save(path)
    data, ids = path.read_bytes(), np.arange(9, dtype=np.int32)
    assert data.count(ids.tobytes()) == 1
    changed = np.where(ids == 3, 4, ids)
    path.write_bytes(data.replace(ids.tobytes(), changed.tobytes()))
    plan = Plan.open(path)
    assert plan.sample_ids.tolist() == changed.tolist()
    with pytest.raises(CorruptFileError, match=r"plan\.arrow: the plan is damaged"):
        PackedDataset.from_plan(source, encoder, plan)


def test_a_plan_of_another_data_set_is_refused(tmp_path):
    """Sample ids of one set mean nothing in another."""
    encoder = toy_chat_encoder()
    plan = plan_packs([3, 4, 5], capacity=8)
    for rows in (texts(3, 4), texts(3, 4, 5, 6)):
        with pytest.raises(PlanMismatchError, match=f"the plan is for 3 samples and memory has {len(rows)}"):
            write_packs(plan, open_source(rows), encoder, tmp_path)
    nothing = plan_packs([9, 9], capacity=8, overflow="drop")
    with pytest.raises(PlanMismatchError, match="the plan has no packs"):
        write_packs(nothing, open_source(texts(9, 9)), encoder, tmp_path)


@pytest.mark.parametrize("change", [lambda data: data[:-1], lambda data: data + b"x", lambda data: b""])
def test_a_shard_of_another_size_is_written_again(tmp_path, change):
    """By the same call: a copy that was cut short is nothing that a user has to look for."""
    source, encoder, plan = written(tmp_path, [5] * 8, 5)
    before = tree(tmp_path)
    path = sorted((tmp_path / "shards").iterdir())[1]
    path.write_bytes(change(path.read_bytes()))
    assert write_packs(plan, source, encoder, tmp_path, shard_bytes=4 * 5 * 3) == 1
    assert tree(tmp_path) == before


def test_a_shard_of_many_batches(tmp_path):
    """Rows are written 64 at a time, and each is there once."""
    source, encoder = open_source(texts(*[3] * 200)), toy_chat_encoder()
    plan = plan_packs([3] * 200, capacity=3, seed=None)
    assert write_packs(plan, source, encoder, tmp_path) == 1
    assert [int(pack.sample_ids[0]) for pack in open_packs(tmp_path)] == list(range(200))


def test_the_facts_of_media_go_to_their_shard():
    """Each process gets what its own packs need, and not what all do."""
    plan = plan_packs([3] * 8, capacity=3, seed=None)
    layout = SimpleNamespace(of_samples=lambda seq, ids: (seq, ids.tolist()))
    tasks = shard_task.ShardTasks([0, 2, 1], plan, 3, layout)
    assert [task.attached for task in tasks] == [(0, [0, 1, 2]), (2, [6, 7]), (1, [3, 4, 5])]
    assert [task.attached for task in shard_task.ShardTasks([0, 2], plan, 3, None)] == [None, None]


@pytest.mark.parametrize(
    ("keeps", "most", "is_small", "threads"),
    [
        (True, 41, True, 2),
        (True, 40, False, 2),
        (True, 39, False, 2),
        (False, 41 * 7, True, 1),
        (False, 40 * 7, False, 1),
    ],
)
def test_processes_are_for_large_jobs(tmp_path, monkeypatch, keeps, most, is_small, threads):
    """Forty tokens, where encoding one costs seven times a copy; an encoder is never called from two threads."""
    seen = []

    def run(function, tasks, *, context, resources, **options):
        seen.append((resources.num_proc == 1, options["threads"], options["shared"]))
        return ((task, function(context, task)) for task in tasks)

    monkeypatch.setattr(shard_task, "_IN_PROCESS_TOKENS", most)
    monkeypatch.setattr(shard_task, "_ENCODING_COST", 7)
    monkeypatch.setattr(shard_task, "run_tasks", run)
    monkeypatch.setattr("brimful.base.execute.execution.available_cores", lambda: 3)
    source, encoder = open_source(texts(*[5] * 8)), toy_chat_encoder()
    plan = plan_packs([5] * 8, capacity=5, seed=None)
    stored: Any = SimpleNamespace(read=lambda ids: [encoder.encode(source[index]) for index in ids])
    kept = stored if keeps else None
    write_packs(plan, source, encoder, tmp_path, encoded=kept)
    assert seen == [(is_small, threads, [tmp_path])]


@pytest.mark.parametrize("after_bytes", [0, 100, 1500, 4000, 9000])
def test_a_full_disk_loses_nothing(tmp_path, after_bytes):
    """Whatever byte the disk is full at: a clear error, no temporary file, and the same call finishes the job."""
    source, encoder, plan = written(tmp_path / "whole", range(1, 30), 32)
    with full_disk(after_bytes=after_bytes), pytest.raises(StoreFullError, match="no space left while writing"):
        write_packs(plan, source, encoder, tmp_path / "packs", shard_bytes=384)
    assert not (tmp_path / "packs" / "tmp").exists()
    write_packs(plan, source, encoder, tmp_path / "packs", shard_bytes=384)
    assert tree(tmp_path / "packs") == tree(tmp_path / "whole")


def test_a_store_with_lanes_of_an_earlier_version_is_finished_and_read(tmp_path):
    """Its header says 3 and only that differs: refused, days of packing would be lost to an option without a reader."""
    source, encoder = open_source(texts(*range(2, 30))), toy_chat_encoder()
    plan = plan_packs(measure_lengths(source, encoder), capacity=32)
    write_packs(plan, source, encoder, tmp_path / "new", shard_bytes=512)
    log = StreamLog(open_blob_store(tmp_path / "old"))
    header = StreamLog(open_blob_store(tmp_path / "new")).header()
    log.claim({**header["identity"], "lanes": 3}, {})
    assert write_packs(plan, source, encoder, tmp_path / "old", shard_bytes=512) > 2
    assert write_packs(plan, source, encoder, tmp_path / "old", shard_bytes=512) == 0
    assert list(open_packs(tmp_path / "old")) == list(open_packs(tmp_path / "new"))
    assert log.header()["identity"]["lanes"] == 3
    check_store(tmp_path / "old", plan=plan)


def test_a_stream_cut_anywhere_is_written_and_served_as_planned(tmp_path):
    """Concat and split cuts samples at any token, so a segment may end before its sample does."""
    source, encoder = open_source([{"text": "abc" * number} for number in range(3, 30)]), toy_chat_encoder()
    table = measure_lengths(source, encoder, cache_dir=tmp_path / "cache")
    plan = plan_packs(table, capacity=50, algorithm="concat_split", overflow="split")
    write_packs(plan, source, encoder, tmp_path / "packs")
    stored, made = open_packs(tmp_path / "packs"), PackedDataset.from_plan(source, encoder, plan)
    stream = np.concatenate([encoder.encode(sample).input_ids for sample in source])  # type: ignore[attr-defined]
    assert np.concatenate([pack.input_ids for pack in stored]).tolist() == stream.tolist()
    assert [pack.input_ids.tolist() for pack in stored] == [pack.input_ids.tolist() for pack in made]


def test_progress_tells_what_was_there(tmp_path):
    """Of three shards one is written again: the packs of the others cost nothing in this run."""
    source, encoder, plan = written(tmp_path, [5] * 8, 5)
    shards = sorted((tmp_path / "shards").iterdir())
    assert len(shards) == 3
    shards[1].unlink()
    progress = Progress()
    assert write_packs(plan, source, encoder, tmp_path, shard_bytes=4 * 5 * 3, progress=progress) == 1
    (stage,) = progress.stages
    assert (stage.name, stage.total, stage.done, stage.resumed, stage.tokens) == ("write", 8, 8, 5, 15)
    assert write_packs(plan, source, encoder, tmp_path, shard_bytes=4 * 5 * 3) == 0
    check_store(tmp_path, plan=plan)


def test_records_add_up(tmp_path):
    """Packs and tokens of each shard and of all before it; a shard that is not full is the last."""
    written(tmp_path, [5] * 8, 5)
    records, end = StreamLog(open_blob_store(tmp_path)).records()
    assert [(r.seq, r.packs, r.tokens, r.cum_packs, r.cum_tokens) for r in records] == [
        (0, 3, 15, 3, 15), (1, 3, 15, 6, 30), (2, 2, 10, 8, 40)
    ]  # fmt: skip
    assert end == EndRecord(3, 8, 40)
    names = [f"shards/{record.seq:08d}-{record.xxh3_128[:16]}.arrow" for record in records]
    assert [record.file for record in records] == names
