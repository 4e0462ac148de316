"""The directory of packs: a header, immutable shards, and the log that commits them.

::

    stream.json                       what the packs are; written once
    shards/00000000-<xxh16>.arrow     named by content, never overwritten
    log/000000000000.json             one record a shard: THE commit point
    log/<last>.json                   the end record: nothing can follow it

A finished pack store is a stream whose log has its end. Records carry running sums, so the pack with a given
index is found by a search, and any reader knows the number of packs from the log alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from brimful.blobs import BlobStore
from brimful.errors import CorruptFileError, NotAPackStoreError, StoreMismatchError
from brimful.fingerprint import differing_keys, fingerprint_of
from brimful.messages import setting

__all__ = ["FORMAT", "FORMAT_VERSION", "EndRecord", "ShardRecord", "StreamLog"]

FORMAT, FORMAT_VERSION = "brimful.packs", 1
IDENTITY_KEYS = ("capacity", "plan", "source", "encoder", "lanes")
"""What a header names at least; equal identities mean equal packs."""
_HEADER = "stream.json"
_RECORD = re.compile(r"log/(\d{12})\.json")


@dataclass(frozen=True)
class ShardRecord:
    """One committed shard.

    Attributes:
        seq: number of the shard, dense from 0.
        file: key of the shard.
        bytes: its size.
        xxh3_128: of its bytes.
        packs, tokens: in this shard.
        cum_packs, cum_tokens: in this and all before it.
        producer_id: who wrote it.
        state: where the producer stood after it, for streams that grow; None in a planned store.
    """

    seq: int
    file: str
    bytes: int
    xxh3_128: str
    packs: int
    tokens: int
    cum_packs: int
    cum_tokens: int
    producer_id: str
    state: Any = None


@dataclass(frozen=True)
class EndRecord:
    """The end of the stream, with its totals."""

    seq: int
    packs: int
    tokens: int


class StreamLog:
    """Reads and writes the header and the log of one directory."""

    def __init__(self, store: BlobStore) -> None:
        self.store = store

    def header(self) -> dict[str, Any]:
        """``stream.json``.

        Raises:
            NotAPackStoreError: there is none.
            CorruptFileError: unreadable, or of another version.
        """
        try:
            data = self.store.get(_HEADER)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NotAPackStoreError(
                f"{self.store.url} is no pack store: it has no {_HEADER} (`brimful pack` and `pack_dataset` write one)"
            ) from error
        header = _parse(data, f"{self.store.url}/{_HEADER}")
        if header.get("format") != FORMAT or header.get("version") != FORMAT_VERSION:
            raise CorruptFileError(
                f"{self.store.url}/{_HEADER} has format {header.get('format')!r} version {header.get('version')!r}; "
                f"this brimful reads {FORMAT!r} version {FORMAT_VERSION}"
            )
        identity = header.get("identity")
        missing = [key for key in IDENTITY_KEYS if not isinstance(identity, dict) or key not in identity]
        if missing or not isinstance(header.get("notes"), dict):
            raise CorruptFileError(
                f"{self.store.url}/{_HEADER} is damaged: {missing[0] if missing else 'notes'} is missing"
            )
        if header.get("checksum") != fingerprint_of([identity, header["notes"]]):
            raise CorruptFileError(f"{self.store.url}/{_HEADER} is damaged: it has other contents than were written")
        return header

    def is_begun(self) -> bool:
        """Whether the directory is claimed for packs."""
        return self.store.size(_HEADER) is not None

    def begin(self, identity: dict[str, Any], notes: dict[str, Any]) -> None:
        """Claim the directory for packs of this identity, or make sure that it already is theirs.

        Args:
            identity: what must be equal to go on with a job.
            notes: what may differ (paths, versions).

        Raises:
            StoreMismatchError: the directory holds packs of another identity; names what differs.
        """
        header = {"format": FORMAT, "version": FORMAT_VERSION, "identity": identity, "notes": notes}
        header["checksum"] = fingerprint_of([identity, notes])
        data = json.dumps(header, indent=1, sort_keys=True, ensure_ascii=False).encode()
        if not self.store.put_if_absent(_HEADER, data):
            self.expect(identity)

    def expect(self, identity: dict[str, Any]) -> None:
        """Make sure that the packs here have this identity, or this part of one.

        Raises:
            StoreMismatchError: names what differs.
        """
        there, identity = _flat(self.header()["identity"]), _flat(identity)
        names = {key.split(" ", 1)[0] for key in identity}
        differing = [key for key in differing_keys(there, identity) if key.split(" ", 1)[0] in names]
        if len(differing) > 1:  # these follow from the others
            differing = [key for key in differing if key not in ("plan", "packs_per_shard")] or differing
        if differing:
            shown = [f"{key} ({_shown(there.get(key))} there, {_shown(identity.get(key))} now)" for key in differing]
            raise StoreMismatchError(
                f"{self.store.url} already holds packs made otherwise: {', '.join(shown)}. "
                f"Choose another {setting('directory')}, or delete that one"
            )

    def commit(self, record: ShardRecord) -> bool:
        """Publish a shard; false if that number was committed before."""
        return self.store.put_if_absent(_key(record.seq), json.dumps({"type": "shard", **asdict(record)}).encode())

    def end(self, record: EndRecord) -> None:
        """Close the stream."""
        self.store.put_if_absent(_key(record.seq), json.dumps({"type": "end", **asdict(record)}).encode())

    def committed(self) -> set[int]:
        """Numbers of all records, the end included; one listing, nothing is read.

        Files of other names are no records: some systems leave theirs in every folder (``._000000000000.json``).
        """
        return {int(found[1]) for key in self.store.list("log/") if (found := _RECORD.fullmatch(key))}

    def records(self) -> tuple[list[ShardRecord], EndRecord | None]:
        """All shard records in order up to the first gap, and the end if it follows them.

        Raises:
            CorruptFileError: a record is damaged, or the running sums do not add up.
        """
        shards: list[ShardRecord] = []
        packs = tokens = 0
        present = self.committed()
        while len(shards) in present:
            seq = len(shards)
            name = f"{self.store.url}/{_key(seq)}"
            value = _parse(self.store.get(_key(seq)), name)
            kind = value.pop("type", None)
            try:
                if kind == "end":
                    end = EndRecord(**value)
                    if (end.packs, end.tokens) != (packs, tokens):
                        raise CorruptFileError(f"{name}: the end counts {end.packs:,} packs, the shards {packs:,}")
                    return shards, end
                record = ShardRecord(**value)
            except TypeError as error:
                raise CorruptFileError(f"{name} is no record of a shard: {error}") from error
            packs, tokens = packs + record.packs, tokens + record.tokens
            if kind != "shard" or (record.seq, record.cum_packs, record.cum_tokens) != (seq, packs, tokens):
                raise CorruptFileError(f"{name} does not follow from the records before it")
            shards.append(record)
        return shards, None

    def record_of(self, seq: int) -> ShardRecord:
        """One shard record."""
        value = _parse(self.store.get(_key(seq)), f"{self.store.url}/{_key(seq)}")
        value.pop("type", None)
        return ShardRecord(**value)


def shard_key(seq: int, xxh3_128: str) -> str:
    """Name of a shard: its number and the first 16 digits of its hash."""
    return f"shards/{seq:08d}-{xxh3_128[:16]}.arrow"


def _key(seq: int) -> str:
    return f"log/{seq:012d}.json"


def _parse(data: bytes, name: str) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except ValueError as error:
        raise CorruptFileError(f"{name} is damaged: {error}") from error
    if not isinstance(value, dict):
        raise CorruptFileError(f"{name} is damaged: it holds {type(value).__name__}")
    return value


def _shown(value: Any) -> str:
    text = str(value)
    return text[:7] if len(text) == 32 else text


def _flat(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Settings within settings by two names: ``settings seed``."""
    flat = {}
    for key, value in identity.items():
        if isinstance(value, Mapping):
            flat.update({f"{key} {inner}": part for inner, part in value.items()})
        else:
            flat[key] = value
    return flat
