"""A producer that is killed at every labelled point, and two real processes of one name that are killed at random."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pytest

from brimful import open_packs
from brimful.stream import PackingProducer
from tests.faults.planted import CRASH_POINTS, MEDIA_CRASH_POINTS, die_at
from tests.faults.processes import forked
from tests.marks import long_but
from tests.store.pictures import PictureEncoder, chat, picture, write_pictures
from tests.stream.producer.streams import append, hashes_of, producer, records_of, samples_of, texts

LENGTHS = np.random.default_rng(3).integers(2, 11, 60).tolist()


def ended(pid):
    """The exit code of a process: 0, or SIGKILL's."""
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, -signal.SIGKILL), code
    return code


def produce(source, stream, name, point, occurrence):
    """Follow a source to its end, or to a crash. The end is where another process has put a file."""
    if point is not None:
        die_at(point, occurrence)
    one = producer(source, stream, producer=name)
    while not (source / "done").exists():
        if not one.step():
            time.sleep(0.002)
    one.close()


def expected(folder):
    producer(texts(LENGTHS), folder).close()
    return hashes_of(folder)


@pytest.mark.parametrize("point", long_but({"mid-write", "after-shard"}, CRASH_POINTS))
def test_killed_at_every_point(tmp_path, point):
    """P1: at the first, a middle and a late passing of each point; the stream equals one run's, byte for byte."""
    hashes = expected(tmp_path / "whole")
    kills = 0
    for occurrence in (1, 6, 13):
        source, stream = tmp_path / f"in-{occurrence}", tmp_path / f"out-{occurrence}"
        source.mkdir()
        append(source / "a.jsonl", texts(LENGTHS))
        (source / "done").touch()
        kills += ended(forked(produce, source, stream, "one", point, occurrence)) != 0
        assert ended(forked(produce, source, stream, "one", None, 0)) == 0
        assert hashes_of(stream) == hashes
    assert kills >= 2


def survive(folder, seed):
    """Two processes of each of two names feed one stream while rows arrive; kills until all is done. Return the kills."""
    rng = np.random.default_rng(seed)
    stream, names = folder / "out", ("web", "books")
    running, kills = {}, 0

    def start(name):
        point = CRASH_POINTS[rng.integers(len(CRASH_POINTS))] if rng.random() < 0.8 else None
        running[forked(produce, folder / name, stream, name, point, int(rng.integers(1, 8)))] = name

    for name in names:
        (folder / name).mkdir()
        # Registered before any of them closes: a stream ends when all that it knows have closed.
        producer(folder / name, stream, producer=name).step()
    for name in names:
        start(name)
        start(name)
    for begin in range(0, len(LENGTHS), 6):
        for name in names:
            append(folder / name / f"{begin // 24}.jsonl", texts(LENGTHS)[begin : begin + 6])
        time.sleep(0.01)
    for name in names:
        (folder / name / "done").touch()
    while running:
        pid, status = os.wait()
        name = running.pop(pid, None)
        if name is None:  # a process of an earlier test
            continue
        code = os.waitstatus_to_exitcode(status)
        assert code in (0, -signal.SIGKILL), code
        if code:
            kills += 1
            start(name)
    samples = samples_of(stream)
    ids = [sample for number in range(2) for sample in range(number << 44, (number << 44) + len(LENGTHS))]
    assert sorted(samples) == ids, "lost or twice"
    return kills


@pytest.mark.long
def test_two_processes_of_two_names(tmp_path):
    """P1, P2: nothing is lost and nothing comes twice, whichever is first with a record."""
    kills = 0
    for seed in range(2):
        (tmp_path / str(seed)).mkdir()
        kills += survive(tmp_path / str(seed), seed)
    assert kills > 4


@pytest.mark.chaos
def test_many_kills_of_producers(tmp_path, record_property):
    """As many kills as BRIMFUL_KILLS says."""
    kills, seed = 0, 1000
    while kills < int(os.environ.get("BRIMFUL_KILLS", "1000")):
        folder = tmp_path / str(seed)
        folder.mkdir()
        kills += survive(folder, seed)
        seed += 1
    record_property("kills", kills)


