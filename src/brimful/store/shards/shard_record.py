"""Records of the log: each commits a shard, and the last one ends the stream.

A record, ``log/<12 digits>.json``, numbered from 0 without gaps:

=============================  =================================================================================
``type``                       ``"shard"``
``seq``                        number of the shard, from 0; equal to the number of the record
``file``                       key of the shard in the store
``bytes``, ``xxh3_128``        its size, and XXH3-128 of its bytes
``packs``, ``tokens``          in this shard
``cum_packs``, ``cum_tokens``  in this and all before it; pack ``i`` is in the first shard with
                               ``cum_packs > i``
``producer_id``                writer of the record: host, process and a random part
``state``                      ``null`` in a planned store; in a stream the state of its producer after the
                               shard, whose content is private
``media``                      only if its packs have media: below
``batches``                    8 hexadecimal digits for each batch of 64 rows: the lower half of XXH3-64 over
                               its ``checksum`` column, little-endian
=============================  =================================================================================

Its ``media``:

=======================  =======================================================================================
``items``                by kind (``image``, ``video``, ``audio``), the counts below
``file``                 key of the container; absent if the shard has no new media, as are the keys below
``bytes``, ``xxh3_128``  its size, and XXH3-128 of its bytes
``stored``               media in it
``features``             ``true`` if they are blocks of features instead of encoded bytes: members
                         ``<fingerprint of the medium>.safetensors``, with ``kind``, ``medium`` (fingerprint of
                         the encoded bytes), ``settings`` and ``xxh3_128`` in the metadata, and arrays under the
                         names of the model's arguments
=======================  =======================================================================================

Each kind of medium in its ``items``:

===================================================  ===========================================================
``count``, ``bytes``                                 of the media in the packs of the shard; a medium in two
                                                     packs counts twice
``distinct``                                         contents that no earlier pack of the store has, as this
                                                     kind: they sum to the distinct contents of the store
``tokens``, ``patches``, ``frames``, ``mel_frames``  sums over the media
``largest``                                          ``name`` (at most 200 characters), ``sample``, ``tokens``
                                                     and ``patches`` of the first medium with the largest number
                                                     of tokens
===================================================  ===========================================================
"""

import json
import os
import socket
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from brimful.base.blobs import Blob, BlobGroup
from brimful.base.fingerprint import differing_keys, short
from brimful.errors import CorruptFileError


@dataclass(frozen=True)
class ShardRecord:
    """One committed shard.

    Attributes:
        seq: number of the shard, dense from 0.
        file: key of the shard.
        bytes: its size.
        xxh3_128: of its bytes, 32 hexadecimal digits.
        packs, tokens: in this shard.
        cum_packs, cum_tokens: in this and all earlier shards.
        producer_id: host, process id and random digits of the writer.
        state: position of the producer after it, for growing streams; None in a planned store.
        media: counts of the media of its packs (``media/store/census.py``), and the file of the
            media that no earlier shard has (``media/store/files.py``); None without media.
        batches: 8 hexadecimal digits for each batch of its rows (``ShardWriter.batches``).
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
    media: dict[str, Any] | None = None
    batches: str = ""


@dataclass(frozen=True)
class EndRecord:
    """End of the stream, with its totals."""

    seq: int
    packs: int
    tokens: int


def append_records(
    shards: list[ShardRecord], records: Sequence[tuple[ShardRecord | EndRecord, str]]
) -> EndRecord | None:
    """Append records, given with their names, to ``shards``; stop at the end record and return it.

    Raises:
        CorruptFileError: the running sums do not add up.
    """
    for record, name in records:
        num_packs, num_tokens = (shards[-1].cum_packs, shards[-1].cum_tokens) if shards else (0, 0)
        if isinstance(record, EndRecord):
            if (record.packs, record.tokens) != (num_packs, num_tokens):
                raise CorruptFileError(
                    f"{name}: the end counts {record.packs:,} packs, the shards {num_packs:,}"
                )
            return record
        # A record that another file replaced parses well; its number and running sums reveal it.
        sums = num_packs + record.packs, num_tokens + record.tokens
        if (record.seq, record.cum_packs, record.cum_tokens) != (len(shards), *sums):
            raise CorruptFileError(f"{name} does not follow from the records before it")
        shards.append(record)
    return None


def new_producer_id() -> str:
    """Return host, process id and random digits of this writer, for the records of its shards."""
    return f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"


def add_shard(
    files: BlobGroup,
    seq: int,
    blob: Blob,
    counts: tuple[int, int, int, int],
    producer_id: str,
    **facts: Any,
) -> ShardRecord:
    """Add a complete shard to a commit, under its number and 16 digits of its hash; return its
    record.

    Args:
        files, seq, blob: of the shard.
        counts: packs and tokens of this shard, and of this and all earlier shards.
        producer_id, facts: further fields of the record.
    """
    key = f"shards/{seq:08d}-{blob.xxh3_128[:16]}.arrow"
    files.add(key, blob)
    return ShardRecord(seq, key, blob.size, blob.xxh3_128, *counts, producer_id, **facts)


def parsed_record(data: bytes, name: str) -> ShardRecord | EndRecord:
    """Return a record from its file, whose name is for messages; nothing is compared with other
    records.
    """
    values = parsed_json(data, name)
    types: dict[Any, type[ShardRecord | EndRecord]] = {"shard": ShardRecord, "end": EndRecord}
    try:
        return types[values.pop("type", None)](**values)
    except KeyError:
        raise CorruptFileError(f"{name} does not follow from the records before it") from None
    except TypeError as error:
        raise CorruptFileError(f"{name} is not a record of a shard: {error}") from error


def parsed_json(data: bytes, name: str) -> dict[str, Any]:
    """Return the object in a file of JSON."""
    try:
        value = json.loads(data)
    except ValueError as error:
        raise CorruptFileError(f"{name} is damaged: {error}") from error
    if not isinstance(value, dict):
        raise CorruptFileError(f"{name} is damaged: it holds {type(value).__name__}")
    return value


def identity_differences(there: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Describe what differs between the identity of a store and the identity of a job, or a part."""
    flat_there, flat_now = _flat(there), _flat(now)
    # Packs do not depend on lanes.
    names = {key.split(" ")[0] for key in flat_now} - {"lanes"}
    keys = [key for key in differing_keys(flat_there, flat_now) if key.split(" ")[0] in names]
    # The plan and its packs per shard follow from the other keys.
    keys = [key for key in keys if key not in ("plan", "packs_per_shard")] or keys
    return ", ".join(
        f"{key} ({_abridged(flat_there.get(key))} there, {_abridged(flat_now.get(key))} now)"
        for key in keys
    )


def _abridged(value: Any) -> str:
    """Return a value as text; fingerprints are cut to seven digits."""
    text = str(value)
    return short(text) if len(text) == 32 else text


def _flat(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return an identity without nesting: ``{"settings": {"seed": 0}}`` becomes
    ``{"settings seed": 0}``.
    """
    flat: dict[str, Any] = {}
    for key, value in identity.items():
        flat.update(
            {f"{key} {name}": v for name, v in value.items()}
            if isinstance(value, Mapping)
            else {key: value}
        )
    return flat
