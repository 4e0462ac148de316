"""``brimful pack``: the whole job in one command."""

import threading
from typing import Any

import click

from brimful.cli.arguments import open_job, output_directory, plan_settings
from brimful.cli.artefacts import numbers_from_npy
from brimful.cli.config import SourceArgument
from brimful.cli.options import (
    GroupedCommand,
    config_option,
    encoder_options,
    engine_option,
    job_options,
    max_patches_option,
    media_storage_option,
    plan_options,
    sample_options,
    source_options,
    store_options,
)
from brimful.cli.terminal import show
from brimful.plan.optimal.master_problem import import_solver
from brimful.store import pack_dataset


@click.command(cls=GroupedCommand)
@click.argument("source", nargs=-1, required=True, cls=SourceArgument)
@source_options
@sample_options
@encoder_options
@max_patches_option
@media_storage_option
@plan_options
@store_options
@engine_option
@job_options
@config_option
def pack(source: tuple[str, ...], output: str | None, groups: str | None, **options: Any) -> None:
    """Measure, plan and write SOURCE as a pack store.

    SOURCE is JSON lines (also .gz, .zst), a JSON array, Parquet, texts, tars, pairs of JSON and media, a data set of
    `datasets` (saved, or a split on the hub), a directory, a pattern, or - for standard input; several are joined in
    order. If it is killed, run the same command again to continue.
    """
    directory = output_directory(output, "name the directory for the packs")
    settings = plan_settings(options)
    job = open_job(source, options)
    # Imported while rows are measured, so that the plan need not wait for it. Not in the library: the thread could outlive a script.
    threading.Thread(target=import_solver).start()
    summary = pack_dataset(
        job.source,
        job.encoder,
        directory,
        settings,
        groups=None if groups is None else numbers_from_npy(groups),
        sources=job.sources,
        job=job.settings,
    )
    show(summary.as_dict, summary.lines, options["as_json"])
