"""Read phases from a line of text, such as a command line has. A small strict grammar; nothing is evaluated.

::

    recipe  = phase { ";" phase } [ ";" ]
    phase   = name [ "(" [ setting { "," setting } ] ")" ]
    setting = name "=" value
    value   = true | false | whole number | decimal number | word | whole numbers divided by spaces
"""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

from brimful.errors import SettingsError
from brimful.messages import setting
from brimful.plan.phases.finish import Finish
from brimful.plan.phases.phase import Phase
from brimful.plan.phases.powers_of_two import PowersOfTwo
from brimful.plan.phases.seeded import Seeded
from brimful.plan.phases.seeds import CapacityRatio, Half, Lengths, SeedRule, SizeRange, TopN

__all__ = ["NAMES", "read_phases"]

_PHASES: dict[str, type[Phase]] = {"powers_of_two": PowersOfTwo, "finish": Finish}
_RULES: dict[str, type[SeedRule]] = {
    "half": Half,
    "top_n": TopN,
    "size_range": SizeRange,
    "capacity_ratio": CapacityRatio,
    "lengths": Lengths,
}
NAMES = ("powers_of_two", *_RULES, "finish")
"""What a phase can be called."""

_PHASE = re.compile(r"\s*([^\s()]+)\s*(?:\((.*)\))?\s*", re.DOTALL)
_WHOLE = re.compile(r"[0-9]{1,18}")
_DECIMAL = re.compile(r"[0-9]+\.[0-9]*(?:e-?[0-9]{1,3})?|[0-9]+e-?[0-9]{1,3}", re.IGNORECASE)


def read_phases(text: str) -> list[Phase]:
    """The phases of a recipe; whether they make one is for ``Recipe`` to say.

    >>> read_phases("top_n(n=20, min_items=4); finish")[1]
    Finish(min_fill=None, every=1, last=None, seeds_per_length=10)

    Raises:
        SettingsError: names the word that is wrong, and the choices.
    """
    pieces = text.split(";")
    if len(pieces) > 1 and not pieces[-1].strip():
        pieces.pop()
    return [_phase(piece) for piece in pieces]


def _phase(piece: str) -> Phase:
    found = _PHASE.fullmatch(piece)
    if found is None:
        raise SettingsError(f"{setting('phases')}: {piece.strip()!r} is no phase: write name or name(setting=value, …)")
    name, inside = found.group(1), found.group(2) or ""
    if name not in NAMES:
        raise SettingsError(f"{setting('phases')}: {name!r} is no phase: use some of {', '.join(NAMES)}")
    rule = _RULES.get(name)
    of_rule = [field.name for field in fields(rule)] if rule is not None else []
    of_phase = [field.name for field in fields(_PHASES.get(name, Seeded)) if field.name != "by"]
    settings = _settings(name, inside, [*of_rule, *of_phase])
    if rule is None:
        return _PHASES[name](**settings)
    if rule is Lengths and "lengths" not in settings:
        raise SettingsError(
            f"{setting('phases')}: {piece.strip()!r} names no lengths: write lengths(lengths=300 400 500)"
        )
    own = {key: settings.pop(key) for key in of_rule if key in settings}
    return Seeded(rule(**own), **settings)


def _settings(name: str, inside: str, known: list[str]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for part in inside.split(",") if inside.strip() else []:
        key, equals, value = (word.strip() for word in part.partition("="))
        if not equals or not value:
            raise SettingsError(
                f"{setting('phases')}: {part.strip()!r} in {name}(…) is no setting: write setting=value"
            )
        if key not in known:
            raise SettingsError(f"{setting('phases')}: {name} has no setting {key!r}: use some of {', '.join(known)}")
        if key in settings:
            raise SettingsError(f"{setting('phases')}: {name} has {key} twice: keep one")
        settings[key] = _value(value)
    return settings


def _value(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    if _WHOLE.fullmatch(text):
        return int(text)
    if _DECIMAL.fullmatch(text):
        return float(text)
    words = text.split()
    if len(words) > 1 and all(_WHOLE.fullmatch(word) for word in words):
        return tuple(map(int, words))
    return text
