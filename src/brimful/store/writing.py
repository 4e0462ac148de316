"""Writer of the packs of a finished plan. Every shard is a task that is safe to run twice."""

import os
from collections.abc import Sequence
from contextlib import ExitStack, closing
from typing import Any

import numpy as np

from brimful.base.arguments import as_settings, understands
from brimful.base.blobs import BlobStore, LocalBlobStore
from brimful.base.checks import check_type
from brimful.base.execute import run_tasks
from brimful.encode.encoded import StoredSamples
from brimful.encode.encoder import Encoder
from brimful.errors import PlanMismatchError
from brimful.plan import Plan
from brimful.sources.source import Source
from brimful.store.claim import JobSettings, PackJob
from brimful.store.shard_task import ShardContext, ShardTasks, write_shard
from brimful.store.shards import EndRecord, ShardRecord, StreamLog, new_producer_id

_IN_PROCESS_TOKENS = 30_000_000
"""Tokens below which one process copies a job faster than several processes start."""

_ENCODING_COST = 10
"""Minimum time to encode a token ÷ time to copy a kept one; lowers the token bound if tokens are encoded."""


@understands({}, JobSettings)
def write_packs(
    plan: Plan,
    source: Source | Any,
    encoder: Encoder | str | os.PathLike[str] | Any,
    directory: str | os.PathLike[str],
    job: JobSettings | None = None,
    *,
    encoded: StoredSamples | None = None,
    **options: Any,
) -> int:
    """Write the packs of a plan as a pack store.

    Shards appear whole or not at all, and a shard exists once its record is in the log. After a kill at any point, the
    same call writes the missing shards; on a finished store it does nothing. Every sample must encode to its planned
    length.

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
        BadSampleError: a medium cannot be read, or was changed while it was packed; names sample and medium.
        StoreMismatchError: the directory holds other packs.
        UnfinishedSharesError: the share of this call is done, but others are not.
        StoreFullError: no space left, or less than the media need; the same call resumes once space is free.
    """
    check_type("plan", plan, Plan, "a Plan", "the call is write_packs(plan, source, encoder, directory)")
    settings = as_settings(JobSettings, job, options)
    pack_job = PackJob.open(source, encoder, directory, settings, plan.settings.overflow_policy)
    if plan.num_packs == 0:
        raise PlanMismatchError("the plan has no packs: every sample was dropped or rejected")
    num_samples = len(pack_job.source)
    if plan.ledger.samples_in != num_samples:
        raise PlanMismatchError(
            f"the plan is for {plan.ledger.samples_in:,} samples and {pack_job.source.title} has {num_samples:,}: plan "
            f"again"
        )
    plan.check_fingerprint()
    return write_plan(pack_job, plan, encoded)


def write_plan(job: PackJob, plan: Plan, encoded: StoredSamples | None) -> int:
    """Write the packs of a plan that was made from the samples of a job; ``write_packs`` explains it.

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
                is_packed = np.zeros(plan.ledger.samples_in, dtype=bool)
                is_packed[plan.sample_ids[: int(plan.offsets[-1])]] = True
                attached.survey(is_packed)
                attached.lay_out(plan, encoded)
        per_shard = job.claim(plan)
        num_shards = -(-plan.num_packs // per_shard)
        shards = execution.share(range(num_shards))
        pending_shards = _pending_shards(store, log, shards)
        edges = np.minimum(np.arange(num_shards + 1) * per_shard, plan.num_packs)
        small_job = _IN_PROCESS_TOKENS if encoded is not None else _IN_PROCESS_TOKENS // _ENCODING_COST
        is_small = plan.ledger.tokens_packed < small_job and (attached is None or attached.is_small)
        resources = job.resources.for_work(is_small=is_small)
        progress = resources.progress
        if attached is not None and pending_shards:
            attached.announce(plan, pending_shards)
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
            media_root="" if attached is None else attached.root,
        )
        packs_of_shards = np.diff(edges)
        num_packs = int(packs_of_shards[shards].sum())
        with progress.stage("write", total=num_packs, unit="packs"):
            progress.advance(num_packs - int(packs_of_shards[pending_shards].sum()), resumed=True)
            tasks = run_tasks(
                write_shard,
                ShardTasks(pending_shards, plan, per_shard, None if attached is None else attached.layout),
                context=context,
                resources=resources,
                # One shard is gathered while another is flushed; encoders are never called from two threads.
                threads=2 if encoded is not None else 1,
                shared=[store.directory] if isinstance(store, LocalBlobStore) else [],
            )
            with closing(tasks) as results:
                for _, (num_packs, num_tokens) in results:
                    progress.advance(num_packs, tokens=num_tokens)
        # Every shard of this call is committed here: run_tasks raises if one task fails.
        if execution.is_share:
            # One listing is enough for most shares; only a share that may finish the job checks every file.
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


def _is_whole(store: BlobStore, record: ShardRecord) -> bool:
    """Return true if the files of a shard have their committed sizes."""
    media = record.media or {}
    return store.size(record.file) == record.bytes and (
        media.get("file") is None or store.size(media["file"]) == media["bytes"]
    )


def _pending_shards(store: BlobStore, log: StreamLog, shards: Sequence[int]) -> list[int]:
    """Return the shards that have to be written: not committed, or with a file that was deleted or cut short since."""
    committed_shards = log.committed()
    return [seq for seq in shards if seq not in committed_shards or not _is_whole(store, log.record_of(seq))]
