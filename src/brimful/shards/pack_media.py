"""Media of a pack in a shard: JSON of their places and names, and the bytes of those that are in no file."""

import json
from collections.abc import Sequence
from typing import Any

from brimful.errors import CorruptFileError
from brimful.media import MediaKind, Medium, PlacedMedium


def media_to_json(media: Sequence[PlacedMedium]) -> tuple[bytes, list[bytes]]:
    """Return the media of a pack as JSON, and the bytes of those that are in no file, each once."""
    blobs: dict[bytes, int] = {}
    rows = []
    for item in media:
        medium = item.medium
        place: dict[str, Any] = {"path": medium.path, "offset": medium.offset, "size": medium.size}
        if medium.data is not None:
            place = {"blob": blobs.setdefault(medium.data, len(blobs))}
        facts = {name: value for name, value in vars(item).items() if name != "medium"}
        rows.append({"kind": medium.kind.value, "name": medium.name, **place, **facts})
    # A name of a file need not be Unicode: half of a surrogate pair stands for a byte that is none.
    return json.dumps(rows, ensure_ascii=True, separators=(",", ":")).encode(), list(blobs)


def media_from_json(text: bytes, blobs: Sequence[bytes]) -> tuple[PlacedMedium, ...]:
    """Return the media of a pack; the other way round.

    Raises:
        CorruptFileError: no such JSON.

    >>> item = PlacedMedium(Medium(MediaKind.IMAGE, "a", data=b"x"), start=1, length=2, num_tokens=2, grid=(1, 2, 4))
    >>> media_from_json(*media_to_json([item])) == (item,)
    True
    """
    try:
        return tuple(_from_row(dict(row), blobs) for row in json.loads(text))
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise CorruptFileError(f"the media of a pack cannot be read: {error}") from error


def _from_row(row: dict[str, Any], blobs: Sequence[bytes]) -> PlacedMedium:
    kind, name = MediaKind(row.pop("kind")), row.pop("name")
    if "blob" in row:
        medium = Medium(kind, name, data=blobs[row.pop("blob")])
    else:
        medium = Medium(kind, name, path=row.pop("path"), offset=row.pop("offset"), size=row.pop("size"))
    # JSON has no tuples. A file of before has no runs.
    tuples = {key: tuple(row.pop(key)) for key in ("grid", "runs") if row.get(key) is not None}
    return PlacedMedium(medium, **{"grid": None, **row, **tuples})
