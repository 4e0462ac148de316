"""``brimful measure``: exact lengths."""

from typing import Any, get_args

import click

from brimful.cli.arguments import open_job
from brimful.cli.artefacts import lengths_as_dict
from brimful.cli.config import SourceArgument
from brimful.cli.options import (
    GroupedCommand,
    config_option,
    encoder_options,
    execution_options,
    grouped,
    job_options,
    pairs_of,
    sample_options,
    source_options,
    value_option,
)
from brimful.cli.terminal import show
from brimful.measure import OnMismatch
from brimful.report.text.length_lines import describe_lengths


@click.command(cls=GroupedCommand)
@click.argument("source", nargs=-1, required=True, cls=SourceArgument)
@source_options
@sample_options
@grouped("Source", value_option("--rejects", "FILE", "Where skipped rows are listed (default: next to the table)."))
@encoder_options
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
        callback=pairs_of("--augmentation", "NAME=VALUE, such as crop=224"),
    ),
)
@grouped(
    "Output",
    click.option("-o", "--output", metavar="FILE", help="The length table (default: inside the cache)."),
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

    Only new rows are measured: results are cached by content and by everything that changes a length.
    """
    job = open_job(source, options)
    table = job.measure(
        budgets=("tokens", *options["budgets"]),
        path=output,
        rejects_path=options["rejects"] or (f"{output}.rejects.jsonl" if output else None),
        **{name: options[name] for name in ("targets", "augmentation", "on_mismatch")},
    )
    data = {**lengths_as_dict(table), "account": table.account.as_dict()}
    show(lambda: data, lambda: [*describe_lengths(table), f"table          {table.path}"], options["as_json"])
