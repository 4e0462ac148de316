"""Settings of a run: what the user gave, completed with the defaults of the trainer's version."""

import json
import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any

from brimful.base.checks import is_number
from brimful.doctor.config.facts import TrainerFacts, Version, in_range, product
from brimful.doctor.config.settings import Given, GivenSettings, Unknown


class RunSettings:
    """Values of roles and keys of one run.

    A role has the value of the first of its keys that the user gave, or else the first default that
    is not None.

    Args:
        given: settings that the user wrote.
        facts: roles and defaults of the trainer.
        version: of the trainer; None if unknown, which means the newest that was read.
        ranks: number of processes; None if unknown.
    """

    def __init__(
        self,
        given: GivenSettings,
        facts: TrainerFacts,
        version: Version | None,
        ranks: int | None = None,
    ) -> None:
        self.given = given
        self.facts = facts
        self.version = version
        self.ranks = ranks

    @cached_property
    def defaults(self) -> dict[str, Any]:
        """Defaults of this version by key."""
        values = {
            entry["key"]: entry.get("value")
            for entry in self.facts.changed_defaults
            if self.version is not None and in_range(entry["versions"], self.version)
        }
        return {**self.facts.defaults, **values}

    def keys_of(self, name: str) -> tuple[str, ...]:
        """Return the trainer's keys of a role, or the key itself."""
        return self.facts.roles.get(name, (name,))

    def given_as(self, name: str) -> tuple[str, Given] | None:
        """Return key and setting that the user gave for a role or key; None if none."""
        for key in self.keys_of(name):
            if (setting := self.given.get(key)) is not None:
                return key, setting
        return None

    def __getitem__(self, name: str) -> Any:
        if name == "ranks":
            return self.ranks
        if (entry := self.given_as(name)) is not None:
            return entry[1].value
        values = (self.defaults.get(key) for key in self.keys_of(name))
        return next((value for value in values if value is not None), None)

    @cached_property
    def model_texts(self) -> list[str]:
        """Names that tell the model: as configured, and the type in its ``config.json``."""
        name = self["model"]
        texts = [str(name)] if name else []
        try:
            config = json.loads((Path(str(name)) / "config.json").read_text(encoding="utf-8"))
            texts += [str(config["model_type"]), *map(str, config.get("architectures") or ())]
        except (OSError, ValueError, KeyError, TypeError):
            pass  # a name of the hub
        return texts

    def is_on(self, name: str) -> bool:
        """Return true if a role or key has a value that switches something on.

        A number does so above 0, such as the length of packs.
        """
        value = self[name]
        if is_number(value):
            return bool(value > 0)
        as_bool = _as_bool(value)
        return bool(value) if as_bool is None else as_bool

    def for_batches(self) -> dict[str, Any]:
        """Return the settings that batches of the loader are compared with, in the words of
        ``diagnose``; empty if the trainer packs or makes masks after its loader.
        """
        if not self.facts.has_final_batches:
            return {}
        length, attention = self["max_length"], self["attention"]
        values = {
            "packing": self.is_on("packing"),
            "padding_free": self.is_on("padding_free"),
            "attn_implementation": None if isinstance(attention, Unknown) else attention,
            "max_length": length if isinstance(length, int) and length > 0 else None,
        }
        return {key: value for key, value in values.items() if not isinstance(self[key], Unknown)}

    def unknowns(self, names: Iterable[str]) -> list[str]:
        """Return settings that only the run itself knows, and where they were given."""
        return [self.places([name]) for name in names if isinstance(self[name], Unknown)]

    def meets(self, condition: Mapping[str, Any]) -> bool | None:
        """Return true if every entry of a fact's ``when`` holds; None if only the run knows it."""
        return _all(self._matches(name, pattern) for name, pattern in condition.items())

    def _matches(self, name: str, pattern: Any) -> bool | None:
        if isinstance(pattern, list):
            results = [self._matches(name, one) for one in pattern]
            return True if True in results else None if None in results else False
        if isinstance(self[name], Unknown) and pattern not in ({"given": True}, {"given": False}):
            # Patterns of models begin and end with a star.
            is_model = name == "model" and isinstance(pattern, str)
            return True if is_model and _equal(self[name].known, pattern) else None
        if not isinstance(pattern, dict):
            if name == "model":
                return any(_equal(text, pattern) for text in self.model_texts)
            return _equal(self[name], pattern)
        value = self[name]
        for operator, operand in pattern.items():
            if operator == "not":
                holds = not self._matches(name, operand)
            elif operator == "set":
                holds = (value is not None) == operand
            elif operator == "given":
                holds = (self.given_as(name) is not None) == operand
            elif operator == "above":
                holds = is_number(value) and value > operand
            elif operator == "below":
                holds = is_number(value) and value < operand
            else:  # multiple_of or not_multiple_of
                if self.unknowns(part for part in operand if isinstance(part, str)):
                    return None
                holds = bool(
                    is_number(value)
                    and (multiple := product(operand, self))
                    and (value % multiple == 0) == (operator == "multiple_of")
                )
            if not holds:
                return False
        return True

    def filled(self, text: str) -> str:
        """Return a text of a fact with the values of ``{names}``."""
        return re.sub(r"\{([\w.]+)\}", lambda match: shown(self[match[1]]), text)

    def places(self, names: Iterable[str]) -> str:
        """Return the settings that a condition looks at, and where they were given."""
        texts = []
        for name in names:
            if (entry := self.given_as(name)) is not None:
                key, setting = entry
                texts.append(f"{key}: {shown(setting.value)} ({setting.where})")
            elif self[name] is not None and name != "ranks":
                key = next(key for key in self.keys_of(name) if key in self.defaults)
                texts.append(f"{key}: {shown(self[name])} (default)")
        return ", ".join(texts)


def _all(truths: Iterable[bool | None]) -> bool | None:
    """Return true if all are, and None if that is not known."""
    results = set(truths)
    return False if False in results else None if None in results else True


def shown(value: Any) -> str:
    """Return a value as a file of settings has it.

    >>> shown(True), shown(None), shown("sdpa")
    ('true', '(unset)', 'sdpa')
    """
    if value is None:
        return "(unset)"
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _equal(value: Any, pattern: Any) -> bool:
    """Return true if a value is equal to a pattern; texts regardless of case, ``-`` and ``_``."""
    if isinstance(pattern, bool):
        # Some files write booleans as texts, or as 0 and 1.
        return _as_bool(value) is pattern
    if isinstance(pattern, str):
        plain = [str(text).lower().replace("-", "_") for text in (value, pattern)]
        return value is not None and fnmatchcase(*plain)
    return bool(value == pattern) and not isinstance(value, bool)


def _as_bool(value: Any) -> bool | None:
    if isinstance(value, str):
        return {
            "true": True,
            "yes": True,
            "on": True,
            "false": False,
            "no": False,
            "off": False,
        }.get(value.lower())
    return bool(value) if value in (0, 1) else None
