"""``brimful plan``: which samples share which pack."""

import os
from dataclasses import asdict
from typing import Any

import click

from brimful.base.checks import local_path
from brimful.cli.artefacts import (
    LENGTHS,
    PLAN,
    STORE,
    artefact_of,
    integers_from_npy,
    lengths_from_npy,
    lengths_in,
    plan_as_dict,
)
from brimful.cli.config import SourceArgument
from brimful.cli.option_values import make_run, open_job, plan_settings
from brimful.cli.options import (
    command,
    config_option,
    encoder_options,
    grouped,
    job_options,
    max_patches_option,
    plan_options,
    source_options,
    training_options,
    value_option,
)
from brimful.cli.program import show
from brimful.errors import SettingsError, SourceNotFoundError
from brimful.measure import LengthTable, join_tables
from brimful.measure.pending import unfinished_shares
from brimful.plan import PlanSettings, plan_with
from brimful.report.analysis.advice import advise
from brimful.report.analysis.training_run import TrainingRun
from brimful.report.analysis.what_if import compare_plans
from brimful.report.table_model import comparison_table
from brimful.report.text.artefact_lines import describe_plan
from brimful.report.text.report_lines import describe_advice, draw_choices, draw_table


@command()
@click.argument("lengths", nargs=-1, required=True, cls=SourceArgument)
@plan_options
@source_options
@encoder_options
@max_patches_option
@grouped(
    "Comparison",
    click.option(
        "--what-if",
        is_flag=True,
        help="Compare capacities and algorithms, and show what packing changes in training. Saves "
        "nothing.",
    ),
    value_option(
        "--try-max-length",
        "TOKENS",
        "A capacity to compare in --what-if; can be repeated (default: half, twice and four times "
        "--max-length).",
        "try_capacities",
        type=click.IntRange(1, 2**31 - 1),
        multiple=True,
    ),
)
@training_options
@grouped("Output", click.option("-o", "--output", metavar="FILE", help="File for the plan."))
@job_options
@config_option
def plan(lengths: tuple[str, ...], output: str | None, groups: str | None, **options: Any) -> None:
    """Plan packs from LENGTHS: a length table of `brimful measure` or the tables of several parts
    in order, a .npy file of whole numbers (.npz: columns tokens and further budgets), a pack store
    with its lengths, or a data set.

    A data set is measured first (give --tokenizer).
    """
    # Refuse everything that can be refused before measuring data, which may take hours.
    run = _what_if_run(options, output)
    if output is not None and os.path.exists(local_path(output)) and artefact_of(output) != PLAN:
        raise SettingsError(f"-o {output} exists and is not a plan: name another file")
    settings = plan_settings(options)
    table, sources = _table(lengths, options, settings)
    result = plan_with(
        table,
        settings,
        groups=None if groups is None else integers_from_npy(groups),
        sources=sources,
    )
    if output is not None:
        result.save(output)
    data = {**plan_as_dict(result), "path": output}
    lines = [*describe_plan(result), f"plan           {output or 'not saved: name a file with -o'}"]
    if run is not None:
        # Alternatives are compared at the run's current number of packs per step.
        capacities = options["try_capacities"]
        alternatives = compare_plans(
            table, result, capacities=capacities, packs_per_step=run.packs_per_step
        )
        advice = advise(table, result, run)
        data["comparison"] = [asdict(alternative) for alternative in alternatives]
        data["advice"] = asdict(advice)
        lines += [
            "",
            *draw_table(comparison_table(alternatives)),
            "",
            *describe_advice(advice),
            "",
            *draw_choices(advice),
        ]
    show(data, lambda: lines, options["as_json"])


def _what_if_run(options: dict[str, Any], output: str | None) -> TrainingRun | None:
    """Return the training run that plans are compared for; None without ``--what-if``.

    Raises:
        SettingsError: an output, a capacity below 1, an impossible run, or a comparison without
            ``--what-if``.
    """
    if not options["what_if"]:
        if options["try_capacities"]:
            raise SettingsError("--try-max-length is only for --what-if: add --what-if")
        return None
    if output is not None:
        raise SettingsError(f"--what-if saves nothing: leave out -o {output}, or --what-if")
    return make_run(options)


def _table(
    paths: tuple[str, ...], options: dict[str, Any], settings: PlanSettings
) -> tuple[LengthTable, dict[str, int] | None]:
    """Open the lengths at the paths, or measure their data; also return the sample counts of a
    mixture's sources.
    """
    table = _measured_table(paths)
    mixture = options["mixture"]
    if table is not None:
        return table, None if mixture is None else mixture.counts_in(table)
    job = open_job(paths, options)
    budgets = (
        ("tokens", "loss_tokens") if "loss_tokens" in (settings.budgets or {}) else ("tokens",)
    )
    return job.measure(budgets=budgets, share=settings.share), job.sources


def _measured_table(paths: tuple[str, ...]) -> LengthTable | None:
    """Open existing lengths, with several parts joined into one table; return None for paths of
    data.
    """
    # A table whose shares have begun and are not joined would be taken for missing data.
    for path in paths:
        if not os.path.exists(path) and (reason := unfinished_shares(path)):
            raise SourceNotFoundError(reason)
    if len(paths) == 1:
        (path,) = paths
        artefact = artefact_of(path)
        if artefact == LENGTHS:
            return LengthTable.open(path)
        if artefact == STORE and (table := lengths_in(path)) is not None:
            return table
        if artefact == PLAN:
            raise SettingsError(
                f"{path} is already a plan: `brimful inspect` shows it, and plans are made from "
                "lengths or data"
            )
        if path.endswith((".npy", ".npz")):
            return lengths_from_npy(path)
        return None
    are_lengths = [artefact_of(path) == LENGTHS for path in paths]
    if not any(are_lengths):
        return None
    if not all(are_lengths):
        path = paths[are_lengths.index(False)]
        raise SettingsError(
            f"{paths[are_lengths.index(True)]} is a length table and {path} is not: measure it "
            f"too, with `brimful measure {path} -o FILE`, and plan from all tables"
        )
    return join_tables([LengthTable.open(path) for path in paths])
