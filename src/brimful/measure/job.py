"""Measuring exact lengths: parallel, cached by content, resumable, and only for rows that are new."""

import heapq
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from brimful.arguments import understands
from brimful.blobs import LocalBlobStore, atomic_file
from brimful.cache import cache_dir as default_cache_dir
from brimful.encode.choose import as_encoder
from brimful.encode.encoder import Encoder
from brimful.encode.small_jobs import encoder_of_job
from brimful.encode.token_runs import StoredSamples, is_stored
from brimful.errors import BrimfulError, CacheMismatchError, SettingsError
from brimful.execute import LOCAL, Execution, ExecutionLike, as_execution, available_cores, run_tasks
from brimful.fingerprint import fingerprint_of
from brimful.measure.account import Account
from brimful.measure.block import RUNS, BlockContext, BlockTask, measure_block
from brimful.measure.comparison import compare_block, is_compared, measure_and_compare
from brimful.measure.filters import Duplicates, Filter, as_filters
from brimful.measure.filters.duplicates import CONTENT, first_of_each
from brimful.measure.media_comparison import MediaComparison
from brimful.measure.media_states import STATES, StatedRows, changed_samples, runs_of_states
from brimful.measure.provenance import open_earlier, provenance_of
from brimful.measure.shares import forget_shares, in_words, missing_shares, note_shares
from brimful.measure.table import REJECTED, LengthTable
from brimful.measure.targets import Targets, joined_rows
from brimful.messages import setting
from brimful.progress import Progress
from brimful.ragged import offsets_of
from brimful.sources.open import open_source
from brimful.sources.rows import Block
from brimful.sources.source import Source
from brimful.tables import Ragged, open_table
from brimful.typing import Int64Array

OnBadSample: TypeAlias = Literal["error", "skip"]
OnMismatch: TypeAlias = Literal["error", "rebuild"]

BUDGETS = ("tokens", "loss_tokens")
"""Budgets that can be measured of texts: all tokens, and those that are targets of the loss."""

_MAX_REJECTS = 1000
"""Rejected rows that a table names, from the first on; the rest are counted."""
_PARTS_VERSION = 2
_IN_PROCESS_BLOCKS = 3
"""Maximum blocks that are measured in this process: starting others would take longer."""


