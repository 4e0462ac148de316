"""``brimful export``: packs in the layout of another project."""

from typing import Any

import click

from brimful.base.arguments import settings_from
from brimful.base.execute import Execution
from brimful.cli.option_values import one_or_all, output_directory, progress_of, required
from brimful.cli.options import (
    command,
    execution_options,
    file_options,
    grouped,
    job_options,
    media_place_options,
    store_options,
    value_option,
)
from brimful.cli.program import show
from brimful.integrations.export import LAYOUTS, check_export, export_packs
from brimful.integrations.export.export_job import check_reader
from brimful.integrations.export.packed_pairs import open_as_packed
from brimful.serve import open_packs
from brimful.sources.settings import SourceSettings


@command()
@click.argument("packs", metavar="PACKS")
@grouped(
    "Layout",
    value_option("--to", "NAME", f"The layout: {', '.join(LAYOUTS)}."),
    value_option(
        "--packs-per-shard", "N", "Packs in one file (default: 64 MiB of tokens).", type=int
    ),
    value_option(
        "--source",
        "PATH",
        "The data that was packed: megatron-sft, packed-captions and packed-chats hold its texts. May "
        "be given several times, in the order of packing.",
        "source_paths",
        multiple=True,
    ),
    click.option(
        "--check",
        is_flag=True,
        help="Read the export back with the reader of its project, and compare.",
    ),
)
@file_options
@media_place_options
@store_options
@execution_options
@job_options
def export(packs: str, output: str | None, to: str | None, check: bool, **options: Any) -> None:
    """Write PACKS, a pack store, in the layout of another project.

    energon is read by Megatron-Energon, huggingface by `datasets` (load_from_disk), megatron by
    Megatron-Core, bridge by Megatron-Bridge, olmo-core by OLMo-core and open-instruct, megatron-sft
    by Megatron-LM and NeMo RL, packed-captions and packed-chats by LLaVA-OneVision.

    If it is killed, run the same command again to continue.

      brimful export packs --to energon -o exported --check
    """
    directory = output_directory(output, "name the directory for the export")
    layout = required(to, "--to", "name the layout: " + ", ".join(LAYOUTS))
    if check:
        check_reader(layout)
    store = open_packs(packs)
    names = options["source_paths"]
    source = None
    if names:
        settings = vars(settings_from(SourceSettings, options))
        source = open_as_packed(
            one_or_all(names), store, **settings, cache_dir=options["cache_dir"]
        )
    progress = progress_of(options)
    summary = export_packs(
        store,
        to=layout,
        directory=directory,
        source=source,
        packs_per_shard=options["packs_per_shard"],
        num_proc=options["num_proc"],
        execution=settings_from(Execution, options),
        progress=progress,
    )
    outcome = check_export(directory, store, source=source, progress=progress) if check else None
    data = {**vars(summary), "checked_by": None if outcome is None else outcome.reader}
    show(
        data,
        lambda: [*summary.lines(), *([] if outcome is None else [str(outcome)])],
        options["as_json"],
    )
