"""The objects that shared options stand for: a job on a source, and the arguments of a plan."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from brimful.cli.artefacts import refuse_as_data
from brimful.encode import Encoder, encoder_for
from brimful.errors import SettingsError
from brimful.plan import Alignment, PlanSettings
from brimful.progress import Progress, make_progress
from brimful.sources import Source, open_source


def required(value: Any, flag: str, why: str) -> Any:
    """Return an option that a command needs; the error names its purpose."""
    if value is None:
        raise SettingsError(f"{flag} is missing: {why}")
    return value


@dataclass(frozen=True)
class Job:
    """Data, the encoder for it, and the progress that the command shows."""

    source: Source
    encoder: Encoder
    progress: Progress

    @property
    def notes(self) -> dict[str, Any]:
        """Notes of a pack store: path and fingerprint of its tokenizer, to find it again, and the title of its source."""
        tokenizer = getattr(self.encoder, "tokenizer", None)
        notes = {}
        if tokenizer is not None:
            notes = {"tokenizer": tokenizer.place, "tokenizer_fingerprint": tokenizer.fingerprint}
        return {**notes, "source": self.source.title}

    def say_format(self) -> None:
        """Report the format of the source if it was detected."""
        if self.source.detected:
            text = f"{self.source.title}: {len(self.source):,} samples, format {self.source.format_name} (detected)"
            self.progress.say(text)


def open_job(data: Sequence[str], options: Mapping[str, Any]) -> Job:
    """Open the source and make the encoder that the options describe.

    Progress is a bar on a terminal and lines elsewhere; JSON with ``--json``, nothing with ``--quiet``.
    """
    source = _source(data, options)
    encoder = encoder_for(
        source,
        options["tokenizer"],
        template_kwargs=_template_arguments(options["template_args"]),
        **{name: options[name] for name in _ENCODER_OPTIONS},
    )
    progress = make_progress("json" if options["as_json"] else "none" if options["quiet"] else "auto", sys.stderr)
    return Job(source, encoder, progress)


_ENCODER_OPTIONS = (
    "mode", "train_on", "chat_template", "system", "reasoning", "date", "separator", "bos", "eos", "fast",
)  # fmt: skip
_SOURCE_OPTIONS = ("ignore", "text_unit", "split", "config", "max_samples", "cache_dir")
"""Options that are arguments of the same name."""


def _source(data: Sequence[str], options: Mapping[str, Any]) -> Source:
    refuse_as_data(data)
    fields: dict[str, str] = {}
    for text in options["fields"]:
        name, equals, key = text.partition("=")
        if not (name and equals and key):
            raise SettingsError(f"--field {text!r} must be NAME=KEY, such as messages=dialogue")
        fields[name] = key
    return open_source(
        data[0] if len(data) == 1 else [Path(path) for path in data],
        format=options["format_name"],
        fields=fields or None,
        **{name: options[name] for name in _SOURCE_OPTIONS},
    )


def _template_arguments(texts: Sequence[str]) -> dict[str, Any]:
    """Parse variables of a chat template: JSON if they are, else text."""
    variables: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise SettingsError(f"--template-arg {text!r} must be NAME=VALUE, such as enable_thinking=false")
        try:
            # Templates test booleans and numbers: "false" as text would be true.
            variables[name] = json.loads(value)
        except ValueError:
            variables[name] = value
    return variables


def plan_settings(capacity: int, options: Mapping[str, Any]) -> PlanSettings:
    """Return the settings of a plan; contradictions are refused before anything is measured."""
    names = [option.name for option in fields(PlanSettings) if option.init]
    values = {
        **{name: options[name] for name in names if name in options},
        "budgets": _budgets(options["budgets"]),
        "alignment": _alignment(options),
    }
    return PlanSettings(capacity=capacity, **values)


def _budgets(texts: Sequence[str]) -> dict[str, int] | None:
    budgets = {}
    for text in texts:
        name, equals, limit = text.partition("=")
        if not (name and equals and limit.isdecimal()):
            raise SettingsError(f"--budget {text!r} must be NAME=MOST with a whole number, such as patches=16384")
        # The last of two values would win in silence.
        if name in budgets:
            raise SettingsError(f"--budget {name} is given twice")
        budgets[name] = int(limit)
    return budgets or None


def _alignment(options: Mapping[str, Any]) -> Alignment:
    """Return the alignment: multiples by number, or those that a parallelism needs."""
    multiples = [name for name in ("align", "align_total") if options[name] is not None]
    parallelism = [name for name in ("cp", "tp", "fp8", "fused_attention") if options[name] not in (None, False)]
    # Two sources of one alignment would have to agree, and a mistake in one would not be seen.
    if multiples and parallelism:
        flags = [f"--{names[0].replace('_', '-')}" for names in (multiples, parallelism)]
        raise SettingsError(f"{flags[0]} and {flags[1]} both say what to align to: leave one out")
    if parallelism:
        return Alignment.of_parallelism(
            cp=1 if options["cp"] is None else options["cp"],
            tp=1 if options["tp"] is None else options["tp"],
            sequence_parallel=options["tp"] is not None,
            fp8=options["fp8"],
            fused_attention=options["fused_attention"],
        )
    segment, total = options["align"], options["align_total"]
    return Alignment(segment=1 if segment is None else segment, total=1 if total is None else total)
