"""The whole job in one call: measure, plan, write, and the account of it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from brimful.arguments import CAPACITY_NAMES, understands
from brimful.blobs import LocalBlobStore, open_blob_store
from brimful.cache import exclusive
from brimful.encode.choose import as_encoder
from brimful.encode.encoder import Encoder
from brimful.errors import (
    BadSampleError,
    CorruptFileError,
    NotAPackStoreError,
    NoTargetError,
    OversizedSampleError,
    SettingsError,
    SourceError,
)
from brimful.fingerprint import fingerprint_array
from brimful.materialize.dropped import write_dropped
from brimful.materialize.summary import PackSummary
from brimful.materialize.write import (
    SHARD_BYTES,
    identity_of,
    packs_per_shard,
    write_packs,
)
from brimful.measure.job import OnBadSample, measure_and_keep
from brimful.measure.table import LengthTable
from brimful.messages import setting
from brimful.plan import Alignment, Overflow, Plan
from brimful.plan.phased import Recipe
from brimful.plan.planner import plan_by
from brimful.plan.policies.budgets import DERIVED
from brimful.plan.policies.groups import as_groups
from brimful.plan.policies.no_target import NoTarget
from brimful.plan.settings import PlanSettings
from brimful.progress import Progress
from brimful.shards import StreamLog
from brimful.sources.open import open_source
from brimful.sources.source import Source
from brimful.sources.text_files import TextFiles
from brimful.typing import AnyIntArray

__all__ = ["pack_dataset"]

_LOSS_TOKENS = "loss_tokens"
"""The one budget beside tokens that measuring can make."""


@understands(capacity=CAPACITY_NAMES)
def pack_dataset(
    source: Source | Any,
    encoder: Encoder | str | os.PathLike[str] | Any,
    directory: str | os.PathLike[str],
    *,
    capacity: int,
    algorithm: str = "auto",
    overflow: Overflow | str = Overflow.ERROR,
    no_target: NoTarget | str = NoTarget.ERROR,
    budgets: Mapping[str, int] | None = None,
    alignment: Alignment | int = 1,
    groups: AnyIntArray | Sequence[int] | None = None,
    min_fill: float = 0.0,
    phases: Recipe | str | None = None,
    mix: bool = False,
    seed: int | None = 0,
    epoch: int = 0,
    time_limit: float | None = None,
    lanes: int = 1,
    shard_bytes: int = SHARD_BYTES,
    num_proc: int | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    on_bad_sample: OnBadSample = "error",
    notes: dict[str, Any] | None = None,
    progress: Progress | None = None,
) -> PackSummary:
    """Measure, plan and write in one call; every sample is tokenised once.

    Killed at any point, the same call finishes the job; on a finished directory it only reads the account. The
    directory then holds the packs, ``plan.arrow``, ``lengths.arrow``, ``summary.json`` and, if there are any,
    ``rejects.jsonl`` (rows that could not be read or encoded) and ``dropped.jsonl`` (samples that were left out).

    Args: as of ``measure_lengths``, ``plan_packs`` and ``write_packs``.
    """
    if lanes < 1:
        raise SettingsError(f"{setting('lanes')} must be at least 1 and is {lanes}")
    source = open_source(source, cache_dir=cache_dir)
    encoder = as_encoder(source, encoder)
    progress = progress or Progress()
    store = open_blob_store(directory)
    if not isinstance(store, LocalBlobStore):
        raise SettingsError(
            f"{setting('directory', store.url)}: pack into a local directory and copy it, or call write_packs"
        )
    home = Path(store.directory)
    encoded_dir = home / "tmp" / "encoded"
    settings = PlanSettings(
        capacity=capacity,
        algorithm=algorithm,
        overflow=overflow,
        no_target=no_target,
        budgets=budgets,
        alignment=alignment,
        min_fill=min_fill,
        phases=phases,
        mix=mix,
        seed=seed,
        epoch=epoch,
        time_limit=time_limit,
    )
    asked = PlanSettings.asked(settings.as_dict())
    if groups is not None:
        asked["groups"] = fingerprint_array(as_groups(groups, num_samples=len(source), policy=settings.policy))
    unknown = [name for name in budgets or {} if name not in (*DERIVED, _LOSS_TOKENS)]
    if unknown:
        raise SettingsError(
            f"{setting('budgets', unknown[0], python=f'budgets {unknown[0]!r}')} is unknown: packing can measure {_LOSS_TOKENS}, {', '.join(DERIVED)}"
        )
    claimed, finished = _claimed(StreamLog(store), source, encoder, capacity, asked)
    with store.used(encoded_dir.name):
        measured = measure_and_keep(
            source,
            encoder,
            budgets=("tokens", _LOSS_TOKENS) if budgets and _LOSS_TOKENS in budgets else ("tokens",),
            targets=not finished,  # a finished store of before is read as it is
            path=home / "lengths.arrow",
            cache_dir=cache_dir,
            num_proc=num_proc,
            on_bad_sample=on_bad_sample,
            rejects_path=home / "rejects.jsonl",
            on_mismatch="rebuild",  # lengths of another job in a directory that no packs claim yet
            progress=progress,
            encoded_dir=None if finished else encoded_dir,
        )
        job = source, encoder, measured.table
        if not np.any(measured.table.tokens > 0):
            raise SourceError(f"no row of {source.title} can be packed; the first is {_first_rejected(*job)}")
        log = StreamLog(store)
        # Of two jobs at once one plans, and the other takes its plan: a search need not find the same again.
        with progress.stage("plan", total=len(source), unit="samples"), exclusive(home / "tmp" / "plan"):
            claimed = claimed or log.is_begun()
            plan = _planned_before(home / "plan.arrow", log, measured.table)
            fresh = plan is None
            if plan is None:
                plan = _planned(measured.table, settings, groups, source)
            progress.advance(len(source))
            if fresh and not claimed:
                plan.save(home / "plan.arrow")  # before the directory is claimed for it: searches may not find it again
            log.begin(identity_of(plan, source, encoder, lanes, packs_per_shard(plan, shard_bytes)), notes or {})
            if fresh and claimed:
                plan.save(home / "plan.arrow")
        written = write_packs(
            plan,
            source,
            encoder,
            directory,
            encoded=measured.encoded,
            lanes=lanes,
            shard_bytes=shard_bytes,
            num_proc=num_proc,
            notes=notes,
            progress=progress,
        )
        write_dropped(home / "dropped.jsonl", plan, measured.table, source)
        stages = {stage.name: round(stage.seconds, 2) for stage in progress.stages}
        summary = PackSummary(
            source=source.title,
            format=source.format_name,
            unit=source.unit,
            first_rejected=_first_rejected(*job),
            directory=os.fspath(directory),
            capacity=capacity,
            plan=plan,
            table=measured.table,
            shards=len(log.records()[0]),
            seconds=stages if written or not finished else {},
        )
        store.put_atomic("summary.json", json.dumps(summary.as_dict(), indent=1).encode())
    return summary


def _first_rejected(source: Source, encoder: Encoder, table: LengthTable) -> str:
    """Where the first row that was skipped lies, and why; empty if none was.

    The row is looked at once more: the reason that the table keeps is told in Python's words, for whoever reads files.
    """
    if not table.rejects:
        return ""
    sample_id, where, reason = table.rejects[0]
    try:
        encoder.encode(source[sample_id])
    except BadSampleError as error:
        return error.message if error.where else error.located(where).message
    return f"{where} (sample {sample_id}): {reason}"


def _planned(
    table: LengthTable, settings: PlanSettings, groups: AnyIntArray | Sequence[int] | None, source: Source
) -> Plan:
    try:
        plan = plan_by(table, settings, groups=groups)
    except NoTargetError as error:
        raise error.located(source.where(error.sample_id)) from error
    if plan.num_packs == 0:
        longest = int(np.argmax(table.tokens))
        by_line = source.unit == TextFiles.unit and f", or {setting('text_unit', 'line')} if each line is a document"
        raise OversizedSampleError(
            f"no sample is left to pack: {plan.ledger.samples_dropped:,} were dropped; the longest is "
            f"{source.where(longest)} (sample {longest}) with {int(table.tokens[longest]):,} tokens. Choose "
            f"{setting('overflow', 'split')}, a larger {setting('capacity')}{by_line or ''}"
        )
    return plan


def _planned_before(path: Path, log: StreamLog, table: LengthTable) -> Plan | None:
    """The plan that the directory was claimed for, if it is there and of these lengths.

    Made again it might be another: searches may be limited in time, and another solver finds other packs.
    """
    try:
        wanted = log.header()["identity"]["plan"]
        plan = Plan.open(path)
    except (NotAPackStoreError, FileNotFoundError, CorruptFileError):
        return None
    return plan if (plan.fingerprint, plan.length_fingerprint) == (wanted, table.fingerprint) else None


def _claimed(
    log: StreamLog, source: Source, encoder: Encoder, capacity: int, asked: dict[str, Any]
) -> tuple[bool, bool]:
    """Whether the directory is this job's, and whether it is complete; refuses one of another before any work."""
    try:
        log.header()
    except NotAPackStoreError:
        return False, False
    log.expect({"source": source.fingerprint, "encoder": encoder.fingerprint, "capacity": capacity, "settings": asked})
    return True, log.records()[1] is not None
