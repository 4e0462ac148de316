"""Writer of the packs of a finished plan. Every shard is a task that is safe to run twice."""

import functools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from brimful.base.arguments import as_settings, understands
from brimful.base.blobs import BlobGroup, BlobStore, LocalBlobStore, crash_points, open_blob_store
from brimful.base.checks import check_type
from brimful.base.execute import run_tasks
from brimful.base.fingerprint import short
from brimful.base.sharing import wing_of
from brimful.base.typing import AnyPath, Fingerprint
from brimful.base.wings import ATTACHMENT_WRITER, loaded
from brimful.encode.encoded import StoredSamples
from brimful.encode.encoded_samples import EncodedSamples
from brimful.encode.encoder import Encoder
from brimful.errors import PlanMismatchError
from brimful.plan import Plan
from brimful.sources.source import Source
from brimful.store.claim import JobSettings, PackJob
from brimful.store.shards import (
    BATCH_ROWS,
    EndRecord,
    PackRows,
    ShardRecord,
    ShardWriter,
    StreamLog,
    add_shard,
    new_producer_id,
    version_of,
)


@dataclass(frozen=True)
class ShardContext:
    """Everything that a task needs in addition to the number of its shard; sent to worker
    processes.
    """

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
    root: str
    """Directory that references are relative to."""


@dataclass(frozen=True)
class ShardTask:
    """One shard to write, and the facts of the attachments of its samples."""

    seq: int
    attached: Any

    def __str__(self) -> str:
        return f"shard {self.seq}"


class ShardTasks(Sequence[ShardTask]):
    """Tasks of shards, made on access, so that the facts of all attachments are not copied at once."""

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
        return ShardTask(
            seq, self._layout.of_samples(seq, self._plan.sample_ids[segments].astype(np.int64))
        )

    def __iter__(self) -> Iterator[ShardTask]:
        return (self[index] for index in range(len(self)))


def write_shard(context: ShardContext, task: ShardTask) -> tuple[int, int]:
    """Build, publish and commit one shard, in any process; return its packs and tokens."""
    plan = (
        context.plan
        if context.plan is not None
        else _open_plan(context.plan_path, context.plan_fingerprint)
    )
    seq = task.seq
    first = seq * context.packs_per_shard
    end = min(first + context.packs_per_shard, plan.num_packs)
    store: BlobStore = open_blob_store(context.directory)
    facts = None
    with ExitStack() as stack, BlobGroup(store) as files:
        attachment_writer = None
        if task.attached is not None:
            attachment_writer = stack.enter_context(
                loaded(ATTACHMENT_WRITER)(
                    seq, task.attached, context.samples, store, context.features
                )
            )
        blob = files.blob(f"shards/{seq:08d}")
        version = version_of(has_attachments=attachment_writer is not None, sharing=plan.sharing)
        writer = ShardWriter(blob, version=version, root=context.root)
        for start in range(first, end, BATCH_ROWS):
            writer.add(
                _gather_rows(context, plan, start, min(start + BATCH_ROWS, end), attachment_writer)
            )
        writer.close()
        if attachment_writer is not None:
            facts = attachment_writer.publish()
            crash_points.reach("after-media")
        cum_tokens = context.cum_tokens[seq]
        num_tokens = cum_tokens - (context.cum_tokens[seq - 1] if seq else 0)
        counts = (end - first, num_tokens, end, cum_tokens)
        record = add_shard(
            files,
            seq,
            blob,
            counts,
            context.producer_id,
            media=facts,
            batches=writer.batches,
        )
        # After a kill in between, the shard is unused under its content's name, and the next run
        # publishes the same bytes again.
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
            f"{path} was removed while its packs were written, or is not visible to all machines: "
            "save the plan again"
        ) from error
    plan.check_fingerprint()
    if plan.fingerprint != fingerprint:
        raise PlanMismatchError(
            f"{path} holds plan {short(plan.fingerprint)} now, and the packs belong to "
            f"{short(fingerprint)}: give each plan its own file"
        )
    return plan


