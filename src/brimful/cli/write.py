"""``brimful write``: the packs of a plan."""

import os
from typing import Any

import click

from brimful.base.blobs import open_blob_store
from brimful.base.wording import counted
from brimful.cli.arguments import open_job, output_directory
from brimful.cli.artefacts import PLAN, kind_of, mismatch
from brimful.cli.options import (
    GroupedCommand,
    encoder_options,
    execution_options,
    grouped,
    job_options,
    media_storage_option,
    source_options,
    store_options,
)
from brimful.cli.terminal import show
from brimful.errors import SettingsError, SourceNotFoundError
from brimful.plan import Plan
from brimful.serve import open_packs
from brimful.store import write_packs
from brimful.store.claim import JobHome


@click.command(cls=GroupedCommand)
@click.argument("plan_file", metavar="PLAN")
@click.argument("source", nargs=-1, required=True)
@source_options
@grouped(
    "Source",
    click.option(
        "--on-bad-sample",
        type=click.Choice(["error", "skip"]),
        expose_value=False,
        help="Accepted as for measure, without effect: the plan names the rows that were left out.",
    ),
)
@encoder_options
@media_storage_option
@store_options
@execution_options
@job_options
def write(plan_file: str, source: tuple[str, ...], output: str | None, **options: Any) -> None:
    """Write the packs of PLAN, made from SOURCE, as a pack store. If it is killed, run the same command again."""
    directory = output_directory(output, "name the directory for the packs")
    if not os.path.exists(plan_file):
        raise SourceNotFoundError(f"{plan_file}: no such plan (make one with `brimful plan … -o FILE`)")
    # Plan and data are easily swapped, since both are paths.
    if kind_of(plan_file) != PLAN:
        raise SettingsError(
            f"{mismatch(plan_file, 'a plan')}: `brimful plan … -o FILE` makes one, and it comes before the data, as in "
            f"`brimful write PLAN SOURCE -o DIR`"
        )
    plan = Plan.open(plan_file)
    job = open_job(source, options)
    num_written = write_packs(plan, job.source, job.encoder, directory, job.settings)
    home = JobHome(open_blob_store(directory), options["cache_dir"])
    plan.save(home.path("plan.arrow"))  # next to the packs, for reports and checks
    home.publish("plan.arrow")
    packs = open_packs(directory)
    data = {
        "directory": directory,
        "packs": len(packs),
        "tokens": packs.num_tokens,
        "fill_ratio": packs.fill_ratio,
        "shards_written": num_written,
    }
    show(lambda: data, lambda: [f"{packs!r}, {counted(num_written, 'shard')} written now"], options["as_json"])
