"""Measuring exact lengths: parallel, cached by content, resumable, and only for rows that are new."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from brimful.arguments import understands
from brimful.blobs import atomic_file
from brimful.cache import cache_dir as default_cache_dir
from brimful.encode.choose import as_encoder
from brimful.encode.encoder import Encoder
from brimful.encode.stored import StoredSamples, is_stored
from brimful.errors import BrimfulError, CacheMismatchError, SettingsError
from brimful.execute import available_cores, run_tasks
from brimful.fingerprint import differing_keys, fingerprint_of, short
from brimful.measure.account import Account
from brimful.measure.block import RUNS, BlockContext, BlockTask, measure_block
from brimful.measure.table import LengthTable
from brimful.measure.targets import Targets, joined_rows
from brimful.messages import setting
from brimful.progress import Progress
from brimful.sources.open import open_source
from brimful.sources.rows import Block
from brimful.sources.source import Source
from brimful.tables import Ragged, open_table
from brimful.typing import Fingerprint

__all__ = ["BUDGETS", "Measurement", "OnBadSample", "OnMismatch", "measure_lengths"]

OnBadSample: TypeAlias = Literal["error", "skip"]
OnMismatch: TypeAlias = Literal["error", "rebuild"]

BUDGETS = ("tokens", "loss_tokens")
"""Budgets that can be measured of texts: all tokens, and those that are targets of the loss."""

_REJECTS_KEPT = 1000
_PARTS_VERSION = 2
_IN_PROCESS_BLOCKS = 3
"""Data sets of so few blocks are measured in this process: starting others would take longer."""


@dataclass(frozen=True)
class Measurement:
    """What ``measure_and_keep`` returns: the table, and the tokens themselves if they were kept."""

    table: LengthTable
    encoded: StoredSamples | None


@understands()
def measure_lengths(
    source: Source | Any,
    encoder: Encoder | str | os.PathLike[str] | Any,
    *,
    budgets: Sequence[str] = ("tokens",),
    targets: bool = True,
    path: str | os.PathLike[str] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    num_proc: int | None = None,
    on_bad_sample: OnBadSample = "error",
    rejects_path: str | os.PathLike[str] | None = None,
    on_mismatch: OnMismatch = "error",
    progress: Progress | None = None,
) -> LengthTable:
    """Exact lengths of all samples: ``len(encoder.encode(sample).input_ids)``, always.

    Work is cut into blocks of rows and kept block by block, under the fingerprint of the rows' content and of
    the encoder: a job that was killed goes on, appended rows are the only ones measured, an edited row costs one
    block, and a copy of the data elsewhere costs nothing.

    Args:
        source: the samples, or anything that ``open_source`` takes.
        encoder: what turns them into tokens; or a tokenizer, or its name, for the encoder that the source needs.
        targets: measure where the targets of the loss lie too, so that samples that teach nothing are known before
            they are packed. Without it chats are measured faster.
        budgets: which lengths to take, from ``BUDGETS``.
        path: where the table goes; inside the cache if None.
        cache_dir: where finished blocks are kept.
        num_proc: processes; all cores if None, one for small data sets. Never changes the result.
        on_bad_sample: ``error`` stops at the first row that is malformed; ``skip`` counts it, writes it to
            ``rejects_path`` and gives it length -1.
        rejects_path: JSON lines of the rows that were skipped.
        on_mismatch: what to do if ``path`` holds lengths of other data or another encoder: ``error`` says which
            part differs, ``rebuild`` measures anew.
        progress: reports rows and tokens a second and the time left.

    Raises:
        BadSampleError: names file, line and what is wrong.
        CacheMismatchError: see ``on_mismatch``.

    >>> from brimful.sources import open_source
    >>> from brimful.testing.toys import toy_chat_encoder
    >>> source = open_source([{"question": "1+1?", "answer": "2"}])
    >>> table = measure_lengths(source, toy_chat_encoder())
    >>> table.tokens.tolist(), table.targets.counts.tolist()
    ([22], [2])
    """
    source = open_source(source, cache_dir=cache_dir)
    return measure_and_keep(
        source,
        as_encoder(source, encoder),
        budgets=budgets,
        targets=targets,
        path=path,
        cache_dir=cache_dir,
        num_proc=num_proc,
        on_bad_sample=on_bad_sample,
        rejects_path=rejects_path,
        on_mismatch=on_mismatch,
        progress=progress,
        encoded_dir=None,
    ).table


def measure_and_keep(
    source: Source,
    encoder: Encoder,
    *,
    budgets: Sequence[str],
    targets: bool,
    path: str | os.PathLike[str] | None,
    cache_dir: str | os.PathLike[str] | None,
    num_proc: int | None,
    on_bad_sample: OnBadSample,
    rejects_path: str | os.PathLike[str] | None,
    on_mismatch: OnMismatch,
    progress: Progress | None,
    encoded_dir: str | os.PathLike[str] | None,
) -> Measurement:
    """``measure_lengths`` that also leaves the tokens in ``encoded_dir``, so that writing need not make them again."""
    names = _checked_budgets(budgets)
    if on_bad_sample not in ("error", "skip"):
        raise SettingsError(f"{setting('on_bad_sample', on_bad_sample)} is unknown: use error or skip")
    if on_mismatch not in ("error", "rebuild"):
        raise SettingsError(f"{setting('on_mismatch', on_mismatch)} is unknown: use error or rebuild")
    progress = progress or Progress()
    cache = Path(cache_dir) if cache_dir is not None else default_cache_dir()
    provenance = _provenance(source, encoder, names, targets)
    key = _settings_fingerprint(provenance, targets)
    target = Path(path) if path is not None else cache / "lengths" / key[:16] / f"{source.fingerprint}.arrow"
    # A table in the cache bears the name of what it holds: it differs only where it is damaged, and is made again.
    old = _previous(target, provenance, source, on_mismatch if path is not None else "rebuild")
    if targets and old is not None and old.targets is None:
        old = None  # lengths that were measured without: the rows have to be seen again
    if old is not None and len(old) == len(source) and encoded_dir is None and _acceptable(old, on_bad_sample):
        old.rejects = [[sample_id, source.where(sample_id), reason] for sample_id, _, reason in old.rejects]
        if rejects_path is not None:
            write_rejects(old, source, rejects_path)
        return Measurement(old, None)
    known = old if encoded_dir is None and old is not None and _acceptable(old, on_bad_sample) else None

    parts = cache / "lengths" / key[:16] / "parts"
    encoded_key = fingerprint_of([key, encoder.fingerprint])[:16]
    first_new = len(known) if known is not None else 0
    tasks: list[BlockTask] = []
    for block in source.blocks:
        if block.stop > first_new:
            tasks.append(_task_for(block, max(block.start, first_new), parts, encoded_dir, encoded_key))
    context = BlockContext(source, encoder, names, on_bad_sample == "skip", encoded_dir is not None, targets)
    if encoded_dir is not None and _only_tokens_are_missing(tasks, context):
        encoded_dir, tasks = None, [replace(task, encoded_path=None) for task in tasks]
        context = replace(context, keep_encoded=False)
    with progress.stage("measure", total=len(source), unit="rows"):
        progress.advance(first_new, resumed=True)
        _run_missing(context, tasks, num_proc, progress)
    table = _assemble(known, tasks, context, provenance)
    table.save(target)
    if rejects_path is not None:
        write_rejects(table, source, rejects_path)
    encoded = None
    if encoded_dir is not None:
        encoded = StoredSamples([(task.start, task.encoded_path) for task in tasks if task.encoded_path is not None])
    return Measurement(table, encoded)


def _checked_budgets(budgets: Sequence[str]) -> tuple[str, ...]:
    unknown = [name for name in budgets if name not in BUDGETS]
    if unknown:
        raise SettingsError(
            f"{setting('budgets', unknown[0], python=f'budgets {unknown[0]!r}')} cannot be measured here: use {', '.join(BUDGETS)}"
        )
    return ("tokens", *(name for name in BUDGETS[1:] if name in budgets))


def _provenance(source: Source, encoder: Encoder, budgets: tuple[str, ...], targets: bool) -> dict[str, Any]:
    settings = {f"encoder {name}": value for name, value in encoder.length_settings.items()}
    if "loss_tokens" in budgets:
        settings |= {f"encoder {name}": value for name, value in encoder.label_settings.items()}
    return {
        "settings": {**settings, "budgets": list(budgets), **{f"row {k}": v for k, v in source.row_settings.items()}},
        **({"labels": {f"encoder {k}": v for k, v in encoder.label_settings.items()}} if targets else {}),
        "source_fingerprint": source.fingerprint,
        "source": source.title,
        "parts": [list(member) for member in source.rows.members],
        "num_samples": len(source),
    }


def _settings_fingerprint(provenance: dict[str, Any], targets: bool) -> Fingerprint:
    return fingerprint_of([_PARTS_VERSION, provenance["settings"], provenance["labels"] if targets else None])


def _previous(target: Path, provenance: dict[str, Any], source: Source, policy: OnMismatch) -> LengthTable | None:
    """The table that is there, if it covers a beginning of the source with the same settings."""
    try:
        old = LengthTable.open(target)
    except FileNotFoundError:
        return None
    except BrimfulError as error:
        if policy == "rebuild":
            return None
        raise CacheMismatchError(
            f"{target} is there and cannot be used ({error.message}); choose another {setting('path')}, or {setting('on_mismatch', 'rebuild')}"
        ) from error
    differing = differing_keys(old.provenance.get("settings", {}), provenance["settings"])
    if "labels" in provenance and "labels" in old.provenance:
        differing += differing_keys(old.provenance["labels"], provenance["labels"])
    if not differing and len(old) > len(source):
        differing = [f"source ({len(old):,} samples there, {len(source):,} here)"]
    if not differing and not source.begins_with(len(old), old.provenance["source_fingerprint"]):
        seen, now = old.provenance["source_fingerprint"], source.fingerprint
        differing = [f"source content ({short(seen)} there, {short(now)} here)"]
    if not differing:
        return old
    if policy == "rebuild":
        return None
    raise CacheMismatchError(
        f"{target} was measured with other settings or data; these parts differ: {', '.join(differing)}. "
        f"Choose another {setting('path')}, or measure anew with {setting('on_mismatch', 'rebuild')}"
    )


def _acceptable(table: LengthTable, on_bad_sample: OnBadSample) -> bool:
    """A table with rejected rows is no answer for a caller who wants an error for them."""
    return on_bad_sample == "skip" or len(table.rejected_ids) == 0


def _task_for(
    block: Block, start: int, parts: Path, encoded_dir: str | os.PathLike[str] | None, encoded_key: str
) -> BlockTask:
    name = block.fingerprint if start == block.start else f"{block.fingerprint}-{start - block.start}"
    encoded = None if encoded_dir is None else str(Path(encoded_dir) / f"{encoded_key}-{name}.arrow")
    return BlockTask(start, block.stop, str(parts / name[:2] / f"{name}.arrow"), encoded)


def _run_missing(context: BlockContext, tasks: list[BlockTask], num_proc: int | None, progress: Progress) -> None:
    missing = []
    for task in tasks:
        if _finished(task, context):
            progress.advance(task.stop - task.start, resumed=True)
        else:
            missing.append(task)
    if num_proc is None:
        num_proc = _processes(context, len(missing))
    with closing(run_tasks(measure_block, missing, context=context, num_proc=num_proc)) as done:
        for task, part in done:
            progress.advance(task.stop - task.start, tokens=part.tokens)


def _processes(context: BlockContext, blocks: int) -> int:
    """Processes that pay for themselves: starting one and loading a tokenizer in it takes some seconds.

    Lengths alone are mostly the tokenizer's work, which uses all cores from one process; labels are Python's.
    """
    enough = _IN_PROCESS_BLOCKS if context.needs_labels else 4 * _IN_PROCESS_BLOCKS
    return 1 if blocks <= enough else available_cores()


def _only_tokens_are_missing(tasks: list[BlockTask], context: BlockContext) -> bool:
    """Whether every length is known from before and no tokens are there: then writing makes them, once."""
    return not any(_is_kept(task) for task in tasks) and all(_is_measured(task, context) for task in tasks)


def _finished(task: BlockTask, context: BlockContext) -> bool:
    return (task.encoded_path is None or _is_kept(task)) and _is_measured(task, context)


def _is_kept(task: BlockTask) -> bool:
    return task.encoded_path is not None and is_stored(task.encoded_path, task.stop - task.start)


def _is_measured(task: BlockTask, context: BlockContext) -> bool:
    try:
        part = open_table(task.part_path)
        for name in context.budgets:
            part.flat(name)
        if context.needs_runs:
            part.ragged(RUNS)
    except (FileNotFoundError, KeyError, BrimfulError):
        return False
    if not part.checksummed or len(part) != task.stop - task.start:
        return False
    return context.skip_bad or not part.description["rejects"]


def _assemble(
    known: LengthTable | None, tasks: list[BlockTask], context: BlockContext, provenance: dict[str, Any]
) -> LengthTable:
    source = context.source
    columns = {name: np.empty(len(source), dtype=np.int32) for name in context.budgets}
    rejects: list[list[Any]] = []
    runs: list[Ragged] = []
    accounts: list[Any] = []
    if known is not None:
        for name in context.budgets:
            columns[name][: len(known)] = known.budgets[name]
        rejects = [[sample_id, source.where(sample_id), reason] for sample_id, _, reason in known.rejects]
        accounts.append(known.account.as_dict())
        if context.needs_runs:
            assert known.targets is not None
            assert known.targets.runs is not None
            runs.append(known.targets.runs)
    for task in tasks:
        part = open_table(task.part_path)
        for name in context.budgets:
            columns[name][task.start : task.stop] = part.flat(name)
        for offset, _, reason in part.description["rejects"]:
            # The place is asked anew: equal rows may lie in a file of another name by now.
            sample_id = task.start + offset
            rejects.append([sample_id, source.where(sample_id) if len(rejects) < _REJECTS_KEPT else "", reason])
        accounts.append(part.description["account"])
        if context.needs_runs:
            runs.append(part.ragged(RUNS))
    targets = None
    if context.targets:
        every = not context.needs_runs
        targets = Targets.of_all_tokens(columns["tokens"]) if every else Targets.of_runs(joined_rows(runs))
    return LengthTable(
        columns,
        provenance={**provenance, "account": Account.sum(accounts).as_dict()},
        rejects=rejects[:_REJECTS_KEPT],
        targets=targets,
    )


def write_rejects(table: LengthTable, source: Source, path: str | os.PathLike[str]) -> None:
    """JSON lines of the rows that were skipped: where they lie, what is wrong, and the row as far as it can be read."""
    ids = table.rejected_ids
    if len(ids) == 0 and not os.path.exists(path):
        return
    reasons = {int(sample_id): reason for sample_id, _, reason in table.rejects}  # of the first thousand
    with atomic_file(path) as file:
        for sample_id in map(int, ids):
            row = source.rows.get(sample_id)
            record = {
                "sample_id": sample_id,
                "where": source.where(sample_id),
                "reason": reasons.get(sample_id, "see the rows before"),
                "row": row if not isinstance(row, Exception) else None,
            }
            file.write(json.dumps(record, ensure_ascii=False, default=str).encode("utf-8", "surrogatepass") + b"\n")