def produce_pictures(rows, pictures, stream, point, occurrence):
    if point is not None:
        die_at(point, occurrence)
    PackingProducer(
        rows, PictureEncoder(), stream, media_dir=pictures, capacity=64, lookahead=6, packs_per_shard=1
    ).close()


@pytest.mark.parametrize("point", long_but({"after-media", "mid-write"}, MEDIA_CRASH_POINTS))
def test_killed_at_every_point_with_pictures(tmp_path, point):
    """P1, P8: shards and containers equal one run's, whether their media lie in files or came with rows."""
    write_pictures(tmp_path / "in", range(5))
    rows = picture_rows()
    produce_pictures(rows, tmp_path / "in", tmp_path / "whole", None, 0)
    expected_hashes = [(record.xxh3_128, record.media) for record in records_of(tmp_path / "whole")[0]]
    assert len(expected_hashes) > 3
    kills = 0
    for occurrence in (2, 7):
        kills += ended(forked(produce_pictures, rows, tmp_path / "in", tmp_path / "out", point, occurrence)) != 0
    assert ended(forked(produce_pictures, rows, tmp_path / "in", tmp_path / "out", None, 0)) == 0
    assert kills
    assert [(record.xxh3_128, record.media) for record in records_of(tmp_path / "out")[0]] == expected_hashes


def survive_with_pictures(folder, seed, expected_samples):
    """Two processes of one name that write containers, killed at random until one ends; return the kills."""
    rng = np.random.default_rng(seed)
    rows, stream = picture_rows(), folder / "out"
    running, kills = set(), 0

    def start():
        point = MEDIA_CRASH_POINTS[rng.integers(len(MEDIA_CRASH_POINTS))] if rng.random() < 0.8 else None
        running.add(forked(produce_pictures, rows, folder / "in", stream, point, int(rng.integers(1, 9))))

    start()
    start()
    while running:
        pid, status = os.wait()
        if pid not in running:  # a process of an earlier test
            continue
        running.remove(pid)
        code = os.waitstatus_to_exitcode(status)
        assert code in (0, -signal.SIGKILL), code
        if code:
            kills += 1
            start()
    served = [
        (pack.sample_ids.tolist(), [(item.fingerprint, item.read()) for item in pack.attachments])
        for pack in open_packs(stream)
    ]
    assert served == expected_samples, "lost, twice, or other bytes"
    return kills


def picture_rows():
    return [chat("ab" * (n % 4), f"p{n % 5}.png", *[picture(20 + n % 3)] * (n % 2)) for n in range(30)]


def pictures_of_one_run(folder):
    folder.mkdir()
    write_pictures(folder / "in", range(5))
    produce_pictures(picture_rows(), folder / "in", folder / "out", None, 0)
    return [
        (pack.sample_ids.tolist(), [(item.fingerprint, item.read()) for item in pack.attachments])
        for pack in open_packs(folder / "out")
    ]


def kill_with_pictures(folder, seeds, enough):
    """Kill pairs of processes, seed by seed, until there were enough kills; return them."""
    expected_samples = pictures_of_one_run(folder / "whole")
    kills = 0
    for seed in seeds:
        if kills >= enough:
            break
        write_pictures(folder / str(seed) / "in", range(5))
        kills += survive_with_pictures(folder / str(seed), seed, expected_samples)
    assert kills >= enough
    return kills


def test_two_processes_with_pictures(tmp_path):
    """P2: the container of the process that is first with a record is named, and holds what its packs need."""
    kill_with_pictures(tmp_path, range(4), 4)


@pytest.mark.chaos
def test_many_kills_of_producers_with_pictures(tmp_path, record_property):
    """As many kills as BRIMFUL_KILLS says."""
    enough = int(os.environ.get("BRIMFUL_KILLS", "1000"))
    record_property("kills", kill_with_pictures(tmp_path, range(1000, 1 << 30), enough))
