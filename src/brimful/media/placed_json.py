"""Placed media as JSON values: their places among tokens and their measurements, without their bytes."""

from typing import Any

from brimful.media.placed import PlacedMedium
from brimful.media.reference import Medium

_FACTS = tuple(name for name in PlacedMedium.__dataclass_fields__ if name != "medium")


def placed_to_values(item: PlacedMedium) -> dict[str, Any]:
    """Return a placed medium as JSON values, without the location of its bytes.

    >>> from brimful.media import MediaKind
    >>> item = PlacedMedium(Medium(MediaKind.IMAGE, "a"), start=1, length=2, num_tokens=2, grid=(1, 2, 4))
    >>> placed_from_values(placed_to_values(item), item.medium) == item
    True
    """
    facts = {name: getattr(item, name) for name in _FACTS}
    return {"kind": item.medium.kind.value, "name": item.medium.name, **facts}


def placed_from_values(values: dict[str, Any], medium: Medium) -> PlacedMedium:
    """Return the placed medium of ``placed_to_values``; raise ``TypeError`` or ``KeyError`` for other values."""
    grid = values["grid"]
    # Not by the constructor, which takes four times as long for a frozen class: this runs for each served medium.
    item = object.__new__(PlacedMedium)
    vars(item).update(
        medium=medium,
        start=values["start"],
        length=values["length"],
        num_tokens=values["num_tokens"],
        num_patches=values["num_patches"],
        grid=None if grid is None else tuple(grid),
        num_frames=values["num_frames"],
        num_mel_frames=values["num_mel_frames"],
        runs=tuple(values["runs"]),
        seconds_per_grid=values["seconds_per_grid"],
        segment=values["segment"],
        fingerprint=values["fingerprint"],
    )
    return item
