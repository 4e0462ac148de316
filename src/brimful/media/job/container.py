"""Media of some packs with their bytes in one container, each distinct medium once."""

from __future__ import annotations

from typing import Any

from brimful.blobs import Blob, BlobGroup
from brimful.media import PlacedMedium
from brimful.media.job.arrived import read_again
from brimful.media.store import ContainerWriter, KindCounter, container_key


class ShardContainer:
    """Self-contained media of one shard: older shards may be removed once they are trained.

    Args:
        files: of the commit, to which the container is added.
        seq: number of the shard.
    """

    def __init__(self, files: BlobGroup, seq: int) -> None:
        self._files, self._seq = files, seq
        self._blob: Blob | None = None
        self._container: ContainerWriter | None = None
        self._places: dict[str, tuple[int, int]] = {}
        self._counts: dict[str, KindCounter] = {}
        self._kinds_seen: set[tuple[str, str]] = set()

    def add(self, pack: Any) -> list[PlacedMedium]:
        """Store the media of a pack, and return them with their places.

        Raises:
            BadSampleError: a medium was changed after intake, or is gone.
        """
        media = []
        for item in pack.media:
            sample_id, kind = int(pack.sample_ids[item.segment]), item.medium.kind.value
            place = self._places.get(item.fingerprint)
            if place is None:
                content = read_again(item, sample_id)
                offset = self._opened().add(item.medium.name, item.fingerprint, content)
                place = self._places[item.fingerprint] = offset, len(content)
            is_first = (kind, item.fingerprint) not in self._kinds_seen
            self._kinds_seen.add((kind, item.fingerprint))
            self._counts.setdefault(kind, KindCounter()).add(item, sample_id, is_first=is_first)
            media.append(item.in_container(self._seq, *place))
        return media

    def _opened(self) -> ContainerWriter:
        if self._container is None:
            self._blob = self._files.blob(f"media/{self._seq:08d}")
            self._container = ContainerWriter(self._blob)
        return self._container

    def close(self) -> dict[str, Any] | None:
        """Add the container to the commit, and return the log entry on the media of the shard; None without media."""
        if self._container is None or self._blob is None:
            return None
        self._container.close()
        key = container_key(self._seq, self._blob.xxh3_128)
        self._files.add(key, self._blob)
        return {
            "items": {kind: counter.total().as_dict() for kind, counter in sorted(self._counts.items())},
            "file": key,
            "bytes": self._blob.size,
            "xxh3_128": self._blob.xxh3_128,
            "stored": self._container.num_members,
        }
