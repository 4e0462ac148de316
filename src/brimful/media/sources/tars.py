"""Tars in WebDataset's layout, read in place: members of one key are one row, and media stay in the
tar.

The headers of a tar are read once; the texts of its rows, and the offset and size of their media,
are then kept in the cache (``brimful.media.sources.catalogue``). A medium is a part of the tar (``Medium``
with ``offset`` and ``size``): nothing is unpacked, and a name in a tar never becomes the name of a
file.

The key of a member is its name up to the first dot after the last slash, and members of one key are
adjacent, as in WebDataset. If a key has several JSON members, dots belong to the names, and each
JSON member is a row with the members whose names differ only in the ending.

=====================  ============================================================
``{key}.json``         columns of the row; media that it names are members of the tar
``{key}.jpg`` and      column ``images``, ``videos`` or ``audios``, if the JSON names no media
other media
``{key}.txt``          column ``caption`` with images and videos, ``transcript`` with audio, else ``text``
all others             a column of the ending's name that is not read
=====================  ============================================================
"""

import os
import posixpath
import tarfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import IO, Any, TypeVar

from brimful.base.checks import MalformedRowError
from brimful.base.wording import setting
from brimful.errors import SourceError
from brimful.media import MediaKind, Medium
from brimful.media.sources.catalogue import CatalogueRows, line_of, shown
from brimful.media.sources.places import COLUMN_OF_KIND, has_media_of_its_own, map_media, media_kind
from brimful.media.tars import open_tar
from brimful.sources.copies import kept_copy
from brimful.sources.json_rows import object_of, text_of
from brimful.sources.rows import MAX_ROW_BYTES
from brimful.sources.settings import SourceSettings
from brimful.sources.stamp import Stamp

_Content = TypeVar("_Content")
_VERSION = 1
"""Version of the rows made from a tar: a new one rebuilds their catalogues."""

_BLOCK = 512
"""Size in bytes of a header, and of the empty block at a tar's end."""

_MEMBER = "member"
"""Key of the reference to a member in a catalogue: ``{"member": name, "offset": …, "size": …}``."""


def open_rows(path: str, settings: SourceSettings, cache: Path | None) -> "TarRows | None":
    """Return the rows of a tar; None for another path."""
    if not path.lower().endswith(".tar") or os.path.isdir(path):
        return None
    return TarRows.of(path, cache, allow_outside=settings.media_outside)


