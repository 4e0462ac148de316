"""Media that a producer carries over: references to files, and containers of bytes that came with rows.

A row of a pipe cannot be read again, so its bytes are kept: each medium once, in the container of the record
after which it was first carried. Later records name this container until the medium is in a shard.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from brimful.blobs import BlobGroup, BlobStore
from brimful.errors import CorruptFileError
from brimful.media import BadMediumError, PlacedMedium
from brimful.media.store import ContainerWriter, MediaFiles
from brimful.shards import ShardRecord
from brimful.typing import Fingerprint


@dataclass(frozen=True)
class _CarriedBytes:
    """Place of bytes that came with a row."""

    container: str
    offset: int
    size: int


class CarriedMedia:
    """Bytes that one producer has carried over so far, and their places.

    Args:
        store: of the stream.
    """

    def __init__(self, store: BlobStore) -> None:
        self._store = store
        self.forget()

    def forget(self) -> None:
        """Forget all that was carried over: another record is resumed from."""
        self._containers: dict[str, dict[str, Any]] = {}
        self._places: dict[Fingerprint, _CarriedBytes] = {}

    def save(
        self, files: BlobGroup, prefix: str, rows: Sequence[Sequence[PlacedMedium]]
    ) -> tuple[list[list[PlacedMedium]], list[dict[str, Any]]]:
        """Store the new media of some rows; return the places of all, and the needed containers.

        Args:
            files: of the commit, to which a new container is added.
            prefix: of the key of a new container.
            rows: media of each pack or segment that is carried over.
        """
        carried = {item.fingerprint: item for row in rows for item in row if not item.medium.path}
        # Media that left the carry-over are in a shard now.
        self._places = {name: place for name, place in self._places.items() if name in carried}
        new = {name: item for name, item in carried.items() if name not in self._places}
        if new:
            self._store_new(files, prefix, new)
        keys = sorted({place.container for place in self._places.values()})
        self._containers = {key: self._containers[key] for key in keys}
        return [[self._placed(item, keys) for item in row] for row in rows], list(self._containers.values())

    def _store_new(self, files: BlobGroup, prefix: str, media: dict[Fingerprint, PlacedMedium]) -> None:
        offsets: dict[Fingerprint, int] = {}
        blob = files.blob(prefix)
        container = ContainerWriter(blob)
        for name, item in media.items():
            offsets[name] = container.add(item.medium.name, name, item.read())
        container.close()
        key = f"{prefix}-{blob.xxh3_128[:16]}.tar"
        files.add(key, blob)
        self._containers[key] = {"file": key, "bytes": blob.size, "xxh3_128": blob.xxh3_128}
        for name, item in media.items():
            self._places[name] = _CarriedBytes(key, offsets[name], item.medium.num_bytes)

    def _placed(self, item: PlacedMedium, keys: Sequence[str]) -> PlacedMedium:
        if item.medium.path:
            return item
        place = self._places[item.fingerprint]
        return item.in_container(keys.index(place.container), place.offset, place.size)

    def files(self, containers: Sequence[dict[str, Any]]) -> MediaFiles:
        """Return the media files that a record names."""
        self._containers = {facts["file"]: dict(facts) for facts in containers}
        # A container is found by the number of its record, like the containers of shards.
        records = [ShardRecord(seq, "", 0, "", 0, 0, 0, 0, "", media=facts) for seq, facts in enumerate(containers)]
        return MediaFiles(self._store, records, "")

    def loaded(self, media: Sequence[PlacedMedium]) -> tuple[PlacedMedium, ...]:
        """Return media with the bytes that came with rows; the files of others are read when their shard is written.

        Raises:
            FileNotFoundError: a later record was committed, and the container is gone.
            CorruptFileError: it is damaged.
        """
        return tuple(map(self._loaded, media))

    def _loaded(self, item: PlacedMedium) -> PlacedMedium:
        medium = item.medium
        if medium.container is None:
            return item
        try:
            content = item.read()
        except BadMediumError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise FileNotFoundError(medium.path) from error
            raise CorruptFileError(f"{medium.path}: {error}") from error
        self._places[item.fingerprint] = _CarriedBytes(medium.container.key, medium.offset, len(content))
        data = replace(medium, path="", offset=0, size=len(content), data=content, container=None)
        return replace(item, medium=data)
