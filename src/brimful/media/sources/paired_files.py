"""Folders in which each row is one JSON file, next to its image, video or audio.

The layout from which LLaVA-OneVision-1.5 packs: ``{name}.json`` next to ``{name}.jpg`` (any ending
of a medium), several records of one image as ``{name}``, ``{name}_1``, …, each a separate row, and
rows without media as ``output_########.json``. A row names its media in the same folder
(``"images": ["a.jpg"]``); a row that does not mention media has the media of its name. Names are
compared as a whole and never split: ``a_1`` has nothing to do with ``a``.

Of data that is still arriving, ``a.txt`` next to ``a.wav`` holds the words, ``a.json`` a row of any
format (``row_beside``). The medium is written first: once the text exists, both have arrived.

The JSON files are read once and copied into the cache (``brimful.media.sources.catalogue``). Opening
the folder again checks only names, sizes and times.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import IO, Any

import xxhash

from brimful.base.checks import MalformedRowError
from brimful.media.sources.catalogue import CatalogueRows, line_of, shown
from brimful.media.sources.places import (
    COLUMN_OF_KIND,
    has_media_of_its_own,
    media_kind,
    media_values,
)
from brimful.sources.copies import is_json_array, kept_copy
from brimful.sources.directory import DESCRIPTIONS, chosen_paths, split_of_file, walk_data
from brimful.sources.json_rows import object_of, text_of
from brimful.sources.opening import file_type_of
from brimful.sources.rows import MAX_ROW_BYTES, ChainedRows
from brimful.sources.settings import SourceSettings
from brimful.sources.stamp import Stamp, require_file

_ENDING = ".json"
TRANSCRIPT, ROW = ".txt", _ENDING
"""Endings of files that arrive next to media: plain words, and rows."""

_TEXT_ONLY = re.compile(r"(__img--)?output_\d{8}\.json")
"""Name of a row without media in this layout."""


def _pair_folders(directory: str) -> list[str]:
    """Return the folders below a directory that hold rows as pairs, in order; none if it has
    another layout.

    It has this layout if some JSON file is next to a medium of its name and does not hold an array,
    or if all JSON files of a folder are named like rows without media. Then every folder with JSON
    files belongs to it.
    """
    folders: list[str] = []
    is_layout = False
    for folder, names in walk_data(directory):
        # Files of many rows too: the caller, which looks for files by kind, reports the mixture.
        if any(file_type_of(name) not in (None, "array", "text") for name in names):
            return []
        media_stems = {name.rpartition(".")[0] for name in names if media_kind(name) is not None}
        rows = [name for name in names if _is_row(name, media_stems)]
        if not rows:
            continue
        folders.append(folder)
        pair = next((name for name in rows if name[: -len(_ENDING)] in media_stems), None)
        if pair is not None and not is_layout:
            path = os.path.join(folder, pair)
            require_file(path)
            is_layout = not is_json_array(path)
        is_layout = is_layout or all(map(_TEXT_ONLY.fullmatch, rows))
    return sorted(folders) if is_layout else []


def open_rows(path: str, settings: SourceSettings, cache: Path | None) -> ChainedRows | None:
    """Return the rows of a directory of pairs, each folder with its own catalogue; None for another
    path.

    Raises:
        SettingsError: its folders are named after several splits, and none is chosen.
        SourceNotFoundError: no such split or configuration.
    """
    folders = _pair_folders(path) if os.path.isdir(path) else []
    if not folders:
        return None
    splits = {}
    for folder in folders:
        path_names = os.path.relpath(folder, path).split(os.sep)
        splits[folder] = next(filter(None, map(split_of_file, path_names)), None)
    chosen = chosen_paths(path, splits, split=settings.split, config=settings.config)
    return ChainedRows([PairRows.of(folder, cache) for folder in chosen], path)


class PairRows(CatalogueRows):
    """Rows of one folder of pairs, in the order of their names."""

    @classmethod
    def of(cls, folder: str, cache: Path | None = None) -> "PairRows":
        """Open a folder; its JSON files are read if their catalogue is not in the cache."""
        origin = os.path.realpath(folder)
        listing = _Listing.of(origin)

        def write(file: IO[bytes]) -> None:
            for name in listing.rows:
                file.write(line_of(_entry(listing, name)))

        target = kept_copy("catalogues", origin, listing.version, cache, write)
        return cls(target, cache=cache, title=folder, original=origin)

    @property
    def directory(self) -> str:
        return os.path.abspath(self.title)

    def where(self, index: int) -> str:
        return f"{super().where(index)}{_ENDING}"


@dataclass(frozen=True)
class _Listing:
    """The files of one folder.

    Attributes:
        folder: absolute path.
        rows: stamp of the JSON file of each row by its name, in the order of their stems.
        media: bytes of each medium by its name.
        media_of: names of the media of each stem that has any.
    """

    folder: str
    rows: dict[str, Stamp]
    media: dict[str, int]
    media_of: dict[str, list[str]]

    @classmethod
    def of(cls, folder: str) -> "_Listing":
        """List all files of a folder without opening any."""
        rows: dict[str, Stamp] = {}
        media: dict[str, int] = {}
        media_of: dict[str, list[str]] = {}
        with os.scandir(folder) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                name = entry.name
                is_row = name.lower().endswith(_ENDING) and not name.startswith(".")
                if not is_row and media_kind(name) is None:
                    continue
                try:
                    stamp = Stamp.of(entry.path)
                except FileNotFoundError:
                    continue  # a link to nothing, or deleted just now: a row that names it says so
                if is_row:
                    require_file(entry.path)
                    rows[name] = stamp
                else:
                    media[name] = stamp.size
                    media_of.setdefault(name.rpartition(".")[0], []).append(name)
        names = sorted(rows, key=lambda name: name[: -len(_ENDING)])
        chosen = {name: rows[name] for name in names if _is_row(name, media_of)}
        return cls(folder, chosen, media, media_of)

    @property
    def version(self) -> list[str]:
        """Fingerprint of names, sizes and times: the catalogue is valid as long as it stays the
        same.
        """
        hasher = xxhash.xxh3_128()
        entries = [(name, [stamp.size, stamp.ctime_ns]) for name, stamp in self.rows.items()]
        for name, facts in entries + [(name, [size]) for name, size in self.media.items()]:
            hasher.update(os.fsencode(name) + f"\0{facts}\0".encode())
        return [hasher.hexdigest()]


def _is_row(name: str, media_stems: Mapping[str, Any] | set[str]) -> bool:
    """Return true for a JSON file that is a row: not hidden, and no description unless a medium has
    its name.
    """
    if not name.lower().endswith(_ENDING) or name.startswith("."):
        return False
    return name not in DESCRIPTIONS or name[: -len(_ENDING)] in media_stems


def _entry(listing: _Listing, name: str) -> dict[str, Any]:
    """Read one row; ``media`` holds the sizes of the media that it names or has, ``pair`` the media
    of its name.
    """
    stem = name[: -len(_ENDING)]
    entry: dict[str, Any] = {"name": stem}
    try:
        row = object_of(_bytes_of(os.path.join(listing.folder, name), listing.rows[name]))
        if has_media_of_its_own(row):
            names = dict.fromkeys(
                value for value in media_values(row) if isinstance(value, str) and len(value) < 4096
            )
            return {**entry, "media": {name: listing.media.get(name) for name in names}, "row": row}
        pair = listing.media_of.get(stem, [])
        entry |= {"media": {name: listing.media[name] for name in pair}, "pair": pair}
        return {**entry, "row": with_media_of_its_name(row, pair)}
    except MalformedRowError as error:
        return {**entry, "error": str(error)}


def with_media_of_its_name(row: dict[str, Any], media: Sequence[str]) -> dict[str, Any]:
    """Return a row with the media of its name, unless it names media itself.

    Raises:
        MalformedRowError: the media are ambiguous.

    >>> with_media_of_its_name({"text": "Hello."}, ["a.wav"])
    {'text': 'Hello.', 'audios': ['a.wav']}
    """
    if has_media_of_its_own(row):
        return row
    columns: dict[str, list[str]] = {}
    for name in media:
        kind = media_kind(name)
        assert kind is not None
        # A row may hold a medium itself, as a URL "data:…": a file of such a name is written as a
        # path.
        columns.setdefault(COLUMN_OF_KIND[kind], []).append(
            f"./{name}" if name.startswith("data:") else name
        )
    # Two images with the row's name: which one is meant is unclear, so nothing is guessed.
    crowded_names = next((names for names in columns.values() if len(names) > 1), None)
    if crowded_names is not None:
        raise MalformedRowError(
            f"several media have its name ({', '.join(map(shown, crowded_names))}): name its own "
            "in the "
            f'row, as in "images": [{json.dumps(crowded_names[0], ensure_ascii=False)}]'
        )
    return {**row, **columns}


def _bytes_of(path: str, stamp: Stamp) -> bytes:
    """Return the bytes of a file with this stamp, at most one more than a row may have."""
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_ROW_BYTES + 1)
    except OSError as error:
        stamp.check(path)
        raise MalformedRowError(f"cannot be opened: {error.strerror}") from error
    stamp.check(path)
    return data


def stem_of(name: str) -> str:
    """Return a name with its folders and without its ending.

    >>> stem_of("day1/a.b.wav")
    'day1/a.b'
    """
    return name[: -len(PurePath(name).suffix)] if PurePath(name).suffix else name


def row_beside(ending: str, data: bytes, media: Sequence[str]) -> Any:
    """Return the row in a file next to media of its name, or the error that says why it has none.

    Args:
        ending: ``TRANSCRIPT`` or ``ROW``.
        data: bytes of the file.
        media: names of the media.

    >>> row_beside(".txt", b"Hello.", ["a.wav"])
    {'audio': 'a.wav', 'text': 'Hello.'}
    """
    try:
        if ending == ROW:
            return with_media_of_its_name(object_of(data), media)
        text = text_of(data).strip()
    except MalformedRowError as error:
        return error
    if len(media) != 1:
        names = ", ".join(sorted(media))
        return MalformedRowError(
            f"several media have its name ({names}): which one is meant is unclear"
            if media
            else "no recording has its name: a recording must be there before its transcript"
        )
    kind = media_kind(media[0])
    assert kind is not None
    return {kind.value: media[0], "text" if kind.value == "audio" else "caption": text}
