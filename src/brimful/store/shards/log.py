"""Directory of packs: a header, immutable shards, and the log that commits them.

::

    stream.json                       the header: identity of the packs; written once
    shards/00000000-<xxh16>.arrow     named by content, never overwritten
    media/00000000-<xxh16>.tar        bytes of media that the packs of shard 0 add to the store
    log/000000000000.json             one record per shard: THE commit point
    log/<last>.json                   the end record: nothing can follow it

A finished pack store is a stream whose log has an end record. Records have running sums: the log
alone gives the number of packs.
"""

import json
import re
from dataclasses import asdict
from itertools import count
from typing import Any

from brimful.base.blobs import BlobGroup, BlobStore
from brimful.base.fingerprint import fingerprint_of
from brimful.base.wording import setting
from brimful.errors import CorruptFileError, NotAPackStoreError, StoreMismatchError
from brimful.store.shards.shard_record import (
    EndRecord,
    ShardRecord,
    append_records,
    identity_differences,
    parsed_json,
    parsed_record,
)

FORMAT, FORMAT_VERSION = "brimful.packs", 1
"""Name and version in every header; a reader rejects others."""

LANES = 1
"""Groups of shards of a store that is not a stream."""

_READ_AT_ONCE = 256
"""Records that are requested together when a log is read from its beginning."""

_HEADER = "stream.json"
_RECORD = re.compile(r"log/(\d{12})\.json")


class StreamLog:
    """Header and log of one directory, for reading and writing."""

    def __init__(self, store: BlobStore) -> None:
        self.store = store

    def header(self) -> dict[str, Any]:
        """Read and check ``stream.json``.

        Raises:
            NotAPackStoreError, CorruptFileError: it does not exist; it is damaged, or of another
                version.
        """
        name = f"{self.store.url}/{_HEADER}"
        try:
            (data,) = self._written(_HEADER)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NotAPackStoreError(
                f"{self.store.url} is not a pack store: it has no {_HEADER} (`brimful pack` and "
                "`pack_dataset` write one)"
            ) from error
        header = parsed_json(data, name)
        if header.get("format") != FORMAT or header.get("version") != FORMAT_VERSION:
            raise CorruptFileError(
                f"{name} has format {header.get('format')!r} version {header.get('version')!r}; "
                f"this brimful reads {FORMAT!r} version {FORMAT_VERSION}"
            )
        if header.get("checksum") != fingerprint_of([header.get("identity"), header.get("notes")]):
            raise CorruptFileError(f"{name} is damaged: it has other contents than were written")
        return header

    def is_begun(self) -> bool:
        """Return true once a header claims the directory for packs."""
        return bool(self.store.size(_HEADER))

    def claim(self, identity: dict[str, Any], notes: dict[str, Any]) -> None:
        """Claim the directory for packs of this identity, or check that it already has this
        identity.

        Args:
            identity, notes: settings and fingerprints that must be equal to resume a job; facts
                that may differ.

        Raises:
            StoreMismatchError: the directory holds packs of another identity; names the
                differences.
        """
        header = {"format": FORMAT, "version": FORMAT_VERSION, "identity": identity, "notes": notes}
        header["checksum"] = fingerprint_of([identity, notes])
        data = json.dumps(header, indent=1, sort_keys=True, ensure_ascii=False).encode()
        if not self.store.put_if_absent(_HEADER, data):
            self.expect(identity)

    def expect(self, identity: dict[str, Any]) -> None:
        """Check that the packs in the directory have this identity, or this part of it.

        Raises:
            StoreMismatchError: names the differences.
        """
        if differences := identity_differences(self.header()["identity"], identity):
            raise StoreMismatchError(
                f"{self.store.url} already holds packs made differently: {differences}. "
                f"Choose another {setting('directory')}, or delete that one"
            )

    def commit(self, record: ShardRecord, files: BlobGroup) -> bool:
        """Publish a shard with its files; return false if a shard of that number was committed
        earlier.

        Args:
            record: of the shard.
            files: named by the record and not published yet.
        """
        # A record is written once, and its state may be large: no deep copy.
        values = {"type": "shard", **vars(record)}
        if record.media is None:
            del values["media"]
        return files.commit(_key(record.seq), json.dumps(values).encode())

    def end(self, record: EndRecord) -> None:
        """Close the stream: nothing can be committed after it."""
        self.store.put_if_absent(
            _key(record.seq), json.dumps({"type": "end", **asdict(record)}).encode()
        )

    def committed(self) -> set[int]:
        """Return the numbers of all records, including the end, by one listing; files with other
        names are no records.
        """
        return {
            int(match[1]) for key in self.store.list("log/") if (match := _RECORD.fullmatch(key))
        }

    def records(self) -> tuple[list[ShardRecord], EndRecord | None]:
        """Return the shard records up to the first gap, and the end if it follows them.

        Raises:
            CorruptFileError: a record is damaged, or the running sums do not add up.
        """
        seqs = self.committed()
        num_known = next(seq for seq in count() if seq not in seqs)
        shards: list[ShardRecord] = []
        for first in range(0, num_known, _READ_AT_ONCE):
            read_seqs = range(first, min(first + _READ_AT_ONCE, num_known))
            try:
                data = self._written(*map(_key, read_seqs))
            except FileNotFoundError:
                # A listing may be ahead of what can be read: only readable records count.
                return shards, self.next_records(shards)
            end = append_records(
                shards, [self._parsed(seq, text) for seq, text in zip(read_seqs, data, strict=True)]
            )
            if end is not None:
                return shards, end
        return shards, None

    def next_records(self, shards: list[ShardRecord]) -> EndRecord | None:
        """Append the records that were committed since ``shards`` was read; return the end if it
        follows.

        Without a new record this is one request: records are requested by key, so no stale listing
        matters.

        Raises:
            CorruptFileError: as for ``records``.
        """
        while True:
            try:
                (data,) = self._written(_key(len(shards)))
            except FileNotFoundError:
                return None
            end = append_records(shards, [self._parsed(len(shards), data)])
            if end is not None:
                return end

    def awaited(self, shards: list[ShardRecord]) -> str:
        """Name the record that follows ``shards``, and a writer that was killed when it began it,
        for messages.
        """
        key = _key(len(shards))
        killed = " (empty: its writer was killed)" if self.store.size(key) == 0 else ""
        return f"{key}{killed}"

    def record_of(self, seq: int) -> ShardRecord | None:
        """Return one shard record; None without one.

        Raises:
            CorruptFileError: it is damaged, or the end record.
        """
        try:
            (data,) = self._written(_key(seq))
        except FileNotFoundError:
            return None
        record, name = self._parsed(seq, data)
        if isinstance(record, EndRecord):
            raise CorruptFileError(f"{name} is not a record of a shard")
        return record

    def _written(self, *keys: str) -> list[bytes]:
        """Return the bytes of files; one that a writer claimed before it was killed is absent."""
        data = self.store.get_many(keys)
        if not all(data):
            raise FileNotFoundError
        return data

    def _parsed(self, seq: int, data: bytes) -> tuple[ShardRecord | EndRecord, str]:
        name = f"{self.store.url}/{_key(seq)}"
        return parsed_record(data, name), name


def _key(seq: int) -> str:
    return f"log/{seq:012d}.json"
