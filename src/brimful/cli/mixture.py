"""``--mixture mix.yaml``: sources with their weights and data, in one file."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any

import click

from brimful.cli.config import (
    SOURCES_META,
    FileEntry,
    file_entries,
    node_entries,
    plain_value,
    texts_of,
    wrong_value,
)
from brimful.errors import SettingsError
from brimful.measure import LengthTable
from brimful.mixtures import Mixture

_LIMITS = ("max_samples", "max_passes")
_OF_MIXTURE = tuple(item.name for item in fields(Mixture) if item.name not in ("weights", *_LIMITS))
_OF_DATA = (
    "path",
    "format",
    "fields",
    "ignore",
    "prompt",
    "text_unit",
    "split",
    "subset",
    "media_dir",
    "per_turn",
)
"""Keys of the file: limits of a source, keys of the whole mixture, and of the data of a source."""

_ALIASES = {
    "ratio": "weight",
    "proportion": "weight",
    "paths": "path",
    "data": "path",
    "field": "fields",
}
"""Other names for keys of a source."""


@dataclass(frozen=True)
class MixtureFile:
    """The request of a mixture, and the data of each source.

    Attributes:
        path: the file.
        mixture: the request.
        data: options of ``open_source``, including ``path``, for each source that names its data.
        locations: file and line of each source.
    """

    path: str
    mixture: Mixture
    data: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    locations: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, path: str) -> MixtureFile:
        """Read a file; it is data, so its tags never create objects.

        Raises:
            SourceNotFoundError: no such file.
            SettingsError: not YAML, an unknown key, or an impossible value; names file, line and
                key.
        """
        options: dict[str, Any] = {}
        sources: FileEntry | None = None
        for entry in file_entries(path, "--mixture"):
            if entry.key == "sources":
                sources = entry
            elif entry.key in _OF_MIXTURE:
                options[entry.key] = plain_value(entry)
            else:
                raise SettingsError(_unknown(entry, (*_OF_MIXTURE, "sources"), "a mixture"))
        if sources is None or sources.node.id != "mapping":
            raise SettingsError(
                f"{path}: a mixture has `sources:`, and below it a name and a weight for each "
                "source"
            )
        entries = node_entries(path, sources.node)
        locations = {entry.key: entry.where for entry in entries}
        values = {entry.key: _source(path, entry) for entry in entries}
        data = {
            name: {key: settings[key] for key in _OF_DATA if key in settings}
            for name, settings in values.items()
        }
        has_data = any(data.values())
        for name, settings in values.items():
            if "weight" not in settings:
                raise SettingsError(f"{locations[name]}: source {name} has no weight")
            if has_data and "path" not in settings:
                raise SettingsError(
                    f"{locations[name]}: source {name} has no path to its data, and other sources "
                    "have data"
                )
        limits = {
            key: {name: settings[key] for name, settings in values.items() if key in settings}
            for key in _LIMITS
        }
        weights = {name: settings["weight"] for name, settings in values.items()}
        try:
            options |= {name: limit for name, limit in limits.items() if limit}
            return cls(
                path, Mixture(weights=weights, **options), data if has_data else {}, locations
            )
        except SettingsError as error:
            raise SettingsError(f"{path}: {error.message}") from error

    def counts_in(self, table: LengthTable) -> dict[str, int]:
        """Return the number of samples of each source in an existing table, by file, in the order
        of both.

        A measured file belongs to the source with its name or path, or with a pattern or directory
        that matches it.

        Raises:
            SettingsError: a file of the table has no source, or the files of a source are not
                adjacent.
        """
        counts: dict[str, int] = {}
        last = ""
        owners: dict[str, str] = {}
        for source in self.mixture.weights:
            for path in self.data[source]["path"] if source in self.data else [source]:
                owners.setdefault(path.rstrip("/"), source)
        for title, count in table.provenance.get("parts") or ():
            path = str(title)
            while path and path not in owners:
                path = path.rpartition("/")[0]  # its directory
            matches = (
                owners[pattern] for pattern in owners if fnmatch.fnmatchcase(str(title), pattern)
            )
            name = owners.get(path) or next(matches, None)
            if name is None:
                raise SettingsError(
                    f"{self.path}: the lengths include {title}, and no source has it as its name "
                    "or path: add it"
                )
            if name in counts and name != last:
                raise SettingsError(
                    f"{self.path}: files of source {name} are not adjacent in the lengths"
                )
            counts[name] = counts.get(name, 0) + int(count)
            last = name
        return counts


def _source(path: str, source: FileEntry) -> dict[str, Any]:
    """Return the values of one source; a single number is its weight."""
    if source.node.id != "mapping":
        return {"weight": plain_value(source)}
    values: dict[str, Any] = {}
    for entry in node_entries(path, source.node):
        key = _ALIASES.get(entry.key, entry.key)
        if key in values:
            raise SettingsError(
                f"{entry.where}: {entry.key} repeats an earlier key of source {source.key}: keep "
                "one"
            )
        value = plain_value(entry)
        if key in ("path", "ignore"):
            value = list(texts_of(entry))
        elif key == "fields":
            if not isinstance(value, dict) or not all(
                isinstance(item, str) for pair in value.items() for item in pair
            ):
                raise wrong_value(entry, "names such as `messages: dialogue`")
        elif key == "per_turn":
            if not isinstance(value, bool):
                raise wrong_value(entry, "true or false")
        elif key in _OF_DATA:
            if not isinstance(value, str):
                raise wrong_value(entry, "one text")
        elif key not in ("weight", *_LIMITS):
            raise SettingsError(
                _unknown(entry, ("weight", *_LIMITS, *_OF_DATA), f"source {source.key}")
            )
        values[key] = value
    return values


def _unknown(entry: FileEntry, names: Sequence[str], owner: str) -> str:
    matches = get_close_matches(entry.key, names, n=1, cutoff=0.6)
    hint = f"did you mean {matches[0]}?" if matches else f"use one of {', '.join(names)}"
    return f"{entry.where}: {owner} has no {entry.key!r}: {hint}"


def read_mixture(ctx: click.Context, _: click.Parameter, path: str | None) -> MixtureFile | None:
    """Read the file of ``--mixture``, and use its paths as the paths of the command line."""
    if path is None:
        return None
    file = MixtureFile.read(path)
    if file.data and not ctx.meta.get(SOURCES_META):
        ctx.meta[SOURCES_META] = tuple(
            path for options in file.data.values() for path in options["path"]
        )
    return file
