"""Writer of the packs of a finished plan. Every shard is a task that is safe to run twice."""

import errno
import os
import shutil
import socket
import uuid
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any

import numpy as np

from brimful.arguments import understands
from brimful.blobs import BlobStore, LocalBlobStore
from brimful.checks import check_type
from brimful.encode.encoder import Encoder
from brimful.encode.token_runs import StoredSamples
from brimful.errors import PlanMismatchError, StoreFullError
from brimful.execute import available_cores, run_tasks
from brimful.materialize.changed_media import explained_changes_of_media
from brimful.materialize.claim import PackJob, media_root_of
from brimful.materialize.feature_sizes import with_features
from brimful.materialize.media_layout import MediaLayout
from brimful.materialize.media_survey import MediaSurvey, survey_media
from brimful.materialize.settings import JobSettings
from brimful.materialize.shard_task import ShardContext, ShardTasks, write_shard
from brimful.media.storage import MediaStorage
from brimful.messages import setting, size_of
from brimful.plan import Plan
from brimful.progress import Progress
from brimful.settings import as_settings
from brimful.shards import EndRecord, ShardRecord, StreamLog
from brimful.sources.source import Source
from brimful.typing import BoolArray

_IN_PROCESS_TOKENS = 30_000_000
"""Tokens below which one process copies a job faster than several processes start."""

_IN_PROCESS_BYTES = 256 << 20
"""Bytes of media below which one process is faster than several."""

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


def write_plan(job: PackJob, plan: Plan, encoded: StoredSamples | None, layout: MediaLayout | None = None) -> int:
    """Write the packs of a plan that was made from the samples of a job; ``write_packs`` explains it.

    Args:
        job, plan: of the packs.
        encoded: tokens that measuring kept.
        layout: places of the media, if the caller has it; made now if None.
    """
    source, store, log, execution = job.source, job.store, job.log, job.execution
    with ExitStack() as stack:
        stack.enter_context(store.used())
        if job.encoder.takes_media:
            # Tokens that measuring kept belong to the media as they were when this job began.
            stack.enter_context(explained_changes_of_media(is_measured_now=encoded is not None))
            if layout is None:
                if _is_complete(store, log):
                    job.expect(job.identity(plan, 0))
                    return 0
                layout = layout_of(job, plan, survey_of(job, _is_packed(plan)), encoded)
        per_shard = job.claim(plan, layout)
        if layout is not None:
            layout = replace(layout, packs_of_shard=per_shard)
        num_shards = -(-plan.num_packs // per_shard)
        shards = execution.share(range(num_shards))
        pending_shards = _pending_shards(store, log, shards)
        edges = np.minimum(np.arange(num_shards + 1) * per_shard, plan.num_packs)
        num_proc = job.settings.num_proc
        if num_proc is None and execution.is_local:
            small_job = _IN_PROCESS_TOKENS if encoded is not None else _IN_PROCESS_TOKENS // _ENCODING_COST
            is_small = plan.ledger.tokens_packed < small_job
            if layout is not None:
                is_small = is_small and layout.stored_bytes < _IN_PROCESS_BYTES
            num_proc = 1 if is_small else available_cores()
        if layout is not None and pending_shards:
            _announce_media(layout, source, job.progress)
            _check_space(store, plan, layout, pending_shards)
        # A plan in a file is opened by each process, which is faster than sending it.
        context = ShardContext(
            plan=plan if num_proc == 1 or plan.path is None else None,
            plan_path=plan.path,
            plan_fingerprint=plan.fingerprint,
            samples=job.samples,
            features=job.maker,
            encoded=encoded,
            directory=job.directory,
            packs_per_shard=per_shard,
            cum_tokens=np.cumsum(plan.pack_tokens)[edges[1:] - 1].tolist(),
            producer_id=f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}",
            media_root=media_root_of(source) if job.encoder.takes_media else "",
        )
        packs_of_shards = np.diff(edges)
        num_packs = int(packs_of_shards[shards].sum())
        with job.progress.stage("write", total=num_packs, unit="packs"):
            job.progress.advance(num_packs - int(packs_of_shards[pending_shards].sum()), resumed=True)
            tasks = run_tasks(
                write_shard,
                ShardTasks(pending_shards, plan, per_shard, layout),
                context=context,
                num_proc=num_proc,
                # One shard is gathered while another is flushed; encoders are never called from two threads.
                threads=2 if encoded is not None else 1,
                execution=execution,
                shared=[store.directory] if isinstance(store, LocalBlobStore) else [],
                say=job.progress.say,
            )
            with closing(tasks) as results:
                for _, (num_packs, num_tokens) in results:
                    job.progress.advance(num_packs, tokens=num_tokens)
        # Every shard of this call is committed here: run_tasks raises if one task fails.
        if execution.is_share:
            # One listing is enough for most shares; only a share that may finish the job checks every file.
            num_committed = len(log.committed() & set(range(num_shards)))
            execution.check_all_done(num_committed, num_shards, "shards")
            num_whole = num_shards - len(_pending_shards(store, log, range(num_shards)))
            execution.check_all_done(num_whole, num_shards, "shards")
        log.end(EndRecord(num_shards, plan.num_packs, plan.ledger.tokens_packed))
        return len(pending_shards)


