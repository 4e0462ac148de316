"""``brimful pack``: the whole job in one command."""

from __future__ import annotations

from typing import Any

import click

from brimful.cli.command import GroupedCommand, grouped
from brimful.cli.options import (
    bad_sample_option,
    encoder_options,
    job_options,
    make_encoder,
    make_reporter,
    make_source,
    numbers_from_npy,
    plan_arguments,
    plan_options,
    required,
    source_options,
    tokenizer_note,
)
from brimful.cli.terminal import show_json, show_lines
from brimful.materialize import pack_dataset

__all__ = ["pack"]


@click.command(cls=GroupedCommand)
@click.argument("source", nargs=-1, required=True)
@source_options
@bad_sample_option
@encoder_options
@plan_options
@grouped(
    "Output",
    click.option("-o", "--output", metavar="DIR", help="Directory of the packs."),
)
@job_options
def pack(source: tuple[str, ...], output: str | None, groups: str | None, capacity: int | None, **options: Any) -> None:
    """Measure, plan and write SOURCE as a pack store.

    SOURCE is JSON lines (.gz, .zst too), a JSON array, Parquet, texts, a data set of `datasets` (saved, or of the hub with
    --split), a directory, a pattern, or - for standard input; several follow each other. Killed at any point, the same
    command finishes the job.
    """
    required(output, "-o", "name the directory that the packs go to")
    required(capacity, "--max-length", "say how many tokens a pack may hold (the sequence length you train with)")
    data = make_source(source, options)
    encoder = make_encoder(data, options)
    progress = make_reporter(options["as_json"], options["quiet"])
    if data.detected:
        progress.say(f"{data.title}: {len(data):,} samples, format {data.format_name} (detected)")
    summary = pack_dataset(
        data,
        encoder,
        str(output),
        capacity=int(capacity or 0),
        groups=None if groups is None else numbers_from_npy(groups),
        **plan_arguments(options),
        num_proc=options["num_proc"],
        cache_dir=options["cache_dir"],
        on_bad_sample=options["on_bad_sample"],
        notes={**tokenizer_note(encoder), "source": data.title},
        progress=progress,
    )
    if options["as_json"]:
        show_json(summary.as_dict())
    else:
        show_lines(summary.lines())
