"""Parser of recipes: phases from one line of text, by a small strict grammar; nothing is evaluated.

::

    recipe  = phase { ";" phase } [ ";" ]
    phase   = name [ "(" [ setting { "," setting } ] ")" ]
    setting = name "=" value
    value   = true | false | whole number | decimal number | word | whole numbers separated by spaces
"""

import re
from dataclasses import fields
from typing import Any

from brimful.base.wording import setting
from brimful.errors import SettingsError
from brimful.plan.phased.finish import Finish
from brimful.plan.phased.phase import Phase
from brimful.plan.phased.powers_of_two import PowersOfTwo
from brimful.plan.phased.seed_and_fill import Seeded
from brimful.plan.phased.seed_rules import CapacityRatio, Half, Lengths, SeedRule, SizeRange, TopN

_KINDS: dict[str, type[PowersOfTwo | SeedRule | Finish]] = {
    kind.name: kind for kind in (PowersOfTwo, Half, TopN, SizeRange, CapacityRatio, Lengths, Finish)
}
"""Phases, and rules of the phase ``Seeded``, by name."""

# A name, then everything up to the last parenthesis: the text between parentheses is split and checked afterward.
_PHASE = re.compile(r"\s*([^\s()]+)\s*(?:\((.*)\))?\s*", re.DOTALL)
_WHOLE = re.compile(r"[0-9]{1,18}")
_DECIMAL = re.compile(r"[0-9]+\.[0-9]*(?:e-?[0-9]{1,3})?|[0-9]+e-?[0-9]{1,3}", re.IGNORECASE)


def read_phases(text: str) -> list[Phase]:
    """Read the phases of a recipe; ``Recipe`` checks their order.

    >>> read_phases("top_n(n=20, min_items=4); finish")[1]
    Finish(min_fill=None, every=1, last=None, seeds_per_length=10)

    Raises:
        SettingsError: names the wrong word and the choices.
    """
    parts = text.split(";")
    if len(parts) > 1 and not parts[-1].strip():
        parts.pop()
    return [_read_phase(part) for part in parts]


def _read_phase(text: str) -> Phase:
    match = _PHASE.fullmatch(text)
    if match is None:
        raise SettingsError(
            f"{setting('phases')}: {text.strip()!r} is not a phase: write name or name(setting=value, …)"
        )
    name, arguments = match.group(1), match.group(2) or ""
    if name not in _KINDS:
        raise SettingsError(f"{setting('phases')}: {name!r} is not a phase: use some of {', '.join(_KINDS)}")
    kind = _KINDS[name]
    keys = [field.name for field in fields(kind)]
    if not issubclass(kind, SeedRule):
        return kind(**_read_settings(name, arguments, keys))

    # A seed rule: its own settings are written together with the settings of its phase.
    settings = _read_settings(name, arguments, [*keys, *(field.name for field in fields(Seeded)[1:])])
    if kind is Lengths and "lengths" not in settings:
        raise SettingsError(
            f"{setting('phases')}: {text.strip()!r} names no lengths: write lengths(lengths=300 400 500)"
        )
    rule = kind(**{key: settings.pop(key) for key in keys if key in settings})
    return Seeded(rule, **settings)


def _read_settings(name: str, arguments: str, keys: list[str]) -> dict[str, Any]:
    """Read ``key=value, …``; the name of the phase is for messages."""
    settings: dict[str, Any] = {}
    for part in arguments.split(",") if arguments.strip() else []:
        key, equals, value = (word.strip() for word in part.partition("="))
        if not equals or not value:
            raise SettingsError(
                f"{setting('phases')}: {part.strip()!r} in {name}(…) is not a setting: write setting=value"
            )
        if key not in keys:
            raise SettingsError(f"{setting('phases')}: {name} has no setting {key!r}: use some of {', '.join(keys)}")
        if key in settings:
            raise SettingsError(f"{setting('phases')}: {name} has {key} twice: keep one")
        settings[key] = _read_value(value)
    return settings


def _read_value(text: str) -> Any:
    """Read one value by its form; each setting later checks its type."""
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