def _gather_rows(
    context: ShardContext, plan: Plan, first: int, end: int, attachment_writer: Any = None
) -> PackRows:
    """Return the packs ``first … end - 1`` of the plan as flat columns; new bytes of attachments go to
    their container.
    """
    rows = slice(int(plan.offsets[first]), int(plan.offsets[end]))
    sample_ids = plan.sample_ids[rows].astype(np.int64)
    starts = np.ascontiguousarray(plan.starts[rows])
    lengths = np.ascontiguousarray(plan.lengths[rows])
    if context.encoded is not None:
        samples = context.encoded.read(sample_ids.tolist())
    else:
        # A sample that was split into several of these segments is encoded once.
        distinct_ids, indices = np.unique(sample_ids, return_inverse=True)
        distinct_samples = list(context.samples.read(distinct_ids.tolist()))
        samples = [distinct_samples[index] for index in indices.tolist()]
    sample_lengths = np.array([len(sample) for sample in samples], dtype=np.int64)
    plan.check_sample_lengths(rows, sample_lengths, context.samples.source.where)
    attachments = {
        index: sample.attachments
        for index, sample in zip(sample_ids.tolist(), samples, strict=True)
        if sample.attachments
    }
    segments = plan.offsets[first : end + 1] - plan.offsets[first]
    items = None
    if attachment_writer is not None:
        items = attachment_writer.packs(attachments, sample_ids, starts, lengths, segments)
    runs = [(sample.input_ids, sample.loss_mask) for sample in samples]
    if plan.sharing is not None:
        assemble = wing_of(plan.sharing).assemble
        packs = [
            assemble(
                [ids for ids, _ in runs[start:stop]],
                [mask for _, mask in runs[start:stop]],
                sample_ids[start:stop],
                lengths[start:stop],
                plan.sharing,
                slice(rows.start + start, rows.start + stop),
            )
            for start, stop in pairwise(segments.tolist())
        ]
        return PackRows.of_packs(packs, items)
    # Most plans hold whole samples; then nothing is cut.
    if starts.any() or not np.array_equal(sample_lengths, lengths):
        cuts = zip(runs, starts.tolist(), (starts + lengths).tolist(), strict=True)
        runs = [(ids[start:stop], mask[start:stop]) for (ids, mask), start, stop in cuts]
    input_ids, loss_mask = (np.concatenate(pieces) for pieces in zip(*runs, strict=True))
    return PackRows(input_ids, loss_mask, lengths, sample_ids, starts, segments, items)


_IN_PROCESS_TOKENS = 30_000_000
"""Tokens below which one process copies a job faster than several processes start."""

_ENCODING_COST = 10
"""Minimum time to encode a token ÷ time to copy a kept one; lowers the token bound if tokens are
encoded.
"""


@understands({}, JobSettings)
def write_packs(
    plan: Plan,
    source: Source | Any,
    encoder: Encoder | AnyPath | Any,
    directory: AnyPath,
    job: JobSettings | None = None,
    *,
    encoded: StoredSamples | None = None,
    **options: Any,
) -> int:
    """Write the packs of a plan as a pack store.

    Shards appear whole or not at all, and a shard exists once its record is in the log. After a
    kill at any point, the same call writes the missing shards; on a finished store it does nothing.
    Every sample must encode to its planned length.

    Args:
        plan: from ``plan_packs`` over the lengths of this source.
        source: the samples, or anything that ``open_source`` takes.
        encoder: the one that measured the samples; or a tokenizer, or its name.
        directory: of the store; a path or a URL.
        job, options: a ``JobSettings``, or its fields as keywords, such as ``num_proc``.
        encoded: tokens that measuring kept, so that no sample is encoded twice.

    Returns:
        Number of shards that this call wrote.

    Raises:
        LengthChangedError: a sample encodes to another length; names the sample.
        BadSampleError: a medium cannot be read, or was changed while it was packed; names sample
            and medium.
        StoreMismatchError: the directory holds other packs.
        UnfinishedSharesError: the share of this call is done, but others are not.
        StoreFullError: no space left, or less than attachments need; the same call resumes once space
            is free.
    """
    check_type(
        "plan", plan, Plan, "a Plan", "the call is write_packs(plan, source, encoder, directory)"
    )
    settings = as_settings(JobSettings, job, options)
    pack_job = PackJob.open(source, encoder, directory, settings, plan.settings.overflow_policy)
    if not plan.num_packs:
        raise PlanMismatchError("the plan has no packs: every sample was dropped or rejected")
    num_samples = len(pack_job.source)
    if plan.ledger.samples_in != num_samples:
        raise PlanMismatchError(
            f"the plan is for {plan.ledger.samples_in:,} samples and {pack_job.source.title} has "
            f"{num_samples:,}: plan again"
        )
    plan.check_fingerprint()
    return write_plan(pack_job, plan, encoded)


