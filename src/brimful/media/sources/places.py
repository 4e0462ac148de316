"""Media of a row: found in its columns and in the parts of its messages, and placed at their marks.

Data sets name images in two ways. Either parts of a content hold them (OpenAI's
``{"type": "image_url", …}``), or a column holds them (``images``) and marks in the text say where
they belong: ``<image>`` for the next one, ``<image2>`` for the second. In a sample both look the
same: contents are lists of parts, and ``Sample.attachments`` has the media in the order of their
parts.

>>> place = MediaPlace("/data")
>>> messages, media = place_media([{"role": "user", "content": "<image>\\nWho is it?"}], {"image": "a.jpg"}, place)
>>> messages[0]["content"]
[{'type': 'image'}, {'type': 'text', 'text': '\\nWho is it?'}]
>>> media[0].path
'/data/a.jpg'
"""

import base64
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from brimful.base.checks import MalformedRowError
from brimful.base.wording import counted, setting
from brimful.media import MediaKind, Medium
from brimful.sources.attachment_names import COLUMNS, MARK, PARTS, is_attachment, placeholder
from brimful.sources.formats import RowFormat

MEDIA_ENDINGS: Mapping[str, MediaKind] = {
    ending: kind
    for kind, endings in (
        (MediaKind.IMAGE, "jpg jpeg jfif png webp gif bmp tif tiff ppm pgm jp2 heic avif"),
        (MediaKind.VIDEO, "mp4 m4v mov avi mkv webm mpg mpeg flv wmv"),
        (MediaKind.AUDIO, "wav flac mp3 ogg opus m4a aac wma"),
    )
    for ending in endings.split()
}
"""Kind of medium by the ending of a file's name, in lower case. A fixed table: that of a machine
may differ.
"""

COLUMN_OF_KIND: Mapping[MediaKind, str] = {kind: f"{kind.value}s" for kind in MediaKind}
"""Column that rows get for media that have their name and that they do not name themselves."""


def media_kind(name: str) -> MediaKind | None:
    """Return the kind of medium in a file, judged by its name; None for other files.

    >>> media_kind("a.b.JPG"), media_kind("a.json") is None, media_kind("jpg") is None
    (<MediaKind.IMAGE: 'image'>, True, True)
    """
    stem, dot, ending = name.rpartition(".")
    return MEDIA_ENDINGS.get(ending.lower()) if stem and dot else None


_PLAIN_KEYS = ("path", "url", "data", "value")
"""Keys of a part that hold its medium, whatever its type."""


@dataclass(frozen=True)
class MediaPlace:
    """The directory to which the media names in rows are relative.

    Attributes:
        directory: relative names begin here; the current directory if empty.
        allow_outside: media may also lie elsewhere. Otherwise a name that leads out of the
            directory, even through a link, is refused: a foreign data set could name any file on
            this machine.

    >>> place = MediaPlace("/data/photos")
    >>> place.find("cats/1.jpg")
    '/data/photos/cats/1.jpg'
    >>> place.find("../keys.pem")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    brimful.base.checks.MalformedRowError: '../keys.pem' is outside /data/photos, ...
    """

    directory: str = ""
    allow_outside: bool = False

    def find(self, name: str) -> str:
        """Return the absolute path of a file from its name in a row, without checking that it
        exists.
        """
        if "\0" in name:
            raise MalformedRowError("the name of a medium contains a NUL")
        root = os.path.abspath(self.directory)
        path = os.path.abspath(os.path.join(root, name))
        if not self.allow_outside:
            # Links are followed, since a link in the directory may lead out of it.
            real_root = os.path.realpath(root)
            if os.path.commonpath([real_root, os.path.realpath(path)]) != real_root:
                raise MalformedRowError(
                    f"{name!r} is outside {root}, the directory of its media: name another with "
                    f"{setting('media_dir')}, or allow it with {setting('media_outside', True)}"
                )
        return path

    def placed(
        self,
        content: Mapping[str, Any],
        columns: Mapping[str, Any],
        row_format: RowFormat,
        *,
        ignore: frozenset[str],
    ) -> dict[str, Any]:
        """Return the messages of a row with its media in their places, and the media; nothing if
        it has none.

        Args:
            content: fields of its sample.
            columns: columns of the row that hold media.
            row_format: of the row; it may put media without marks first.
            ignore: marks that are plain text.

        Raises:
            MalformedRowError: see ``place_media``; or the row is not a chat, or of a format without
                media.
        """
        if columns and not row_format.takes_attachments:
            column = next(iter(columns))
            raise MalformedRowError(
                f"column {column!r} holds media, and rows of format {row_format.name} are packed as "
                f"text only: leave it out with {setting('ignore', [column])}"
            )
        messages = content.get("messages")
        if messages is None:
            if columns:
                raise MalformedRowError(
                    f"column {next(iter(columns))!r} holds media, and the text is not a chat: make "
                    "messages of it"
                )
            return {}
        if not columns and not any(
            type(turn.get("content")) is list
            or placeholder(turn.get("content") or "", ignore=ignore)
            for turn in messages
        ):
            return {}
        # A mark in an answer does not place the medium: it is checked against the media as usual.
        if row_format.puts_attachments_first and not placeholder(
            messages[0]["content"], ignore=ignore
        ):
            marks = "".join(
                f"<{COLUMNS[column]}>" * (len(value) if isinstance(value, list | tuple) else 1)
                for column, value in columns.items()
            )
            first, *others = messages
            messages = [{**first, "content": f"{marks}\n{first['content']}"}, *others]
        messages, media = place_media(messages, columns, self)
        return {"messages": messages, "attachments": media}


