"""Durable commits of a producer: each shard, its carry-over and its record flushed, beside the same flushes alone.

Ours is ``PackingProducer`` on rows of tokens that are encoded in no time, one shard after the other. A commit begins when
the packs of a shard are ready and ends when its record is durable: three files are written, flushed and named, and three
directories flushed, so that a power cut takes nothing that was said to be done.

The peer is the physical limit: three files of the same sizes, written by one call each, flushed, closed, renamed or linked,
and their directories flushed, by plain calls of the system and nothing else. Commits of both alternate, on the disk of
the temporary directory: set TMPDIR where that is memory.

The aim is a median below 20 ms for shards of up to a megabyte; larger ones take what their bytes take.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from compare import Row, main_of

from brimful.base.blobs import LocalBlobStore
from brimful.stream.producer import PackingProducer
from brimful.testing.toys import toy_chat_encoder

__all__ = ["measure"]

_AIM_MS = 20.0
_CAPACITY = 1024


def measure(quick: bool) -> list[Row]:
    rows = []
    for packs_per_shard in (64, 256, 4096):
        num_commits = 3 if quick else (100 if packs_per_shard < 4096 else 15)
        rows += _commits(packs_per_shard, num_commits)
    return rows


def _rows() -> Iterator[dict[str, Any]]:
    lengths = np.random.default_rng(0).integers(50, 500, 1 << 12).tolist()
    while True:
        yield from ({"text": "x" * length} for length in lengths)


def _commits(packs_per_shard: int, num_commits: int) -> list[Row]:
    ours, peer, processor = [], [], []
    with tempfile.TemporaryDirectory() as folder, LocalBlobStore(Path(folder) / "stream").used():
        home = Path(folder)
        producer = PackingProducer(
            _rows(),
            toy_chat_encoder(),
            home / "stream",
            capacity=_CAPACITY,
            lookahead=256,
            min_fill=0.0,
            packs_per_shard=packs_per_shard,
        )
        commit: Callable[[int], bool] = producer._commit

        def timed(num_packs: int) -> bool:
            begin, begin_processor = time.perf_counter(), time.process_time()
            result = commit(num_packs)
            ours.append(time.perf_counter() - begin)
            processor.append(time.process_time() - begin_processor)
            return result

        producer._commit = timed  # type: ignore[method-assign]
        sizes = (0, 0, 0)
        while len(ours) <= num_commits:
            num_known = len(ours)
            while len(ours) == num_known:
                producer.step()
            sizes = _sizes(home / "stream", producer)
            peer.append(_bare(home / "bare", sizes, len(peer)))
    # The first commit makes directories, which no later one does.
    ours_ms, peer_ms, processor_ms = (
        1000 * np.array(values[1:]) for values in (ours, peer, processor)
    )
    title = f"durable commit of {packs_per_shard:,} packs, {sum(sizes) / 1e6:.2g} MB"
    rows = [
        Row(
            f"{title}, {name} of {num_commits}",
            "ms",
            float(np.percentile(ours_ms, q)),
            "the same writes and flushes",
            float(np.percentile(peer_ms, q)),
            less_is_better=True,
        )
        for name, q in (("median", 50), ("p99", 99))
    ]
    limit = "time of the processor"
    rows.append(
        Row(
            f"{title}, {limit}, median",
            "ms",
            float(np.median(processor_ms)),
            "the aim",
            _AIM_MS,
            less_is_better=True,
        )
    )
    if sum(sizes) < 2e6:
        rows.insert(
            0,
            Row(
                f"{title}, median",
                "ms",
                float(np.median(ours_ms)),
                "the aim",
                _AIM_MS,
                less_is_better=True,
                aim=1.0,
            ),
        )
    return rows


def _sizes(stream: Path, producer: PackingProducer) -> tuple[int, int, int]:
    """Bytes of the last carry-over, shard and record."""
    record = producer._records.shards[-1]
    carried = record.state["carry_over"]
    log = stream / f"log/{record.seq:012d}.json"
    return (
        0 if carried is None else (stream / carried["file"]).stat().st_size,
        record.bytes,
        log.stat().st_size,
    )


def _bare(home: Path, sizes: tuple[int, int, int], number: int) -> float:
    """Seconds of writing three files so that they are durable, with nothing else."""
    for name in ("tmp", "carry", "shards", "log"):
        (home / name).mkdir(parents=True, exist_ok=True)
    contents = [os.urandom(size) for size in sizes]
    begin = time.perf_counter()
    for name, content in zip(("carry", "shards", "log"), contents, strict=True):
        if not content:
            continue
        tmp = home / "tmp" / f"{number}-{name}"
        descriptor = os.open(tmp, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
        os.close(descriptor)
        if name == "log":
            os.link(tmp, home / name / str(number))
            os.unlink(tmp)
        else:
            os.replace(tmp, home / name / str(number))
        folder = os.open(home / name, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
    return time.perf_counter() - begin


if __name__ == "__main__":
    main_of(measure, __doc__)
