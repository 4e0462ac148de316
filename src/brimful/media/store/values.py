"""Placed media as JSON: their places among tokens and where their bytes are, without the bytes."""

import json
from collections.abc import Iterable

from brimful.media.placed import PlacedMedium
from brimful.media.reference import MediaKind, Medium

_FACTS = tuple(name for name in PlacedMedium.__dataclass_fields__ if name != "medium")


def to_json(media: Iterable[PlacedMedium]) -> bytes:
    """Return the media of one sample without their bytes, for tokens that a job keeps.

    >>> item = PlacedMedium(Medium(MediaKind.IMAGE, "a"), start=1, length=2, num_tokens=2, grid=(1, 2, 4))
    >>> from_json(to_json([item])) == (item,)
    True
    """
    rows = []
    for item in media:
        medium = item.medium
        place = (medium.kind.value, medium.name, medium.path, medium.offset, medium.size)
        rows.append({"medium": place, **{name: getattr(item, name) for name in _FACTS}})
    return json.dumps(rows, separators=(",", ":")).encode()


def from_json(text: bytes) -> tuple[PlacedMedium, ...]:
    """Return the media of ``to_json``; none for an empty text."""
    media = []
    for values in json.loads(text) if text else ():
        kind, *place = values["medium"]
        grid = values["grid"]
        # Not by the constructor, which takes four times as long for a frozen class.
        item = object.__new__(PlacedMedium)
        vars(item).update(
            values,
            medium=Medium(MediaKind(kind), *place),
            grid=None if grid is None else tuple(grid),
            runs=tuple(values["runs"]),
        )
        media.append(item)
    return tuple(media)
