"""``brimful inspect``: a description of any file that brimful writes; with ``--every``, of a stream
as it grows.
"""

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from itertools import count
from typing import Any

import click

from brimful.base.atomic_file import atomic_file
from brimful.base.blobs import is_remote, open_blob_store
from brimful.base.progress import make_progress
from brimful.base.wording import counted
from brimful.cli.artefacts import (
    LENGTHS,
    PLAN,
    artefact_of,
    decoder_of,
    lengths_as_dict,
    lengths_in,
    plan_as_dict,
    plan_in,
    tables_at,
)
from brimful.cli.options import command, grouped, json_option, value_option
from brimful.cli.program import in_flags, show
from brimful.errors import (
    CorruptFileError,
    NotAPackStoreError,
    SettingsError,
    SourceNotFoundError,
    StoreError,
    UnfinishedStoreError,
)
from brimful.measure import LengthTable
from brimful.plan import Plan
from brimful.report.analysis.sample_fate import find_sample
from brimful.report.analysis.stream_watch import StreamWatch
from brimful.report.store_check import check_store
from brimful.report.text.artefact_lines import (
    describe_lengths,
    describe_plan,
    describe_store,
    pack_as_dict,
    planned_pack_as_dict,
    show_pack,
    show_planned_pack,
)
from brimful.report.text.stream_lines import describe_stream, prometheus_text, stream_line
from brimful.serve import open_packs
from brimful.store.shards import StreamLog


@command()
@click.argument("path")
@grouped(
    "What to show",
    value_option("--pack", "N", "Pack N: its segments, and their text.", "index", type=int),
    value_option(
        "--sample",
        "N",
        "Sample N: its file and line, and the packs that hold it, or why no pack does.",
        type=int,
    ),
    value_option("--tokenizer", "DIR|ID", "Tokenizer for the text (default: the one that packed)."),
    value_option(
        "--media-root", "DIR", "Where the media of the packs are now (default: as recorded)."
    ),
    click.option(
        "--full",
        is_flag=True,
        help="Whole texts, not only their beginnings and ends; every branch of a tree.",
    ),
    click.option(
        "--check",
        is_flag=True,
        help="Read every byte of a pack store and compare it with its log and plan.",
    ),
)
@grouped(
    "Streams",
    value_option(
        "--every",
        "SECONDS",
        "Show a line every SECONDS until stopped.",
        type=click.FloatRange(min=0, min_open=True),
    ),
    value_option("--updates", "N", "End after N lines.", type=click.IntRange(min=1)),
    value_option(
        "--prometheus-file",
        "FILE",
        "Write the numbers to a file for node-exporter's textfile collector.",
    ),
)
@json_option
def inspect(
    path: str, index: int | None, sample: int | None, check: bool, as_json: bool, **options: Any
) -> None:
    """Describe PATH, a length table, a plan, a pack store or a growing stream, or one pack or
    sample of it.
    """
    if options["every"] is not None or options["prometheus_file"] is not None:
        _follow(path, options["every"], options["updates"], options["prometheus_file"], as_json)
        return
    if not (is_remote(path) or os.path.exists(path)):
        raise SourceNotFoundError(f"{path}: no such file or directory")
    if index is not None and sample is not None:
        raise SettingsError("--pack and --sample show two things: leave one out")
    # A remote path cannot be opened to see its kind: only stores may be remote.
    is_store, artefact = is_remote(path) or os.path.isdir(path), artefact_of(path)
    if check and not is_store:
        raise SettingsError("--check reads a pack store: name its directory")
    if artefact is None and (sample is not None or not is_store):
        raise NotAPackStoreError(
            f"{path} was not written by brimful: not a length table, plan or pack store"
        )
    if sample is not None:
        table, plan = tables_at(path)
        if artefact == PLAN:
            table = lengths_in(os.path.dirname(path))
        if plan is not None and table is not None and table.fingerprint != plan.length_fingerprint:
            table = None  # from another job in the same directory
        fate = find_sample(sample, plan, table)
        show({"kind": "sample", **asdict(fate)}, fate.describe, as_json)
    elif is_store:
        _show_store(path, index, check, as_json, options)
    elif artefact == LENGTHS:
        lengths = LengthTable.open(path)
        show(lengths_as_dict(lengths), lambda: describe_lengths(lengths), as_json)
    elif index is None:
        plan = Plan.open(path)
        show(plan_as_dict(plan), lambda: describe_plan(plan), as_json)
    else:
        _show_planned_pack(Plan.open(path), index, options["full"], as_json)


