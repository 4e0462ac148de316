"""Writer of the packs of a finished plan. Every shard is a task that is safe to run twice."""

import errno
import functools
import os
import shutil
import socket
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

import numpy as np

from brimful.blobs import BlobGroup, BlobStore, LocalBlobStore, crash_points, open_blob_store
from brimful.checks import check_type, choice_of
from brimful.encode.choose import as_encoder
from brimful.encode.encoded_samples import EncodedSamples
from brimful.encode.encoder import Encoder
from brimful.encode.small_jobs import encoder_of_job
from brimful.encode.token_runs import KeptMedium, StoredSamples, mask_as_complement, unmask_complement
from brimful.errors import BadSampleError, PlanMismatchError, StoreFullError, StoreMismatchError
from brimful.execute import LOCAL, ExecutionLike, as_execution, available_cores, run_tasks
from brimful.fingerprint import short
from brimful.materialize.changed_media import explained_changes_of_media
from brimful.materialize.feature_sizes import feature_facts, feature_maker, with_features
from brimful.materialize.media import ShardMediaWriter
from brimful.materialize.media_layout import MediaLayout, PlacedLayout, ShardMedia
from brimful.materialize.media_survey import survey_media
from brimful.media import BadMediumError, PlacedMedium
from brimful.media.features import FeatureMaker
from brimful.media.storage import MediaStorage
from brimful.messages import setting, size_of
from brimful.plan import Plan
from brimful.plan.policies.groups import check_mismatches_keep_beginning
from brimful.progress import Progress
from brimful.shards import (
    BATCH_ROWS,
    JSON_VERSION,
    LANES,
    MEDIA_VERSION,
    SHARD_VERSION,
    EndRecord,
    PackRows,
    ShardRecord,
    ShardWriter,
    StreamLog,
    root_note,
    shard_key,
)
from brimful.sources.open import open_source
from brimful.sources.source import Source
from brimful.typing import Fingerprint, Int64Array, TokenIds

SHARD_BYTES = 64 << 20
"""Target size of a shard in bytes: few enough files for any file system, small enough to build in memory."""

_IN_PROCESS_TOKENS = 30_000_000
"""Tokens below which one process copies a job faster than several start."""

_IN_PROCESS_BYTES = 256 << 20
"""Bytes of media that one process copies before several would be done."""

_ENCODING_COST = 10
"""Least time to encode a token ÷ time to copy one that measuring kept; lowers the bound above where tokens are encoded."""


@dataclass(frozen=True)
class _Context:
    """Everything that a task needs beside the number of its shard; travels to worker processes."""

    plan: Plan | None
    """None for processes that open it themselves, from ``plan_path``."""
    plan_path: str | None
    plan_fingerprint: Fingerprint
    samples: EncodedSamples
    features: FeatureMaker | None
    encoded: StoredSamples | None
    directory: str
    packs_per_shard: int
    cum_tokens: list[int]
    """Tokens in each shard and all earlier ones."""
    producer_id: str
    media_root: str
    """Directory that references are relative to."""
    media_version: int
    """Version of shards with media: that of the job that began the store."""


@dataclass(frozen=True)
class _ShardTask:
    """One shard to write, and what is known of the media of its samples."""

    seq: int
    media: ShardMedia | None

    def __str__(self) -> str:
        return f"shard {self.seq}"


class _ShardTasks(Sequence[_ShardTask]):
    """Tasks of shards, made when they are asked for: the facts of all media are not copied at once."""

    def __init__(self, pending: Sequence[int], plan: Plan, per_shard: int, layout: PlacedLayout | None) -> None:
        self._pending, self._plan, self._per_shard, self._layout = pending, plan, per_shard, layout

    def __len__(self) -> int:
        return len(self._pending)

    def __getitem__(self, index: int) -> _ShardTask:  # type: ignore[override]
        seq = self._pending[index]
        if self._layout is None:
            return _ShardTask(seq, None)
        first, end = seq * self._per_shard, min((seq + 1) * self._per_shard, self._plan.num_packs)
        segments = slice(int(self._plan.offsets[first]), int(self._plan.offsets[end]))
        return _ShardTask(seq, self._layout.of_samples(seq, self._plan.sample_ids[segments].astype(np.int64)))

    def __iter__(self) -> Iterator[_ShardTask]:
        return (self[index] for index in range(len(self)))


