"""``brimful plan``: which samples share which pack."""

from __future__ import annotations

import os
from typing import Any

import click

from brimful.cli.arguments import open_job, plan_settings, required
from brimful.cli.artefacts import LENGTHS, PLAN, STORE, kind_of, lengths_in
from brimful.cli.command import GroupedCommand, grouped
from brimful.cli.npy import lengths_from_npy, numbers_from_npy
from brimful.cli.options import encoder_options, job_options, plan_options, source_options
from brimful.cli.terminal import show_json, show_lines
from brimful.cli.what_if import check_what_if, show_what_if, what_if_data, what_if_options
from brimful.errors import SettingsError
from brimful.measure import LengthTable, measure_lengths
from brimful.plan import PlanSettings, plan_with
from brimful.report.text.plan import describe_plan


@click.command(cls=GroupedCommand)
@click.argument("lengths", nargs=-1, required=True)
@plan_options
@source_options
@encoder_options
@what_if_options
@grouped("Output", click.option("-o", "--output", metavar="FILE", help="Where the plan goes."))
@job_options
def plan(
    lengths: tuple[str, ...], output: str | None, groups: str | None, capacity: int | None, **options: Any
) -> None:
    """Plan packs from LENGTHS: a length table of `brimful measure`, a .npy file of whole numbers (.npz: columns
    tokens and further budgets), a pack store with its lengths, or a data set.

    A data set is measured first (give --tokenizer).
    """
    required(capacity, "--max-length", "say how many tokens a pack may hold (the sequence length you train with)")
    # Everything that can be refused is refused before data is measured, which may take hours.
    check_what_if(options, output)
    if output is not None and os.path.exists(output) and kind_of(output) != PLAN:
        raise SettingsError(f"-o {output} is there and is no plan: name another file")
    settings = plan_settings(int(capacity or 0), options)
    table = _table(lengths, options, settings)
    result = plan_with(table, settings, groups=None if groups is None else numbers_from_npy(groups))
    if output is not None:
        result.save(output)
    if options["as_json"]:
        data = {
            "path": output,
            "num_packs": result.num_packs,
            "lower_bound": result.bound,
            "fill_ratio": result.fill_ratio,
            "fingerprint": result.fingerprint,
            "settings": result.record,
            **result.ledger.as_dict(),
        }
        show_json(data | (what_if_data(table, result, options) if options["what_if"] else {}))
        return
    show_lines([*describe_plan(result), f"plan           {output or 'not saved: name a file with -o'}"])
    if options["what_if"]:
        show_what_if(table, result, options)


def _table(paths: tuple[str, ...], options: dict[str, Any], settings: PlanSettings) -> LengthTable:
    """Open the lengths that the paths hold, or measure their data."""
    if len(paths) == 1:
        (path,) = paths
        kind = kind_of(path)
        if kind == LENGTHS:
            return LengthTable.open(path)
        if kind == STORE and (table := lengths_in(path)) is not None:
            return table
        if kind == PLAN:
            raise SettingsError(
                f"{path} is a plan already: `brimful inspect` shows it, and plans are made from lengths or data"
            )
        if path.endswith((".npy", ".npz")):
            return lengths_from_npy(path)
    job = open_job(paths, options)
    return measure_lengths(
        job.source,
        job.encoder,
        budgets=("tokens", "loss_tokens") if "loss_tokens" in (settings.budgets or {}) else ("tokens",),
        cache_dir=options["cache_dir"],
        num_proc=options["num_proc"],
        progress=job.progress,
    )
