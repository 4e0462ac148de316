"""``brimful plan``: which samples share which pack."""

from __future__ import annotations

import os
from typing import Any

import click

from brimful.cli.artefacts import LENGTHS, PLAN, STORE, kind_of
from brimful.cli.command import GroupedCommand, grouped
from brimful.cli.options import (
    encoder_options,
    job_options,
    lengths_from_npy,
    make_encoder,
    make_reporter,
    make_source,
    measured_budgets,
    numbers_from_npy,
    plan_arguments,
    plan_options,
    required,
    source_options,
)
from brimful.cli.terminal import show_json, show_lines
from brimful.cli.what_if import check_what_if, show_what_if, what_if_data, what_if_options
from brimful.errors import SettingsError
from brimful.measure import LengthTable, measure_lengths
from brimful.plan import plan_packs
from brimful.plan.settings import PlanSettings
from brimful.report.text.plan import describe_plan

__all__ = ["plan"]


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
    check_what_if(options, output)
    if output is not None and os.path.exists(output) and kind_of(output) != PLAN:
        raise SettingsError(f"-o {output} is there and is no plan: name another file")
    arguments = plan_arguments(options)
    PlanSettings(capacity=int(capacity or 0), **arguments)  # complains before anything is measured
    table = _table(lengths, options)
    made = plan_packs(
        table,
        capacity=int(capacity or 0),
        groups=None if groups is None else numbers_from_npy(groups),
        **arguments,
    )
    if output is not None:
        made.save(output)
    if options["as_json"]:
        show_json(
            {
                "path": output,
                "num_packs": made.num_packs,
                "lower_bound": made.bound,
                "fill_ratio": made.fill_ratio,
                "fingerprint": made.fingerprint,
                "settings": made.settings,
                **made.ledger.as_dict(),
                **(what_if_data(table, made, options) if options["what_if"] else {}),
            }
        )
        return
    show_lines([*describe_plan(made), f"plan           {output or 'not saved: name a file with -o'}"])
    if options["what_if"]:
        show_what_if(table, made, options)


def _table(lengths: tuple[str, ...], options: dict[str, Any]) -> LengthTable:
    kind = kind_of(lengths[0]) if len(lengths) == 1 else None
    if kind == LENGTHS:
        return LengthTable.open(lengths[0])
    if kind == STORE and os.path.exists(beside := os.path.join(lengths[0], "lengths.arrow")):
        return LengthTable.open(beside)
    if kind == PLAN:
        raise SettingsError(
            f"{lengths[0]} is a plan already: `brimful inspect` shows it, and plans are made from lengths or data"
        )
    if len(lengths) == 1 and lengths[0].endswith((".npy", ".npz")):
        return lengths_from_npy(lengths[0])
    source = make_source(lengths, options)
    encoder = make_encoder(source, options)
    return measure_lengths(
        source,
        encoder,
        budgets=measured_budgets(options),
        cache_dir=options["cache_dir"],
        num_proc=options["num_proc"],
        progress=make_reporter(options["as_json"], options["quiet"]),
    )
