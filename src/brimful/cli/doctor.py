"""``brimful doctor``: is packing right in a run, by its configuration, and in its batches."""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import is_dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import click

from brimful.base.atomic_file import atomic_file
from brimful.cli.option_values import imported
from brimful.cli.options import command, grouped, json_option, value_option
from brimful.cli.program import show
from brimful.doctor.config.examine import judge, read_run
from brimful.doctor.config.run_settings import RunSettings
from brimful.doctor.report import DoctorReport, Evidence
from brimful.errors import BrimfulError, SettingsError, SourceNotFoundError

_KEYWORDS = {"samples", "tokenizer", "num_items", "config"}
"""Keyword arguments of ``diagnose`` that may come with batches."""


@command()
@click.argument("config", nargs=-1)
@grouped(
    "Configuration",
    value_option("--trainer", "NAME", "Trainer, such as trl; told by its keys if left out."),
    value_option("--version", "X.Y.Z", "Version of the trainer; the installed one if left out."),
    value_option("--facts", "FILE.toml", "Facts about a trainer that is not known."),
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
    wrong or suspect, 2 if it could not be read, 3 if it is unknown how samples are kept apart.

      brimful doctor train.yaml

      brimful doctor -- trl sft --model_name_or_path Qwen/Qwen3-0.6B --packing true

      brimful doctor --batch train:loader --tokenizer Qwen/Qwen3-0.6B
    """
    reports = []
    settings: dict[str, Any] = {}
    if config:
        run, subject = _run(config, options)
        settings = run.for_batches()
        reports.append(judge(run, subject))
    elif options["batch"] is None:
        raise SettingsError(
            "give a configuration, or a batch: brimful doctor train.yaml, or brimful doctor "
            "--batch my_module:loader"
        )
    if options["batch"] is not None:
        reports.append(_diagnosed(options, settings))
    report = reports[0].with_others(*reports[1:])
    if redact:
        report = report.redacted()
    if output is not None:
        from brimful.doctor.page import render_page

        with atomic_file(Path(output)) as file:
            file.write(render_page(report).encode())
    show(report.as_dict(), str(report).splitlines, as_json)
    if not report.ok:
        return 1
    return 3 if report.isolation is Evidence.UNKNOWN else 0


def _run(config: tuple[str, ...], options: Mapping[str, Any]) -> tuple[RunSettings, str]:
    """Return the settings of a run, and what was read, in words."""
    # One word is a file; more are a command line.
    target: Any = list(config)
    if len(config) == 1:
        if not os.path.exists(config[0]):
            raise SourceNotFoundError(f"{config[0]}: no such file; a command line follows --")
        target = config[0]
    chosen = {name: options[name] for name in ("trainer", "version", "ranks", "facts")}
    return read_run(target, **chosen)


def _diagnosed(options: Mapping[str, Any], settings: Mapping[str, Any]) -> DoctorReport:
    """Return the report about batches.

    Args:
        options: of the command.
        settings: of the configuration that batches are compared with.
    """
    from brimful.doctor.batch.diagnose import diagnose

    samples = {}
    if options["samples"] is not None:
        with _user_code("--samples", options["samples"]):
            value = imported("--samples", options["samples"], "my_module:samples")
            samples["samples"] = value() if callable(value) else value
    with _user_code("--batch", options["batch"]):
        value, keywords = _batches(options["batch"], options["batches"], samples)
    keywords = {"config": settings, **keywords}
    if options["tokenizer"] is not None:
        from brimful.encode.tokenizer import Tokenizer

        keywords["tokenizer"] = Tokenizer(options["tokenizer"], ask_hub=True).hf
    return diagnose(value, **keywords)


def _batches(name: str, count: int, samples: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return a batch, or the first ones of a loader, and keyword arguments of ``diagnose``.

    Args:
        name: of a batch, a list of batches, a loader, or a function that returns one of these, or
            one of these and keyword arguments of ``diagnose``.
        count: batches of a loader to read, and one more if it matters whether that is its end.
        samples: keyword arguments of the caller, which win.
    """
    value = imported("--batch", name, "my_module:loader")
    if callable(value) and not hasattr(value, "__iter__"):
        value = value()
    keywords: dict[str, Any] = {}
    if isinstance(value, tuple) and len(value) == 2 and _are_keywords(value[1]):
        value, keywords = value
    keywords = {"is_whole": True, **keywords, **samples}
    if isinstance(value, Iterable) and not _is_value(value):
        iterator = iter(value)
        value = list(islice(iterator, count))
        if "samples" in keywords:
            keywords["is_whole"] &= next(iterator, None) is None
    if isinstance(value, list) and not value:
        raise SettingsError(f"--batch {name} has no batches")
    return value, keywords


def _are_keywords(value: Any) -> bool:
    return isinstance(value, dict) and bool(value) and set(value) <= _KEYWORDS


def _is_value(value: Any) -> bool:
    """Return whether an iterable is a batch or a list of batches; any other is a loader."""
    if isinstance(value, (list, tuple, str, type)) or is_dataclass(value):
        return True
    return hasattr(value, "keys") or hasattr(value, "__array__")


@contextmanager
def _user_code(flag: str, name: str) -> Iterator[None]:
    """Turn any error of the user's own module into one that names it.

    A script that reads its own command line may also exit when it is imported.
    """
    try:
        yield
    except BrimfulError:
        raise
    except (Exception, SystemExit) as error:
        # The last line of a worker process's error is the error itself.
        text = str(error).strip().rpartition("\n")[2]
        raise SettingsError(f"{flag} {name}: {type(error).__name__}: {text}") from error
