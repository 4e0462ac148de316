"""Blocks of a job: which ones are measured already, the run of the others, and shares of a job on
several machines.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import threading
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from brimful.base.atomic_file import atomic_file
from brimful.base.blobs import LocalBlobStore
from brimful.base.execute import LOCAL, Execution, Resources, run_tasks
from brimful.base.execute.workers import start_server
from brimful.base.locks import cached
from brimful.base.plain_files import read_plain
from brimful.base.tables import open_table
from brimful.base.typing import AnyPath
from brimful.base.wording import setting
from brimful.encode.encoded import is_stored
from brimful.encode.encoder import Encoder
from brimful.errors import BrimfulError
from brimful.lengths.table import STATES
from brimful.measure.block import RUNS, measure_block
from brimful.measure.block_task import (
    BlockContext,
    BlockTask,
    LengthComparison,
    attachment_measures,
)
from brimful.measure.comparison import (
    ReferenceRows,
    compare_block,
    is_compared,
    measure_and_compare,
    reference_rows,
)
from brimful.sources.rows import Block

_MAX_NAMED = 8
"""Shares that a message names; a job array of thousands may lack most of them."""


def missing_shares(folder: Path, num_tasks: int) -> list[int]:
    """Return the shares without a file for their end in the folder of a job."""
    done = {name.rsplit("/", 1)[-1] for name in LocalBlobStore(folder).list(f"{num_tasks}")}
    return [index for index in range(num_tasks) if str(index) not in done]


def in_words(shares: Sequence[int]) -> str:
    """Return numbers of shares for a message.

    >>> in_words([3, 7]), in_words(range(12))
    ('3, 7', '0, 1, 2, 3, 4, 5, 6, 7 and 4 more')
    """
    named = ", ".join(map(str, shares[:_MAX_NAMED]))
    return named if len(shares) <= _MAX_NAMED else f"{named} and {len(shares) - _MAX_NAMED} more"


def note_shares(target: AnyPath, folder: Path, execution: Execution, source: str) -> None:
    """Write a note next to a table that waits for other shares, so that its readers can name
    them.
    """
    note = {"folder": os.path.abspath(folder), "num_tasks": execution.num_tasks, "source": source}
    with atomic_file(_note_of(target)) as file:
        file.write(json.dumps(note).encode())


def forget_shares(target: AnyPath) -> None:
    """Remove the note: the table exists."""
    _note_of(target).unlink(missing_ok=True)


def unfinished_shares(target: AnyPath) -> str | None:
    """Describe the shares that a table waits for, and the commands that measure them; None without
    a note.
    """
    try:
        note = json.loads(read_plain(_note_of(target)))
        num_tasks, source = int(note["num_tasks"]), str(note["source"])
        missing = missing_shares(Path(note["folder"]), num_tasks)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    command = (
        f"{measure_command([source], os.fspath(target))} with the settings of the other shares"
    )
    index = setting("task_index", missing[0] if missing else None)
    share = (
        f"and {index} {setting('num_tasks', num_tasks)}, or without both, "
        if missing
        else "and without shares "
    )
    which = (
        f"of {num_tasks} shares {in_words(missing)} are missing"
        if missing
        else "its shares are done and were not joined"
    )
    return (
        f"{os.fspath(target)} is not there yet, {which}: {command} {share}measures what is "
        "missing and joins them"
    )


def measure_command(sources: Sequence[str], output: str) -> str:
    """Return the command that measures sources into a length table, for messages to show.

    >>> measure_command(["chats.jsonl", "…"], "lengths of chats")
    "brimful measure chats.jsonl … -o 'lengths of chats'"
    """
    arguments = ["brimful", "measure", *sources, "-o", output]
    return " ".join(
        argument if argument == "…" else shlex.quote(argument) for argument in arguments
    )


def _note_of(target: AnyPath) -> Path:
    return Path(f"{os.fspath(target)}.shares.json")


_SMALL_BYTES = 5_500_000
"""Bytes of text that the reference encodes in less processor time than the fast library takes to
load.
"""

_ROW_BYTES = 480
"""Bytes of text that take the reference as long as the fixed cost of a row."""

_ONE_PROCESS_BYTES = 24 << 20
"""Bytes of text that one process encodes with the fast library and its threads before other
processes would start.
"""

_ONE_PROCESS_BLOCKS = 3
"""Blocks that one process measures, with any library, before other processes would start."""

_NUM_EARLY_BLOCKS = 16
"""Blocks whose rows to compare are encoded while the server of worker processes imports, which
takes a second.
"""

_USUAL_ROW_BYTES = 1400
"""Assumed bytes of a row if its size is unknown: the size of a dialogue."""


def task_for(
    block: Block, start: int, directory: Path, encoded_dir: AnyPath | None, encoded_key: str
) -> BlockTask:
    """Return the task of a block from row ``start``; its files are named by the content of the
    rows.
    """
    name = (
        block.fingerprint if start == block.start else f"{block.fingerprint}-{start - block.start}"
    )
    encoded_path = (
        None if encoded_dir is None else str(Path(encoded_dir) / f"{encoded_key}-{name}.arrow")
    )
    # Records of comparisons are next to the lengths.
    lengths_path, *_ = (
        cached(directory / name[:2] / f"{name}{suffix}")
        for suffix in (".arrow", ".compared", ".processor")
    )
    return BlockTask(start, block.stop, str(lengths_path), encoded_path, block.num_bytes)


def measure_share(
    context: BlockContext,
    tasks: list[BlockTask],
    folder: Path,
    resources: Resources,
    path: AnyPath | None,
) -> None:
    """Run the tasks of one share; return if all shares are done.

    Args:
        folder: of an empty file for each finished share. A file without its blocks is harmless: the
            join measures them.
        path: of the table of all shares; a note next to it says that it waits for the others.

    Raises:
        UnfinishedSharesError: others are not done.
    """
    execution, shares = resources.execution, LocalBlobStore(folder)
    with shares.used():
        run_pending(
            context,
            execution.share(tasks),
            replace(resources, execution=LOCAL),
            stage="measure share",
        )
    shares.put_if_absent(f"{execution.num_tasks}/{execution.task_index}", b"")
    assert execution.num_tasks is not None
    missing = missing_shares(folder, execution.num_tasks)
    if missing and path is not None:
        note_shares(path, folder, execution, context.source.title)
    execution.check_all_done(
        execution.num_tasks - len(missing), execution.num_tasks, "shares", in_words(missing)
    )


def run_pending(
    context: BlockContext,
    tasks: list[BlockTask],
    resources: Resources,
    *,
    num_earlier: int = 0,
    stage: str = "measure",
    shared: Sequence[AnyPath] = (),
) -> None:
    """Run the tasks whose files do not exist yet or are unusable, and compare what was not
    compared.

    Args:
        context, tasks: of the job.
        resources, shared: as for ``run_tasks``.
        num_earlier: rows of an earlier table, for the progress.
        stage: name of this stage of the job.
    """
    progress = resources.progress
    changed_blocks = _changed_blocks(tasks, context, resources)
    with progress.stage(stage, total=num_earlier + sum(map(len, tasks)), unit="rows"):
        progress.advance(num_earlier, resumed=True)
        comparison: LengthComparison | None = None
        if context.encoder.takes_attachments:
            comparison = attachment_measures().Comparison(context, progress)
        pending_tasks, uncompared_tasks, undecoded_tasks = [], [], []
        for task in tasks:
            is_current = task.start not in changed_blocks
            if (
                is_current
                and (task.encoded_path is None or is_stored(task.encoded_path, len(task)))
                and has_lengths(task, context)
            ):
                progress.advance(len(task), resumed=True)
                if not is_compared(task):
                    uncompared_tasks.append(task)
                if comparison and comparison.is_due(task):
                    undecoded_tasks.append(task)
            else:
                pending_tasks.append(task)
        # Locally, this process compares for all workers; for a cluster it would be too slow.
        compares_here = resources.execution.is_local
        resources = resources.for_work(is_small=_is_for_one_process(context, pending_tasks))
        is_small = (
            _text_bytes(pending_tasks) + _ROW_BYTES * sum(map(len, pending_tasks)) < _SMALL_BYTES
        )
        encoder = context.encoder.engine.reference if is_small else context.encoder
        engine = encoder.engine
        preload = {**engine.preload, measure_block.__module__: {}}
        references: dict[int, ReferenceRows] = {}
        if compares_here and pending_tasks and engine.id:
            if resources.num_proc == 1:
                # Loading a library takes up to a second, mostly without the interpreter. No
                # daemons: exit must wait.
                threading.Thread(target=_load, args=(engine.reference,)).start()
                threading.Thread(target=_load, args=(encoder,)).start()
            else:
                start_server(preload)
                for task in pending_tasks[:_NUM_EARLY_BLOCKS]:
                    references[task.start] = reference_rows(context, task)
        tasks_done = run_tasks(
            measure_block if compares_here else measure_and_compare,
            pending_tasks,
            context=replace(context, encoder=encoder),
            resources=resources,
            preload=preload,
            shared=shared,
        )
        # Closed at once on an error or Ctrl-C, so that no worker goes on after it.
        with closing(tasks_done) as results:
            # Blocks of a job that was killed before it compared them.
            for task in uncompared_tasks:
                compare_block(context, task)
            for task in undecoded_tasks:
                assert comparison
                comparison.compare(task)
            for task, num_tokens in results:
                if compares_here and engine.id:
                    compare_block(context, task, references.pop(task.start, None))
                if comparison:
                    comparison.compare(task)
                progress.advance(len(task), tokens=num_tokens)


def _load(encoder: Encoder) -> None:
    with contextlib.suppress(Exception):  # the job itself reports it
        encoder.engine.load()


def _is_for_one_process(context: BlockContext, tasks: Sequence[BlockTask]) -> bool:
    """Return true if one process measures all blocks before others would have started."""
    # Starting a process and loading its tokenizer takes seconds. Lengths alone are mostly the
    # tokenizer's work, which uses all cores from one process; labels are Python's.
    if len(tasks) <= (_ONE_PROCESS_BLOCKS if context.needs_labels else 4 * _ONE_PROCESS_BLOCKS):
        return True
    if context.encoder.takes_attachments or not context.encoder.engine.uses_threads:
        return False
    return _text_bytes(tasks) < _ONE_PROCESS_BYTES


def _text_bytes(tasks: Sequence[BlockTask]) -> int:
    return sum(
        len(task) * _USUAL_ROW_BYTES if task.num_bytes is None else task.num_bytes for task in tasks
    )


def _changed_blocks(
    tasks: list[BlockTask], context: BlockContext, resources: Resources
) -> set[int]:
    """Return the first rows of measured blocks with a file of attachments that changed since."""
    if not context.looks_at_files:
        return set()
    # Kept tokens have their own states, which are checked with them,
    # except the states of files whose images a transform has read.
    is_augmented = context.source.augmentation is not None
    measured_tasks = [
        task
        for task in tasks
        if (task.encoded_path is None or is_augmented) and has_lengths(task, context)
    ]
    runs = [(task.start, open_table(task.lengths_path).flat(STATES)) for task in measured_tasks]
    changes = attachment_measures().changed_samples(context.source, runs, resources)
    return {start for start, _ in changes}


def has_lengths(task: BlockTask, context: BlockContext) -> bool:
    """Return true if the lengths of a task are stored with all that this job needs."""
    try:
        lengths = open_table(task.lengths_path)
        # Reading a column verifies its checksum.
        for name in (*context.budgets, *((STATES,) if context.encoder.takes_attachments else ())):
            lengths.flat(name)
        if context.needs_runs:
            lengths.ragged(RUNS)
        for name in context.search.columns if context.search else ():
            lengths.flat(name)
    except (FileNotFoundError, KeyError, BrimfulError):
        return False
    if len(lengths) != len(task) or not context.encoder.engine.trusts(
        lengths.description.get("engine", "")
    ):
        return False
    return context.skip_bad or not lengths.description["rejects"]