def write_plan(job: PackJob, plan: Plan, encoded: StoredSamples | None) -> int:
    """Write the packs of a plan that was made from the samples of a job; ``write_packs`` explains
    it.

    Args:
        job, plan: of the packs.
        encoded: tokens that measuring kept.
    """
    store, log, execution, attached = job.store, job.log, job.resources.execution, job.attached
    with ExitStack() as stack:
        stack.enter_context(store.used())
        if attached is not None:
            # Tokens that measuring kept belong to the attachments as they were when this job began.
            stack.enter_context(attached.explained(is_measured_now=encoded is not None))
            if attached.layout is None:
                if _is_complete(store, log):
                    job.expect(job.identity(plan, 0))
                    return 0
                attached.lay_out(plan, encoded)
        per_shard = job.claim(plan)
        num_shards = -(-plan.num_packs // per_shard)
        shards = execution.share(range(num_shards))
        pending_shards = _pending_shards(store, log, shards)
        edges = np.minimum(np.arange(num_shards + 1) * per_shard, plan.num_packs)
        small_job = (
            _IN_PROCESS_TOKENS if encoded is not None else _IN_PROCESS_TOKENS // _ENCODING_COST
        )
        is_small = plan.ledger.tokens_packed < small_job and (attached is None or attached.is_small)
        resources = job.resources.for_work(is_small=is_small)
        progress = resources.progress
        if attached is not None and pending_shards:
            attached.announce(pending_shards)
        # A plan in a file is opened by each process, which is faster than sending it.
        context = ShardContext(
            plan=plan if resources.num_proc == 1 or plan.path is None else None,
            plan_path=plan.path,
            plan_fingerprint=plan.fingerprint,
            samples=job.samples,
            features=None if attached is None else attached.maker,
            encoded=encoded,
            directory=job.directory,
            packs_per_shard=per_shard,
            cum_tokens=np.cumsum(plan.pack_tokens)[edges[1:] - 1].tolist(),
            producer_id=new_producer_id(),
            root="" if attached is None else attached.root,
        )
        packs_of_shards = np.diff(edges)
        num_packs = int(packs_of_shards[shards].sum())
        with progress.stage("write", total=num_packs, unit="packs"):
            progress.advance(num_packs - int(packs_of_shards[pending_shards].sum()), resumed=True)
            tasks = run_tasks(
                write_shard,
                ShardTasks(
                    pending_shards, plan, per_shard, None if attached is None else attached.layout
                ),
                context=context,
                resources=resources,
                # One shard is gathered while another is flushed; encoders are never called from two
                # threads.
                threads=2 if encoded is not None else 1,
                shared=[store.directory] if isinstance(store, LocalBlobStore) else [],
            )
            with closing(tasks) as results:
                for _, (num_packs, num_tokens) in results:
                    progress.advance(num_packs, tokens=num_tokens)
        # Every shard of this call is committed here: run_tasks raises if one task fails.
        if execution.is_share:
            # One listing is enough for most shares; only a share that may finish the job checks
            # every file.
            num_committed = len(log.committed() & set(range(num_shards)))
            execution.check_all_done(num_committed, num_shards, "shards")
            num_whole = num_shards - len(_pending_shards(store, log, range(num_shards)))
            execution.check_all_done(num_whole, num_shards, "shards")
        log.end(EndRecord(num_shards, plan.num_packs, plan.ledger.tokens_packed))
        return len(pending_shards)


def _is_complete(store: BlobStore, log: StreamLog) -> bool:
    """Return true if all shards and the end of the log exist."""
    if not log.is_begun():
        return False
    records, end = log.records()
    return end is not None and all(_is_whole(store, record) for record in records)


def _is_whole(store: BlobStore, record: ShardRecord | None) -> bool:
    """Return true if a shard is committed and its files have their committed sizes."""
    if record is None:
        return False
    facts = record.media or {}
    return store.size(record.file) == record.bytes and (
        facts.get("file") is None or store.size(facts["file"]) == facts["bytes"]
    )


def _pending_shards(store: BlobStore, log: StreamLog, shards: Sequence[int]) -> list[int]:
    """Return the shards that have to be written: not committed, or with a file that was deleted or
    cut short since.
    """
    committed_shards = log.committed()
    return [
        seq
        for seq in shards
        if seq not in committed_shards or not _is_whole(store, log.record_of(seq))
    ]