def place_media(
    messages: Sequence[dict[str, Any]], columns: Mapping[str, Any], directory: MediaPlace
) -> tuple[list[dict[str, Any]], tuple[Medium, ...]]:
    """Return messages, with lists of parts for contents with media, and the media in the order of
    their parts.

    Args:
        messages: contents are texts, or lists of parts.
        columns: columns of the row that hold media.
        directory: where their files are.

    Raises:
        MalformedRowError: a mark without a medium, a medium without a mark, or a value that is not
            a medium.
    """
    shelf = _Shelf(columns, directory)
    media: list[Medium] = []
    result = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, str) and MARK.search(content):
            items = list(_items_of_text(content, shelf, media))
        elif isinstance(content, list):
            items = list(_items_of_list(content, shelf, media, directory))
        else:
            result.append(message)
            continue
        result.append({**message, "content": items})
    shelf.check_empty()
    return result, tuple(media)


class _Shelf:
    """Media of the columns of a row, taken one by one as marks ask for them."""

    def __init__(self, columns: Mapping[str, Any], directory: MediaPlace) -> None:
        self._media: dict[MediaKind, list[Medium]] = {}
        for name, value in columns.items():
            kind = MediaKind(COLUMNS[name])
            values = value if isinstance(value, (list, tuple)) else [value]
            self._media.setdefault(kind, []).extend(
                _medium(kind, item, directory, name) for item in values
            )
        self._num_taken = dict.fromkeys(self._media, 0)
        self._named: set[tuple[MediaKind, int]] = set()

    def take(self, kind: MediaKind, ordinal: str = "") -> Medium:
        """Return the next medium of a kind, or the one with a number."""
        media = self._media.get(kind, [])
        if ordinal:
            index = int(ordinal) - 1
            self._named.add((kind, index))
        else:
            index = self._num_taken.get(kind, 0)
            self._num_taken[kind] = index + 1
        if not 0 <= index < len(media):
            mark = f"<{kind.value}{ordinal}>"
            have = counted(len(media), kind.value)
            raise MalformedRowError(
                f"its text has a mark {mark} and the row has {have}: if the mark is plain text, "
                f"say so with {setting('ignore', [mark])}"
            )
        return media[index]

    def check_empty(self) -> None:
        """Refuse a medium that no mark asked for."""
        for kind, media in self._media.items():
            num_used = max(
                self._num_taken[kind], len({index for name, index in self._named if name is kind})
            )
            if num_used < len(media):
                raise MalformedRowError(
                    f"it has {counted(len(media), kind.value)} and its text marks {num_used}: put "
                    f"<{kind.value}> where each belongs"
                )


def _items_of_text(text: str, shelf: _Shelf, media: list[Medium]) -> Iterator[dict[str, Any]]:
    """Yield the parts of a text with marks; append the media to ``media``."""
    start = 0
    for match in MARK.finditer(text):
        if text[start : match.start()]:
            yield {"type": "text", "text": text[start : match.start()]}
        kind = MediaKind(match.group(1))
        media.append(shelf.take(kind, match.group(2)))
        yield {"type": kind.value}
        start = match.end()
    if text[start:]:
        yield {"type": "text", "text": text[start:]}


