"""Commit of a producer: a shard, the position in the source and the carry-over, in one record."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

from brimful.attachment import attachment_jobs
from brimful.blobs import BlobGroup, BlobStore, crash_points
from brimful.materialize.carry_over import ReadyPack, write_packs_to
from brimful.materialize.producer.records import SeenRecords
from brimful.shards import ShardRecord, shard_key

_KEPT_CARRY_OVERS = 2
"""Number of last records whose carry-over is kept: another process may be reading the second to last."""


def write_shard(
    files: BlobGroup,
    records: SeenRecords,
    packs: Sequence[ReadyPack],
    state: dict[str, Any],
    writer_id: str,
    with_media: bool,
) -> ShardRecord:
    """Write a shard and its media under the next number, and return its record; its commit publishes them.

    Raises:
        BadSampleError: a medium was changed after intake, or is gone.
    """
    seq, (num_packs, num_tokens) = len(records), records.sums
    container = attachment_jobs().ShardContainer(files, seq)
    media = [container.add(pack) for pack in packs] if with_media else None
    media_facts = container.close()
    crash_points.reach("after-media")
    blob = files.blob(f"shards/{seq:08d}")
    batches = write_packs_to(blob, packs, media)
    key = shard_key(seq, blob.xxh3_128)
    files.add(key, blob)
    tokens = sum(len(pack.input_ids) for pack in packs)
    return ShardRecord(
        seq=seq,
        file=key,
        bytes=blob.size,
        xxh3_128=blob.xxh3_128,
        packs=len(packs),
        tokens=tokens,
        cum_packs=num_packs + len(packs),
        cum_tokens=num_tokens + tokens,
        producer_id=writer_id,
        state=state,
        media=media_facts,
        batches=batches,
    )


def remove_carry_over(store: BlobStore, records: SeenRecords) -> None:
    """Remove the carry-over of a record that no process resumes from."""
    files = [_carried_files(record) for record in islice(records.last_own(), _KEPT_CARRY_OVERS + 1)]
    if len(files) > _KEPT_CARRY_OVERS:
        # A container of media stays while a later record names it.
        for key in files[-1].difference(*files[:-1]):
            store.delete(key)


def _carried_files(record: ShardRecord) -> set[str]:
    carried = record.state["carry_over"] or {}
    return {facts["file"] for facts in [carried, *carried.get("containers", [])] if facts}
