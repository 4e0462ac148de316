"""Writer of the packs of a finished plan. Every shard is a task that is safe to run twice."""

import functools
import os
import socket
import uuid
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np

from brimful.blobs import BlobStore, crash_points, open_blob_store
from brimful.checks import check_type
from brimful.encode.choose import as_encoder
from brimful.encode.encoded_samples import EncodedSamples
from brimful.encode.encoder import Encoder
from brimful.encode.token_runs import StoredSamples, mask_as_complement, unmask_complement
from brimful.errors import PlanMismatchError
from brimful.execute import available_cores, run_tasks
from brimful.fingerprint import short
from brimful.materialize.media import media_of_packs
from brimful.media import PlacedMedium
from brimful.plan import Plan
from brimful.progress import Progress
from brimful.shards import BATCH_ROWS, LANES, EndRecord, PackRows, ShardRecord, ShardWriter, StreamLog, shard_key
from brimful.sources.open import open_source
from brimful.sources.source import Source
from brimful.typing import Fingerprint, Int64Array, TokenIds

SHARD_BYTES = 64 << 20
"""Target size of a shard in bytes: few enough files for any file system, small enough to build in memory."""

_IN_PROCESS_TOKENS = 30_000_000
"""Tokens below which one process copies a job faster than several start."""

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
    encoded: StoredSamples | None
    directory: str
    packs_per_shard: int
    cum_tokens: list[int]
    """Tokens in each shard and all earlier ones."""
    producer_id: str


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
        progress: reports packs and tokens a second and the time left.

    Returns:
        Number of shards that this call wrote.

    Raises:
        LengthChangedError: a sample encodes to another length; names the sample.
        StoreMismatchError: the directory holds other packs.
        StoreFullError: no space left; the same call goes on when there is some.
    """
    check_type("plan", plan, Plan, "a Plan", "the call is write_packs(plan, source, encoder, directory)")
    source = open_source(source)
    encoder = as_encoder(source, encoder)
    if encoder.takes_media:
        encoded = None  # kept tokens say nothing of media
    if plan.num_packs == 0:
        raise PlanMismatchError("the plan has no packs: every sample was dropped or rejected")
    if plan.ledger.samples_in != len(source):
        raise PlanMismatchError(
            f"the plan is for {plan.ledger.samples_in:,} samples and {source.title} has {len(source):,}: plan again"
        )
    plan.check_fingerprint()
    progress = progress or Progress()
    store = open_blob_store(directory)
    with store.used():
        log = StreamLog(store)
        per_shard = packs_per_shard(plan, shard_bytes)
        log.begin(identity_of(plan, source, encoder, per_shard), notes or {})
        num_shards = -(-plan.num_packs // per_shard)
        pending_shards = _pending_shards(store, log, num_shards)
        edges = np.minimum(np.arange(num_shards + 1) * per_shard, plan.num_packs)
        if num_proc is None:
            small_job = _IN_PROCESS_TOKENS if encoded is not None else _IN_PROCESS_TOKENS // _ENCODING_COST
            num_proc = 1 if plan.ledger.tokens_packed < small_job else available_cores()
        # A plan that lies in a file is opened by each process, which is faster than to send it.
        context = _Context(
            plan=plan if num_proc == 1 or plan.path is None else None,
            plan_path=plan.path,
            plan_fingerprint=plan.fingerprint,
            samples=EncodedSamples(source, encoder),
            encoded=encoded,
            directory=str(directory),
            packs_per_shard=per_shard,
            cum_tokens=np.cumsum(plan.pack_tokens)[edges[1:] - 1].tolist(),
            producer_id=f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}",
        )
        with progress.stage("write", total=plan.num_packs, unit="packs"):
            progress.advance(plan.num_packs - int(np.diff(edges)[pending_shards].sum()), resumed=True)
            # One shard is gathered while another is flushed; encoders are not asked from two threads.
            threads = 2 if encoded is not None else 1
            tasks = run_tasks(_write_shard, pending_shards, context=context, num_proc=num_proc, threads=threads)
            with closing(tasks) as results:
                for _, (num_packs, num_tokens) in results:
                    progress.advance(num_packs, tokens=num_tokens)
        # Every shard is committed here: run_tasks raises if one task fails.
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
        **({"media": encoder.length_settings["media"]} if encoder.takes_media else {}),
        "lanes": LANES,
        "packs_per_shard": per_shard,
    }


def _pending_shards(store: BlobStore, log: StreamLog, num_shards: int) -> list[int]:
    """Return the shards to write: not committed, or with a file that was deleted or cut short since."""
    committed_shards = log.committed()
    return [
        seq
        for seq in range(num_shards)
        if seq not in committed_shards or store.size((record := log.record_of(seq)).file) != record.bytes
    ]


def _write_shard(context: _Context, seq: int) -> tuple[int, int]:
    """Build, publish and commit one shard, in any process; return its packs and tokens."""
    plan = context.plan if context.plan is not None else _open_plan(context.plan_path, context.plan_fingerprint)
    first = seq * context.packs_per_shard
    end = min(first + context.packs_per_shard, plan.num_packs)
    store: BlobStore = open_blob_store(context.directory)
    with store.blob(f"shards/{seq:08d}") as blob:
        writer = ShardWriter(blob, with_media=context.samples.encoder.takes_media)
        for begin in range(first, end, BATCH_ROWS):
            writer.add(_gather_rows(context, plan, begin, min(begin + BATCH_ROWS, end)))
        writer.close()
        key = shard_key(seq, blob.xxh3_128)
        blob.publish(key)
    # Killed here, the shard lies unseen under its content's name, and the next run publishes the same bytes again.
    crash_points.reach("after-shard")
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
    )
    StreamLog(store).commit(record)
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
        raise PlanMismatchError(f"{path} was removed while its packs were written: save the plan again") from error
    plan.check_fingerprint()
    if plan.fingerprint != fingerprint:
        raise PlanMismatchError(
            f"{path} holds plan {short(plan.fingerprint)} by now, and the packs are those of {short(fingerprint)}: "
            f"give each plan a file of its own"
        )
    return plan


def _gather_rows(context: _Context, plan: Plan, first: int, end: int) -> PackRows:
    """Return the packs ``first … end - 1`` of the plan as flat columns."""
    rows = slice(int(plan.offsets[first]), int(plan.offsets[end]))
    sample_ids = plan.sample_ids[rows].astype(np.int64)
    starts = np.ascontiguousarray(plan.starts[rows])
    lengths = np.ascontiguousarray(plan.lengths[rows])
    samples, media = _masked_runs(context, sample_ids)
    sample_lengths = np.array([len(sample) for sample in samples], dtype=np.int64)
    plan.check_sample_lengths(rows, sample_lengths, context.samples.source.where)
    # Most plans hold whole samples, and then nothing is cut.
    if starts.any() or not np.array_equal(sample_lengths, lengths):
        cuts = zip(samples, starts.tolist(), (starts + lengths).tolist(), strict=True)
        samples = [sample[start:stop] for sample, start, stop in cuts]
    input_ids, loss_mask = unmask_complement(np.concatenate(samples))
    segments = plan.offsets[first : end + 1] - plan.offsets[first]
    pack_media = None
    if context.samples.encoder.takes_media:
        pack_media = media_of_packs(media, sample_ids, starts, lengths, segments, context.samples.source.where)
    return PackRows(input_ids, loss_mask, lengths, sample_ids, starts, segments, pack_media)


def _masked_runs(
    context: _Context, sample_ids: Int64Array
) -> tuple[list[TokenIds], dict[int, tuple[PlacedMedium, ...]]]:
    """Return the tokens of each segment's sample with their mask, kept by measuring or encoded now; and media by sample."""
    if context.encoded is not None:
        return context.encoded.masked_runs(sample_ids.tolist()), {}
    media: dict[int, tuple[PlacedMedium, ...]] = {}
    # A sample that was split into several of these segments is encoded once.
    distinct_ids = np.unique(sample_ids).tolist()
    runs: dict[int, TokenIds] = {}
    for sample_id, sample in zip(distinct_ids, context.samples.read(distinct_ids), strict=True):
        runs[sample_id] = mask_as_complement(sample.input_ids, sample.loss_mask)
        media[sample_id] = sample.media
    return [runs[sample_id] for sample_id in sample_ids.tolist()], media
