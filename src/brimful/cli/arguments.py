"""The objects that shared options describe: a job on a source, and the settings of a plan."""

import importlib
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from brimful.cli.artefacts import refuse_as_data
from brimful.cli.flags import flag_of
from brimful.cli.mixture import MixtureFile
from brimful.encode import Encoder, encoder_for
from brimful.errors import BadSampleError, BrimfulError, SettingsError
from brimful.execute import Execution
from brimful.media.families import Family, family_of_processor, open_family
from brimful.messages import counted, first_few
from brimful.plan import Alignment, PlanSettings
from brimful.progress import Progress, make_progress
from brimful.sources import Source, open_source

Value = TypeVar("Value")


def required(value: Value | None, flag: str, why: str) -> Value:
    """Return the value of an option that a command needs; the error names its purpose."""
    if value is None:
        raise SettingsError(f"{flag} is missing: {why}")
    return value


_BEFORE_PACKS = frozenset(("lengths.arrow", "plan.arrow", "rejects.jsonl", "tmp"))
"""Files that a job may leave in the directory of its packs before it writes the first pack."""


def output_directory(path: str | None, why: str) -> str:
    """Return the directory of ``-o``: new, empty, or from a job to continue.

    Raises:
        SettingsError: it is missing, or holds other files, with which packs would be mixed.
    """
    directory = required(path, "-o", why)
    names = set(os.listdir(directory)) if os.path.isdir(directory) else set()
    others = sorted(name for name in names - _BEFORE_PACKS if not name.startswith("."))
    if others and names.isdisjoint(("stream.json", ".brimful")):
        raise SettingsError(
            f"-o {directory} holds other files ({first_few(others, len(others))}), and nothing is written next to them: name "
            f"a new directory, such as {os.path.join(directory, 'packs')}"
        )
    return directory


@dataclass(frozen=True)
class Job:
    """Data, the encoder for it, and the progress that the command shows.

    Attributes:
        source: the samples.
        encoder: the encoder for the source.
        progress: the progress that the command shows.
        sources: number of samples of each source of a mixture; None without a mixture, or if its file names no data.
    """

    source: Source
    encoder: Encoder
    progress: Progress
    sources: dict[str, int] | None = None

    @property
    def notes(self) -> dict[str, Any]:
        """Notes for a pack store: the tokenizer's path and fingerprint, to find it later, and the source's title."""
        tokenizer = getattr(self.encoder, "tokenizer", None)
        source_note = {"source": self.source.title}
        if tokenizer is None:
            return source_note
        return {"tokenizer": tokenizer.place, "tokenizer_fingerprint": tokenizer.fingerprint, **source_note}


def execution_of(options: Mapping[str, Any]) -> Execution:
    """Return where the tasks of a command run, and which tasks this call does."""
    return Execution(options["engine"], options.get("task_index"), options.get("num_tasks"))


def open_job(data: Sequence[str], options: Mapping[str, Any]) -> Job:
    """Open the source and make the encoder that the options describe; a detected format is reported.

    Progress is a bar on a terminal and lines elsewhere; JSON with ``--json``, nothing with ``--quiet``.
    """
    refuse_as_data(data)
    wants_media = options.get("processor") is not None or options.get("family") is not None
    settings = {**source_settings(options), "media": wants_media}
    mixture: MixtureFile | None = options.get("mixture")
    sources = None
    if mixture is not None and mixture.data:
        source, sources = _open_mixture(data, mixture, settings)
    else:
        source = open_source(one_or_all(data), **settings)
    source = source.augmented(_transforms(options.get("transforms", ())))
    encoder = encoder_for(
        source,
        options["tokenizer"] or options.get("processor"),
        media=media_family(options),
        compare_media=options.get("compare_media", True),
        **encoder_settings(options),
    )
    progress = make_progress("json" if options["as_json"] else "none" if options["quiet"] else "auto")
    # A detected format is not reported if the first row does not have it.
    if source.detected and not isinstance(next(source.read(0, 1)), BadSampleError):
        of_rows = f" of {counted(len(source) // source.group_size, 'row')}" if source.group_size > 1 else ""
        samples = counted(len(source), "sample") + of_rows
        progress.say(f"{source.title}: {samples}, format {source.format_name} (detected)")
    return Job(source, encoder, progress, sources)


def _open_mixture(
    data: Sequence[str], mixture: MixtureFile, settings: Mapping[str, Any]
) -> tuple[Source, dict[str, int]]:
    """Open the sources that a mixture file names; a source's own options override the options of the command."""
    paths = [path for options in mixture.data.values() for path in options["path"]]
    if list(data) != paths:
        raise SettingsError(
            f"{data[0]} is data on the command line, and {mixture.path} names the data of each source: leave one out"
        )
    opened = {}
    for name, own in mixture.data.items():
        options = {**settings, **{_OWN_NAMES.get(key, key): value for key, value in own.items() if key != "path"}}
        try:
            opened[name] = open_source(one_or_all(own["path"]), **options)
        except BrimfulError as error:
            raise type(error)(f"{mixture.places[name]}: source {name}: {error.message}") from error
    title = f"the mixture of {mixture.path}"
    return Source.chained(list(opened.values()), title), {name: len(source) for name, source in opened.items()}


_OWN_NAMES = {"subset": "config"}
"""Keys of a source that differ from the argument names of ``open_source``."""


_ENCODER_OPTIONS = (
    "mode", "train_on", "chat_template", "system", "reasoning", "date", "separator", "bos", "eos", "fast",
)  # fmt: skip
_FAMILY_OPTIONS = (
    "min_pixels", "max_pixels", "fps", "num_frames", "min_frames", "max_frames", "video_min_pixels", "video_max_pixels",
    "sampling_rate",
)  # fmt: skip
_MEDIA_PLACE_OPTIONS = ("media_dir", "media_outside")
_SOURCE_OPTIONS = ("ignore", "prompt", "text_unit", "split", "config", "max_samples", "cache_dir")
"""Options that are passed as arguments of the same name."""


