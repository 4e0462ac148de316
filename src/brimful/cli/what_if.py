"""``brimful plan --what-if``: other capacities and algorithms beside the plan, and what packing changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import click

from brimful.cli.command import grouped, together
from brimful.cli.run_options import make_run, run_options
from brimful.cli.terminal import show_lines
from brimful.errors import SettingsError
from brimful.measure import LengthTable
from brimful.plan import Plan
from brimful.report.advice import describe_advice, draw_choices
from brimful.report.advisor import advise
from brimful.report.facts import Run
from brimful.report.what_if import compare_plans, draw_comparison

__all__ = ["check_what_if", "show_what_if", "what_if_data", "what_if_options"]

what_if_options = together(
    grouped(
        "Comparison",
        click.option(
            "--what-if",
            is_flag=True,
            help="Compare capacities and algorithms, and say what packing changes in training. Saves nothing.",
        ),
        click.option(
            "--try-max-length",
            "try_capacities",
            type=int,
            multiple=True,
            metavar="TOKENS",
            help="A capacity to compare in --what-if; can be repeated (default: half, twice and four times).",
        ),
    ),
    run_options,
)
"""``--what-if``, ``--try-max-length``, and what a step is made of."""


def check_what_if(options: Mapping[str, Any], output: str | None) -> None:
    """Refuse what contradicts itself before anything is planned.

    Raises:
        SettingsError: an output, a capacity below 1, an impossible run, or a comparison without ``--what-if``.
    """
    if not options["what_if"]:
        if options["try_capacities"]:
            raise SettingsError("--try-max-length is compared by --what-if only: add --what-if")
        return
    if output is not None:
        raise SettingsError(f"--what-if saves nothing: leave out -o {output}, or --what-if")
    for capacity in options["try_capacities"]:
        if not 1 <= capacity < 2**31:
            raise SettingsError(f"--try-max-length must be from 1 to {2**31 - 1:,} and is {capacity:,}")
    make_run(options)


def what_if_data(table: LengthTable, plan: Plan, options: Mapping[str, Any]) -> dict[str, Any]:
    """The comparison and the advice, for ``--json``."""
    run = make_run(options)
    rows = compare_plans(table, plan, capacities=options["try_capacities"], packs_per_step=run.packs_per_step)
    return {"comparison": [asdict(row) for row in rows], "advice": _advice(table, plan, run).as_dict()}


def show_what_if(table: LengthTable, plan: Plan, options: Mapping[str, Any]) -> None:
    """Print the comparison and the advice."""
    run = make_run(options)
    rows = compare_plans(table, plan, capacities=options["try_capacities"], packs_per_step=run.packs_per_step)
    advice = _advice(table, plan, run)
    show_lines(["", *draw_comparison(rows), "", *describe_advice(advice), "", *draw_choices(advice)])


def _advice(table: LengthTable, plan: Plan, run: Run) -> Any:
    return advise(
        table,
        plan,
        dp_world_size=run.dp_world_size,
        micro_batch_size=run.micro_batch_size,
        gradient_accumulation_steps=run.gradient_accumulation_steps,
        packs_per_micro_batch=run.packs_per_micro_batch,
        cost_model=run.cost_model,
        learning_rate=run.learning_rate,
        warmup_steps=run.warmup_steps,
    )
