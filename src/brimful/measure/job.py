"""Measuring exact lengths: parallel, cached by content, resumable, and only for rows that are new."""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from brimful.arguments import understands
from brimful.cache import cache_dir as default_cache_dir
from brimful.columns import Ragged, open_columns, write_columns
from brimful.encode.choose import as_encoder
from brimful.encode.encoded import EncodedSample
from brimful.encode.encoder import Encoder
from brimful.encode.stored import StoredSamples, is_stored, write_stored
from brimful.errors import BadSampleError, BrimfulError, CacheMismatchError, SettingsError
from brimful.execute import available_cores, run_tasks
from brimful.fingerprint import differing_keys, fingerprint_of, short
from brimful.measure.account import Account
from brimful.measure.table import REJECTED, LengthTable
from brimful.measure.targets import Targets, joined_rows, runs_of_masks
from brimful.progress import Progress
from brimful.sources.block import Block
from brimful.sources.open import open_source
from brimful.sources.sample import Sample
from brimful.sources.source import Source
from brimful.store import atomic_file
from brimful.typing import Fingerprint, Lengths
from brimful.words import setting

__all__ = ["BUDGETS", "Measurement", "OnBadSample", "OnMismatch", "measure_lengths"]

OnBadSample: TypeAlias = Literal["error", "skip"]
OnMismatch: TypeAlias = Literal["error", "rebuild"]

BUDGETS = ("tokens", "loss_tokens")
"""Budgets that can be measured of texts: all tokens, and those that are targets of the loss."""

_BATCH_SAMPLES = 256
_BATCH_CHARACTERS = 1 << 20
_REJECTS_KEPT = 1000
_BATCHES_AHEAD = 2
_PARTS_VERSION = 2
_RUNS = "target_runs"
_IN_PROCESS_BLOCKS = 3
"""Data sets of so few blocks are measured in this process: starting others would take longer."""


@dataclass(frozen=True)
class _Context:
    source: Source
    encoder: Encoder
    budgets: tuple[str, ...]
    skip_bad: bool
    keep_encoded: bool
    targets: bool

    @property
    def needs_runs(self) -> bool:
        """Whether it has to be found out where the targets of each sample lie."""
        return self.targets and not self.encoder.all_are_targets

    @property
    def needs_labels(self) -> bool:
        """Whether lengths alone are not enough."""
        return self.keep_encoded or self.needs_runs or "loss_tokens" in self.budgets


@dataclass(frozen=True)
class _Task:
    start: int
    stop: int
    part_path: str
    encoded_path: str | None


@dataclass(frozen=True)
class _Part:
    """What is known of rows ``start … stop-1`` after a task."""

    rejects: list[list[Any]] = field(default_factory=list)
    tokens: int = 0


@dataclass(frozen=True)
class Measurement:
    """What ``measure_lengths(keep_encoded=…)`` returns beside the table: the tokens themselves."""

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
    tasks: list[_Task] = []
    for block in source.blocks:
        if block.stop > first_new:
            tasks.append(_task_for(block, max(block.start, first_new), parts, encoded_dir, encoded_key))
    context = _Context(source, encoder, names, on_bad_sample == "skip", encoded_dir is not None, targets)
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
) -> _Task:
    name = block.fingerprint if start == block.start else f"{block.fingerprint}-{start - block.start}"
    encoded = None if encoded_dir is None else str(Path(encoded_dir) / f"{encoded_key}-{name}.arrow")
    return _Task(start, block.stop, str(parts / name[:2] / f"{name}.arrow"), encoded)


def _run_missing(context: _Context, tasks: list[_Task], num_proc: int | None, progress: Progress) -> None:
    missing = []
    for task in tasks:
        if _finished(task, context):
            progress.advance(task.stop - task.start, resumed=True)
        else:
            missing.append(task)
    if num_proc is None:
        num_proc = _processes(context, len(missing))
    with closing(run_tasks(_measure_block, missing, context=context, num_proc=num_proc)) as done:
        for task, part in done:
            progress.advance(task.stop - task.start, tokens=part.tokens)


def _processes(context: _Context, blocks: int) -> int:
    """Processes that pay for themselves: starting one and loading a tokenizer in it takes some seconds.

    Lengths alone are mostly the tokenizer's work, which uses all cores from one process; labels are Python's.
    """
    enough = _IN_PROCESS_BLOCKS if context.needs_labels else 4 * _IN_PROCESS_BLOCKS
    return 1 if blocks <= enough else available_cores()


def _only_tokens_are_missing(tasks: list[_Task], context: _Context) -> bool:
    """Whether every length is known from before and no tokens are there: then writing makes them, once."""
    return not any(_is_kept(task) for task in tasks) and all(_is_measured(task, context) for task in tasks)


def _finished(task: _Task, context: _Context) -> bool:
    return (task.encoded_path is None or _is_kept(task)) and _is_measured(task, context)


def _is_kept(task: _Task) -> bool:
    return task.encoded_path is not None and is_stored(task.encoded_path, task.stop - task.start)


