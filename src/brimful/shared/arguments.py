"""Arguments that must be equal on all ranks: rank 0 sends its own beside the plan, and each other rank compares."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeAlias

from brimful.encode.encoder import Encoder
from brimful.errors import PlanMismatchError
from brimful.fingerprint import differing_keys, fingerprint_of, short
from brimful.plan import PlanSettings
from brimful.sources.source import Source

Arguments: TypeAlias = Mapping[str, str]
"""Texts by name that decide the tokens of packs, long ones as fingerprints; and ``title`` of the source, which may differ."""

_LONGEST_SHOWN = 40


def arguments_of(source: Source, encoder: Encoder, settings: PlanSettings | None = None) -> Arguments:
    """Return the arguments of this rank. Fingerprints of files are read from the cache if it has them.

    >>> from brimful import open_source
    >>> from brimful.testing.toys import toy_chat_encoder
    >>> source = open_source([{"prompt": "1+1?", "completion": "2"}])
    >>> arguments_of(source, toy_chat_encoder(), PlanSettings(capacity=64))["capacity"]
    '64'
    """
    labels = encoder.label_settings
    encoding = {f"encoder {name}": value for name, value in {**encoder.length_settings, **labels}.items()}
    values = {**encoding, **({} if settings is None else settings.as_dict())}
    return {"title": source.title, "source": source.fingerprint, **{name: _text(values[name]) for name in values}}


def check_arguments(theirs: Arguments, own: Arguments, rank: int, their_rank: int = 0) -> None:
    """Refuse a rank whose tokens would be others than those that were planned.

    Raises:
        PlanMismatchError: names each argument that differs, with both values.
    """
    differences = [
        f"{name} ({_shown(theirs, name)} on rank {their_rank}, {_shown(own, name)} here)"
        for name in differing_keys(theirs, own)
        if name != "title"
    ]
    if differences:
        raise PlanMismatchError(
            f"rank {rank} has other arguments than rank {their_rank}, which made the plan: {', '.join(differences)}"
        )


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
    return text if len(text) <= _LONGEST_SHOWN else fingerprint_of(text)


def _shown(arguments: Arguments, name: str) -> str:
    value = arguments.get(name, "not given")
    return f"{arguments['title']} {short(value)}" if name == "source" else value
