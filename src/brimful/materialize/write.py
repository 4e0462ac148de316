"""Writing the packs of a finished plan: every shard a task, every task safe to run twice."""

from __future__ import annotations

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
from brimful.encode.encoder import Encoder
from brimful.encode.token_runs import StoredSamples, mask_as_complement, unmask_complement
from brimful.errors import BadSampleError, PlanMismatchError, SettingsError
from brimful.execute import available_cores, run_tasks
from brimful.fingerprint import short
from brimful.messages import setting
from brimful.plan import Plan
from brimful.plan.settings import PlanSettings
from brimful.progress import Progress
from brimful.shards import BATCH_ROWS, EndRecord, PackRows, ShardRecord, ShardWriter, StreamLog, shard_key
from brimful.sources.open import open_source
from brimful.sources.source import Source
from brimful.typing import Fingerprint, Int64Array, TokenIds

__all__ = ["write_packs"]

SHARD_BYTES = 64 << 20
"""Aim for the size of a shard: few enough files for any file system, small enough to build in memory."""

_ENCODE_SAMPLES = 512
_IN_PROCESS_TOKENS = 30_000_000
_ENCODING_COST = 10
"""What encoding a token costs more than copying one that measuring left, at least."""


@dataclass(frozen=True)
class _Context:
    plan: Plan | None
    """None where processes open it themselves, from ``plan_path``."""
    plan_path: str | None
    plan_fingerprint: Fingerprint
    source: Source
    encoder: Encoder
    encoded: StoredSamples | None
    directory: str
    packs_per_shard: int
    cum_tokens: list[int]
    """Tokens in each shard and all before it."""
    producer_id: str


