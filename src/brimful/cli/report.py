"""``brimful report``: lengths, fill, what other capacities would give, and what packing changes in
training.
"""

import contextlib
import os
from pathlib import Path
from typing import Any

import click

from brimful.base.atomic_file import atomic_file
from brimful.base.blobs import open_blob_store
from brimful.base.checks import local_path
from brimful.base.fingerprint import short
from brimful.base.typing import AnyIntArray
from brimful.cli.artefacts import (
    decoder_of,
    integers_from_npy,
    tables_at,
)
from brimful.cli.option_values import make_run
from brimful.cli.options import (
    command,
    grouped,
    json_option,
    options_of,
    training_options,
    value_option,
)
from brimful.cli.program import show
from brimful.errors import (
    NotAPackStoreError,
    PlanMismatchError,
    SettingsError,
    SourceNotFoundError,
    UnfinishedStoreError,
)
from brimful.measure import LengthTable
from brimful.plan import Plan, PlanSettings, plan_packs
from brimful.report.analysis.facts import gather_facts
from brimful.report.analysis.shown_packs import ShownPack, show_packs
from brimful.report.html.page import DATA_ID, render_page
from brimful.report.text.report_lines import describe_facts
from brimful.serve import PackStore, open_packs
from brimful.store.shards import StreamLog


@command()
@click.argument("path")
@options_of(PlanSettings, "Packing", "capacity", "overflow", "no_target")
@training_options
@grouped(
    "Sources",
    value_option("--sources", "FILE.npy", "The source of each sample as whole numbers from 0."),
    value_option(
        "--source-name",
        "NAME",
        "Name of source 0, 1, …; may be given several times.",
        "source_names",
        multiple=True,
    ),
)
@grouped(
    "Output",
    click.option(
        "-o",
        "--output",
        metavar="FILE.html",
        help="One HTML page with charts; it needs no network.",
    ),
)
@json_option
def report(
    path: str, output: str | None, as_json: bool, capacity: int | None, **options: Any
) -> None:
    """Report on PATH: a length table, a .npy or .npz file of lengths, a plan, or a pack store.

    With --max-length, lengths are planned at that capacity for the report; only the page is
    written.
    """
    run = make_run(options)
    if output is not None:
        if not local_path(output).lower().endswith((".html", ".htm")):
            raise SettingsError(f"-o {output} must end in .html: a report is one HTML page")
        # Only a page is replaced by a page; it is recognized by its id.
        if os.path.isfile(output) and f'id="{DATA_ID}"'.encode() not in Path(output).read_bytes():
            raise SettingsError(f"-o {output} exists and is not a report: name another file")
    table, plan, packs = _open(path)
    if capacity is not None:
        if table is None:
            raise SettingsError(
                f"--max-length plans lengths, and {path} has none: name a length table or a .npy "
                "file"
            )
        plan = plan_packs(
            table, capacity=capacity, overflow=options["overflow"], no_target=options["no_target"]
        )
    sources = _sources(options["sources"], options["source_names"], table)
    packs = packs if capacity is None else None
    shown: list[ShownPack] = []
    # Only the page shows packs, and only packs with media: `brimful inspect` shows texts.
    if output is not None and packs is not None and packs.has_attachments and plan is not None:
        budgets = {"tokens": plan.capacity, **(plan.settings.budgets or {})}
        shown = show_packs(packs, budgets=budgets, decode=decoder_of(None, packs))
    title = os.path.basename(os.path.normpath(path))
    facts = gather_facts(
        title,
        table=table,
        plan=plan,
        run=run,
        sources=sources,
        shown=shown,
        media=None if packs is None else packs.census,
    )
    if output is not None:
        with atomic_file(output) as file:
            file.write(render_page(facts).encode())
    page = [] if output is None else [f"page           {output}"]
    show({**facts.as_dict(), "page": output}, lambda: describe_facts(facts) + page, as_json)


def _open(path: str) -> tuple[LengthTable | None, Plan | None, PackStore | None]:
    """Open the table, the plan and the packs at a path or in it, all of one job: otherwise their
    numbers would not add up.
    """
    if not os.path.exists(path):
        raise SourceNotFoundError(f"{path}: no such file or directory")
    table, plan = tables_at(path)
    if table is None and plan is None:
        raise NotAPackStoreError(
            f"{path} is not a length table, plan or pack store with its plan; data is measured "
            f"first: `brimful measure {path} -o lengths.arrow --tokenizer DIR|ID`"
        )
    # A directory may collect files of several runs: only fingerprints tell them apart.
    if table is not None and plan is not None and table.fingerprint != plan.length_fingerprint:
        raise PlanMismatchError(
            f"{path}: plan.arrow was made from lengths {short(plan.length_fingerprint)} and "
            f"lengths.arrow holds {short(table.fingerprint)}: report on one of the two files, or "
            "run the command that made them again"
        )
    packs = None
    if os.path.exists(os.path.join(path, "stream.json")):
        fingerprint = str(StreamLog(open_blob_store(path)).header()["identity"].get("plan"))
        if plan is not None and fingerprint != plan.fingerprint:
            raise PlanMismatchError(
                f"{path}: its packs were written from plan {short(fingerprint)} and plan.arrow is "
                f"{short(plan.fingerprint)}"
            )
        # A report may come before the job has ended.
        with contextlib.suppress(UnfinishedStoreError):
            packs = open_packs(path)
    return table, plan, packs


def _sources(
    path: str | None, names: tuple[str, ...], table: LengthTable | None
) -> tuple[AnyIntArray, list[str]] | None:
    """Open the source of each sample, with names that default to numbers; return None if not
    requested.
    """
    if path is None:
        if names:
            raise SettingsError(
                "--source-name names what --sources numbers: add --sources FILE.npy"
            )
        return None
    if table is None:
        raise SettingsError(
            "--sources needs a length table to count samples, and no length table is given"
        )
    sources = integers_from_npy(path, flag="--sources ", error_type=SettingsError)
    count = int(sources.max()) + 1 if sources.size and sources.dtype.kind in "iu" else 0
    return sources, list(names) or [f"source {index}" for index in range(count)]
