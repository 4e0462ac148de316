"""Settings of a run as its user wrote them: flat, each with the place of its line."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

_EXACT_BLOCKS = ("accelerate.", "calls.", "environ.")
"""Blocks that are no part of the trainer's own settings: their keys are found by the full name
only.
"""


_VEIL = 1 << 20


class Unknown(str):
    """Text in the place of a value that only the run itself knows: what a branch or a command gives,
    or what is computed.

    Attributes:
        known: the parts of it that are certain.
    """

    known = ""


def veiled(text: str) -> str:
    """Return a text in letters for private use, which no shell splits or expands: a part of a word
    that is unknown.
    """
    return "".join(chr(ord(letter) % (1 << 16) + _VEIL) for letter in text)


def unveiled(text: str) -> str:
    """Return the text that was veiled; another one stays."""
    return "".join(chr(ord(letter) % _VEIL) for letter in text)


@dataclass(frozen=True, slots=True)
class Given:
    """One setting as the user wrote it.

    Attributes:
        value: bool, int, float, str, None or a list; a dict only if it is empty; ``Unknown`` if only
            the run knows it.
        where: ``run.yaml:12``, ``line 3 of run.sh``, ``command line`` or ``train.py:40``.
    """

    value: Any
    where: str


@dataclass(frozen=True)
class GivenSettings:
    """All settings of one file or command line.

    Attributes:
        title: name of the file, or the command.
        values: settings by dotted key; blocks are flattened. Keys of ``environ.`` are variables of the
            environment, of ``accelerate.`` options of that launcher, of ``calls.`` functions that a
            Python file calls.
        command: words of the program, such as ``trl sft`` or ``python -m verl.trainer.main``;
            ``import trl`` for Python files; empty for other files.
        ranks: processes that the launcher starts; None if nothing says it.
    """

    title: str
    values: Mapping[str, Given]
    command: str = ""
    ranks: int | None = None

    def get(self, key: str) -> Given | None:
        """Return the setting of a key, or of the keys in nested blocks that end with it; None without
        one.

        Where several blocks have other values, it is unknown which of them is meant.

        Args:
            key: dotted; ``-`` and ``_`` are equal.

        >>> run = GivenSettings("run.yaml", {"trainer.max-length": Given(8, "run.yaml:2")})
        >>> run.get("max_length")
        Given(value=8, where='run.yaml:2')
        """
        name = same_key(key)
        if name in self._exact:
            return self._exact[name]
        return _either(self._nested[name], False) if name in self._nested else None

    @cached_property
    def _exact(self) -> dict[str, Given]:
        return {same_key(key): setting for key, setting in self.values.items()}

    @cached_property
    def _nested(self) -> dict[str, list[Given]]:
        """Settings by each end of their dotted key."""
        ends: dict[str, list[Given]] = {}
        for key, setting in self._exact.items():
            if not key.startswith(_EXACT_BLOCKS):
                for position, letter in enumerate(key):
                    if letter == ".":
                        ends.setdefault(key[position + 1 :], []).append(setting)
        return ends


def same_key(key: str) -> str:
    """Return the one spelling of a key in which ``-`` and ``_`` are equal."""
    return key.replace("-", "_")


def flat(key: str, value: Any, place: str) -> Iterator[tuple[str, Given]]:
    """Yield a value with its key, or each value of a mapping with its dotted key.

    >>> [(key, given.value) for key, given in flat("a", {"b": 1, "c": {"d": []}}, "run.yaml:1")]
    [('a.b', 1), ('a.c.d', [])]
    """
    if not isinstance(value, dict) or not value:
        yield key, Given(value, place)
        return
    for name, item in value.items():
        yield from flat(f"{key}.{name}" if key else str(name), item, place)


def overlaid(
    settings: Mapping[str, Given], arguments: Mapping[str, Given], removals: Collection[str] = ()
) -> dict[str, Given]:
    """Return the settings of a file with arguments on top, flattened.

    An argument takes the place of its key, and a mapping takes the place of its block.

    Args:
        settings: of the file, flat.
        arguments: of the command, whose mappings are whole.
        removals: keys and blocks of the file that do not count.
    """
    names = {same_key(key) for key in (*arguments, *removals)}
    values = {
        key: setting for key, setting in settings.items() if names.isdisjoint(heads(same_key(key)))
    }
    for key, setting in arguments.items():
        values.update(flat(key, setting.value, setting.where))
    return values


def alternatives(runs: Sequence[Mapping[str, Given]]) -> dict[str, Given]:
    """Return the settings that all of several runs have; one in which they differ is unknown.

    >>> one, other = {"lr": Given(1, "a.sh:1")}, {"lr": Given(2, "a.sh:3")}
    >>> alternatives([one, other])["lr"]
    Given(value='1 or 2', where='a.sh:1, a.sh:3')
    """
    groups: dict[str, list[Given]] = {}
    for run in runs:
        for key, setting in run.items():
            groups.setdefault(key, []).append(setting)
    return {key: _either(settings, len(settings) < len(runs)) for key, settings in groups.items()}


def _either(settings: Sequence[Given], may_lack: bool) -> Given:
    """Return the setting that all are, or an unknown one."""
    texts = dict.fromkeys(str(setting.value) for setting in settings)
    if len(texts) == 1 and not may_lack:
        return settings[0]
    places = dict.fromkeys(setting.where for setting in settings)
    return Given(Unknown(" or ".join([*texts, *["not set"] * may_lack])), ", ".join(places))


def heads(key: str) -> Iterator[str]:
    """Yield the key and the key of each block around it."""
    while key:
        yield key
        key = key.rpartition(".")[0]
