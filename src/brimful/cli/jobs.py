"""``brimful measure``, ``pack`` and ``write``: jobs that read a source."""

import os
from typing import Any, get_args

import click

from brimful.base.blobs import open_blob_store
from brimful.base.checks import local_path
from brimful.base.wording import counted
from brimful.cli.artefacts import PLAN, artefact_of, integers_from_npy, lengths_as_dict, mismatch
from brimful.cli.option_values import open_job, output_directory, plan_settings
from brimful.cli.options import (
    command,
    config_option,
    encoder_options,
    engine_option,
    execution_options,
    grouped,
    job_options,
    max_patches_option,
    media_storage_option,
    options_of,
    pairs_of,
    plan_options,
    sample_options,
    source_argument,
    source_options,
    store_options,
    value_option,
)
from brimful.cli.program import show
from brimful.errors import SettingsError, SourceNotFoundError
from brimful.measure import OnMismatch
from brimful.measure.measure_settings import MeasureSettings
from brimful.plan import Plan
from brimful.report.text.artefact_lines import describe_lengths
from brimful.serve import open_packs
from brimful.store import pack_dataset, write_packs
from brimful.store.claim import JobHome


@command()
@source_argument
@source_options
@sample_options
@grouped(
    "Source",
    value_option(
        "--rejects", "FILE", "Where skipped rows are listed (default: next to the table)."
    ),
)
@encoder_options
@grouped(
    "Lengths",
    value_option(
        "--budget",
        "[loss_tokens]",
        "Also measure this budget, for plans.",
        "budgets",
        multiple=True,
    ),
    click.option(
        "--targets/--no-targets",
        default=True,
        help="Also find the targets of the loss (without, chats are measured faster).",
    ),
    value_option(
        "--augmentation",
        "NAME=VALUE",
        "Settings of augmentations in training, recorded for LengthCache; a block in a file of "
        "--config.",
        multiple=True,
        callback=pairs_of("--augmentation", "NAME=VALUE, such as crop=224"),
    ),
    options_of(MeasureSettings, "Lengths", "share", "least_shared", "share_within"),
)
@grouped(
    "Output",
    click.option(
        "-o", "--output", metavar="FILE", help="The length table (default: inside the cache)."
    ),
    value_option(
        "--on-mismatch",
        "error|rebuild",
        "What to do if FILE holds lengths of other data or settings.",
        type=click.Choice(get_args(OnMismatch)),
        default="error",
    ),
)
@execution_options
@job_options
@config_option
def measure(source: tuple[str, ...], output: str | None, **options: Any) -> None:
    """Measure the exact length of every sample of SOURCE.

    Only new rows are measured: results are cached by content and by everything that changes a
    length.
    """
    if output is not None:
        local_path(output)
    job = open_job(source, options)
    table = job.measure(
        budgets=("tokens", *options["budgets"]),
        path=output,
        rejects_path=options["rejects"] or (f"{output}.rejects.jsonl" if output else None),
        **{name: options[name] for name in ("targets", "augmentation", "share", "on_mismatch")},
    )
    data = {**lengths_as_dict(table), "account": table.account.as_dict()}
    show(
        data, lambda: [*describe_lengths(table), f"table          {table.path}"], options["as_json"]
    )


@command()
@source_argument
@source_options
@sample_options
@encoder_options
@max_patches_option
@media_storage_option
@plan_options
@options_of(MeasureSettings, "Packing", "least_shared", "share_within")
@store_options
@engine_option
@job_options
@config_option
def pack(source: tuple[str, ...], output: str | None, groups: str | None, **options: Any) -> None:
    """Measure, plan and write SOURCE as a pack store.

    SOURCE is JSON lines (also .gz, .zst), a JSON array, Parquet, texts, tars, pairs of JSON and
    media, a data set of `datasets` (saved, or a split on the hub), a directory, a pattern, or - for
    standard input; several are joined in order. If it is killed, run the same command again to
    continue.
    """
    directory = output_directory(output, "name the directory for the packs")
    settings = plan_settings(options)
    job = open_job(source, options)
    summary = pack_dataset(
        job.source,
        job.encoder,
        directory,
        settings,
        groups=None if groups is None else integers_from_npy(groups),
        sources=job.sources,
        job=job.settings,
    )
    show(summary.as_dict(), summary.lines, options["as_json"])


@command()
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
    """Write the packs of PLAN, made from SOURCE, as a pack store. If it is killed, run the same
    command again.
    """
    directory = output_directory(output, "name the directory for the packs")
    if not os.path.exists(plan_file):
        raise SourceNotFoundError(
            f"{plan_file}: no such plan (make one with `brimful plan … -o FILE`)"
        )
    # Plan and data are easily swapped, since both are paths.
    if artefact_of(plan_file) != PLAN:
        raise SettingsError(
            f"{mismatch(plan_file, 'a plan')}: `brimful plan … -o FILE` makes one, and it comes "
            "before the data, as in `brimful write PLAN SOURCE -o DIR`"
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
    show(
        data,
        lambda: [f"{packs!r}, {counted(num_written, 'shard')} written now"],
        options["as_json"],
    )