@dataclass(frozen=True)
class Measurement:
    """Result of ``measure_and_keep``: the table, and the tokens themselves if they were kept."""

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
    filters: Sequence[Filter | str] | None = None,
    augmentation: Mapping[str, Any] | None = None,
    on_mismatch: OnMismatch = "error",
    execution: ExecutionLike = LOCAL,
    progress: Progress | None = None,
) -> LengthTable:
    """Measure the exact lengths of all samples: ``len(encoder.encode(sample).input_ids)``, always.

    Work is cut into blocks of rows and kept block by block, under the fingerprint of the rows' content and of
    the encoder: a job that was killed goes on, appended rows are the only ones measured, an edited row costs one
    block, and a copy of the data elsewhere costs nothing.

    Args:
        source: the samples, or anything that ``open_source`` takes.
        encoder: turns them into tokens; or a tokenizer, or its name, for the encoder that the source needs.
        targets: measure the places of the loss's targets too, so that samples that teach nothing are known before
            they are packed. Without it chats are measured faster.
        budgets: lengths to take, from ``BUDGETS``.
        path: file of the table; inside the cache if None.
        cache_dir: directory of finished blocks.
        num_proc: processes; all cores if None, one for small data sets. Never changes the result.
        on_bad_sample: ``error`` stops at the first row that is malformed; ``skip`` counts it, writes it to
            ``rejects_path`` and gives it length -1.
        rejects_path: JSON lines of the rows that were skipped, and of samples that a filter left out.
        filters: filters of quality (``brimful.measure.filters``), or texts such as ``aspect-ratio=0.2:5``. Samples that one
            of them leaves out are rejected under either ``on_bad_sample``, with its reason.
        augmentation: settings of what training applies to samples, which changes no length (``check_augmentation``): recorded
            in the table, and compared when it is opened for another training (``LengthCache``).
        on_mismatch: reaction to a ``path`` with lengths of other data or another encoder: ``error`` names the
            parts that differ, ``rebuild`` replaces the table.
        execution: ``ray``, for a cluster, or an ``Execution``, for one share of the job. The source and ``cache_dir`` must lie
            where all machines see them.
        progress: reports rows and tokens a second and the time left.

    Raises:
        BadSampleError: names file, line and reason.
        CacheMismatchError: see ``on_mismatch``.
        UnfinishedSharesError: the share of this call is done, and others are not.

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
        filters=filters,
        augmentation=augmentation,
        on_mismatch=on_mismatch,
        execution=execution,
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
    filters: Sequence[Filter | str] | None = None,
    augmentation: Mapping[str, Any] | None = None,
    execution: ExecutionLike = LOCAL,
    looks_at_media: bool = True,
) -> Measurement:
    """Measure lengths and leave the tokens in ``encoded_dir``, so that writing need not make them again.

    With ``looks_at_media`` false, lengths are taken as they are, whatever became of the files of media: for packs that are written.
    """
    names = budgets_of(budgets, encoder)
    if on_bad_sample not in ("error", "skip"):
        raise SettingsError(f"{setting('on_bad_sample', on_bad_sample)} is unknown: use error or skip")
    if on_mismatch not in ("error", "rebuild"):
        raise SettingsError(f"{setting('on_mismatch', on_mismatch)} is unknown: use error or rebuild")
    judges = as_filters(filters)
    execution = as_execution(execution)
    progress = progress or Progress()
    provenance = provenance_of(source, encoder, names, targets, judges, augmentation)
    key = fingerprint_of([_PARTS_VERSION, provenance["settings"], provenance["labels"] if targets else None])
    folder = default_cache_dir(cache_dir) / "lengths" / key[:16]
    target = Path(path) if path is not None else folder / f"{source.fingerprint}.arrow"
    # A table in the cache bears the fingerprint of its source: it differs only if it is damaged, and is remade.
    earlier_table, misfit = open_earlier(target, provenance, source, encoder)
    if misfit and path is not None and on_mismatch == "error":
        raise CacheMismatchError(f"{target} {misfit}")
    # It is of no use to a job that keeps the tokens of all rows, or asks for targets or errors that it does not have.
    if earlier_table is not None and (
        encoded_dir is not None
        or (targets and earlier_table.targets is None)
        or (on_bad_sample == "error" and _num_bad(earlier_table))
        or (rejects_path is not None and not _knows_rejects(earlier_table, source, rejects_path))
        # Of an earlier row, new ones may be duplicates: the files of its block tell, which are there.
        or (len(earlier_table) < len(source) and any(isinstance(judge, Duplicates) for judge in judges))
    ):
        earlier_table = None
    looks_at_media = looks_at_media and encoder.takes_media
    if earlier_table is not None and looks_at_media:
        misfit = _other_media(earlier_table, source, num_proc, execution, progress)
        if misfit and path is not None and on_mismatch == "error":
            raise CacheMismatchError(f"{target} {misfit}")
        # One of an earlier version knows nothing of files, and may be right.
        if misfit or earlier_table.media_states is None:
            earlier_table = None

    samples = None
    rejects: Iterator[tuple[int, str]] | None = None
    if earlier_table is not None and len(earlier_table) == len(source):
        table = earlier_table
        table.rejects = _located(table.rejects, source)
    else:
        first_new = len(earlier_table) if earlier_table is not None else 0
        # Kept media are named by their paths, which rows do not tell.
        places = source.media_directories if encoder.takes_media else []
        encoded_key = fingerprint_of([key, encoder.fingerprint, *places])[:16]
        tasks = [
            _task_for(block, max(block.start, first_new), folder / "parts", encoded_dir, encoded_key)
            for block in source.blocks
            if block.stop > first_new
        ]
        keeps_tokens = encoded_dir is not None
        context = BlockContext(
            source, encoder, names, on_bad_sample == "skip", keeps_tokens, targets, judges, looks_at_media
        )
        # All lengths are there from an earlier job and no tokens: then writing makes the tokens, once.
        # Not so with media: rows do not tell that a picture has another size by now, and encoding finds out either way.
        lacks_tokens = encoded_dir is not None and not encoder.takes_media and not any(map(_has_tokens, tasks))
        if lacks_tokens and all(_has_lengths(task, context) for task in tasks):
            encoded_dir, tasks = None, [replace(task, encoded_path=None) for task in tasks]
            context = replace(context, keep_encoded=False)
        if execution.is_share:
            _measure_share(context, tasks, folder / "shares" / source.fingerprint, num_proc, execution, progress, path)
        changed_blocks = _changed_blocks(tasks, context, num_proc, execution, progress)
        with progress.stage("measure", total=len(source), unit="rows"):
            progress.advance(first_new, resumed=True)
            shared = [folder / "parts", *([] if encoded_dir is None else [encoded_dir])]
            _run_pending(context, tasks, num_proc, progress, execution, shared, changed_blocks)
        originals = _originals(tasks, context)
        table = _assemble(earlier_table, tasks, context, provenance, originals)
        table.save(target)
        forget_shares(target)
        rejects = _rejects_of(earlier_table, tasks, originals)
        if encoded_dir is not None:
            paths = [(task.start, task.encoded_path) for task in tasks if task.encoded_path is not None]
            samples = StoredSamples(paths)
    # A list that is complete stays: its reasons may be more than the table names.
    if rejects_path is not None and not (rejects is None and _lists_rejects(table, rejects_path)):
        write_rejects(table, source, rejects_path, rejects)
    return Measurement(table, samples)


def _other_media(
    table: LengthTable, source: Source, num_proc: int | None, execution: Execution, progress: Progress
) -> str:
    """Say which sample of a table has other files of media by now; empty if they are as they were, or nobody knows."""
    if table.media_states is None:
        return ""
    runs = runs_of_states(table.media_states)
    with closing(changed_samples(source, runs, num_proc=num_proc, execution=execution, progress=progress)) as changes:
        for _, sample_id in changes:
            return (
                f"was measured with other media: files of {source.where(sample_id)} (sample {sample_id}) were changed since. "
                f"Choose another {setting('path')}, or measure anew with {setting('on_mismatch', 'rebuild')}"
            )
    return ""


def budgets_of(budgets: Sequence[str], encoder: Encoder) -> tuple[str, ...]:
    """Return the budgets of a table: tokens first, those that are asked for, and what the encoder's media take.

    Raises:
        SettingsError: nobody measures one of that name.
    """
    for name in budgets:
        if name not in BUDGETS:
            value = setting("budgets", name, python=f"budgets {name!r}")
            raise SettingsError(f"{value} cannot be measured here: use {', '.join(BUDGETS)}")
    return ("tokens", *(name for name in BUDGETS[1:] if name in budgets), *encoder.budgets)


def _num_bad(table: LengthTable) -> int:
    """Return the number of rows that were rejected and that no filter left out."""
    return len(table.rejected_ids) - table.account.filtered.total()


def _knows_rejects(table: LengthTable, source: Source, path: str | os.PathLike[str]) -> bool:
    """Return true if the reason of each reject is in the table, or in the file at the path, which lists this table's."""
    if len(table.rejected_ids) == len(table.rejects):
        return True
    return len(table) == len(source) and _lists_rejects(table, path)