def write_packs(
    plan: Plan,
    source: Source | Any,
    encoder: Encoder | str | os.PathLike[str] | Any,
    directory: str | os.PathLike[str],
    *,
    encoded: StoredSamples | None = None,
    shard_bytes: int = SHARD_BYTES,
    num_proc: int | None = None,
    notes: dict[str, Any] | None = None,
    media_storage: MediaStorage | str = MediaStorage.REFERENCES,
    media_layout: MediaLayout | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    execution: ExecutionLike = LOCAL,
    progress: Progress | None = None,
) -> int:
    """Write the packs of a plan as a pack store.

    Shards appear whole or not at all, and a shard exists once its record is in the log. Killed at any point, the
    same call writes the missing shards; on a finished store it does nothing. Every sample must encode to the length
    that it was planned with.

    Args:
        plan: from ``plan_packs`` over the lengths of this source.
        source: the samples, or anything that ``open_source`` takes.
        encoder: the one that measured them; or a tokenizer, or its name.
        directory: of the store; a path or a URL.
        encoded: tokens that measuring kept, so that no sample is encoded twice.
        shard_bytes: target size of a shard.
        num_proc: processes; all cores if None, one for small jobs. Never changes a byte.
        notes: for people, such as the name of the tokenizer; kept in the header, not compared.
        media_storage: what the store holds of media that lie in files: ``references``, ``bytes`` or ``features``. Bytes are stored once for
            each distinct medium; bytes that came with rows always are.
        media_layout: where the media go, for a caller that has it; made now if None.
        cache_dir: directory in which fingerprints of files are remembered.
        execution: ``ray``, for a cluster, or an ``Execution``, for one share of the shards. Source, plan and directory must lie
            where all machines see them.
        progress: reports packs and tokens a second and the time left.

    Returns:
        Number of shards that this call wrote.

    Raises:
        LengthChangedError: a sample encodes to another length; names the sample.
        BadSampleError: a medium cannot be read, or was changed while it was packed; names sample and medium.
        StoreMismatchError: the directory holds other packs.
        UnfinishedSharesError: the share of this call is done, and others are not.
        StoreFullError: no space left, or less than the media need; the same call goes on when there is some.
    """
    check_type("plan", plan, Plan, "a Plan", "the call is write_packs(plan, source, encoder, directory)")
    source = open_source(source)
    encoder = as_encoder(source, encoder)
    storage = choice_of(MediaStorage, media_storage, argument="media_storage")
    execution = as_execution(execution)
    if plan.num_packs == 0:
        raise PlanMismatchError("the plan has no packs: every sample was dropped or rejected")
    if plan.ledger.samples_in != len(source):
        raise PlanMismatchError(
            f"the plan is for {plan.ledger.samples_in:,} samples and {source.title} has {len(source):,}: plan again"
        )
    if source.has_mismatches:
        check_mismatches_keep_beginning(plan.settings.overflow_policy)
    plan.check_fingerprint()
    progress = progress or Progress()
    store = open_blob_store(directory)
    with ExitStack() as stack:
        stack.enter_context(store.used())
        if encoder.takes_media:
            # Tokens that measuring kept are of the media as they were when this job began.
            stack.enter_context(explained_changes_of_media(is_measured_now=encoded is not None))
        log = StreamLog(store)
        layout = media_layout
        maker = feature_maker(encoder, storage)
        samples = EncodedSamples(source, encoder_of_job(encoder, source.blocks))
        if encoder.takes_media and layout is None:
            if _is_complete(store, log):
                expect_media(log, identity_of(plan, source, encoder, 0), storage, maker)
                return 0
            options: dict[str, Any] = {"num_proc": num_proc, "execution": execution, "progress": progress}
            layout = MediaLayout.of(
                plan, survey_media(source, _is_packed(plan), cache_dir=cache_dir, **options), storage
            )
            layout = with_features(layout, maker, samples, encoded, **options)
        per_shard = claim_store(log, plan, source, encoder, shard_bytes=shard_bytes, notes=notes, layout=layout)
        placed_layout = None if layout is None else layout.placed(per_shard)
        num_shards = -(-plan.num_packs // per_shard)
        shards = execution.share(range(num_shards))
        pending_shards = _pending_shards(store, log, shards)
        edges = np.minimum(np.arange(num_shards + 1) * per_shard, plan.num_packs)
        if num_proc is None and execution.is_local:
            small_job = _IN_PROCESS_TOKENS if encoded is not None else _IN_PROCESS_TOKENS // _ENCODING_COST
            is_small = plan.ledger.tokens_packed < small_job
            if layout is not None:
                is_small = is_small and layout.stored_bytes < _IN_PROCESS_BYTES
            num_proc = 1 if is_small else available_cores()
        if layout is not None and pending_shards:
            _announce_media(layout, source, progress)
            _check_space(store, plan, placed_layout, pending_shards, per_shard)
        # A plan that lies in a file is opened by each process, which is faster than to send it.
        context = _Context(
            plan=plan if num_proc == 1 or plan.path is None else None,
            plan_path=plan.path,
            plan_fingerprint=plan.fingerprint,
            samples=samples,
            features=maker,
            encoded=encoded,
            directory=str(directory),
            packs_per_shard=per_shard,
            cum_tokens=np.cumsum(plan.pack_tokens)[edges[1:] - 1].tolist(),
            producer_id=f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}",
            media_root=media_root_of(source) if encoder.takes_media else "",
            media_version=_media_version(log),
        )
        packs_of_shards = np.diff(edges)
        num_packs = int(packs_of_shards[shards].sum())
        with progress.stage("write", total=num_packs, unit="packs"):
            progress.advance(num_packs - int(packs_of_shards[pending_shards].sum()), resumed=True)
            # One shard is gathered while another is flushed; encoders are not asked from two threads.
            threads = 2 if encoded is not None else 1
            shard_tasks = _ShardTasks(pending_shards, plan, per_shard, placed_layout)
            tasks = run_tasks(
                _write_shard,
                shard_tasks,
                context=context,
                num_proc=num_proc,
                threads=threads,
                execution=execution,
                shared=[store.directory] if isinstance(store, LocalBlobStore) else [],
                say=progress.say,
            )
            with closing(tasks) as results:
                for _, (num_packs, num_tokens) in results:
                    progress.advance(num_packs, tokens=num_tokens)
        # Every shard of this call is committed here: run_tasks raises if one task fails.
        if execution.is_share:
            # One listing answers most shares; only one that may join looks at every file.
            num_committed = len(log.committed() & set(range(num_shards)))
            execution.check_all_done(num_committed, num_shards, "shards")
            num_whole = num_shards - len(_pending_shards(store, log, range(num_shards)))
            execution.check_all_done(num_whole, num_shards, "shards")
        log.end(EndRecord(num_shards, plan.num_packs, plan.ledger.tokens_packed))
        return len(pending_shards)