def _is_measured(task: _Task, context: _Context) -> bool:
    try:
        part = open_columns(task.part_path)
        for name in context.budgets:
            part.flat(name)
        if context.needs_runs:
            part.ragged(_RUNS)
    except (FileNotFoundError, KeyError, BrimfulError):
        return False
    if not part.checksummed or len(part) != task.stop - task.start:
        return False
    return context.skip_bad or not part.description["rejects"]


def _measure_block(context: _Context, task: _Task) -> _Part:
    """Measure one block and publish what was found; runs in any process."""
    size = task.stop - task.start
    columns = {name: np.full(size, REJECTED, dtype=np.int32) for name in context.budgets}
    found: list[BadSampleError] = []
    account = Account()
    encoded: list[EncodedSample | None] = [None] * size
    batches = _batches(context.source.read(task.start, task.stop), found)
    if not context.needs_labels:
        for batch, (lengths, errors) in _lengths_of(context.encoder, batches):
            columns["tokens"][[sample.sample_id - task.start for sample in batch]] = lengths
            found += errors
            for sample, length in zip(batch, lengths.tolist(), strict=True):
                if length > 0:
                    account.add(sample)
                    if length == 1 and context.targets:
                        account.no_target[context.encoder.no_target_reason(sample)] += 1
    else:
        for sample, result in _encoded(context.encoder, batches):
            if isinstance(result, BadSampleError):
                found.append(result)
                continue
            place = sample.sample_id - task.start
            encoded[place] = result
            columns["tokens"][place] = len(result)
            if "loss_tokens" in columns:
                columns["loss_tokens"][place] = np.count_nonzero(result.loss_mask)
            if len(result):
                account.add(sample)
                if context.targets and not result.loss_mask[1:].any():
                    account.no_target[context.encoder.no_target_reason(sample)] += 1
    for empty in np.flatnonzero(columns["tokens"] == 0).tolist():
        for column in columns.values():
            column[empty] = REJECTED
        found.append(BadSampleError("has no tokens", sample_id=empty + task.start))
    rejects = _located(context, task, found)
    if task.encoded_path is not None:
        write_stored(task.encoded_path, encoded)
    written: dict[str, Any] = dict(columns)
    if context.needs_runs:
        written[_RUNS] = runs_of_masks([sample.loss_mask if sample is not None else None for sample in encoded])
    write_columns(task.part_path, written, {"kind": "length_part", "rejects": rejects, "account": account.as_dict()})
    tokens = columns["tokens"]
    return _Part(rejects, int(tokens[tokens > 0].sum(dtype=np.int64)))


def _located(context: _Context, task: _Task, errors: list[BadSampleError]) -> list[list[Any]]:
    """What was wrong in a block, in the order of its rows; the first is raised if none may be."""
    rejects = []
    for error in sorted(errors, key=lambda error: error.sample_id):
        located = error if error.where else error.located(context.source.where(error.sample_id))
        if not context.skip_bad:
            raise located
        rejects.append([located.sample_id - task.start, located.where, located.reason])
    return rejects


def _lengths_of(
    encoder: Encoder, batches: Iterable[list[Sample]]
) -> Iterator[tuple[list[Sample], tuple[Lengths, list[BadSampleError]]]]:
    """Lengths of batch after batch: one is tokenised, which needs no Python, while the next is rendered."""
    pool = ThreadPoolExecutor(1)
    running: deque[tuple[list[Sample], Future[tuple[Lengths, list[BadSampleError]]]]] = deque()
    try:
        for batch in batches:
            running.append((batch, pool.submit(encoder.begin_lengths(batch))))
            if len(running) > _BATCHES_AHEAD:
                first, future = running.popleft()
                yield first, future.result()
        for first, future in running:
            yield first, future.result()
    finally:
        pool.shutdown(cancel_futures=True)  # an error or Ctrl-C waits for one batch and not for all that are queued


def _encoded(
    encoder: Encoder, batches: Iterable[list[Sample]]
) -> Iterator[tuple[Sample, EncodedSample | BadSampleError]]:
    for batch in batches:
        yield from zip(batch, encoder.encode_batch(batch), strict=True)


def _batches(samples: Iterable[Sample | BadSampleError], unreadable: list[BadSampleError]) -> Iterator[list[Sample]]:
    """Runs of samples that are encoded together, bounded in number and in characters; errors are put aside."""
    batch: list[Sample] = []
    characters = 0
    for sample in samples:
        if isinstance(sample, BadSampleError):
            unreadable.append(sample)
            continue
        batch.append(sample)
        characters += len(sample.text or "") + sum(len(turn.get("content") or "") for turn in sample.messages or ())
        if len(batch) >= _BATCH_SAMPLES or characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _assemble(
    known: LengthTable | None, tasks: list[_Task], context: _Context, provenance: dict[str, Any]
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
        part = open_columns(task.part_path)
        for name in context.budgets:
            columns[name][task.start : task.stop] = part.flat(name)
        for offset, _, reason in part.description["rejects"]:
            # The place is asked anew: equal rows may lie in a file of another name by now.
            sample_id = task.start + offset
            rejects.append([sample_id, source.where(sample_id) if len(rejects) < _REJECTS_KEPT else "", reason])
        accounts.append(part.description["account"])
        if context.needs_runs:
            runs.append(part.ragged(_RUNS))
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
