"""A stream is written and trained on by processes that are killed: every sample once, in the order of a run without kills."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from brimful.base.blobs import LocalBlobStore, crash_points, open_blob_store
from brimful.store.shards import StreamLog
from brimful.stream import StreamLoader
from brimful.testing.toys import ToyProducer, toy_stream
from tests.faults.planted import CRASH_POINTS, die_at
from tests.faults.processes import forked

LANES = 4
PACKS = [3, 2, 4, 1, 2, 3, 3, 2]
"""Packs of the shards."""


def produce(directory, point, occurrence):
    """Go on with the stream from what is committed, to its end, or to a crash."""
    if point is not None:
        die_at(point, occurrence)
    producer = ToyProducer(directory)
    while (num_done := len(StreamLog(open_blob_store(directory)).records()[0])) < len(PACKS):
        producer.append(PACKS[num_done], seq=num_done)
        time.sleep(0.01)
    producer.close()


def first_sample(pack):
    return int(pack.sample_ids[0])


def train(directory, run_dir, rank, world_size, die_after, describe=first_sample):
    """Serve the rest of the stream as one rank; all ranks of a step are done before a checkpoint of it is made."""
    loader = StreamLoader(directory, dp_rank=rank, dp_world_size=world_size, lanes=LANES, assign="lane", timeout=60)
    checkpoint = LocalBlobStore(run_dir.parent / "checkpoint")
    if checkpoint.size("state") is not None:
        loader.load_state_dict(json.loads(checkpoint.get("state")))
    for number, batch in enumerate(loader):
        samples = [describe(pack) for pack in batch if pack.num_loss_tokens]
        state = loader.state_dict()
        step = state["step"] - 1
        LocalBlobStore(run_dir).put_atomic(f"steps/{step:06d}-{rank}", json.dumps(samples).encode())
        if number == die_after:
            os.kill(os.getpid(), signal.SIGKILL)
        if rank == 0 and step % 2:
            while not all((run_dir / "steps" / f"{step:06d}-{other}").exists() for other in range(world_size)):
                time.sleep(0.002)
            checkpoint.put_atomic("state", json.dumps(state).encode())
            loader.ack("model")


def chunk_of(directory, number):
    return directory / f"chunk_{number:05d}.jsonl"


def produce_naively(directory, point, occurrence):
    """Write chunks in place, beginning after the existing ones; the folder is the only state."""
    if point is not None:
        die_at(point, occurrence)
    directory.mkdir(exist_ok=True)
    while (num_done := len(list(directory.glob("chunk_*.jsonl")))) < len(PACKS):
        crash_points.reach("before-write")
        first = sum(PACKS[:num_done])
        with chunk_of(directory, num_done).open("w") as file:
            for sample in range(first, first + PACKS[num_done]):
                file.write(f"{sample}\n")
                file.flush()
                crash_points.reach("mid-write")
        # The points of a commit that this protocol does not have are all behind its write.
        for name in ("before-rename", "after-rename", "before-link", "after-link"):
            crash_points.reach(name)
        time.sleep(0.01)
    (directory / "done").touch()


def train_naively(directory, run_dir, rank, world_size, die_after):
    """Take the chunks whose number falls to this rank and that are not marked, and mark each when it is read."""
    checkpoint = LocalBlobStore(run_dir.parent / "checkpoint")
    step = 0 if checkpoint.size("state") is None else json.loads(checkpoint.get("state"))["step"]
    number = 0

    def rows():
        for chunk in itertools.count(rank, world_size):
            path = chunk_of(directory, chunk)
            while not (path.exists() and time.time() - path.stat().st_mtime > 0.03):
                if (directory / "done").exists() and not path.exists():
                    return
                time.sleep(0.002)
            marker = path.with_name(f"{path.name}.completed")
            if not marker.exists():
                samples = path.read_text().split()
                marker.touch()
                yield from map(int, samples)

    samples = rows()
    while batch := list(itertools.islice(samples, LANES // world_size)):
        LocalBlobStore(run_dir).put_atomic(f"steps/{step:06d}-{rank}", json.dumps(batch).encode())
        if number == die_after:
            os.kill(os.getpid(), signal.SIGKILL)
        number, step = number + 1, step + 1
        if rank == 0 and step % 2 == 0:
            for other in range(world_size):
                here = run_dir / "steps" / f"{step - 1:06d}-{other}"
                while not (here.exists() or (run_dir / f"ended-{other}").exists()):
                    time.sleep(0.002)
            checkpoint.put_atomic("state", json.dumps({"step": step}).encode())
    (run_dir / f"ended-{rank}").touch()


def batches_of(run_dir):
    """Samples of each step that a run served whole, by step."""
    steps: dict[int, list[int]] = {}
    for path in sorted((run_dir / "steps").glob("*")):
        steps.setdefault(int(path.name[:6]), []).extend(json.loads(path.read_bytes()))
    return {step: sorted(samples) for step, samples in steps.items()}


def survive(
    folder: Path, seed: int, produce=produce, train=train, *, begin=ToyProducer, is_killed: bool = True
) -> tuple[int, dict[int, list[int]]]:
    """Produce and train with kills until both are done; return the kills and the batches of what was trained in the end."""
    rng = np.random.default_rng(seed)
    directory, kills, trained = folder / "stream", 0, {}

    def crash():
        if not is_killed:
            return None, 0
        point = CRASH_POINTS[rng.integers(len(CRASH_POINTS) - 2)] if rng.random() < 0.7 else None
        return point, int(rng.integers(1, 6))

    if train is not train_naively:
        begin(directory)
    writers = [forked(produce, directory, *crash()) for _ in range(2)]
    for run in itertools.count():
        run_dir, world_size = folder / f"run-{run}", int(rng.choice([1, 2, 4]))
        run_dir.mkdir()
        deaths = (
            rng.integers(0, 4, world_size) if is_killed and rng.random() < 0.8 and run < 20 else [10**9] * world_size
        )
        ranks = [forked(train, directory, run_dir, rank, world_size, deaths[rank]) for rank in range(world_size)]
        codes = []
        while ranks:
            pid, status = os.wait()
            code = os.waitstatus_to_exitcode(status)
            if pid in writers:
                writers.remove(pid)
                assert code in (0, -signal.SIGKILL), code
                if code:
                    kills += 1
                    writers.append(forked(produce, directory, *crash()))
                continue
            if pid not in ranks:  # a process of an earlier test
                continue
            ranks.remove(pid)
            codes.append(code)
            if code:  # as a launcher does: one rank is gone, so all are
                for other in ranks:
                    os.kill(other, signal.SIGKILL)
        assert set(codes) <= {0, -signal.SIGKILL}, codes
        kills += sum(code != 0 for code in codes)
        # What was trained behind the last checkpoint is lost with the processes, and trained again.
        batches = batches_of(run_dir)
        with contextlib.suppress(FileNotFoundError):
            state = json.loads((folder / "checkpoint" / "state").read_bytes())
            if any(codes):
                batches = {step: batch for step, batch in batches.items() if step < state["step"]}
        for step, batch in batches.items() if not any(codes) or (folder / "checkpoint" / "state").exists() else ():
            assert step not in trained, "a step was trained twice"
            trained[step] = batch
        if not any(codes):
            break
    for pid in writers:
        os.waitpid(pid, 0)
    return kills, trained


def batches_of_one_run(stream, describe=first_sample):
    """What each step is of, over all ranks, without kills."""
    loader = StreamLoader(stream, lanes=LANES, assign="lane")
    return [sorted(describe(pack) for pack in batch if pack.num_loss_tokens) for batch in loader]


def check(folder, seed):
    batches = batches_of_one_run(toy_stream(folder / "whole", PACKS))
    kills, trained = survive(folder, seed)
    assert [trained[step] for step in sorted(trained)] == batches
    assert sorted(itertools.chain(*trained.values())) == list(range(sum(PACKS)))
    return kills


def test_nothing_is_lost_or_trained_twice(tmp_path):
    """P1, P2, C1, C3: two writers of one stream, ranks of changing number, all of them killed at random."""
    kills = 0
    for seed in range(3):
        (tmp_path / str(seed)).mkdir()
        kills += check(tmp_path / str(seed), seed)
    assert kills > 5


@pytest.mark.long
def test_the_naive_protocol_fails(tmp_path):
    """The control: a harness that passes everything shows nothing. Chunks marked when read are lost with the process."""
    num_failed = 0
    for seed in range(1, 6):
        folder = tmp_path / str(seed)
        folder.mkdir()
        _, trained = survive(folder, seed, produce_naively, train_naively)
        is_right = sorted(itertools.chain(*trained.values())) == list(range(sum(PACKS)))
        # It may survive kills of its writers; a rank that is killed takes with it what it had read.
        assert not (is_right and (folder / "run-1").exists()), seed
        num_failed += not is_right
    assert num_failed >= 3
    _, trained = survive(tmp_path, 0, produce_naively, train_naively, is_killed=False)
    assert sorted(itertools.chain(*trained.values())) == list(range(sum(PACKS))), "without kills it is right"


@pytest.mark.chaos
def test_many_kills(tmp_path, record_property):
    """As many kills as BRIMFUL_KILLS says: 1,000, or all night."""
    kills, seed = 0, 1000
    while kills < int(os.environ.get("BRIMFUL_KILLS", "1000")):
        folder = tmp_path / str(seed)
        folder.mkdir()
        kills += check(folder, seed)
        seed += 1
    record_property("kills", kills)
