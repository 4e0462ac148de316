"""``brimful plan --what-if``: other capacities and algorithms beside the plan, and advice on turning packing on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import click

from brimful.cli.command import grouped, together, value_option
from brimful.cli.terminal import show_lines
from brimful.cli.training_options import make_run, training_options
from brimful.errors import SettingsError
from brimful.measure import LengthTable
from brimful.plan import Plan
from brimful.report.analysis.advice import Advice
from brimful.report.analysis.advise import advise_run
from brimful.report.analysis.what_if import Alternative, compare_plans
from brimful.report.text.advice import describe_advice, draw_choices
from brimful.report.text.comparison import draw_comparison

what_if_options = together(
    grouped(
        "Comparison",
        click.option(
            "--what-if",
            is_flag=True,
            help="Compare capacities and algorithms, and say what packing changes in training. Saves nothing.",
        ),
        value_option(
            "--try-max-length",
            "TOKENS",
            "A capacity to compare in --what-if; can be repeated (default: half, twice and four times).",
            "try_capacities",
            type=int,
            multiple=True,
        ),
    ),
    training_options,
)
"""``--what-if``, ``--try-max-length``, and the settings of a step."""


def check_what_if(options: Mapping[str, Any], output: str | None) -> None:
    """Refuse contradictions before anything is planned.

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
    """Return the comparison and the advice for ``--json``."""
    alternatives, advice = _what_if(table, plan, options)
    return {"comparison": [asdict(alternative) for alternative in alternatives], "advice": advice.as_dict()}


def show_what_if(table: LengthTable, plan: Plan, options: Mapping[str, Any]) -> None:
    """Print the comparison and the advice."""
    alternatives, advice = _what_if(table, plan, options)
    show_lines(["", *draw_comparison(alternatives), "", *describe_advice(advice), "", *draw_choices(advice)])


def _what_if(table: LengthTable, plan: Plan, options: Mapping[str, Any]) -> tuple[list[Alternative], Advice]:
    run = make_run(options)
    capacities = options["try_capacities"]
    # Alternatives are compared at the packs of a step that the run has now.
    alternatives = compare_plans(table, plan, capacities=capacities, packs_per_step=run.packs_per_step)
    return alternatives, advise_run(table, plan, run)