def survey_of(job: PackJob, is_wanted: BoolArray) -> MediaSurvey:
    """Read the sizes and fingerprints of the media of some samples (``bool[num_samples]``)."""
    return survey_media(job.source, is_wanted, cache_dir=job.settings.cache_dir, **job.resources)


def layout_of(job: PackJob, plan: Plan, survey: MediaSurvey, encoded: StoredSamples | None) -> MediaLayout:
    """Return the places of the media of a plan, and of their features if the packs hold them."""
    layout = MediaLayout.of(plan, survey, job.storage)
    return with_features(layout, job.maker, job.samples, encoded, **job.resources)


def _is_packed(plan: Plan) -> BoolArray:
    """Return ``bool[num_samples]``, true for samples in a pack."""
    is_packed = np.zeros(plan.ledger.samples_in, dtype=bool)
    is_packed[plan.sample_ids[: int(plan.offsets[-1])]] = True
    return is_packed


def _announce_media(layout: MediaLayout, source: Source, progress: Progress) -> None:
    """Report the number of media and their bytes on disk, before anything is written."""
    num_used = int(np.count_nonzero(layout.is_used))
    if not num_used:
        return
    used_bytes = int(layout.survey.sizes[layout.is_used].sum())
    parts = [f"{num_used:,} in the packs ({size_of(used_bytes)})"]
    if layout.num_stored:
        form, factor = "stored", ""
        if layout.features is not None:
            source_bytes = int(layout.survey.sizes[layout.first_uses].sum())
            form, factor = "stored as features", f" ({layout.stored_bytes / source_bytes:.1f} × their bytes)"
        parts.append(f"{layout.num_stored:,} distinct ones {form}, {size_of(layout.stored_bytes)} on disk{factor}")
    if layout.num_references:
        root = media_root_of(source)
        parts.append(f"{layout.num_references:,} referenced" + (f" in {root}" if root else ""))
    progress.say(f"media: {'; '.join(parts)}")


def _check_space(store: BlobStore, plan: Plan, layout: MediaLayout, pending: Sequence[int]) -> None:
    """Check the free space before writing: media are large, and their sizes are known.

    Raises:
        StoreFullError: the disk has less free space than the media of the missing shards take.
    """
    if not isinstance(store, LocalBlobStore):
        return
    is_pending = np.isin(layout.shards, pending)
    sizes = layout.stored_sizes[is_pending]
    num_bytes = (
        int(sizes.sum())
        + 1024 * len(sizes)
        + 5 * plan.ledger.tokens_packed * len(pending) * layout.packs_of_shard // plan.num_packs
    )
    home = store.directory
    while not home.exists():
        home = home.parent
    free = shutil.disk_usage(home).free
    if len(sizes) and num_bytes > free:
        way_out = (
            f", or choose {setting('media_storage', 'references')}"
            if layout.storage is not MediaStorage.REFERENCES
            else ""
        )
        raise StoreFullError(
            errno.ENOSPC,
            f"{store.url} needs {size_of(num_bytes)}, most of them for media, and {size_of(free)} are free: "
            f"free some space{way_out}",
        )


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