def _lists_rejects(table: LengthTable, path: str | os.PathLike[str]) -> bool:
    """Return true if a file lists exactly the rejected samples of a table, and there are more than the table names."""
    if len(table.rejected_ids) == len(table.rejects):
        return False
    try:
        with open(path, "rb") as file:
            return bool([json.loads(line)["sample_id"] for line in file] == table.rejected_ids.tolist())
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _task_for(
    block: Block, start: int, parts: Path, encoded_dir: str | os.PathLike[str] | None, encoded_key: str
) -> BlockTask:
    """Return the task of a block from row ``start`` on; its files are named by the content of the rows."""
    name = block.fingerprint if start == block.start else f"{block.fingerprint}-{start - block.start}"
    encoded_path = None if encoded_dir is None else str(Path(encoded_dir) / f"{encoded_key}-{name}.arrow")
    return BlockTask(start, block.stop, str(parts / name[:2] / f"{name}.arrow"), encoded_path, block.num_bytes)


def _measure_share(
    context: BlockContext,
    tasks: list[BlockTask],
    folder: Path,
    num_proc: int | None,
    execution: Execution,
    progress: Progress,
    path: str | os.PathLike[str] | None,
) -> None:
    """Run the tasks of one share; return if all shares are done.

    Args:
        folder: of an empty file for each share that is done. A file without its blocks does no harm: who joins measures them.
        path: of the table of all, beside which a note says that it waits for the other shares.

    Raises:
        UnfinishedSharesError: others are not done.
    """
    own_tasks = execution.share(tasks)
    changed_blocks = _changed_blocks(own_tasks, context, num_proc, LOCAL, progress)
    with progress.stage("measure share", total=sum(map(len, own_tasks)), unit="rows"):
        _run_pending(context, own_tasks, num_proc, progress, changed_blocks=changed_blocks)
    shares = LocalBlobStore(folder)
    shares.put_if_absent(f"{execution.num_tasks}/{execution.task_index}", b"")
    assert execution.num_tasks is not None
    missing = missing_shares(folder, execution.num_tasks)
    if missing and path is not None:
        note_shares(path, folder, execution, context.source.title)
    execution.check_all_done(execution.num_tasks - len(missing), execution.num_tasks, "shares", in_words(missing))


