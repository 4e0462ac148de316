"""The file format of packs and the log that commits them; knows no policy."""

from __future__ import annotations

from brimful.shards.format import ShardReader, shard_bytes
from brimful.shards.log import EndRecord, ShardRecord, StreamLog, shard_key
from brimful.shards.pack import Pack, assemble_pack

__all__ = [
    "EndRecord",
    "Pack",
    "ShardReader",
    "ShardRecord",
    "StreamLog",
    "assemble_pack",
    "shard_bytes",
    "shard_key",
]
