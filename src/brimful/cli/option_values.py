"""The objects that shared options describe: a job on a source, and the settings of a plan."""

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from brimful.base.arguments import settings_from
from brimful.base.blobs import is_remote
from brimful.base.execute import Execution
from brimful.base.progress import Progress, make_progress
from brimful.base.wording import counted, first_few
from brimful.cli.artefacts import refuse_as_data
from brimful.cli.mixture import MixtureFile
from brimful.cli.program import flag_of
from brimful.clusters.remote_blobs import protocol_to_write
from brimful.encode import Encoder, EncoderSettings, encoder_for
from brimful.errors import BadSampleError, BrimfulError, SettingsError
from brimful.measure import LengthTable
from brimful.measure.job import measure_and_keep
from brimful.measure.measure_settings import MeasureSettings
from brimful.media.families import MediaSettings
from brimful.plan import Alignment, PlanSettings
from brimful.plan.policies.trainer_multiples import KERNELS
from brimful.report.analysis.training_run import (
    DEFAULT_MODEL,
    TrainingRun,
    cost_model_from_config,
    cost_model_named,
)
from brimful.sources import Source, open_source
from brimful.sources.settings import SourceSettings
from brimful.store import JobSettings

Value = TypeVar("Value")


def required(value: Value | None, flag: str, why: str) -> Value:
    """Return the value of an option that a command needs; the error names its purpose."""
    if value is None:
        raise SettingsError(f"{flag} is missing: {why}")
    return value


CAPACITY = "say how many tokens a pack may hold (the sequence length you train with)"
"""Reason why a command needs ``--max-length``."""

_BEFORE_PACKS = frozenset(("lengths.arrow", "plan.arrow", "rejects.jsonl", "tmp"))
"""Files that a job may leave in the directory of its packs before it writes the first pack."""


def output_directory(path: str | None, why: str) -> str:
    """Return the directory of ``-o``: new, empty, or from a job to continue.

    Raises:
        SettingsError: it is missing, or holds other files, with which packs would be mixed.
    """
    directory = required(path, "-o", why)
    if is_remote(directory):
        protocol_to_write(directory)
    names = set(os.listdir(directory)) if os.path.isdir(directory) else set()
    other_names = sorted(name for name in names - _BEFORE_PACKS if not name.startswith("."))
    if other_names and names.isdisjoint(("stream.json", ".brimful")):
        raise SettingsError(
            f"-o {directory} holds other files ({first_few(other_names, len(other_names))}), and "
            "nothing is "
            "written next to them: name a new directory, such as "
            f"{os.path.join(directory, 'packs')}"
        )
    return directory


@dataclass(frozen=True)
class Job:
    """Data, the encoder for it, and the settings of its job.

    Attributes:
        source: the samples.
        encoder: the encoder for the source.
        settings: with the progress that the command shows, and notes for a pack store: the
            tokenizer's path and fingerprint, to find it later, and the source's title.
        sources: number of samples of each source of a mixture; None without a mixture, or if its
            file names no data.
    """

    source: Source
    encoder: Encoder
    settings: JobSettings
    sources: dict[str, int] | None = None

    def measure(self, **options: Any) -> LengthTable:
        """Measure the lengths of the data; ``options`` are further arguments of
        ``measure_lengths``.
        """
        settings = settings_from(MeasureSettings, vars(self.settings), **options)
        return measure_and_keep(self.source, self.encoder, settings)[0]


def progress_of(options: Mapping[str, Any]) -> Progress:
    """Return the progress that a command shows: a bar or lines; JSON with ``--json``, nothing with
    ``--quiet``.
    """
    return make_progress("json" if options["as_json"] else "none" if options["quiet"] else "auto")


def open_job(data: Sequence[str], options: Mapping[str, Any]) -> Job:
    """Open the source and make the encoder that the options describe; a detected format is
    reported.
    """
    refuse_as_data(data)
    media = settings_from(MediaSettings, options)
    settings = {
        **vars(settings_from(SourceSettings, options)),
        "cache_dir": options["cache_dir"],
        "media": media.processor is not None or media.family is not None,
    }
    mixture: MixtureFile | None = options.get("mixture")
    sources = None
    if mixture is not None and mixture.data:
        source, sources = _open_mixture(data, mixture, settings)
    else:
        source = open_source(one_or_all(data), **settings)
    example = "augment:half for half in augment.py"
    source = source.augmented(
        [imported("--transform", text, example) for text in options.get("transforms", ())]
    )
    family = media.open()
    if family is None and options.get("max_patches") is not None:
        raise SettingsError(
            "--max-patches is for images, videos and audio: name the model's --processor, or "
            "leave it out"
        )
    encoder_settings = settings_from(EncoderSettings, options, media=family)
    encoder = encoder_for(source, options["tokenizer"] or media.processor, encoder_settings)
    progress = progress_of(options)
    # A detected format is not reported if the first row does not have it.
    if source.detected and not isinstance(next(source.read(0, 1)), BadSampleError):
        num_rows = source.rows.num_rows
        of_rows = "" if num_rows == len(source) else f" of {counted(num_rows, 'row')}"
        samples = counted(len(source), "sample") + of_rows
        progress.say(f"{source.title}: {samples}, format {source.format_name} (detected)")
    tokenizer = getattr(encoder, "tokenizer", None)
    notes = (
        {}
        if tokenizer is None
        else {"tokenizer": tokenizer.place, "tokenizer_fingerprint": tokenizer.fingerprint}
    )
    run_settings = {"execution": settings_from(Execution, options), "progress": progress}
    return Job(
        source,
        encoder,
        settings_from(
            JobSettings, options, **run_settings, notes={**notes, "source": source.title}
        ),
        sources,
    )