def _show_planned_pack(plan: Plan, index: int, full: bool, as_json: bool) -> None:
    """Show the segments of one pack of a plan, which has no text."""
    _check_index(index, plan.num_packs, "plan")
    show(
        planned_pack_as_dict(plan, index),
        lambda: show_planned_pack(plan, index, full),
        as_json,
    )


def _check_index(index: int, num_packs: int, noun: str) -> None:
    if not 0 <= index < num_packs:
        raise SettingsError(f"--pack {index}: the {noun} has packs 0 … {num_packs - 1}")


def _show_store(
    path: str, index: int | None, check: bool, as_json: bool, options: Mapping[str, Any]
) -> None:
    """Show a pack store or one of its packs, and the result of its check."""
    media_root = options["media_root"]
    try:
        packs = open_packs(path, media_root=media_root)
    except UnfinishedStoreError:
        # Packs of a plan do not grow: their job was stopped, and the same command continues it.
        has_plan = "settings" in StreamLog(open_blob_store(path)).header()["identity"]
        if index is not None or check or has_plan:
            raise
        status = StreamWatch(path).look()
        show(status.as_dict(), lambda: describe_stream(status), as_json)
        return
    plan = plan_in(path)
    if index is None:
        status = StreamWatch(path).look()
        is_watched = bool(status.producers or status.trainings)
        data = {
            "kind": "store",
            "path": packs.directory,
            "num_packs": len(packs),
            "capacity": packs.capacity,
            "shards": packs.num_shards,
            "tokens": packs.num_tokens,
            "fill_ratio": packs.fill_ratio,
            "identity": packs.identity,
            "notes": packs.notes,
            **({"media": packs.census.as_dict()} if packs.census.kinds else {}),
            **({} if plan is None else plan.ledger.as_dict()),
            **({"stream": status.as_dict()} if is_watched else {}),
        }
        lines = describe_store(packs, plan)
        if is_watched:
            lines += describe_stream(status)
    else:
        _check_index(index, len(packs), "store")
        # Boundaries are shown even without a tokenizer.
        decode = decoder_of(options["tokenizer"], packs)
        data = pack_as_dict(packs[index], index, packs.capacity, decode)
        lines = show_pack(packs[index], index, packs.capacity, decode, options["full"])
    if check:
        result = check_store(
            path,
            plan=plan,
            media_root=media_root,
            progress=make_progress("json" if as_json else "auto"),
        )
        reference = "log and plan" if plan is not None else "log (no plan.arrow next to it)"
        totals = {name: count for name, count in asdict(result).items() if count or name != "media"}
        data["checked"] = {**totals, "against": reference}
        lines += [
            f"checked        {counted(result.shards, 'shard')}, {counted(result.packs, 'pack')}, "
            f"{result.tokens:,} tokens of {counted(result.samples, 'sample')}"
            f"{f' and {result.media:,} media' if result.media else ''} agree with {reference}"
        ]
    show(data, lambda: lines, as_json)


def _follow(
    stream: str,
    every: float | None,
    updates: int | None,
    prometheus_file: str | None,
    as_json: bool,
) -> None:
    """Show a line for each update of a stream's status.

    Args:
        stream: path or URL.
        every: seconds between two updates; None for a single one.
        updates: number of updates; None continues until stopped.
        prometheus_file: replaced at each update by the numbers in Prometheus' text format.
        as_json: show a line of JSON.
    """
    watch = StreamWatch(stream)
    for update in count(1):
        start = time.monotonic()
        try:
            status = watch.look()
            if prometheus_file is not None:
                with atomic_file(prometheus_file) as file:
                    file.write(prometheus_text(status).encode())
        except CorruptFileError:
            raise
        except (OSError, StoreError) as error:
            if every is None:
                raise
            # A watch may run for weeks: it continues if the network is down for a minute or a disk
            # is full.
            click.echo(f"warning: {in_flags(getattr(error, 'message', str(error)))}", err=True)
        else:
            line = f"{time.strftime('%H:%M:%S')} {stream_line(status)}"
            show(status.as_dict(), [line].copy, as_json)
            sys.stdout.flush()
        if every is None or update == updates:
            return
        time.sleep(max(0.0, start + every - time.monotonic()))
