"""Media of a pack of a shard, made on access from the columns of the shard; and media as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate, repeat
from typing import Any, overload

import numpy as np

from brimful.base.fingerprint import digest_bytes
from brimful.errors import CorruptFileError
from brimful.media.medium import MediaContainer, MediaKind, Medium, PlacedMedium
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


class StoredMedia(Sequence[PlacedMedium]):
    """Media of a pack of a shard. Equal to a tuple of the same media.

    Args:
        cells: of the pack.
        files: of its media.

    Raises:
        CorruptFileError: a container is missing or has another size than was committed; on any access, values
            that a writer never writes.
    """

    def __init__(self, cells: MediaCells, files: MediaFiles) -> None:
        self._facts = StoredFacts(cells, files)
        self._made: tuple[PlacedMedium, ...] | None = None

    def __len__(self) -> int:
        return len(self._facts.places)

    @overload
    def __getitem__(self, index: int) -> PlacedMedium: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[PlacedMedium, ...]: ...

    def __getitem__(self, index: int | slice) -> PlacedMedium | tuple[PlacedMedium, ...]:
        return self._items[index]

    def __iter__(self) -> Iterator[PlacedMedium]:
        return iter(self._items)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (tuple, StoredMedia)):
            return NotImplemented
        return self._items == tuple(other)

    def __hash__(self) -> int:
        return hash(self._items)

    def __reduce__(self) -> tuple[object, ...]:
        return tuple, (self._items,)

    def __repr__(self) -> str:
        return repr(self._items)

    @property
    def _items(self) -> tuple[PlacedMedium, ...]:
        if self._made is None:  # not a cached property, whose lock costs as much as a medium
            facts = self._facts
            # All at once: a call for each would take longer than making it.
            items = tuple(map(_new, repeat(_OfShard, len(facts.places))))
            for index, item in enumerate(items):
                _set_source(item, (facts, index))
            self._made = items
        return self._made


def stored(cells: Sequence[bytes], files: MediaFiles) -> Sequence[PlacedMedium]:
    """Return the media of a pack, stored or referenced."""
    return StoredMedia(MediaCells._make(cells), files) if cells[0] else ()


class StoredFacts:
    """Facts of the media of one pack, as stored in a shard. Media refer to these, not to their list: no cycles.

    Args:
        cells, files: as in ``StoredMedia``.

    Attributes:
        places: container, offset and size of each medium; container -1 for a reference.
        containers: containers of the places, by number.
        digests: ``DIGEST_BYTES`` of each medium.
    """

    def __init__(self, cells: MediaCells, files: MediaFiles) -> None:
        self._cells, self._files = cells, files
        self.digests = cells.digests
        # Most readers need only the places of the bytes: the other numbers are read with the other facts.
        self.places = list(PLACE.iter_unpack(cells.numbers))
        # A pack whose container is gone must not be served: files are checked before everything else.
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
        return list(accumulate((sum(row[_NAME_BYTES : _NAME_BYTES + 2]) for row in self._rows), initial=0))

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
            return self._fields(index)
        except (ValueError, IndexError) as error:
            raise CorruptFileError(f"the media of a pack cannot be read: {error}") from error

    def _fields(self, index: int) -> dict[str, Any]:
        (kind, segment, start, length, num_tokens, num_patches, time, height, width, num_frames) = self._rows[index][
            :10
        ]
        (num_mel_frames, num_runs, name_bytes, path_bytes, shard, offset, size) = self._rows[index][10:]
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
        return {
            "medium": medium,
            "start": start,
            "length": length,
            "num_tokens": num_tokens,
            "num_patches": num_patches,
            "grid": (time, height, width) if time else None,
            "num_frames": num_frames,
            "num_mel_frames": num_mel_frames,
            "runs": tuple(runs.tolist()) or ONE_RUN,
            "seconds_per_grid": None if math.isnan(seconds) else seconds,
            "segment": segment,
            "fingerprint": "" if digest == NO_DIGEST else digest.hex(),
        }


class _Fact:
    """Field of ``PlacedMedium`` that is read from the shard at its first use, with all others of the medium."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, item: Any, owner: type) -> Any:
        facts, index = item._source
        # From now on the object's values hide this descriptor.
        vars(item).update(facts.fields(index))
        return vars(item)[self._name]


class _OfShard(PlacedMedium):
    """Placed medium whose facts are in a shard. A changed copy of it is an ordinary ``PlacedMedium``."""

    __slots__ = ("_source",)
    _source: tuple[StoredFacts, int]

    medium = _Fact()
    start = _Fact()
    length = _Fact()
    num_tokens = _Fact()
    num_patches = _Fact()
    grid = _Fact()
    num_frames = _Fact()
    num_mel_frames = _Fact()
    runs = _Fact()
    seconds_per_grid = _Fact()
    segment = _Fact()
    fingerprint = _Fact()

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
        # A reference, or bytes that differ from the packed ones: read like any other medium, which raises the error.
        return super().read()

    def __reduce__(self) -> tuple[object, ...]:
        return PlacedMedium, tuple(getattr(self, name) for name in PlacedMedium.__dataclass_fields__)


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
