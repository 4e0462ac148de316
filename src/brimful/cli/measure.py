"""``brimful measure``: exact lengths."""

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
    source_options,
)
from brimful.cli.terminal import show_json, show_lines
from brimful.measure import measure_lengths
from brimful.report.text.lengths import describe_lengths

__all__ = ["measure"]


@click.command(cls=GroupedCommand)
@click.argument("source", nargs=-1, required=True)
@source_options
@bad_sample_option
@grouped(
    "Source",
    click.option("--rejects", metavar="FILE", help="Where skipped rows are listed (default: beside the table)."),
)
@encoder_options
@grouped(
    "Lengths",
    click.option("--budget", "budgets", multiple=True, metavar="[loss_tokens]", help="Also measure these, for plans."),
    click.option(
        "--targets/--no-targets",
        default=True,
        show_default=True,
        help="Find out where the targets of the loss lie too (chats are measured faster without).",
    ),
)
@grouped(
    "Output",
    click.option("-o", "--output", metavar="FILE", help="The length table (default: inside the cache)."),
    click.option(
        "--on-mismatch",
        type=click.Choice(["error", "rebuild"]),
        default="error",
        show_default=True,
        help="If FILE holds lengths of other data or settings.",
    ),
)
@job_options
def measure(source: tuple[str, ...], output: str | None, **options: Any) -> None:
    """Measure the exact length of every sample of SOURCE.

    Only rows that are new are measured: results are cached by content and by everything that changes a length.
    """
    data = make_source(source, options)
    encoder = make_encoder(data, options)
    progress = make_reporter(options["as_json"], options["quiet"])
    if data.detected:
        progress.say(f"{data.title}: {len(data):,} samples, format {data.format_name} (detected)")
    rejects = options["rejects"] or (f"{output}.rejects.jsonl" if output else None)
    table = measure_lengths(
        data,
        encoder,
        budgets=("tokens", *options["budgets"]),
        targets=options["targets"],
        path=output,
        cache_dir=options["cache_dir"],
        num_proc=options["num_proc"],
        on_bad_sample=options["on_bad_sample"],
        rejects_path=rejects,
        on_mismatch=options["on_mismatch"],
        progress=progress,
    )
    if options["as_json"]:
        show_json(
            {
                "path": table.path,
                "samples": len(table),
                "tokens": table.total_tokens,
                "fingerprint": table.fingerprint,
                "rejected": len(table.rejected_ids),
                "targets": None if table.targets is None else table.targets.total,
                "account": table.account.as_dict(),
            }
        )
        return
    show_lines([*describe_lengths(table), f"table          {table.path}"])