def _run_pending(
    context: BlockContext,
    tasks: list[BlockTask],
    num_proc: int | None,
    progress: Progress,
    execution: Execution = LOCAL,
    shared: Sequence[str | os.PathLike[str]] = (),
    changed_blocks: Set[int] = frozenset(),
) -> None:
    """Run the tasks whose files do not exist yet, or are of no use, and compare what nobody compared."""
    pending_tasks, uncompared_tasks = [], []
    comparison = MediaComparison(context, progress)
    undecoded_tasks = []
    for task in tasks:
        is_current = task.start not in changed_blocks
        if is_current and (task.encoded_path is None or _has_tokens(task)) and _has_lengths(task, context):
            progress.advance(len(task), resumed=True)
            if not is_compared(task):
                uncompared_tasks.append(task)
            if comparison.is_due(task):
                undecoded_tasks.append(task)
        else:
            pending_tasks.append(task)
    if num_proc is None and execution.is_local:
        # Starting a process and loading its tokenizer takes seconds. Lengths alone are mostly the tokenizer's work, which
        # uses all cores from one process; labels are Python's.
        limit = _IN_PROCESS_BLOCKS if context.needs_labels else 4 * _IN_PROCESS_BLOCKS
        num_proc = 1 if len(pending_tasks) <= limit else available_cores()
    encoder = encoder_of_job(context.encoder, tasks)
    engine = encoder.engine
    if num_proc == 1 and execution.is_local and pending_tasks:
        engine.warm_up()
    # Here one process compares for all workers, beside them; for those of a cluster it would be too slow.
    compares_here = execution.is_local
    tasks_done = run_tasks(
        measure_block if compares_here else measure_and_compare,
        pending_tasks,
        context=replace(context, encoder=encoder),
        num_proc=num_proc,
        preload={measure_block.__module__: {}, **engine.preload},
        execution=execution,
        shared=shared,
        say=progress.say,
    )
    # Closed at once on an error or Ctrl-C, so that no worker goes on behind it.
    with closing(tasks_done) as results:
        if compares_here and pending_tasks and engine.id and encoder is context.encoder:
            # Loaded while other processes start, or this one's fast library, and not when they need the cores.
            engine.reference.engine.load()
        # Those of a job that was killed before it compared them.
        for task in uncompared_tasks:
            compare_block(context, task)
        for task in undecoded_tasks:
            comparison.compare(task)
        for task, num_tokens in results:
            if compares_here:
                compare_block(context, task)
            comparison.compare(task)
            progress.advance(len(task), tokens=num_tokens)


