"""Media of a pack of a shard, made on access from the columns of the shard; and media as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import accumulate, repeat
from typing import Any

import numpy as np

from brimful.base.fingerprint import digest_bytes
from brimful.errors import CorruptFileError
from brimful.media.medium import COMPARED_FIELDS, MediaContainer, MediaKind, Medium, PlacedMedium
from brimful.media.store.files import MediaFiles
from brimful.media.store.media_columns import (
    DIGEST_BYTES,
    KINDS,
    NO_DIGEST,
    NUMBERS,
    ONE_RUN,
    PLACE,
    ROW,
    TEXT,
    MediaCells,
)

_NUM_RUNS = NUMBERS.index("num_runs")
_NAME_BYTES = NUMBERS.index("name_bytes")


def stored(cells: Sequence[bytes], files: MediaFiles) -> Sequence[PlacedMedium]:
    """Return the media of a pack of a shard; facts other than places are read at the first use of a
    medium.

    Args:
        cells: of the pack.
        files: of its media.

    Raises:
        CorruptFileError: a container is missing or has another size than was committed; on any
            access, values that a writer never writes.
    """
    if not cells[0]:
        return ()
    facts = StoredFacts(MediaCells._make(cells), files)
    # All at once: a call for each would take longer than making it.
    items = tuple(map(_new, repeat(_OfShard, len(facts.places))))
    for index, item in enumerate(items):
        _set_source(item, (facts, index))
    return items


class StoredFacts:
    """Facts of the media of one pack, as stored in a shard.

    Args:
        cells, files: as in ``stored``.

    Attributes:
        places: container, offset and size of each medium; container -1 for a reference.
        containers: containers of the places, by number.
        digests: ``DIGEST_BYTES`` of each medium.
    """

    def __init__(self, cells: MediaCells, files: MediaFiles) -> None:
        self._cells, self._files = cells, files
        self.digests = cells.digests
        # Most readers need only the places of the bytes: the other numbers are read with the other
        # facts.
        self.places = list(PLACE.iter_unpack(cells.numbers))
        # A pack whose container is gone must not be served: files are checked before everything
        # else.
        self.containers: dict[int, MediaContainer] = {}
        previous = -1
        for shard, _, _ in self.places:
            # Consecutive media are mostly in one container.
            if shard != previous and shard >= 0:
                self.containers[shard] = files.container(shard)
            previous = shard

    @cached_property
    def _rows(self) -> list[tuple[int, ...]]:
        """All numbers of each medium."""
        return list(ROW.iter_unpack(self._cells.numbers))

    @cached_property
    def _first_bytes(self) -> list[int]:
        """First byte of each medium's name among the texts."""
        return list(
            accumulate((sum(row[_NAME_BYTES : _NAME_BYTES + 2]) for row in self._rows), initial=0)
        )

    @cached_property
    def _seconds(self) -> list[float]:
        seconds: list[float] = np.frombuffer(self._cells.seconds, dtype=np.float64).tolist()
        return seconds or [math.nan] * len(self.places)

    @cached_property
    def _first_runs(self) -> list[int]:
        """First run of each medium among the runs."""
        return list(accumulate((row[_NUM_RUNS] for row in self._rows), initial=0))

    def fields(self, index: int) -> dict[str, Any]:
        """Return the fields of ``PlacedMedium``.

        Raises:
            CorruptFileError: values that a writer never writes.
        """
        try:
            return dict(zip(COMPARED_FIELDS, self._values(index), strict=True))
        except (ValueError, IndexError) as error:
            raise CorruptFileError(f"the media of a pack cannot be read: {error}") from error

    def _values(self, index: int) -> tuple[Any, ...]:
        """Return the values of ``COMPARED_FIELDS``."""
        (kind, segment, start, length, num_tokens, num_patches, time, height, width, num_frames) = (
            self._rows[index][:10]
        )
        (num_mel_frames, num_runs, name_bytes, path_bytes, shard, offset, size) = self._rows[index][
            10:
        ]
        begin = self._first_bytes[index]
        name, path = (
            self._cells.texts[first : first + count].decode(*TEXT)
            for first, count in ((begin, name_bytes), (begin + name_bytes, path_bytes))
        )
        medium: Medium
        if shard < 0:
            medium = self._files.reference(KINDS[kind], name, path, offset, size)
        else:
            medium = self.containers[shard].medium(KINDS[kind], name, offset, size)
        runs = np.frombuffer(self._cells.runs, dtype=np.int32)[self._first_runs[index] :][:num_runs]
        seconds = self._seconds[index]
        digest = self.digests[DIGEST_BYTES * index : DIGEST_BYTES * (index + 1)]
        return (
            medium,
            start,
            length,
            num_tokens,
            num_patches,
            (time, height, width) if time else None,
            num_frames,
            num_mel_frames,
            tuple(runs.tolist()) or ONE_RUN,
            None if math.isnan(seconds) else seconds,
            segment,
            "" if digest == NO_DIGEST else digest.hex(),
        )


class _Fact:
    """Field of ``PlacedMedium`` that is read from the shard at its first use, with all others of
    the medium.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, item: Any, owner: type) -> Any:
        facts, index = item._source
        # From now on the object's values hide this descriptor.
        vars(item).update(facts.fields(index))
        return vars(item)[self._name]


class _OfShard(PlacedMedium):
    """Placed medium whose facts are in a shard. A changed copy of it is an ordinary
    ``PlacedMedium``.
    """

    __slots__ = ("_source",)
    _source: tuple[StoredFacts, int]

    def __new__(cls, *values: Any, **named: Any) -> PlacedMedium:  # type: ignore[misc]
        return PlacedMedium(*values, **named)

    def read(self) -> bytes:
        facts, index = self._source
        shard, offset, size = facts.places[index]
        if shard >= 0:
            content = facts.containers[shard].read(offset, size)
            first = DIGEST_BYTES * index
            if digest_bytes(content) == facts.digests[first : first + DIGEST_BYTES]:
                return content
        # A reference, or bytes that differ from the packed ones: read like any other medium, which
        # raises the error.
        return super().read()

    def __reduce__(self) -> tuple[object, ...]:
        return PlacedMedium, tuple(
            getattr(self, name) for name in PlacedMedium.__dataclass_fields__
        )


for _name in COMPARED_FIELDS:
    setattr(_OfShard, _name, _Fact(_name))

_new = object.__new__

_set_source = _OfShard.__dict__["_source"].__set__
"""Setter of a slot: the class is frozen, and every served medium needs it."""


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
