"""Reading back a whole pack store and holding it against its log and its plan."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
import xxhash

from brimful.blobs import open_blob_store
from brimful.errors import CorruptFileError, UnfinishedStoreError
from brimful.messages import counted
from brimful.plan import Plan
from brimful.progress import Progress
from brimful.shards import ShardReader, StreamLog

__all__ = ["StoreCheck", "check_store"]


@dataclass(frozen=True)
class StoreCheck:
    """What a full read found."""

    shards: int
    packs: int
    tokens: int
    samples: int


def check_store(
    directory: str | os.PathLike[str], *, plan: Plan | None = None, progress: Progress | None = None
) -> StoreCheck:
    """Read every byte of a store: hashes, row checksums, running sums and, given the plan, every segment.

    Raises:
        CorruptFileError: names the file and row.
        UnfinishedStoreError: the end record is missing.
    """
    progress = progress or Progress()
    store = open_blob_store(directory)
    log = StreamLog(store)
    header = log.header()
    records, end = log.records()
    if end is None:
        raise UnfinishedStoreError(
            f"{store.url} has no end yet: {counted(len(records), 'shard')} so far; run the job again"
        )
    if plan is not None:
        plan.check_fingerprint()
        if (header["identity"]["plan"], header["identity"]["capacity"]) != (plan.fingerprint, plan.capacity):
            raise CorruptFileError(f"{store.url}: the plan beside the packs is not the one they were written from")
    packs = tokens = 0
    seen: list[np.ndarray[tuple[int], np.dtype[np.int64]]] = []
    with progress.stage("check", total=end.packs, unit="packs"):
        for record in records:
            path = store.local_path(record.file)
            data = store.get(record.file)
            if xxhash.xxh3_128_hexdigest(data) != record.xxh3_128:
                raise CorruptFileError(f"{store.url}/{record.file} has other bytes than were committed")
            assert path is not None, "only local stores can be checked so far"
            reader = ShardReader(path, size=record.bytes)
            for row in range(record.packs):
                pack = reader.pack(row)
                if len(pack) > header["identity"]["capacity"]:
                    raise CorruptFileError(f"{path}: row {row} holds {len(pack):,} tokens, above the capacity")
                if plan is not None:
                    _compare(plan, packs + row, pack, path, row)
                tokens += len(pack)
                seen.append(np.unique(pack.sample_ids))
            packs += record.packs
            progress.advance(record.packs, tokens=record.tokens)
    if (packs, tokens) != (end.packs, end.tokens):
        raise CorruptFileError(f"{store.url} holds {packs:,} packs, its end counts {end.packs:,}")
    samples = len(np.unique(np.concatenate(seen))) if seen else 0
    return StoreCheck(len(records), packs, tokens, samples)


def _compare(plan: Plan, index: int, pack: object, path: str, row: int) -> None:
    from brimful.shards import Pack

    assert isinstance(pack, Pack)
    rows = slice(int(plan.offsets[index]), int(plan.offsets[index + 1]))
    equal = (
        np.array_equal(plan.sample_ids[rows], pack.sample_ids)
        and np.array_equal(plan.starts[rows], pack.starts)
        and np.array_equal(plan.lengths[rows], np.diff(pack.cu_seqlens))
    )
    if not equal:
        raise CorruptFileError(f"{path}: row {row} does not hold the segments of pack {index} of the plan")