def write_packs(
    plan: Plan,
    source: Source | Any,
    encoder: Encoder | str | os.PathLike[str] | Any,
    directory: str | os.PathLike[str],
    *,
    encoded: StoredSamples | None = None,
    lanes: int = 1,
    shard_bytes: int = SHARD_BYTES,
    num_proc: int | None = None,
    notes: dict[str, Any] | None = None,
    progress: Progress | None = None,
) -> int:
    """Write the packs of a plan as a pack store.

    Shards appear whole or not at all, and a shard exists once its record is in the log. Killed at any point, the
    same call writes what is missing; on a finished store it does nothing. Every sample must encode to the length
    that it was planned with.

    Args:
        plan: from ``plan_packs`` over the lengths of this source.
        source: the samples, or anything that ``open_source`` takes.
        encoder: the one that measured them; or a tokenizer, or its name.
        directory: of the store; a path or a URL.
        encoded: tokens that measuring left, so that they need not be made again.
        lanes: how a reader may divide the shards among ranks; written into the header.
        shard_bytes: aim for the size of a shard.
        num_proc: processes; all cores if None, one for small jobs. Never changes a byte.
        notes: for people, such as the name of the tokenizer; kept in the header, not compared.
        progress: reports packs and tokens a second and the time left.

    Returns:
        Shards that this call wrote.

    Raises:
        LengthChangedError: a sample encodes to another length; names the sample.
        StoreMismatchError: the directory holds other packs.
        StoreFullError: no space left; the same call goes on when there is some.
    """
    check_type("plan", plan, Plan, "a Plan", "the call is write_packs(plan, source, encoder, directory)")
    source = open_source(source)
    encoder = as_encoder(source, encoder)
    if lanes < 1:
        raise SettingsError(f"{setting('lanes')} must be at least 1 and is {lanes}")
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
        log.begin(identity_of(plan, source, encoder, lanes, per_shard), notes or {})
        num_shards = -(-plan.num_packs // per_shard)
        missing = _missing(store, log, num_shards)
        edges = np.minimum(np.arange(num_shards + 1) * per_shard, plan.num_packs)
        producer = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        if num_proc is None:
            few = _IN_PROCESS_TOKENS if encoded is not None else _IN_PROCESS_TOKENS // _ENCODING_COST
            num_proc = 1 if plan.ledger.tokens_packed < few else available_cores()
        context = _Context(
            plan=plan if num_proc == 1 or plan.path is None else None,
            plan_path=plan.path,
            plan_fingerprint=plan.fingerprint,
            source=source,
            encoder=encoder,
            encoded=encoded,
            directory=str(directory),
            packs_per_shard=per_shard,
            cum_tokens=np.cumsum(plan.pack_tokens)[edges[1:] - 1].tolist(),
            producer_id=producer,
        )
        with progress.stage("write", total=plan.num_packs, unit="packs"):
            progress.advance(plan.num_packs - sum(int(edges[s + 1] - edges[s]) for s in missing), resumed=True)
            # One shard is gathered while another is flushed; encoders are not asked from two threads.
            threads = 2 if encoded is not None else 1
            run = run_tasks(_write_shard, missing, context=context, num_proc=num_proc, threads=threads)
            with closing(run) as done:
                for _, (packs, tokens) in done:
                    progress.advance(packs, tokens=tokens)
        log.end(EndRecord(num_shards, plan.num_packs, plan.ledger.tokens_packed))
        return len(missing)


def packs_per_shard(plan: Plan, shard_bytes: int) -> int:
    """Packs of one shard file, at least one."""
    return max(1, min(shard_bytes // (4 * plan.capacity), plan.num_packs))


def identity_of(plan: Plan, source: Source, encoder: Encoder, lanes: int, per_shard: int) -> dict[str, Any]:
    """What must be equal for two jobs to write the same packs, and how they are to be laid out."""
    aligned = {} if plan.alignment.is_none else {"alignment": plan.settings["alignment"]}
    return {
        **aligned,
        "settings": PlanSettings.asked(plan.settings),
        "capacity": plan.capacity,
        "plan": plan.fingerprint,
        "source": source.fingerprint,
        "encoder": encoder.fingerprint,
        "train_on": encoder.label_settings.get("train_on"),
        "lanes": lanes,
        "packs_per_shard": per_shard,
    }


def _missing(store: BlobStore, log: StreamLog, num_shards: int) -> list[int]:
    """Shards that are not committed, and those whose file was deleted or cut short since: writing heals them."""
    committed = log.committed()
    return [
        seq
        for seq in range(num_shards)
        if seq not in committed or store.size((record := log.record_of(seq)).file) != record.bytes
    ]


def _write_shard(context: _Context, seq: int) -> tuple[int, int]:
    """Build one shard, publish it, commit it; runs in any process. Returns its packs and tokens."""
    plan = context.plan if context.plan is not None else _opened_plan(context)
    first = seq * context.packs_per_shard
    last = min(first + context.packs_per_shard, plan.num_packs)
    store: BlobStore = open_blob_store(context.directory)
    with store.blob(f"shards/{seq:08d}") as blob:
        writer = ShardWriter(blob)
        for begin in range(first, last, BATCH_ROWS):
            writer.add(_build(context, plan, begin, min(begin + BATCH_ROWS, last)))
        writer.close()
        key = shard_key(seq, blob.xxh3_128)
        blob.publish(key)
    crash_points.reach("after-shard")
    cum_tokens = context.cum_tokens[seq]
    tokens = cum_tokens - (context.cum_tokens[seq - 1] if seq else 0)
    record = ShardRecord(
        seq=seq,
        file=key,
        bytes=blob.size,
        xxh3_128=blob.xxh3_128,
        packs=last - first,
        tokens=tokens,
        cum_packs=last,
        cum_tokens=cum_tokens,
        producer_id=context.producer_id,
    )
    StreamLog(store).commit(record)
    crash_points.reach("after-commit")
    return last - first, tokens


_plans: dict[Fingerprint, Plan] = {}


def _opened_plan(context: _Context) -> Plan:
    """The plan, opened and checked once in a worker process: another may have been saved over it meanwhile.

    Raises:
        PlanMismatchError: the file is gone, or holds another plan.
        CorruptFileError: it is damaged.
    """
    wanted, path = context.plan_fingerprint, context.plan_path
    if wanted not in _plans:
        assert path is not None
        try:
            plan = Plan.open(path)
        except FileNotFoundError as error:
            raise PlanMismatchError(f"{path} was removed while its packs were written: save the plan again") from error
        plan.check_fingerprint()
        if plan.fingerprint != wanted:
            raise PlanMismatchError(
                f"{path} holds plan {short(plan.fingerprint)} by now, and the packs are those of {short(wanted)}: give "
                f"each plan a file of its own"
            )
        _plans.clear()
        _plans[wanted] = plan
    return _plans[wanted]


def _build(context: _Context, plan: Plan, first: int, last: int) -> PackRows:
    """Some packs of a shard, gathered as one run of tokens."""
    rows = slice(int(plan.offsets[first]), int(plan.offsets[last]))
    ids = plan.sample_ids[rows].astype(np.int64)
    starts = np.ascontiguousarray(plan.starts[rows])
    lengths = np.ascontiguousarray(plan.lengths[rows])
    samples = _signed_samples(context, ids)
    whole = np.array([len(sample) for sample in samples], dtype=np.int64)
    plan.check_sample_lengths(rows, whole, context.source.where)
    if starts.any() or not np.array_equal(whole, lengths):
        cuts = zip(samples, starts.tolist(), (starts + lengths).tolist(), strict=True)
        samples = [sample[begin:end] for sample, begin, end in cuts]
    input_ids, loss_mask = unmask_complement(np.concatenate(samples))
    segments = plan.offsets[first : last + 1] - plan.offsets[first]
    return PackRows.of_segments(input_ids, loss_mask, lengths, ids, starts, segments)


def _signed_samples(context: _Context, ids: Int64Array) -> list[TokenIds]:
    """The tokens of the sample of each segment, from what measuring left or encoded now."""
    if context.encoded is not None:
        return context.encoded.masked_runs(ids.tolist())
    distinct = np.unique(ids)
    found: dict[int, TokenIds] = {}
    for begin in range(0, len(distinct), _ENCODE_SAMPLES):
        batch = [context.source[sample_id] for sample_id in distinct[begin : begin + _ENCODE_SAMPLES].tolist()]
        for sample, result in zip(batch, context.encoder.encode_batch(batch), strict=True):
            if isinstance(result, BadSampleError):
                raise result.located(context.source.where(sample.sample_id))
            found[sample.sample_id] = mask_as_complement(result)
    return [found[sample_id] for sample_id in ids.tolist()]
