"""Facts about trainers: data with a range of versions, a source and the date on which they were read.

A file for each trainer lies in ``doctor/trainers``. ``docs/doctor.md`` explains its keys.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files
from typing import Any

from brimful.doctor.fact_files import read_toml

Version = tuple[int, ...]


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


@dataclass(frozen=True)
class TrainerFacts:
    """The facts of one trainer.

    Attributes:
        id: name of its file.
        name: as people write it.
        package: distribution whose version counts; empty if none.
        newest: the newest version that was read.
        page: our page about it.
        commands: words of a command line that tell this trainer.
        keys: keys that only this trainer has.
        has_final_batches: true if batches of its loader go into a model of Transformers as they
            are: samples are packed and flattened before.
        builds_on: trainers whose commands and keys it has too.
        roles: keys of the trainer by our word, the first that is set wins.
        defaults: the trainer's default of each key.
        changed_defaults: keys, values and ranges of defaults of other versions.
        default_sources: files that hold the defaults.
        facts: in order; the first that matches a topic speaks for it.
    """

    id: str
    name: str
    package: str
    newest: str
    page: str
    commands: tuple[str, ...]
    keys: tuple[str, ...]
    has_final_batches: bool
    builds_on: tuple[str, ...]
    roles: Mapping[str, tuple[str, ...]]
    defaults: Mapping[str, Any]
    changed_defaults: tuple[Mapping[str, Any], ...]
    default_sources: tuple[Mapping[str, Any], ...]
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


def facts_from(trainer_id: str, data: Mapping[str, Any]) -> TrainerFacts:
    """Return the facts that the contents of a file hold."""
    names = {field.name for field in fields(Fact)}
    facts = []
    for entry in data.get("fact", []):
        entry = {"when": {}, "read": data["read"], **entry}
        assert set(entry) <= names, f"{trainer_id}: {sorted(set(entry) - names)}"
        entry["read"] = str(entry["read"])
        for name in ("segment_multiple", "row_multiple"):
            entry[name] = tuple(entry.get(name, ()))
        facts.append(Fact(**entry))
    return TrainerFacts(
        id=trainer_id,
        name=data["name"],
        package=data.get("package", ""),
        newest=data.get("newest", ""),
        page=data.get("page", ""),
        commands=tuple(data.get("commands", ())),
        keys=tuple(data.get("keys", ())),
        has_final_batches=data.get("has_final_batches", False),
        builds_on=tuple(data.get("builds_on", ())),
        roles={
            role: (keys,) if isinstance(keys, str) else tuple(keys)
            for role, keys in data.get("roles", {}).items()
        },
        defaults=data.get("defaults", {}),
        changed_defaults=tuple(data.get("default", ())),
        default_sources=tuple(data.get("default_source", ())),
        facts=tuple(facts),
    )


def version_from(text: str) -> Version | None:
    """Return the numbers at the start of a version; None without one.

    >>> version_from("v1.16.0.dev0"), version_from("main")
    ((1, 16, 0), None)
    """
    match = re.match(r"v?(\d+(?:\.\d+)*)", text)
    return None if match is None else tuple(int(part) for part in match.group(1).split("."))


def in_range(versions: str, version: Version | None) -> bool | None:
    """Return true if a version is in a range; None if that is not known.

    >>> in_range(">=0.22,<1.2", (1, 1)), in_range("<0.19", (0, 19, 0)), in_range("", None)
    (True, False, True)
    """
    if not versions:
        return True
    if version is None:
        return None
    for part in versions.split(","):
        match = re.fullmatch(r"\s*(>=|<=|==|<|>)\s*([\w.]+)\s*", part)
        assert match is not None, versions
        limit = version_from(match.group(2))
        assert limit is not None, versions
        # 0.19 and 0.19.0 are equal.
        size = max(len(limit), len(version))
        left, right = (value + (0,) * (size - len(value)) for value in (version, limit))
        order = (left > right) - (left < right)
        if (
            order
            not in {">=": (0, 1), "<=": (0, -1), "==": (0,), "<": (-1,), ">": (1,)}[match.group(1)]
        ):
            return False
    return True


def product(factors: Sequence[Any], values: Mapping[str, Any]) -> int | None:
    """Return a product of numbers and named numbers; None if one is not a number.

    >>> product([2, "context_parallel"], {"context_parallel": 4})
    8
    """
    total = 1
    for factor in factors:
        value = values[factor] if isinstance(factor, str) else factor
        if isinstance(value, bool) or not isinstance(value, int):
            return None
        total *= value
    return total
