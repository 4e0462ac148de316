"""``brimful report``: lengths, fill, and what other capacities would give."""

from __future__ import annotations

import os

import click

from brimful.cli.options import is_ours, lengths_from_npy
from brimful.errors import NotAPackStoreError
from brimful.measure import LengthTable
from brimful.plan import Plan
from brimful.report.lengths import describe_lengths, draw_histogram
from brimful.report.plan import describe_plan
from brimful.report.sweep import draw_sweep, sweep_capacities

__all__ = ["report"]


@click.command()
@click.argument("path")
def report(path: str) -> None:
    """Report on PATH: a length table, a plan, or a pack store."""
    table, plan = None, None
    if os.path.isdir(path):
        lengths, planned = os.path.join(path, "lengths.arrow"), os.path.join(path, "plan.arrow")
        table = LengthTable.open(lengths) if os.path.exists(lengths) else None
        plan = Plan.open(planned) if os.path.exists(planned) else None
    elif is_ours(path, "length_table"):
        table = LengthTable.open(path)
    elif is_ours(path, "plan"):
        plan = Plan.open(path)
    elif path.endswith(".npy") and os.path.exists(path):
        table = lengths_from_npy(path)
    if table is None and plan is None:
        raise NotAPackStoreError(f"{path} is no length table, plan or pack store with its plan beside it")
    if table is not None:
        for line in [*describe_lengths(table), "", *draw_histogram(table)]:
            click.echo(line)
    if plan is not None:
        click.echo("")
        for line in describe_plan(plan):
            click.echo(line)
    if table is not None:
        click.echo("")
        for line in draw_sweep(sweep_capacities(table)):
            click.echo(line)