def _changed_blocks(
    tasks: list[BlockTask], context: BlockContext, num_proc: int | None, execution: Execution, progress: Progress
) -> set[int]:
    """Return the first rows of measured blocks of which a file of media was changed since."""
    if not context.looks_at_media:
        return set()
    # Tokens that are kept have states of their own, which are looked at with them.
    measured_tasks = [task for task in tasks if task.encoded_path is None and _has_lengths(task, context)]
    runs = [StatedRows(task.start, open_table(task.part_path).flat(STATES)) for task in measured_tasks]
    changes = changed_samples(context.source, runs, num_proc=num_proc, execution=execution, progress=progress)
    return {rows.start for rows, _ in changes}


def _has_tokens(task: BlockTask) -> bool:
    """Return true if the tokens of a task are stored."""
    return task.encoded_path is not None and is_stored(task.encoded_path, len(task))


def _has_lengths(task: BlockTask, context: BlockContext) -> bool:
    """Return true if the lengths of a task are stored with all that this job asks for."""
    try:
        part = open_table(task.part_path)
        # Reading a column compares it with its checksum.
        for name in context.budgets:
            part.flat(name)
        if context.needs_runs:
            part.ragged(RUNS)
        for name in CONTENT if context.needs_contents else ():
            part.flat(name)
        if context.encoder.takes_media:
            part.flat(STATES)  # absent in files of an earlier version: nobody knows which media they are of
    except (FileNotFoundError, KeyError, BrimfulError):
        return False
    if not part.checksummed or len(part) != len(task):
        return False
    if not context.encoder.engine.trusts(part.description.get("engine", "")):
        return False
    return context.skip_bad or len(part.description["rejects"]) == len(part.description.get("filtered", ()))


def _located(rejects: Iterable[Sequence[Any]], source: Source) -> list[list[Any]]:
    """Return rejects with their present file and line: equal rows may lie in a file of another name by now."""
    return [[sample_id, source.where(sample_id), reason] for sample_id, _, reason in rejects]


def _originals(tasks: list[BlockTask], context: BlockContext) -> Int64Array | None:
    """Return the sample that each sample is a duplicate of, ``int64[num_samples]``, and -1 for none.

    None where duplicates stay. It follows from contents and ids alone, in every order of work.
    """
    if not context.needs_contents:
        return None
    # Without rows of an earlier table: the tasks cover all samples.
    parts = [open_table(task.part_path) for task in tasks]
    high, low = (np.concatenate([part.flat(name) for part in parts]) for name in CONTENT)
    is_measured = np.concatenate([part.flat("tokens") for part in parts]) > 0
    firsts = first_of_each(high, low, is_measured & ((high != 0) | (low != 0)))
    return np.where(firsts == np.arange(len(firsts)), -1, firsts)


def _rejects_of(
    earlier_table: LengthTable | None, tasks: list[BlockTask], originals: Int64Array | None
) -> Iterator[tuple[int, str]]:
    """Yield sample and reason of all rejects in the order of the samples, a block at a time."""
    if earlier_table is not None:
        yield from ((sample_id, reason) for sample_id, _, reason in earlier_table.rejects)
    for task in tasks:
        # Rows of a part are counted from its first: the same part may lie elsewhere in another source.
        rejects = [(task.start + row, reason) for row, _, reason in open_table(task.part_path).description["rejects"]]
        if originals is not None:
            copies = task.start + np.flatnonzero(originals[task.start : task.stop] >= 0)
            reasons = (f"has the content of sample {original:,}" for original in originals[copies].tolist())
            rejects = list(heapq.merge(rejects, zip(copies.tolist(), reasons, strict=True)))
        yield from rejects