class TarRows(CatalogueRows):
    """Rows of one tar, in its order."""

    separator = ": "
    _archive: str
    _archive_stamp: Stamp

    @classmethod
    def of(cls, path: str, cache: Path | None = None, *, allow_outside: bool = False) -> "TarRows":
        """Open a tar; its headers are read if its catalogue is not in the cache.

        Args:
            path: of a local, uncompressed tar.
            cache: directory of catalogues.
            allow_outside: take rows whose members are links within the tar, or have names that lead
                out of a directory.

        Raises:
            SourceError: it is cut short, or not a tar.
        """
        archive = os.path.realpath(path)
        stamp = Stamp.of(archive)
        version = [_VERSION, stamp.size, stamp.mtime_ns, stamp.ctime_ns, stamp.inode, allow_outside]

        def write(file: IO[bytes]) -> None:
            with open(archive, "rb") as source:
                members = _members(source, path, stamp.size)
                contents = _Contents(
                    source, {member.name: member for member in members}, allow_outside
                )
                for name, group in _rows_of(members):
                    file.write(line_of({"name": name, **contents.entry(group)}))
            stamp.check(archive, path)

        target = kept_copy("catalogues", archive, version, cache, write)
        original = f"{archive}?outside" if allow_outside else archive
        self = cls(target, cache=cache, title=path, original=original)
        self._archive, self._archive_stamp = archive, stamp
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return *super().__reduce__(), {
            "_archive": self._archive,
            "_archive_stamp": self._archive_stamp,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Refuse, in a worker process, a tar that has changed since."""
        vars(self).update(state)
        self._archive_stamp.check(self._archive, self.title)

    def _ranges(self, ranges: Iterable[tuple[int, int]]) -> list[bytes]:
        data = super()._ranges(ranges)
        # Offsets of media are valid only for the tar that was indexed.
        self._archive_stamp.check(self._archive, self.title)
        return data

    def row_of(self, entry: Mapping[str, Any]) -> Any:
        return map_media(entry["row"], self._medium)

    def _medium(self, value: Any) -> Any:
        """Return the medium that a reference to a member stands for; any other value as it is."""
        if not isinstance(value, Mapping) or _MEMBER not in value:
            return value
        name = value[_MEMBER]
        # The column that holds it decides its kind; outside any column, its name does.
        kind = media_kind(name) or MediaKind.IMAGE
        return Medium(kind, name, path=self._archive, offset=value["offset"], size=value["size"])


@dataclass(frozen=True, slots=True)
class _Member:
    """One member of a tar.

    Attributes:
        name: as in its header.
        offset, size: of its content, in bytes.
        fault: reason why it is refused unless allowed; empty for most.
    """

    name: str
    offset: int
    size: int
    fault: str = ""

    @property
    def key(self) -> str:
        """Name up to the first dot after the last slash."""
        folder, slash, base = self.name.rpartition("/")
        return f"{folder}{slash}{base.partition('.')[0]}"

    @property
    def field_name(self) -> str:
        """Name after the key and its dot."""
        return self.name[len(self.key) + 1 :]

    @property
    def stem(self) -> str:
        """Name without its last ending."""
        return self.name.rpartition(".")[0]

    @property
    def ending(self) -> str:
        return self.name.rpartition(".")[2].lower()


def _members(source: IO[bytes], title: str, size: int) -> list[_Member]:
    """Return the members of a tar that are files, or links to some.

    Raises:
        SourceError: it is cut short, or not a tar.
    """
    members: list[_Member] = []
    name = ""
    end = 0
    try:
        with open_tar(source) as archive:
            for info in archive:
                name, end = info.name, archive.offset
                if end > size:
                    raise tarfile.ReadError("unexpected end of data")
                member = _member(archive, info)
                if member is not None:
                    members.append(member)
    except (tarfile.TarError, EOFError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        if not name:
            raise SourceError(f"{title} is not a readable tar: {error}") from error
        raise _cut(title, name, end, size) from error
    # A tar ends with an empty block; without it, members after the last one may be missing.
    source.seek(end)
    if source.read(_BLOCK) != bytes(_BLOCK):
        raise _cut(title, name, end, size)
    return members


def _cut(title: str, name: str, end: int, size: int) -> SourceError:
    return SourceError(
        f"{title} is cut short or damaged: its last member is {shown(name)!r}, up to byte {end:,} "
        f"of {size:,}, and no end of a tar follows. Copy or make it again"
    )


def _member(archive: tarfile.TarFile, info: tarfile.TarInfo) -> _Member | None:
    """Return a member that is a file or a link; None for a directory or a hidden file."""
    base = info.name.rpartition("/")[2]
    if info.isdir() or base.startswith("."):
        return None
    fault, target = "", info
    if info.islnk() or info.issym():
        fault = "is a link"
        try:
            target = archive._find_link_target(info)  # type: ignore[attr-defined]
        except KeyError:
            return _Member(info.name, 0, -1, "is a link to nothing in the tar")
    elif not info.isfile() or info.sparse is not None:
        return _Member(info.name, 0, -1, "is not a regular file")
    if info.name.startswith("/") or ".." in info.name.split("/"):
        fault = "has a name that leads out of a directory"
    return _Member(info.name, target.offset_data, target.size, fault)


def _rows_of(members: Sequence[_Member]) -> Iterator[tuple[str, list[_Member]]]:
    """Yield the name and the members of each row.

    >>> names = ["a.json", "a.jpg", "b.1.json", "b.1.jpg", "b.2.json"]
    >>> [(name, len(group)) for name, group in _rows_of([_Member(name, 0, 0) for name in names])]
    [('a', 2), ('b.1', 2), ('b.2', 1)]
    """
    for key, group in groupby(members, lambda member: member.key):
        group_of_rows = list(group)
        stems = [member.stem for member in group_of_rows if member.ending == "json"]
        if len(stems) < 2:
            yield key, group_of_rows
            continue
        # Dots belong to the names here: a member belongs to the row of its name, or is a separate
        # row.
        by_stem: dict[str, list[_Member]] = {stem: [] for stem in stems}
        for member in group_of_rows:
            by_stem.setdefault(member.stem, []).append(member)
        yield from by_stem.items()


class _Contents:
    """Rows of the members of an open tar.

    Args:
        source: the tar.
        by_name: its members.
        allow_outside: see ``TarRows.of``.
    """

    def __init__(
        self, source: IO[bytes], by_name: Mapping[str, _Member], allow_outside: bool
    ) -> None:
        self._source, self._by_name, self._allow_outside = source, by_name, allow_outside

    def entry(self, group: Sequence[_Member]) -> dict[str, Any]:
        """Return the row of some members, or the reason why they have none, as part of a catalogue
        entry.
        """
        try:
            self._check(group)
            return {"row": self._row(group)}
        except MalformedRowError as error:
            return {"error": str(error)}

    def _check(self, group: Sequence[_Member]) -> None:
        """Refuse members that cannot belong to a row."""
        for member in group:
            if member.fault and (member.size < 0 or not self._allow_outside):
                hint = (
                    "" if member.size < 0 else f": allow it with {setting('media_outside', True)}"
                )
                raise MalformedRowError(f"member {shown(member.name)!r} {member.fault}{hint}")
        twin, count = Counter(member.name for member in group).most_common(1)[0]
        if count > 1:
            raise MalformedRowError(
                f"the tar has member {shown(twin)!r} twice: two rows of one name cannot be told "
                "apart"
            )

    def _row(self, group: Sequence[_Member]) -> dict[str, Any]:
        """Return the columns that the members of a row hold, with references to its media."""
        row: dict[str, Any] = {}
        texts = [member for member in group if member.ending == "json"]
        for member in texts:
            row = self._content(member, object_of)
        media = [
            (member, kind) for member in group if (kind := media_kind(member.name)) is not None
        ]
        if has_media_of_its_own(row):
            folder = posixpath.dirname(texts[0].name)
            row = map_media(row, lambda value: self._resolved(value, folder, group))
        else:
            for member, kind in media:
                row.setdefault(COLUMN_OF_KIND[kind], []).append(_reference(member))
        kinds = {kind for _, kind in media}
        for member in group:
            if member in texts or media_kind(member.name) is not None:
                continue
            if member.ending == "txt":
                column = (
                    "transcript" if kinds == {MediaKind.AUDIO} else "caption" if kinds else "text"
                )
                row.setdefault(column, self._content(member, text_of).strip())
            else:
                row.setdefault(member.field_name or member.name, f"{member.size:,} bytes")
        return row

    def _resolved(self, value: Any, folder: str, group: Sequence[_Member]) -> Any:
        """Return the reference to the member that a row's value names; a value that holds a medium
        stays as it is.
        """
        name = value
        if isinstance(value, Mapping):
            name = value.get("path") or value.get("url") or value.get("file_name")
        if not isinstance(name, str) or name.startswith("data:") or "://" in name[:16]:
            return value
        # First among the row's own members, by name or part; then in the whole tar, starting in the
        # folder of the JSON member.
        own_members = [
            member
            for member in group
            if name in (member.name, member.field_name, posixpath.basename(member.name))
        ]
        paths = [posixpath.normpath(posixpath.join(folder, name)), name]
        candidates = [
            *own_members,
            *(self._by_name[path] for path in paths if path in self._by_name),
        ]
        if not candidates:
            raise MalformedRowError(
                f"it names {shown(name)[:200]!r}, and the tar has no such member"
            )
        self._check(candidates[:1])
        return _reference(candidates[0])

    def _content(self, member: _Member, read: Callable[[bytes], _Content]) -> _Content:
        """Return what ``read`` makes of the bytes of a member; an error names the member."""
        self._source.seek(member.offset)
        try:
            return read(self._source.read(min(member.size, MAX_ROW_BYTES + 1)))
        except MalformedRowError as error:
            raise MalformedRowError(f"member {shown(member.name)!r}: {error}") from error


def _reference(member: _Member) -> dict[str, Any]:
    return {_MEMBER: member.name, "offset": member.offset, "size": member.size}
