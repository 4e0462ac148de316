"""Task of one shard: gathers its rows from samples, builds, publishes and commits it, in any process."""

import functools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

from brimful.base.attachment import attachment_jobs
from brimful.base.blobs import BlobGroup, BlobStore, crash_points, open_blob_store
from brimful.base.fingerprint import short
from brimful.base.typing import Fingerprint
from brimful.encode.encoded import StoredSamples
from brimful.encode.encoded_samples import EncodedSamples
from brimful.errors import PlanMismatchError
from brimful.plan import Plan
from brimful.store.shards import (
    BATCH_ROWS,
    MEDIA_VERSION,
    SHARD_VERSION,
    PackRows,
    ShardWriter,
    StreamLog,
    add_shard,
)


@dataclass(frozen=True)
class ShardContext:
    """Everything that a task needs in addition to the number of its shard; sent to worker processes."""

    plan: Plan | None
    """None for processes that open the plan themselves, from ``plan_path``."""
    plan_path: str | None
    plan_fingerprint: Fingerprint
    samples: EncodedSamples
    features: Any
    encoded: StoredSamples | None
    directory: str
    packs_per_shard: int
    cum_tokens: list[int]
    """Tokens in each shard and all earlier ones."""
    producer_id: str
    media_root: str
    """Directory that references are relative to."""


@dataclass(frozen=True)
class ShardTask:
    """One shard to write, and the facts of the media of its samples."""

    seq: int
    media: Any

    def __str__(self) -> str:
        return f"shard {self.seq}"


class ShardTasks(Sequence[ShardTask]):
    """Tasks of shards, made on access, so that the facts of all media are not copied at once."""

    def __init__(self, pending: Sequence[int], plan: Plan, per_shard: int, layout: Any) -> None:
        self._pending, self._plan, self._per_shard, self._layout = pending, plan, per_shard, layout

    def __len__(self) -> int:
        return len(self._pending)

    def __getitem__(self, index: int) -> ShardTask:  # type: ignore[override]
        seq = self._pending[index]
        if self._layout is None:
            return ShardTask(seq, None)
        first, end = seq * self._per_shard, min((seq + 1) * self._per_shard, self._plan.num_packs)
        segments = slice(int(self._plan.offsets[first]), int(self._plan.offsets[end]))
        return ShardTask(seq, self._layout.of_samples(seq, self._plan.sample_ids[segments].astype(np.int64)))

    def __iter__(self) -> Iterator[ShardTask]:
        return (self[index] for index in range(len(self)))


def write_shard(context: ShardContext, task: ShardTask) -> tuple[int, int]:
    """Build, publish and commit one shard, in any process; return its packs and tokens."""
    plan = context.plan if context.plan is not None else _open_plan(context.plan_path, context.plan_fingerprint)
    seq = task.seq
    first = seq * context.packs_per_shard
    end = min(first + context.packs_per_shard, plan.num_packs)
    store: BlobStore = open_blob_store(context.directory)
    media_facts = None
    with ExitStack() as stack, BlobGroup(store) as files:
        media = None
        if task.media is not None:
            media = stack.enter_context(
                attachment_jobs().ShardMediaWriter(seq, task.media, context.samples, store, context.features)
            )
        blob = files.blob(f"shards/{seq:08d}")
        version = SHARD_VERSION if media is None else MEDIA_VERSION
        writer = ShardWriter(blob, version=version, media_root=context.media_root)
        for begin in range(first, end, BATCH_ROWS):
            writer.add(_gather_rows(context, plan, begin, min(begin + BATCH_ROWS, end), media))
        writer.close()
        if media is not None:
            media_facts = media.publish()
            crash_points.reach("after-media")
        cum_tokens = context.cum_tokens[seq]
        num_tokens = cum_tokens - (context.cum_tokens[seq - 1] if seq else 0)
        numbers = (end - first, num_tokens, end, cum_tokens)
        record = add_shard(files, seq, blob, numbers, context.producer_id, media=media_facts, batches=writer.batches)
        # After a kill in between, the shard is unused under its content's name, and the next run publishes the same
        # bytes again.
        StreamLog(store).commit(record, files)
        crash_points.reach("after-commit")
    return end - first, num_tokens


@functools.lru_cache(maxsize=1)
def _open_plan(path: str | None, fingerprint: Fingerprint) -> Plan:
    """Open and check the plan, once in each worker process.

    Another plan may have overwritten it. Only one stays mapped in a process that outlives its job.

    Raises:
        PlanMismatchError: the file is gone, or holds another plan.
        CorruptFileError: it is damaged.
    """
    assert path is not None
    try:
        plan = Plan.open(path)
    except FileNotFoundError as error:
        raise PlanMismatchError(
            f"{path} was removed while its packs were written, or is not visible to all machines: save the plan again"
        ) from error
    plan.check_fingerprint()
    if plan.fingerprint != fingerprint:
        raise PlanMismatchError(
            f"{path} holds plan {short(plan.fingerprint)} now, and the packs belong to {short(fingerprint)}: "
            f"give each plan its own file"
        )
    return plan


def _gather_rows(context: ShardContext, plan: Plan, first: int, end: int, media: Any = None) -> PackRows:
    """Return the packs ``first … end - 1`` of the plan as flat columns; new media bytes go to their container."""
    rows = slice(int(plan.offsets[first]), int(plan.offsets[end]))
    sample_ids = plan.sample_ids[rows].astype(np.int64)
    starts = np.ascontiguousarray(plan.starts[rows])
    lengths = np.ascontiguousarray(plan.lengths[rows])
    if context.encoded is not None:
        samples = context.encoded.read(sample_ids.tolist())
    else:
        # A sample that was split into several of these segments is encoded once.
        distinct_ids, places = np.unique(sample_ids, return_inverse=True)
        distinct_samples = list(context.samples.read(distinct_ids.tolist()))
        samples = [distinct_samples[place] for place in places.tolist()]
    sample_lengths = np.array([len(sample) for sample in samples], dtype=np.int64)
    plan.check_sample_lengths(rows, sample_lengths, context.samples.source.where)
    runs = [(sample.input_ids, sample.loss_mask) for sample in samples]
    # Most plans hold whole samples; then nothing is cut.
    if starts.any() or not np.array_equal(sample_lengths, lengths):
        cuts = zip(runs, starts.tolist(), (starts + lengths).tolist(), strict=True)
        runs = [(ids[start:stop], mask[start:stop]) for (ids, mask), start, stop in cuts]
    input_ids, loss_mask = (np.concatenate(pieces) for pieces in zip(*runs, strict=True))
    sample_media = {
        index: sample.media for index, sample in zip(sample_ids.tolist(), samples, strict=True) if sample.media
    }
    segments = plan.offsets[first : end + 1] - plan.offsets[first]
    pack_media = None if media is None else media.packs(sample_media, sample_ids, starts, lengths, segments)
    return PackRows(input_ids, loss_mask, lengths, sample_ids, starts, segments, pack_media)
