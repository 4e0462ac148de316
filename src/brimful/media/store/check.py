"""Full check of the media of a store: the bytes of containers, and of the files that packs refer to."""

import os

import xxhash

from brimful.errors import CorruptFileError
from brimful.fingerprint import short_digest
from brimful.media.placed import CHANGED
from brimful.media.reference import BadMediumError
from brimful.media.store.files import MediaFiles
from brimful.shards.log import ShardRecord
from brimful.shards.pack import Pack

_PIECE_BYTES = 1 << 24
"""Bytes of a container in memory while it is hashed."""

_MAX_KNOWN = 1 << 20
"""Maximum number of compared files to remember."""


class MediaCheck:
    """Check of the media of packs: containers by their hash, referenced files by their fingerprints.

    Attributes:
        num_checked: media so far.
    """

    def __init__(self, files: MediaFiles) -> None:
        self._store = files.store
        self.num_checked = 0
        self._known: set[int] = set()

    def check_shard(self, record: ShardRecord) -> None:
        """Compare the container of a shard with its record."""
        key = (record.media or {}).get("file")
        if record.media is None or key is None:
            return
        store, hasher = self._store, xxhash.xxh3_128()
        try:
            size = store.size(key) or 0
            for begin in range(0, size, _PIECE_BYTES):
                hasher.update(store.get_range(key, begin, min(begin + _PIECE_BYTES, size)))
        except FileNotFoundError as error:
            raise CorruptFileError(
                f"{store.url}/{key} is missing: its media were committed, so it was deleted since; write it again"
            ) from error
        if size != record.media["bytes"] or hasher.hexdigest() != record.media["xxh3_128"]:
            raise CorruptFileError(f"{store.url}/{key} has other bytes than were committed")

    def check(self, pack: Pack, name: str) -> None:
        """Compare the files that a pack refers to with their fingerprints; each is read once."""
        for item in pack.media:
            medium = item.medium
            self.num_checked += 1
            place = short_digest(os.fsencode(f"{item.fingerprint} {medium.offset} {medium.size} {medium.path}"))
            # Containers were compared as a whole.
            if medium.container is not None or place in self._known:
                continue
            try:
                if medium.fingerprint() != item.fingerprint:
                    raise BadMediumError(CHANGED)
            except BadMediumError as error:
                sample_id = int(pack.sample_ids[item.segment])
                raise CorruptFileError(
                    f"{name}: sample {sample_id}, {item.title}: {error} ({medium.path or 'in the row'})"
                ) from error
            # Bounded: reading a file twice costs less than a list of a hundred million.
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            self._known.add(place)
