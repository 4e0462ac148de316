"""Media of some packs with their bytes in one container, each distinct medium once."""

from __future__ import annotations

from typing import Any

from brimful.blobs import BlobGroup
from brimful.media import PlacedMedium
from brimful.media.job.arrived import read_again
from brimful.media.store import CountedContainer


class ShardContainer:
    """Self-contained media of one shard: older shards may be removed once they are trained.

    Args:
        files: of the commit, to which the container is added.
        seq: number of the shard.
    """

    def __init__(self, files: BlobGroup, seq: int) -> None:
        self._files, self._seq = files, seq
        self._container = CountedContainer(seq, files.blob)
        self._places: dict[str, tuple[int, int]] = {}
        self._kinds_seen: set[tuple[str, str]] = set()

    def add(self, pack: Any) -> list[PlacedMedium]:
        """Store the media of a pack, and return them with their places.

        Raises:
            BadSampleError: a medium was changed after intake, or is gone.
        """
        media = []
        for item in pack.media:
            sample_id, content_of_kind = int(pack.sample_ids[item.segment]), (item.medium.kind.value, item.fingerprint)
            place = self._places.get(item.fingerprint)
            if place is None:
                content = read_again(item, sample_id)
                offset = self._container.add(item.medium.name, item.fingerprint, content)
                place = self._places[item.fingerprint] = offset, len(content)
            is_first = content_of_kind not in self._kinds_seen
            self._container.count(item, sample_id, item.medium.num_bytes, is_first=is_first)
            self._kinds_seen.add(content_of_kind)
            media.append(item.in_container(self._seq, *place))
        return media

    def close(self) -> dict[str, Any] | None:
        """Add the container to the commit, and return the log entry on the media of the shard; None without media."""
        return self._container.close(self._files.add)
