"""Whole job in one call: measure, plan, write and summarize."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from brimful.base.arguments import CAPACITY_NAMES, as_settings, settings_from, understands
from brimful.base.fingerprint import fingerprint_array
from brimful.base.locks import exclusive
from brimful.base.typing import AnyIntArray, AnyPath
from brimful.base.wording import setting
from brimful.encode.encoded_samples import check_augmentation
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
from brimful.lengths.table import LengthTable
from brimful.measure.job import measure_and_keep
from brimful.measure.measure_settings import MeasureSettings
from brimful.plan import Plan, PlanSettings
from brimful.plan.planner import plan_with
from brimful.plan.policies.budgets import measured_budgets
from brimful.plan.policies.groups import as_groups
from brimful.sources.augmented import Transform
from brimful.sources.directory import TextFiles
from brimful.sources.opening import open_source
from brimful.sources.source import Source
from brimful.store.claim import JobHome, JobSettings, PackJob
from brimful.store.shards import StreamLog
from brimful.store.summary import PackSummary, write_dropped
from brimful.store.writing import write_plan


@understands({}, PlanSettings, JobSettings, capacity=CAPACITY_NAMES)
def pack_dataset(
    source: Source | Any,
    encoder: Encoder | AnyPath | Any,
    directory: AnyPath,
    settings: PlanSettings | None = None,
    *,
    groups: AnyIntArray | Sequence[int] | None = None,
    sources: Mapping[str, int] | None = None,
    transforms: Sequence[Transform] = (),
    job: JobSettings | None = None,
    **options: Any,
) -> PackSummary:
    """Measure, plan and write in one call; every sample is tokenized once.

    After a kill at any point, the same call finishes the job; on a finished directory it only makes
    the summary. The directory then holds the packs, ``plan.arrow``, ``lengths.arrow``,
    ``summary.json`` and, if not empty, ``rejects.jsonl`` (rows that could not be read or encoded)
    and ``dropped.jsonl`` (samples that the plan dropped).

    Args:
        source: samples, or anything that ``open_source`` takes. To draw from several, also a mapping from
            the name of each source to its samples.
        encoder: an encoder, a tokenizer, or the name or directory of one.
        directory: of the packs; a path or a URL.
        settings: options of the plan, such as ``PlanSettings(capacity=4096, overflow="drop")``.
        groups, sources: as for ``plan_packs``.
        transforms: functions that training will apply to each served sample. A few samples are
            tested to check that none changes a length (``encode.augmentation``); packs hold the
            original samples. For packs of transformed samples pass ``source.augmented(…)``.
        job: settings of the job. Shares need the plan between measuring and writing: call these two
            separately.
        options: fields of ``PlanSettings`` and of ``JobSettings`` as keywords, such as ``capacity``
            and ``num_proc``, instead of the objects or as changes of them.

    Raises:
        AugmentationError: a transform changes the length of a sample.
        SettingsError: an unknown budget.
        BrimfulError: as for ``measure_lengths``, ``plan_packs`` and ``write_packs``.
    """
    settings = as_settings(PlanSettings, settings, options)
    job = as_settings(JobSettings, job, options)
    if job.resources.execution.is_share:
        raise SettingsError(
            f"{setting('task_index')}: all shares have to be measured before one plan is made of "
            "them, so packing in one call takes none: measure in shares, plan, then write in "
            "shares"
        )
    if settings.draw is not None and isinstance(source, Mapping):
        source, sources = _chained(source, job.cache_dir)
    pack_job = PackJob.open(source, encoder, directory, job, settings.overflow_policy)
    source, encoder, store, log = pack_job.source, pack_job.encoder, pack_job.store, pack_job.log
    progress = pack_job.resources.progress
    home = JobHome(store, job.cache_dir)
    budgets = measured_budgets(settings.budgets or (), encoder.budgets)
    # The header holds the requested options; results of a search enter it through the plan's
    # fingerprint.
    is_finished = _check_claim(pack_job, settings, groups)
    is_begun = log.is_begun()
    if is_begun:
        home.fetch("lengths.arrow")
    if transforms:
        check_augmentation(source, encoder, transforms)
    encoded_dir = home.path("tmp/encoded")
    with store.used(), home.local.used(encoded_dir.name):
        # Of two concurrent jobs one measures and plans, and the other takes its plan: a search may
        # not find the same plan again.
        with exclusive(
            home.path("tmp/plan"), lambda: progress.say(f"waiting for another job in {directory}")
        ):
            if not is_begun:
                # Another job may have claimed the directory in the meantime.
                is_finished = _check_claim(pack_job, settings, groups)
            table, encoded = measure_and_keep(
                source,
                encoder,
                settings_from(
                    MeasureSettings,
                    {**vars(job), "progress": progress},
                    share=settings.share,
                    budgets=budgets,
                    path=home.path("lengths.arrow"),
                    rejects_path=home.path("rejects.jsonl"),
                    # lengths of another job in a directory that is not claimed by packs yet
                    on_mismatch="rebuild",
                ),
                None if is_finished else encoded_dir,
                looks_at_files=not is_finished,
            )
            if not np.any(table.tokens > 0):
                raise SourceError(
                    f"no row of {source.title} can be packed; the first is "
                    f"{_first_rejected(source, encoder, table)}"
                )
            attached = pack_job.attached
            if attached is not None:
                attached.check_fit(table, settings)
                if not is_finished:
                    with attached.explained(is_measured_now=True):
                        attached.survey(table.tokens > 0)
            plan_path = home.path("plan.arrow")
            with progress.stage("plan", total=len(source), unit="samples"):
                is_claimed = log.is_begun()
                home.fetch(plan_path.name)
                saved_plan = _saved_plan(plan_path, log, table)
                plan = saved_plan or _make_plan(pack_job, table, settings, groups, sources)
                progress.advance(len(source))
                # The header names the plan, so the plan is saved first: after a kill, a search may
                # not find it again.
                if saved_plan is None and not is_claimed:
                    plan.save(plan_path)
                    home.publish(plan_path.name)
            if attached is not None and not is_finished:
                attached.lay_out(plan, encoded)
            if attached is None or not is_finished:
                pack_job.claim(plan)
            # In a claimed directory the header is checked first: the plan of another job must not
            # be overwritten.
            if saved_plan is None and is_claimed:
                plan.save(plan_path)
                home.publish(plan_path.name)
        num_written = write_plan(pack_job, plan, encoded)
        write_dropped(home.path("dropped.jsonl"), plan, table, source)
        home.publish("lengths.arrow", "rejects.jsonl", "dropped.jsonl")
        records, _ = log.records()
        seconds = {stage.name: round(stage.seconds, 2) for stage in progress.stages}
        summary = PackSummary(
            source=source.title,
            format=source.format_name,
            unit=source.unit,
            first_rejected=_first_rejected(source, encoder, table),
            directory=pack_job.directory,
            capacity=settings.capacity,
            plan=plan,
            table=table,
            shards=len(records),
            seconds=seconds if num_written or not is_finished else {},
            census=None if attached is None else attached.census(records),
        )
        store.put_atomic("summary.json", json.dumps(summary.as_dict(), indent=1).encode())
    return summary


def _chained(named: Mapping[str, Any], cache_dir: AnyPath | None) -> tuple[Source, dict[str, int]]:
    """Open several sources, and concatenate them."""
    sources_by_name = {name: open_source(data, cache_dir=cache_dir) for name, data in named.items()}
    title = f"{len(named)} sources: {', '.join(sources_by_name)}"
    return Source.chained(list(sources_by_name.values()), title), {
        name: len(source) for name, source in sources_by_name.items()
    }


def _first_rejected(source: Source, encoder: Encoder, table: LengthTable) -> str:
    """Return the place and reason of the first skipped row; empty without one.

    The row is encoded again: the table has the reason in terms of Python, and the command line may
    show the summary.
    """
    if not table.rejects:
        return ""
    sample_id, location, reason = table.rejects[0]
    try:
        encoder.encode(source[sample_id])
    except BadSampleError as error:
        return error.message if error.where else error.located(location).message
    return f"{location} (sample {sample_id}): {reason}"


def _make_plan(
    job: PackJob,
    table: LengthTable,
    settings: PlanSettings,
    groups: AnyIntArray | Sequence[int] | None,
    sources: Mapping[str, int] | None,
) -> Plan:
    """Plan the packs; reject a plan without packs, and name the longest sample."""
    source = job.source
    try:
        plan = plan_with(table, settings, groups=groups, sources=sources)
    except NoTargetError as error:
        raise error.located(source.where(error.sample_id)) from error
    if not plan.num_packs:
        longest = int(np.argmax(table.tokens))
        # A sample with attachments is not cut.
        remedy = None if job.attached is None else job.attached.remedy(table, longest)
        # A sample that lost its beginning shares nothing.
        policy = "truncate" if settings.shares else "split"
        split = f"{setting('overflow', policy)}, " if remedy is None else remedy
        limit = "capacity" if settings.longest_segment == settings.usable else "max_path"
        hint = (
            f", or {setting('text_unit', 'line')} if each line is a document"
            if source.unit == TextFiles.unit
            else ""
        )
        raise OversizedSampleError(
            f"no sample is left to pack: {plan.ledger.samples_dropped:,} were dropped; the longest "
            f"is {source.where(longest)} (sample {longest}) with {int(table.tokens[longest]):,} "
            f"tokens. Choose {split}a larger {setting(limit)}{hint}"
        )
    return plan


def _saved_plan(path: Path, log: StreamLog, table: LengthTable) -> Plan | None:
    """Return the saved plan if the header names it and it was made from these lengths.

    A new plan might differ: searches may be limited in time, and another solver finds other packs.
    """
    try:
        fingerprint = log.header()["identity"]["plan"]
        plan = Plan.open(path)
    except (NotAPackStoreError, FileNotFoundError, CorruptFileError):
        return None
    return (
        plan
        if (plan.fingerprint, plan.length_fingerprint) == (fingerprint, table.fingerprint)
        else None
    )


def _check_claim(
    job: PackJob, settings: PlanSettings, groups: AnyIntArray | Sequence[int] | None
) -> bool:
    """Reject the directory of another job before any work; return true if all packs of this job
    exist.
    """
    num_samples, group_size = len(job.source), job.source.group_size
    fingerprint = None
    if groups is not None:
        fingerprint = fingerprint_array(
            as_groups(groups, num_samples=num_samples, policy=settings.overflow_policy)
        )
    elif group_size > 1:
        fingerprint = fingerprint_array(np.arange(num_samples) // group_size)
    if not job.log.is_begun():
        return False
    job.expect(
        {
            "capacity": settings.capacity,
            "settings": settings.identity(fingerprint),
            **job.fingerprints,
        }
    )
    return job.log.records()[1] is not None
