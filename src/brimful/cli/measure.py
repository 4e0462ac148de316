"""``brimful measure``: exact lengths."""

from typing import Any

import click

from brimful.cli.arguments import augmentation_of, execution_of, open_job
from brimful.cli.artefacts import lengths_as_dict
from brimful.cli.command import GroupedCommand, choice_option, grouped, value_option
from brimful.cli.config import SourceArgument, config_option
from brimful.cli.options import (
    bad_sample_option,
    encoder_options,
    execution_options,
    filter_option,
    job_options,
    media_options,
    source_options,
    transform_option,
)
from brimful.cli.terminal import show
from brimful.measure import measure_lengths
from brimful.report.text.lengths import describe_lengths


@click.command(cls=GroupedCommand)
@click.argument("source", nargs=-1, required=True, cls=SourceArgument)
@source_options
@transform_option
@bad_sample_option
@filter_option
@grouped("Source", value_option("--rejects", "FILE", "Where skipped rows are listed (default: next to the table)."))
@encoder_options
@media_options
@grouped(
    "Lengths",
    value_option("--budget", "[loss_tokens]", "Also measure this budget, for plans.", "budgets", multiple=True),
    click.option(
        "--targets/--no-targets",
        default=True,
        help="Also find the targets of the loss (without, chats are measured faster).",
    ),
    value_option(
        "--augmentation",
        "NAME=VALUE",
        "Settings of augmentations in training, recorded for LengthCache; a block in a file of --config.",
        multiple=True,
    ),
)
@grouped(
    "Output",
    click.option("-o", "--output", metavar="FILE", help="The length table (default: inside the cache)."),
    choice_option("--on-mismatch", ["error", "rebuild"], "What to do if FILE holds lengths of other data or settings."),
)
@execution_options
@job_options
@config_option
def measure(source: tuple[str, ...], output: str | None, **options: Any) -> None:
    """Measure the exact length of every sample of SOURCE.

    Only new rows are measured: results are cached by content and by everything that changes a length.
    """
    augmentation = augmentation_of(options["augmentation"])
    job = open_job(source, options)
    table = measure_lengths(
        job.source,
        job.encoder,
        budgets=("tokens", *options["budgets"]),
        path=output,
        rejects_path=options["rejects"] or (f"{output}.rejects.jsonl" if output else None),
        execution=execution_of(options),
        progress=job.progress,
        augmentation=augmentation,
        **{
            name: options[name]
            for name in ("targets", "cache_dir", "num_proc", "on_bad_sample", "filters", "on_mismatch")
        },
    )
    data = {**lengths_as_dict(table), "account": table.account.as_dict()}
    show(lambda: data, lambda: [*describe_lengths(table), f"table          {table.path}"], options["as_json"])
