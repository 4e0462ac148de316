"""``brimful doctor``: is packing right in a run, by its configuration, and in its batches."""

import os
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import click

from brimful.base.atomic_file import atomic_file
from brimful.cli.option_values import imported
from brimful.cli.options import command, grouped, json_option, value_option
from brimful.cli.program import show
from brimful.doctor.report import DoctorReport
from brimful.errors import SettingsError, SourceNotFoundError


@command()
@click.argument("config", nargs=-1)
@grouped(
    "Configuration",
    value_option("--trainer", "NAME", "Trainer, such as trl; told by its keys if left out."),
    value_option("--version", "X.Y.Z", "Version of the trainer; the installed one if left out."),
    click.option(
        "--ranks", type=click.IntRange(min=1), metavar="N", help="Number of processes of the run."
    ),
)
@grouped(
    "Batches",
    value_option(
        "--batch", "MODULE:NAME", "A function that returns or yields batches, or a loader."
    ),
    click.option(
        "--batches",
        type=click.IntRange(min=1),
        default=1,
        metavar="N",
        help="Batches to read of a loader.",
    ),
    value_option(
        "--samples", "MODULE:NAME", "The same samples alone: a list of token ids, or a function."
    ),
    value_option("--tokenizer", "DIR|ID", "Shows the text of segments and what is trained."),
)
@grouped(
    "Output",
    click.option("-o", "--output", metavar="FILE.html", help="One HTML page; it needs no network."),
    click.option("--redact", is_flag=True, help="Leave out paths and texts, for an issue."),
)
@json_option
def doctor(
    config: tuple[str, ...], output: str | None, redact: bool, as_json: bool, **options: Any
) -> int:
    """Say what a run does to packed samples: by its configuration, by a batch of its loader.

    CONFIG is a file (YAML, JSON, TOML, shell, Python, notebook) or, after --, a command line. Each
    line is known (by configuration and version), seen (in a batch), shown (by a probe in the job)
    or unknown; nothing is ever called right. Exit code 0 if nothing was found, 1 if something is
    wrong or suspect, 2 if it could not be read.

      brimful doctor train.yaml

      brimful doctor -- trl sft --model_name_or_path Qwen/Qwen3-0.6B --packing true

      brimful doctor --batch train:loader --tokenizer Qwen/Qwen3-0.6B
    """
    reports = []
    if config:
        reports.append(_examined(config, options))
    elif options["batch"] is None:
        raise SettingsError(
            "give a configuration, or a batch: brimful doctor train.yaml, or brimful doctor "
            "--batch my_module:loader"
        )
    if options["batch"] is not None:
        reports.append(_diagnosed(options))
    report = reports[0].with_others(*reports[1:])
    if redact:
        report = report.redacted()
    if output is not None:
        from brimful.doctor.page import render_page

        with atomic_file(Path(output)) as file:
            file.write(render_page(report).encode())
    show(report.as_dict(), str(report).splitlines, as_json)
    return 0 if report.ok else 1


def _examined(config: tuple[str, ...], options: Mapping[str, Any]) -> DoctorReport:
    from brimful.doctor.config.examine import examine

    # One word is a file; more are a command line.
    target: Any = list(config)
    if len(config) == 1:
        if not os.path.exists(config[0]):
            raise SourceNotFoundError(f"{config[0]}: no such file; a command line follows --")
        target = config[0]
    chosen = {name: options[name] for name in ("trainer", "version", "ranks")}
    return examine(target, **chosen)


def _diagnosed(options: Mapping[str, Any]) -> DoctorReport:
    from brimful.doctor.batch.diagnose import diagnose

    example = "my_module:loader"
    value = imported("--batch", options["batch"], example)
    keywords: dict[str, Any] = {}
    value = value() if callable(value) and not hasattr(value, "__iter__") else value
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], dict):
        value, keywords = value
    if not isinstance(value, (Mapping, tuple, list)) and isinstance(value, Iterable):
        value = list(islice(value, options["batches"]))
    if options["samples"] is not None:
        samples = imported("--samples", options["samples"], "my_module:samples")
        keywords["samples"] = samples() if callable(samples) else samples
    if options["tokenizer"] is not None:
        from brimful.encode.tokenizer import Tokenizer

        keywords["tokenizer"] = Tokenizer(options["tokenizer"], ask_hub=True).hf
    return diagnose(value, **keywords)