def _items_of_list(
    items: Sequence[Any], shelf: _Shelf, media: list[Medium], directory: MediaPlace
) -> Iterator[dict[str, Any]]:
    """Yield the parts of a content in one form; append the media to ``media``."""
    for item in items:
        if not is_attachment(item):
            yield item
            continue
        name = item["type"]
        kind = MediaKind(PARTS[name])
        keys = (
            name,
            kind.value,
            *(key for key in item if key in PARTS and PARTS[key] is kind),
            *_PLAIN_KEYS,
        )
        value = next((item[key] for key in keys if item.get(key) is not None), None)
        media.append(
            shelf.take(kind)
            if value is None
            else _medium(kind, value, directory, f"a part of type {name!r}")
        )
        yield {"type": kind.value}


def _medium(kind: MediaKind, value: Any, directory: MediaPlace, origin: str) -> Medium:
    """Return the medium that a value names or holds: a path, a ``data:`` URL, bytes, or a mapping
    with one of them.
    """
    if isinstance(value, Medium):
        return replace(value, kind=kind)
    if isinstance(value, Mapping):
        data, path = (
            value.get("bytes"),
            value.get("path") or value.get("url") or value.get("file_name"),
        )
        if isinstance(data, (bytes, bytearray)):
            return Medium(kind, str(path or ""), data=bytes(data))
        if isinstance(value.get("data"), str):  # OpenAI's input_audio: Base64, and its format
            return Medium(kind, "", data=_from_base64(value["data"], origin))
        value = path
    if isinstance(value, (bytes, bytearray)):
        return Medium(kind, "", data=bytes(value))
    if not isinstance(value, (str, os.PathLike)) or not os.fspath(value):
        raise MalformedRowError(f"{origin} holds no {kind.value}: it must be a path or bytes")
    name = os.fspath(value)
    if name.startswith("data:"):
        return Medium(kind, "", data=_from_base64(name.partition(",")[2], origin))
    if re.match(r"[a-zA-Z][a-zA-Z0-9+.-]+://", name):
        if not name.startswith("file://"):
            raise MalformedRowError(
                f"{origin} names {name[:80]!r}, and media are not fetched: download it first"
            )
        name = name.removeprefix("file://")
    return Medium(kind, name, path=directory.find(name))


def _from_base64(text: str, origin: str) -> bytes:
    try:
        return base64.b64decode(text, validate=False)
    except ValueError as error:
        raise MalformedRowError(f"{origin} holds Base64 that cannot be read: {error}") from error


_TURNS = ("messages", "conversations", "prompt", "completion")
"""Columns of turns, whose contents may hold parts that are media."""


def media_values(row: Mapping[str, Any]) -> list[Any]:
    """Return the values of a row that name or hold media, from columns and from parts of its
    messages.
    """
    values: list[Any] = []
    map_media(row, values.append)
    return values


def has_media_of_its_own(row: Mapping[str, Any]) -> bool:
    """Return true if a row itself says which media it has, even if it says that it has none.

    >>> has_media_of_its_own({"messages": [], "images": []}), has_media_of_its_own({"messages": [], "image": None})
    (True, False)
    """
    columns = (value for name, value in row.items() if name in COLUMNS)
    return any(value is not None and value != "" for value in columns) or bool(media_values(row))


def map_media(row: Mapping[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """Return a row with every value that names or holds a medium changed, in columns and in parts
    of messages.
    """
    result = dict(row)
    for name, value in row.items():
        if name in COLUMNS and value not in (None, "", []):
            result[name] = (
                [change(item) for item in value] if isinstance(value, list) else change(value)
            )
        elif name in _TURNS and isinstance(value, list):
            result[name] = [_with_items(turn, change) for turn in value]
    return result


def _with_items(turn: Any, change: Callable[[Any], Any]) -> Any:
    """Return a turn with the media of its parts changed."""
    if not isinstance(turn, Mapping) or not isinstance(turn.get("content"), list):
        return turn
    items = []
    for item in turn["content"]:
        if is_attachment(item):
            item = {
                **item,
                **{
                    key: change(value)
                    for key, value in item.items()
                    if (key in PARTS or key in _PLAIN_KEYS) and value is not None
                },
            }
        items.append(item)
    return {**turn, "content": items}