def _open_mixture(
    data: Sequence[str], mixture: MixtureFile, settings: Mapping[str, Any]
) -> tuple[Source, dict[str, int]]:
    """Open the sources that a mixture file names; a source's own options override the options of
    the command.
    """
    paths = [path for options in mixture.data.values() for path in options["path"]]
    if list(data) != paths:
        raise SettingsError(
            f"{data[0]} is data on the command line, and {mixture.path} names the data of each "
            "source: leave one out"
        )
    sources = {}
    for name, source_options in mixture.data.items():
        options = {
            **settings,
            **{
                "config" if key == "subset" else key: value
                for key, value in source_options.items()
                if key != "path"
            },
        }
        try:
            sources[name] = open_source(one_or_all(source_options["path"]), **options)
        except BrimfulError as error:
            raise type(error)(
                f"{mixture.locations[name]}: source {name}: {error.message}"
            ) from error
    title = f"the mixture of {mixture.path}"
    return Source.chained(list(sources.values()), title), {
        name: len(source) for name, source in sources.items()
    }


def one_or_all(paths: Sequence[str]) -> str | list[Path]:
    """Return the path of a single source, or the list of several paths, as ``open_source`` takes
    them.
    """
    return paths[0] if len(paths) == 1 else [Path(path) for path in paths]


def imported(flag: str, text: str, example: str) -> Any:
    """Import the object that a flag names as ``MODULE:NAME``, also from the working directory."""
    module, _, name = text.partition(":")
    if not module or not name:
        raise SettingsError(f"{flag} {text!r} must be MODULE:NAME, such as {example}")
    # Unlike `python -m`, a program does not search the working directory for modules.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise SettingsError(f"{flag} {text}: {error}") from error


def plan_settings(options: Mapping[str, Any]) -> PlanSettings:
    """Return the settings of a plan; contradictions are refused before anything is measured."""
    required(options["capacity"], "--max-length", CAPACITY)
    budgets, max_patches = options["budgets"] or {}, options.get("max_patches")
    if max_patches is not None:
        if "patches" in budgets:
            raise SettingsError("--budget patches is given twice")
        budgets = {**budgets, "patches": max_patches}
    mixture: MixtureFile | None = options.get("mixture")
    values = {
        **options,
        "budgets": budgets or None,
        "alignment": _alignment(options),
        "draw": None if mixture is None else mixture.mixture,
    }
    return settings_from(PlanSettings, values)


def _alignment(options: Mapping[str, Any]) -> Alignment:
    """Return the alignment: multiples as numbers, or the multiples that a parallelism needs."""
    multiples, parallelism = (
        {name: options[name] for name in names if options[name] not in (None, False)}
        for names in (("segment", "total"), ("cp", "tp", "fp8", "fused_attention", "align_for"))
    )
    # Two definitions of one alignment would have to agree, and a mistake in one would go unnoticed.
    if multiples and parallelism:
        flags = [flag_of(next(iter(settings))) for settings in (multiples, parallelism)]
        raise SettingsError(f"{flags[0]} and {flags[1]} both say what to align to: leave one out")
    if parallelism:
        parallelism["trainer"] = parallelism.pop("align_for", KERNELS)
        return Alignment.of_parallelism(**parallelism, sequence_parallel="tp" in parallelism)
    return Alignment(**multiples)


def make_run(options: Mapping[str, Any]) -> TrainingRun:
    """Return the run that the options describe.

    Raises:
        SettingsError: an impossible run, or two models.
    """
    name, path = options["model_type"], options["model_config"]
    if name is not None and path is not None:
        raise SettingsError(
            f"--model-type {name} and --model-config {path} are two models: give one of them"
        )
    return settings_from(
        TrainingRun,
        options,
        cost_model=cost_model_from_config(path)
        if path is not None
        else cost_model_named(name or DEFAULT_MODEL),
        model=path or name or DEFAULT_MODEL,
    )