def packs_per_shard(plan: Plan, shard_bytes: int) -> int:
    """Return the number of packs in one shard, at 4 bytes a token; at least one."""
    return max(1, min(shard_bytes // (4 * plan.capacity), plan.num_packs))


def identity_of(plan: Plan, source: Source, encoder: Encoder, per_shard: int) -> dict[str, Any]:
    """Return the settings and fingerprints that two jobs must share to write the same files."""
    settings = plan.settings.identity(plan.outcome.groups)
    return {
        **({"alignment": settings["alignment"]} if "alignment" in settings else {}),
        "settings": settings,
        "capacity": plan.capacity,
        "plan": plan.fingerprint,
        "source": source.fingerprint,
        "encoder": encoder.fingerprint,
        "train_on": encoder.label_settings.get("train_on"),
        # Of media it says what the collator has to know: MediaFeatures.of_packs.
        **(
            {"media_settings": settings_of_media} if (settings_of_media := encoder.length_settings.get("media")) else {}
        ),
        "lanes": LANES,
        "packs_per_shard": per_shard,
    }


def claim_store(
    log: StreamLog,
    plan: Plan,
    source: Source,
    encoder: Encoder,
    *,
    shard_bytes: int,
    notes: dict[str, Any] | None,
    layout: MediaLayout | None,
) -> int:
    """Claim the directory of a store for a job, and return its packs per shard.

    Raises:
        StoreMismatchError: it holds packs of another job, or of media elsewhere.
    """
    per_shard = packs_per_shard(plan, shard_bytes)
    if layout is None:
        log.begin(identity_of(plan, source, encoder, per_shard), notes or {})
        return per_shard
    per_shard = layout.packs_per_shard(per_shard, plan.num_packs)
    note = root_note(log.store, media_root_of(source)) if layout.num_references else {}
    media: dict[str, Any] = {"storage": layout.storage.value, "fingerprint": layout.fingerprint}
    if layout.features is not None:
        media["features"] = dict(layout.features)
    version = _media_version(log)
    if version > JSON_VERSION:
        media["shards"] = version
    log.begin({**identity_of(plan, source, encoder, per_shard), "media": media}, {**(notes or {}), **note})
    # References are relative to the root of the job that began the store. It may have been moved with its media since.
    begun = log.header()["notes"]
    for name, root in note.items():
        if not set(root.items()) & set(begun.get(name, {}).items()):
            raise StoreMismatchError(
                f"{log.store.url} names media in {begun.get(name, {}).get('path')!r} and the job has them in "
                f"{root['path']!r}: choose another {setting('directory')}, or {setting('media_dir')} as before"
            )
    return per_shard


def _media_version(log: StreamLog) -> int:
    """Return the version of shards with media: that of the job that began the store, so that all of them are alike."""
    if not log.is_begun():
        return MEDIA_VERSION
    return int(log.header()["identity"].get("media", {}).get("shards", JSON_VERSION))


def expect_media(
    log: StreamLog, identity: Mapping[str, Any], storage: MediaStorage, maker: FeatureMaker | None = None
) -> None:
    """Check that a store was made by this job, with this storage of media; its media themselves are not read.

    Raises:
        StoreMismatchError: it holds packs of another job.
    """
    begun = log.header()["identity"]
    # Stores of version 2 say nothing of media: they have references.
    media = begun.get("media", {} if storage is MediaStorage.REFERENCES else {"storage": MediaStorage.REFERENCES.value})
    features = {} if maker is None else {"features": feature_facts(maker)}
    expected = {**identity, **({"media": {**media, "storage": storage.value, **features}} if media else {})}
    expected.pop("packs_per_shard", None)  # of no use without the sizes of media
    log.expect(expected)


def media_root_of(source: Source) -> str:
    """Return the directory that holds all media of a source, as its rows are placed; empty if there is none but the root."""
    try:
        root = os.path.commonpath(source.media_directories)
    except ValueError:  # none, or on several drives
        return ""
    return "" if os.path.dirname(root) == root else root


def _is_packed(plan: Plan) -> Any:
    """Return ``bool[num_samples]``, true for samples in a pack."""
    is_packed = np.zeros(plan.ledger.samples_in, dtype=bool)
    is_packed[plan.sample_ids[: int(plan.offsets[-1])]] = True
    return is_packed


def _announce_media(layout: MediaLayout, source: Source, progress: Progress) -> None:
    """Say how many media there are, and what of them goes to disk, before anything does."""
    num_used = int(np.count_nonzero(layout.is_used))
    if not num_used:
        return
    used_bytes = int(layout.survey.sizes[layout.is_used].sum())
    parts = [f"{num_used:,} in the packs ({size_of(used_bytes)})"]
    if layout.num_stored:
        form, factor = "stored", ""
        if layout.features is not None:
            source_bytes = int(layout.survey.sizes[layout.first_uses].sum())
            form, factor = "stored as features", f" ({layout.stored_bytes / max(1, source_bytes):.1f} × their bytes)"
        parts.append(f"{layout.num_stored:,} distinct ones {form}, {size_of(layout.stored_bytes)} on disk{factor}")
    if layout.num_references:
        root = media_root_of(source)
        parts.append(f"{layout.num_references:,} referenced" + (f" in {root}" if root else ""))
    progress.say(f"media: {'; '.join(parts)}")


def _check_space(
    store: BlobStore, plan: Plan, layout: PlacedLayout | None, pending: Sequence[int], per_shard: int
) -> None:
    """Refuse to begin what cannot end: media are large, and their sizes are known.

    Raises:
        StoreFullError: the disk has less free space than the media of the shards that are not there yet take.
    """
    if layout is None or not isinstance(store, LocalBlobStore):
        return
    is_pending = np.isin(layout.shards, pending)
    sizes = layout.layout.stored_sizes[is_pending]
    num_bytes = (
        int(sizes.sum())
        + 1024 * len(sizes)
        + 5 * plan.ledger.tokens_packed * len(pending) * per_shard // plan.num_packs
    )
    home = store.directory
    while not home.exists():
        home = home.parent
    free = shutil.disk_usage(home).free
    if len(sizes) and num_bytes > free:
        way_out = (
            f", or choose {setting('media_storage', 'references')}"
            if layout.layout.storage is not MediaStorage.REFERENCES
            else ""
        )
        raise StoreFullError(
            errno.ENOSPC,
            f"{store.url} needs {size_of(num_bytes)}, most of them for media, and {size_of(free)} are free: "
            f"free some space{way_out}",
        )


def _is_complete(store: BlobStore, log: StreamLog) -> bool:
    """Return true if all shards are there, and the end of the log."""
    if not log.is_begun():
        return False
    records, end = log.records()
    return end is not None and all(_is_whole(store, record) for record in records)


def _is_whole(store: BlobStore, record: ShardRecord) -> bool:
    """Return true if the files of a shard have the sizes that were committed."""
    media = record.media or {}
    return store.size(record.file) == record.bytes and (
        media.get("file") is None or store.size(media["file"]) == media["bytes"]
    )


def _pending_shards(store: BlobStore, log: StreamLog, shards: Sequence[int]) -> list[int]:
    """Return the shards of some that are to be written: not committed, or with a file that was deleted or cut short since."""
    committed_shards = log.committed()
    return [seq for seq in shards if seq not in committed_shards or not _is_whole(store, log.record_of(seq))]


def _write_shard(context: _Context, task: _ShardTask) -> tuple[int, int]:
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
            media = stack.enter_context(ShardMediaWriter(seq, task.media, context.samples, store, context.features))
        blob = files.blob(f"shards/{seq:08d}")
        version = SHARD_VERSION if media is None else context.media_version
        writer = ShardWriter(blob, version=version, media_root=context.media_root)
        for begin in range(first, end, BATCH_ROWS):
            writer.add(_gather_rows(context, plan, begin, min(begin + BATCH_ROWS, end), media))
        writer.close()
        if media is not None:
            media_facts = media.publish()
            crash_points.reach("after-media")
        key = shard_key(seq, blob.xxh3_128)
        files.add(key, blob)
        cum_tokens = context.cum_tokens[seq]
        num_tokens = cum_tokens - (context.cum_tokens[seq - 1] if seq else 0)
        record = ShardRecord(
            seq=seq,
            file=key,
            bytes=blob.size,
            xxh3_128=blob.xxh3_128,
            packs=end - first,
            tokens=num_tokens,
            cum_packs=end,
            cum_tokens=cum_tokens,
            producer_id=context.producer_id,
            media=media_facts,
            batches=writer.batches,
        )
        # Killed in between, the shard lies unseen under its content's name, and the next run publishes the same bytes again.
        StreamLog(store).commit(record, files)
        crash_points.reach("after-commit")
    return end - first, num_tokens


@functools.lru_cache(maxsize=1)
def _open_plan(path: str | None, fingerprint: Fingerprint) -> Plan:
    """Open and check the plan, once in each worker process.

    Another plan may have been saved over it meanwhile. Only one stays mapped in a process that outlives its job.

    Raises:
        PlanMismatchError: the file is gone, or holds another plan.
        CorruptFileError: it is damaged.
    """
    assert path is not None
    try:
        plan = Plan.open(path)
    except FileNotFoundError as error:
        raise PlanMismatchError(
            f"{path} was removed while its packs were written, or lies where only one machine sees it: save the plan again"
        ) from error
    plan.check_fingerprint()
    if plan.fingerprint != fingerprint:
        raise PlanMismatchError(
            f"{path} holds plan {short(plan.fingerprint)} by now, and the packs are those of {short(fingerprint)}: "
            f"give each plan a file of its own"
        )
    return plan


def _gather_rows(
    context: _Context, plan: Plan, first: int, end: int, media: ShardMediaWriter | None = None
) -> PackRows:
    """Return the packs ``first … end - 1`` of the plan as flat columns; new bytes of media go to their container."""
    rows = slice(int(plan.offsets[first]), int(plan.offsets[end]))
    sample_ids = plan.sample_ids[rows].astype(np.int64)
    starts = np.ascontiguousarray(plan.starts[rows])
    lengths = np.ascontiguousarray(plan.lengths[rows])
    samples, kept_media = _masked_runs(context, sample_ids)
    sample_lengths = np.array([len(sample) for sample in samples], dtype=np.int64)
    plan.check_sample_lengths(rows, sample_lengths, context.samples.source.where)
    # Most plans hold whole samples, and then nothing is cut.
    if starts.any() or not np.array_equal(sample_lengths, lengths):
        cuts = zip(samples, starts.tolist(), (starts + lengths).tolist(), strict=True)
        samples = [sample[start:stop] for sample, start, stop in cuts]
    input_ids, loss_mask = unmask_complement(np.concatenate(samples))
    segments = plan.offsets[first : end + 1] - plan.offsets[first]
    pack_media = None if media is None else media.packs(kept_media, sample_ids, starts, lengths, segments)
    return PackRows(input_ids, loss_mask, lengths, sample_ids, starts, segments, pack_media)


def _masked_runs(
    context: _Context, sample_ids: Int64Array
) -> tuple[list[TokenIds], Mapping[int, Sequence[KeptMedium]]]:
    """Return the tokens of each segment's sample with their mask, kept by measuring or encoded now; and media by sample."""
    if context.encoded is not None:
        ids = sample_ids.tolist()
        return context.encoded.masked_runs(ids), context.encoded.media(
            ids
        ) if context.samples.encoder.takes_media else {}
    media: dict[int, list[KeptMedium]] = {}
    # A sample that was split into several of these segments is encoded once.
    distinct_ids = np.unique(sample_ids).tolist()
    runs: dict[int, TokenIds] = {}
    for sample_id, sample in zip(distinct_ids, context.samples.read(distinct_ids), strict=True):
        runs[sample_id] = mask_as_complement(sample.input_ids, sample.loss_mask)
        if sample.media:
            media[sample_id] = [KeptMedium(item, _stamp(context, sample_id, item)) for item in sample.media]
    return [runs[sample_id] for sample_id in sample_ids.tolist()], media


def _stamp(context: _Context, sample_id: int, item: PlacedMedium) -> int:
    """Return the state of a medium's file, which was opened just before."""
    try:
        return item.medium.stamp()
    except BadMediumError as error:
        where = context.samples.source.where(sample_id)
        raise BadSampleError(f"{item.title}: {error}", sample_id=sample_id, where=where) from error
