"""``brimful export``: packs in the layout of another project."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from brimful.cli.arguments import execution_of, pairs, required
from brimful.cli.command import GroupedCommand, grouped, value_option
from brimful.cli.options import execution_options, job_options, source_options, store_options
from brimful.cli.terminal import show
from brimful.export import LAYOUTS, check_export, export_packs
from brimful.export.whole_samples import open_as_packed
from brimful.progress import make_progress
from brimful.serve import PackStore, open_packs
from brimful.sources import Source


@click.command(cls=GroupedCommand)
@click.argument("packs", metavar="PACKS")
@grouped(
    "Layout",
    value_option("--to", "NAME", f"The layout: {', '.join(LAYOUTS)}."),
    value_option("--packs-per-shard", "N", "Packs in one file (default: those of 64 MiB of tokens).", type=int),
    value_option("--source", "PATH", "The data that was packed: packed-captions and packed-chats hold their texts."),
    value_option("--media-dir", "DIR", "Where rows of --source name media (default: beside their own file)."),
    click.option("--check", is_flag=True, help="Read the export back with the reader of its project, and compare."),
)
@source_options
@store_options
@execution_options
@job_options
def export(packs: str, output: str | None, to: str | None, check: bool, **options: Any) -> None:
    """Write PACKS, a pack store, in the layout of another project.

    energon is read by Megatron-Energon 5 to 7 without `energon prepare`; webdataset by webdataset; huggingface (Parquet) by datasets
    and TRL; megatron (.bin, .idx) by Megatron-Core; bridge (packed Parquet) by Megatron-Bridge; jsonl are JSON lines;
    packed-captions and packed-chats (ps_00000000.img000.jpg) are of LLaVA-OneVision-1.5.

    Killed at any point, the same command goes on.

      brimful export packs --to energon -o exported --check
    """
    directory = required(output, "-o", "name the directory that the export goes to")
    layout = required(to, "--to", "name the layout: " + ", ".join(LAYOUTS))
    store = open_packs(packs)
    source = _source(options["source"], store, options)
    progress = make_progress("json" if options["as_json"] else "none" if options["quiet"] else "auto")
    summary = export_packs(
        store,
        to=layout,
        directory=directory,
        source=source,
        packs_per_shard=options["packs_per_shard"],
        num_proc=options["num_proc"],
        execution=execution_of(options),
        progress=progress,
    )
    outcome = check_export(directory, store, source=source, progress=progress) if check else None
    data = {**vars(summary), "checked_by": None if outcome is None else outcome.reader}
    show(lambda: data, lambda: [*summary.lines(), *([] if outcome is None else [str(outcome)])], options["as_json"])


_SOURCE_OPTIONS = ("ignore", "text_unit", "split", "config", "max_samples")
"""Options that are arguments of ``open_source`` of the same name."""


def _source(path: str | None, packs: PackStore, options: Mapping[str, Any]) -> Source | None:
    """Open the source of texts and their media as it was packed; None without one."""
    if path is None:
        return None
    names_of_fields = dict(pairs("--field", options["fields"], ".+", "NAME=KEY, such as messages=dialogue"))
    arguments = {name: options[name] for name in _SOURCE_OPTIONS}
    return open_as_packed(
        Path(path),
        packs,
        format=options["format_name"],
        fields=names_of_fields or None,
        media_dir=options["media_dir"],
        **arguments,
    )
