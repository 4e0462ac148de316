"""Facts about trainers: data with a range of versions, a source and the date on which they were read.

A file for each trainer lies in ``doctor/trainers``; users bring files of their own.
``docs/doctor.md`` explains the keys.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import Any, get_origin

from brimful.base.checks import is_whole_number
from brimful.doctor.config.documents import text_of
from brimful.doctor.config.settings import flat
from brimful.doctor.fact_files import read_toml, toml_values
from brimful.doctor.report import TOPICS, problems
from brimful.errors import SettingsError

Version = tuple[int, ...]

_KINDS: Mapping[Any, tuple[str, Any]] = {
    str: ("a text", str),
    bool: ("true or false", bool),
    int: ("a number", (int, float)),
    tuple: ("a list", list),
    Mapping: ("a table", dict),
    object: ("a value", object),
}
"""Name in messages, and types in a file, of what a field holds."""

_TRAINER_KEYS = {
    **dict.fromkeys(("name", "package", "newest", "page"), str),
    **dict.fromkeys(("commands", "keys", "builds_on"), tuple),
    **dict.fromkeys(("default", "default_source", "fact"), tuple),
    **dict.fromkeys(("roles", "defaults"), Mapping),
    "has_final_batches": bool,
    "read": object,
}

_OPERATORS = {
    "not": object,
    **dict.fromkeys(("set", "given"), bool),
    **dict.fromkeys(("above", "below"), int),
    **dict.fromkeys(("multiple_of", "not_multiple_of"), tuple),
}
"""Questions of a pattern about a value, and the kind of what it is compared with."""

_RANGE = re.compile(r"\s*(>=|<=|==|<|>)\s*(v?\d[\w.]*)\s*")


@dataclass(frozen=True, slots=True)
class Fact:
    """A statement about what a trainer does if its settings meet a condition.

    Attributes:
        topic: one of ``TOPICS``.
        says: one line; ``{name}`` stands for the value of a role or key.
        when: a pattern for each role or key; all must match.
        versions: range such as ``>=0.22,<1.2``; empty if all.
        source: file in the package or the repository, or a link.
        quote: code in that file, as long as the fact holds; empty for links.
        read: date on which it was read.
        judgment: ``wrong`` or ``suspect``; empty for a fact that finds nothing.
        problem: name in ``problems.toml``.
        fault: number in the table of silent faults, for tests; 0 if in none.
        change: line to change.
        thread: link to where it happened.
        segment_multiple, row_multiple: factors, numbers or names, of what a segment and a row must
            be a multiple of.
    """

    topic: str
    says: str
    when: Mapping[str, Any]
    versions: str = ""
    source: str = ""
    quote: str = ""
    read: str = ""
    judgment: str = ""
    problem: str = ""
    fault: int = 0
    change: str = ""
    thread: str = ""
    segment_multiple: tuple[int | str, ...] = ()
    row_multiple: tuple[int | str, ...] = ()


_FACT_KEYS = {
    **{field.name: get_origin(field.type) or field.type for field in fields(Fact)},
    "read": object,
}


@dataclass(frozen=True, kw_only=True)
class TrainerFacts:
    """The facts of one trainer.

    Attributes:
        id: name of its file.
        name: as people write it.
        package: distribution whose version counts; empty if none.
        newest: the newest version that was read.
        commands: words of a command line that tell this trainer.
        keys: keys that only this trainer has.
        has_final_batches: true if batches of its loader go into a model of Transformers as they
            are: samples are packed and flattened before.
        builds_on: trainers whose commands and keys it has too.
        roles: keys of the trainer by our word, the first that is set wins.
        defaults: the trainer's default of each key.
        changed_defaults: keys, values and ranges of defaults of other versions.
        facts: in order; the first that matches a topic speaks for it.
    """

    id: str
    name: str
    package: str = ""
    newest: str = ""
    commands: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    has_final_batches: bool = False
    builds_on: tuple[str, ...] = ()
    roles: Mapping[str, tuple[str, ...]]
    defaults: Mapping[str, Any]
    changed_defaults: tuple[Mapping[str, Any], ...]
    facts: tuple[Fact, ...]


def trainer_ids() -> list[str]:
    """Return the names of all files of facts.

    >>> "trl" in trainer_ids()
    True
    """
    folder = files("brimful.doctor").joinpath("trainers")
    return sorted(
        entry.name.removesuffix(".toml")
        for entry in folder.iterdir()
        if entry.name.endswith(".toml")
    )


@cache
def facts_of_trainer(trainer_id: str) -> TrainerFacts:
    """Return the facts of one trainer, from its file."""
    return facts_from(trainer_id, read_toml(f"trainers/{trainer_id}.toml"))


def facts_of_file(path: str | PathLike[str]) -> TrainerFacts:
    """Return the facts of one trainer, from a file of the user.

    Raises:
        SourceNotFoundError: no such file.
        SettingsError: it does not hold facts; the message says the line or the key, and what is
            known.
    """
    text = text_of(Path(path))
    heads = re.finditer(r"(?m)^[ \t]*\[\[[ \t]*fact[ \t]*\]\]", text)
    lines = [text.count("\n", 0, head.start()) + 1 for head in heads]
    return facts_from(str(path), toml_values(text, str(path)), lines)


def facts_from(name: str, data: Mapping[str, Any], lines: Sequence[int] = ()) -> TrainerFacts:
    """Return the facts that the contents of a file hold.

    Args:
        name: of the trainer, or of the file.
        data: contents.
        lines: of each fact; none if unknown.

    Raises:
        SettingsError: a key, a type or a word that is not known.
    """
    _check(name, data, _TRAINER_KEYS, "name")
    roles = {}
    for role, keys in data.get("roles", {}).items():
        roles[role] = tuple(keys if isinstance(keys, list) else [keys])
        if not all(isinstance(key, str) for key in roles[role]):
            raise SettingsError(f"{name}: roles: {role} must be a key or a list of keys")
    for number, entry in enumerate(data.get("default", ()), 1):
        kinds = {"key": str, "value": object, "versions": str}
        _check(f"{name}: default {number}", entry, kinds, "key", "versions")
    facts = []
    for number, entry in enumerate(data.get("fact", ())):
        location = f"{name}:{lines[number]}" if number < len(lines) else name
        _check_fact(f"{location}: fact {number + 1}", entry)
        entry = {"when": {}, "source": name, "read": data.get("read", ""), **entry}
        entry["read"] = str(entry["read"])
        for key in ("segment_multiple", "row_multiple"):
            entry[key] = tuple(entry.get(key, ()))
        facts.append(Fact(**entry))
    own: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in data.items()
        if key in TrainerFacts.__annotations__
    }
    defaults = {key: default.value for key, default in flat("", data.get("defaults", {}), "")}
    return TrainerFacts(
        **{**own, "roles": roles, "defaults": defaults},
        id=name,
        changed_defaults=tuple(data.get("default", ())),
        facts=tuple(facts),
    )


def _check_fact(location: str, entry: Any) -> None:
    """Check the keys, words and patterns of a fact."""
    _check(location, entry, _FACT_KEYS, "topic", "says")
    for key, words in (
        ("topic", TOPICS),
        ("judgment", ("wrong", "suspect")),
        ("problem", problems()),
    ):
        if key in entry and entry[key] not in words:
            raise SettingsError(
                f"{location}: {key} {entry[key]!r} is not known: {', '.join(words)}"
            )
    for name, pattern in entry.get("when", {}).items():
        _check_pattern(f"{location}: when: {name}", pattern)


def _check_pattern(location: str, pattern: Any) -> None:
    """Check a pattern, and all patterns in it."""
    if isinstance(pattern, list):
        for one in pattern:
            _check_pattern(location, one)
    elif isinstance(pattern, dict):
        _check(location, pattern, _OPERATORS)
        _check_pattern(location, pattern.get("not"))


def _check(location: str, entry: Any, kinds: Mapping[str, Any], *required_keys: str) -> None:
    """Check the keys of a table, the types of their values, and a range of versions."""
    if not isinstance(entry, dict):
        raise SettingsError(f"{location} must be a table, and is {entry!r}")
    for key, value in entry.items():
        if key not in kinds:
            raise SettingsError(f"{location}: {key!r} is not known: {', '.join(kinds)}")
        kind, types = _KINDS[kinds[key]]
        if not isinstance(value, types):
            raise SettingsError(f"{location}: {key} must be {kind}, and is {value!r}")
    for key in required_keys:
        if key not in entry:
            raise SettingsError(f"{location}: {key} is missing")
    versions = entry.get("versions")
    if versions and not all(map(_RANGE.fullmatch, versions.split(","))):
        raise SettingsError(
            f"{location}: versions {versions!r} must be a range such as >=0.22,<1.2"
        )


def version_from(text: str) -> Version | None:
    """Return the numbers at the start of a version; None without one.

    >>> version_from("v1.16.0.dev0"), version_from("main")
    ((1, 16, 0), None)
    """
    match = re.match(r"v?(\d+(?:\.\d+)*)", text)
    return None if match is None else tuple(int(part) for part in match[1].split("."))


def in_range(versions: str, version: Version | None) -> bool | None:
    """Return true if a version is in a range; None if that is not known.

    >>> in_range(">=0.22,<1.2", (1, 1)), in_range("<0.19", (0, 19, 0)), in_range("", None)
    (True, False, True)
    """
    if not versions:
        return True
    if version is None:
        return None
    for operator, number in _RANGE.findall(versions):
        limit = version_from(number) or ()
        # 0.19 and 0.19.0 are equal.
        size = max(len(limit), len(version))
        left, right = (value + (0,) * (size - len(value)) for value in (version, limit))
        order = (left > right) - (left < right)
        if order not in {">=": (0, 1), "<=": (0, -1), "==": (0,), "<": (-1,), ">": (1,)}[operator]:
            return False
    return True


def product(factors: Sequence[Any], values: Any) -> int | None:
    """Return a product of numbers and named numbers; None if one is not a number.

    >>> product([2, "context_parallel"], {"context_parallel": 4})
    8
    """
    total = 1
    for factor in factors:
        value = values[factor] if isinstance(factor, str) else factor
        if not is_whole_number(value):
            return None
        total *= value
    return total