def field_names(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the keys of rows that ``--field`` names."""
    return dict(pairs("--field", options["fields"], ".+", "NAME=KEY, such as messages=dialogue"))


def source_settings(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of ``open_source`` that the options give, except ``media``."""
    names = (*_SOURCE_OPTIONS, *(name for name in _MEDIA_PLACE_OPTIONS if name in options))
    return {
        "format": options["format_name"],
        "fields": field_names(options) or None,
        **{name: options[name] for name in names},
    }


def one_or_all(paths: Sequence[str]) -> str | list[Path]:
    """Return the path of a single source, or the list of several paths, as ``open_source`` takes them."""
    return paths[0] if len(paths) == 1 else [Path(path) for path in paths]


def encoder_settings(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of ``encoder_for`` from the options of the group Encoding, except the tokenizer."""
    settings = {name: options[name] for name in _ENCODER_OPTIONS}
    form = "NAME=VALUE, such as enable_thinking=false"
    return {"template_kwargs": _json_values("--template-arg", options["template_args"], form), **settings}


def _transforms(texts: Sequence[str]) -> list[Any]:
    """Import the functions that ``--transform`` names, also from the working directory."""
    functions = []
    for text in texts:
        module, _, name = text.partition(":")
        if not module or not name:
            raise SettingsError(
                f"--transform {text!r} must be MODULE:NAME, such as augment:half for half in augment.py"
            )
        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
        try:
            functions.append(getattr(importlib.import_module(module), name))
        except (ImportError, AttributeError) as error:
            raise SettingsError(f"--transform {text}: {error}") from error
    return functions


def augmentation_of(texts: Sequence[str]) -> dict[str, Any] | None:
    """Return the settings that ``--augmentation`` records; None without the option."""
    return _json_values("--augmentation", texts, "NAME=VALUE, such as crop=224") or None


def media_family(options: Mapping[str, Any]) -> Family | None:
    """Return the family of the model's processor; None if media are not requested."""
    name, directory = options.get("family"), options.get("processor")
    if name is None and directory is None:
        given = [flag_of(option) for option in (*_FAMILY_OPTIONS, "max_patches") if options.get(option) is not None]
        if given:
            raise SettingsError(
                f"{given[0]} is for images, videos and audio: name the model's --processor, or leave it out"
            )
        return None
    if name is None and directory is not None:
        name = family_of_processor(directory)
    assert name is not None
    return open_family(name, directory, **{name: options.get(name) for name in _FAMILY_OPTIONS})


def pairs(flag: str, texts: Sequence[str], value_pattern: str, expected_form: str) -> Iterator[tuple[str, str]]:
    """Yield the name and value of each text that is given to a flag."""
    for text in texts:
        match = re.fullmatch(f"([^=]+)=({value_pattern})", text, re.DOTALL)
        if match is None:
            raise SettingsError(f"{flag} {text!r} must be {expected_form}")
        yield match.group(1), match.group(2)


def _json_values(flag: str, texts: Sequence[str], expected_form: str) -> dict[str, Any]:
    """Parse the values that a flag assigns to names, as JSON if possible, otherwise as text."""
    values: dict[str, Any] = {}
    for name, value in pairs(flag, texts, ".*", expected_form):
        try:
            # Templates test booleans and numbers: the text "false" would be true.
            values[name] = json.loads(value)
        except ValueError:
            values[name] = value
    return values


def plan_settings(options: Mapping[str, Any]) -> PlanSettings:
    """Return the settings of a plan; contradictions are refused before anything is measured."""
    why = "say how many tokens a pack may hold (the sequence length you train with)"
    required(options["capacity"], "--max-length", why)
    texts = options["budgets"]
    if options.get("max_patches") is not None:
        texts = (*texts, f"patches={options['max_patches']}")
    mixture: MixtureFile | None = options.get("mixture")
    values = {
        **options,
        "budgets": _budgets(texts),
        "alignment": _alignment(options),
        "mixture": None if mixture is None else mixture.mixture,
    }
    names = [option.name for option in fields(PlanSettings) if option.init]
    return PlanSettings(**{name: values[name] for name in names})


def _budgets(texts: Sequence[str]) -> dict[str, int] | None:
    budgets: dict[str, int] = {}
    for name, limit in pairs("--budget", texts, r"\d+", "NAME=MOST with a whole number, such as patches=16384"):
        # Otherwise the second value would silently replace the first.
        if name in budgets:
            raise SettingsError(f"--budget {name} is given twice")
        budgets[name] = int(limit)
    return budgets or None


def _alignment(options: Mapping[str, Any]) -> Alignment:
    """Return the alignment: multiples as numbers, or the multiples that a parallelism needs."""
    multiples = _chosen(segment=options["align"], total=options["align_total"])
    parallelism = _chosen(**{name: options[name] for name in ("cp", "tp", "fp8", "fused_attention")})
    # Two definitions of one alignment would have to agree, and a mistake in one would go unnoticed.
    if multiples and parallelism:
        flags = [flag_of(next(iter(settings))) for settings in (multiples, parallelism)]
        raise SettingsError(f"{flags[0]} and {flags[1]} both say what to align to: leave one out")
    if parallelism:
        return Alignment.of_parallelism(**parallelism, sequence_parallel="tp" in parallelism)
    return Alignment(**multiples)


def _chosen(**settings: Any) -> dict[str, Any]:
    """Return the settings that are set and not switched off."""
    return {name: value for name, value in settings.items() if value is not None and value is not False}
