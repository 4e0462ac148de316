"""The whole job in one call: measure, plan, write, and the account of it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from brimful.cache import exclusive
from brimful.encode.encoder import Encoder
from brimful.errors import BadSampleError, CorruptFileError, NotAPackStoreError, SettingsError
from brimful.fingerprint import fingerprint_array
from brimful.materialize.write import (
    SHARD_BYTES,
    identity_of,
    packs_per_shard,
    write_packs,
)
from brimful.measure.job import OnBadSample, measure_and_keep
from brimful.measure.table import LengthTable
from brimful.plan import Alignment, Overflow, Plan
from brimful.plan.budgets import DERIVED
from brimful.plan.groups import as_groups
from brimful.plan.phases import Recipe
from brimful.plan.planner import plan_by
from brimful.plan.settings import PlanSettings
from brimful.progress import Progress
from brimful.shards import StreamLog
from brimful.sources.source import Source
from brimful.store import LocalStore, open_store
from brimful.typing import AnyIntArray
from brimful.words import counted

__all__ = ["PackSummary", "pack_dataset"]

_LOSS_TOKENS = "loss_tokens"
"""The one budget beside tokens that measuring can make."""


@dataclass(frozen=True)
class PackSummary:
    """What the job did: for people as ten lines, for machines as JSON."""

    source: str
    format: str
    directory: str
    capacity: int
    plan: Plan
    table: LengthTable
    shards: int
    seconds: dict[str, float] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """The summary that ``brimful pack`` prints."""
        ledger, plan = self.plan.ledger, self.plan
        sizes = np.diff(plan.offsets)
        over = plan.num_packs - plan.bound
        gap = f"{100 * over / plan.bound:.3f} % above" if over else "at"
        percent = 100 / max(ledger.samples_in, 1)
        stages = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in self.seconds.items())
        return [
            f"samples        {ledger.samples_in:,} in {self.source} (format {self.format})",
            f"tokens         {ledger.tokens_in:,}, {ledger.tokens_in / max(ledger.samples_in, 1):,.0f} a sample",
            f"packs          {plan.num_packs:,} of {self.capacity:,} tokens in {counted(self.shards, 'shard')}",
            f"fill           {100 * plan.fill_ratio:.2f} %",
            f"lower bound    {plan.bound:,} packs: {gap} what any plan needs ({_how(plan)})",
            f"samples/pack   {sizes.mean():.1f} on average, median {np.median(sizes):.0f}, most {sizes.max():,}",
            f"dropped        {ledger.samples_dropped:,} samples ({ledger.samples_dropped * percent:.2f} %), "
            f"{ledger.tokens_dropped:,} tokens: {_why_dropped(plan)}",
            f"cut            {ledger.samples_truncated:,} truncated ({ledger.tokens_truncated:,} tokens lost), "
            f"{ledger.samples_split:,} split into segments (none lost)",
            f"rejected       {ledger.samples_rejected:,} malformed rows" + self._rejects_note(),
            f"time           {stages or 'nothing to do: all was there'}",
        ]

    def _rejects_note(self) -> str:
        if not self.plan.ledger.samples_rejected:
            return ""
        first = f"; first: {self.table.rejects[0][1]}: {self.table.rejects[0][2]}" if self.table.rejects else ""
        return f", listed in {self.directory}/rejects.jsonl{first}"

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "source": self.source,
            "format": self.format,
            "directory": self.directory,
            "capacity": self.capacity,
            "num_packs": self.plan.num_packs,
            "lower_bound": self.plan.bound,
            "fill_ratio": self.plan.fill_ratio,
            "shards": self.shards,
            "plan_fingerprint": self.plan.fingerprint,
            "settings": self.plan.settings,
            "seconds": self.seconds,
            **self.plan.ledger.as_dict(),
        }

    def __str__(self) -> str:
        return "\n".join(self.lines())


def _why_dropped(plan: Plan) -> str:
    """``longer than a pack; 108 for squares``."""
    by = plan.settings.get("dropped_by", {"tokens": None})
    reasons = ["longer than a pack" if name == "tokens" else f"{count:,} for {name}" for name, count in by.items()]
    return "; ".join(reasons)


def pack_dataset(
    source: Source,
    encoder: Encoder,
    directory: str | os.PathLike[str],
    *,
    capacity: int,
    algorithm: str = "auto",
    overflow: Overflow | str = Overflow.ERROR,
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
    directory then holds the packs, ``plan.arrow``, ``lengths.arrow``, ``summary.json`` and, if rows were
    rejected, ``rejects.jsonl``.

    Args: as of ``measure_lengths``, ``plan_packs`` and ``write_packs``.
    """
    if lanes < 1:
        raise SettingsError(f"--lanes must be at least 1 and is {lanes}")
    progress = progress or Progress()
    store = open_store(directory)
    if not isinstance(store, LocalStore):
        raise SettingsError(f"-o {store.url}: pack into a local directory and copy it, or call write_packs")
    home = Path(store.directory)
    encoded_dir = home / "tmp" / "encoded"
    settings = PlanSettings(
        capacity=capacity,
        algorithm=algorithm,
        overflow=overflow,
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
            f"--budget {unknown[0]} is unknown: packing can measure {_LOSS_TOKENS}, {', '.join(DERIVED)}"
        )
    claimed, finished = _claimed(StreamLog(store), source, encoder, capacity, asked)
    with store.used(encoded_dir.name):
        measured = measure_and_keep(
            source,
            encoder,
            budgets=("tokens", _LOSS_TOKENS) if budgets and _LOSS_TOKENS in budgets else ("tokens",),
            path=home / "lengths.arrow",
            cache_dir=cache_dir,
            num_proc=num_proc,
            on_bad_sample=on_bad_sample,
            rejects_path=home / "rejects.jsonl",
            on_mismatch="rebuild",  # lengths of another job in a directory that no packs claim yet
            progress=progress,
            encoded_dir=None if finished else encoded_dir,
        )
        if not np.any(measured.table.tokens > 0):
            raise BadSampleError(
                "every row is malformed: " + measured.table.rejects[0][2], sample_id=0, where=source.where(0)
            )
        log = StreamLog(store)
        # Of two jobs at once one plans, and the other takes its plan: a search need not find the same again.
        with progress.stage("plan", total=len(source), unit="samples"), exclusive(home / "tmp" / "plan"):
            claimed = claimed or log.is_begun()
            plan = _planned_before(home / "plan.arrow", log, measured.table)
            fresh = plan is None
            if plan is None:
                plan = plan_by(measured.table, settings, groups=groups)
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
        summary = PackSummary(
            source=source.title,
            format=source.format.name,
            directory=os.fspath(directory),
            capacity=capacity,
            plan=plan,
            table=measured.table,
            shards=len(log.records()[0]),
            seconds={stage.name: round(stage.seconds, 2) for stage in progress.stages}
            if written or not finished
            else {},
        )
        store.put_atomic("summary.json", json.dumps(summary.as_dict(), indent=1).encode())
    return summary


def _how(plan: Plan) -> str:
    """The algorithm and, where there was a choice, what came of it."""
    outcome = plan.settings.get("outcome")
    return f"{plan.settings['algorithm']}: {outcome}" if outcome else str(plan.settings["algorithm"])


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
