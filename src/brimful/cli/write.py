"""``brimful write``: the packs of a plan."""

from __future__ import annotations

import os
from typing import Any

import click

from brimful.cli.artefacts import PLAN, kind_of, named
from brimful.cli.command import GroupedCommand, grouped
from brimful.cli.options import (
    encoder_options,
    job_options,
    make_encoder,
    make_reporter,
    make_source,
    required,
    source_options,
    tokenizer_note,
)
from brimful.cli.terminal import show_json, show_lines
from brimful.errors import SettingsError, SourceNotFoundError
from brimful.materialize import write_packs
from brimful.messages import counted
from brimful.plan import Plan
from brimful.serve import open_packs

__all__ = ["write"]


@click.command(cls=GroupedCommand)
@click.argument("plan_file", metavar="PLAN")
@click.argument("source", nargs=-1, required=True)
@source_options
@encoder_options
@grouped(
    "Output",
    click.option("-o", "--output", metavar="DIR", help="Directory of the packs."),
    click.option("--lanes", type=int, default=1, show_default=True, help="How ranks may divide the shards."),
)
@job_options
def write(plan_file: str, source: tuple[str, ...], output: str | None, **options: Any) -> None:
    """Write the packs of PLAN, made from SOURCE, as a pack store. Killed, the same command goes on."""
    required(output, "-o", "name the directory that the packs go to")
    if not os.path.exists(plan_file):
        raise SourceNotFoundError(f"{plan_file}: no such plan (make one with `brimful plan … -o FILE`)")
    if kind_of(plan_file) != PLAN:
        raise SettingsError(
            f"{named(plan_file, but='plan')}: `brimful plan … -o FILE` makes one, and it comes before the data, as in "
            f"`brimful write PLAN SOURCE -o DIR`"
        )
    made = Plan.open(plan_file)
    data = make_source(source, options)
    encoder = make_encoder(data, options)
    written = write_packs(
        made,
        data,
        encoder,
        str(output),
        lanes=options["lanes"],
        num_proc=options["num_proc"],
        notes={**tokenizer_note(encoder), "source": data.title},
        progress=make_reporter(options["as_json"], options["quiet"]),
    )
    made.save(os.path.join(str(output), "plan.arrow"))  # beside the packs, for reports and checks
    packs = open_packs(str(output))
    if options["as_json"]:
        show_json(
            {
                "directory": output,
                "packs": len(packs),
                "tokens": packs.num_tokens,
                "fill_ratio": packs.fill_ratio,
                "shards_written": written,
            }
        )
        return
    show_lines([f"{packs!r}, {counted(written, 'shard')} written now"])