def _assemble(
    earlier_table: LengthTable | None,
    tasks: list[BlockTask],
    context: BlockContext,
    provenance: dict[str, Any],
    originals: Int64Array | None,
) -> LengthTable:
    """Join the rows of an earlier table and the files of the tasks behind them to the table of the source."""
    source = context.source
    columns = {name: np.empty(len(source), dtype=np.int32) for name in context.budgets}
    states = np.zeros(len(source), dtype=np.int64) if context.encoder.takes_media else None
    runs: list[Ragged] = []
    accounts: list[Any] = []
    # Libraries of all rows, also of those that an earlier job measured; tables without any have no such entry.
    libraries: dict[str, set[str]] = {"engines": set(), "encoded_by": set()}
    if earlier_table is not None:
        for name, values in libraries.items():
            values.update(earlier_table.provenance.get(name, ()))
        for name in context.budgets:
            columns[name][: len(earlier_table)] = earlier_table.budgets[name]
        if states is not None:
            assert earlier_table.media_states is not None, "others were not taken"
            states[: len(earlier_table)] = earlier_table.media_states
        accounts.append(earlier_table.account.as_dict())
        if context.needs_runs:
            assert earlier_table.targets is not None
            assert earlier_table.targets.runs is not None
            runs.append(earlier_table.targets.runs)
    for task in tasks:
        part = open_table(task.part_path)
        for name in context.budgets:
            columns[name][task.start : task.stop] = part.flat(name)
        if states is not None:
            states[task.start : task.stop] = part.flat(STATES)
        accounts.append(part.description["account"])
        libraries["engines"].add(part.description.get("engine", ""))
        libraries["encoded_by"].add(part.description.get("encoded_by", ""))
        if context.needs_runs:
            runs.append(part.ragged(RUNS))
    if originals is not None:
        is_copy = originals >= 0
        for column in columns.values():
            column[is_copy] = REJECTED
        if runs:
            runs = [_without_rows(joined_rows(runs), is_copy)]
        accounts.append({"filtered": {Duplicates.name: int(is_copy.sum())}} if is_copy.any() else {})
    targets = None
    if context.targets:
        targets = Targets.of_runs(joined_rows(runs)) if context.needs_runs else Targets.of_all_tokens(columns["tokens"])
    used = {name: sorted(values - {""}) for name, values in libraries.items() if values - {""}}
    return LengthTable(
        columns,
        provenance={**provenance, **used, "account": Account.sum(accounts).as_dict()},
        rejects=[
            [sample_id, source.where(sample_id), reason]
            for sample_id, reason in islice(_rejects_of(earlier_table, tasks, originals), _MAX_REJECTS)
        ],
        targets=targets,
        media_states=states,
    )


def _without_rows(ragged: Ragged, is_empty: Any) -> Ragged:
    """Return rows of which some have no values any more."""
    sizes = np.diff(ragged.offsets)
    kept_sizes = np.where(is_empty, 0, sizes)
    return Ragged(ragged.values[np.repeat(~is_empty, sizes)], offsets_of(kept_sizes))


def write_rejects(
    table: LengthTable,
    source: Source,
    path: str | os.PathLike[str],
    rejects: Iterable[tuple[int, str]] | None = None,
) -> None:
    """Write JSON lines of the skipped rows: file and line, reason, and the row if it can be read.

    Args:
        table: lengths, in which they are -1.
        source: the rows.
        path: file of the list.
        rejects: sample and reason of each, in order; those that the table names if None.
    """
    ids = table.rejected_ids
    if len(ids) == 0 and not os.path.exists(path):
        return
    reasons = iter(rejects if rejects is not None else ((reject[0], reject[2]) for reject in table.rejects))
    known = next(reasons, None)
    with atomic_file(path) as file:
        for sample_id in map(int, ids):
            row = source.rows.get(sample_id)
            # Both are in the order of the samples; a table of an earlier version may name fewer.
            reason = "see the rows before"
            if known is not None and known[0] == sample_id:
                reason, known = known[1], next(reasons, None)
            record = {
                "sample_id": sample_id,
                "where": source.where(sample_id),
                "reason": reason,
                "row": row if not isinstance(row, Exception) else None,
            }
            file.write(json.dumps(record, ensure_ascii=False, default=str).encode("utf-8", "surrogatepass") + b"\n")
