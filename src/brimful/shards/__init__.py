"""The file format of packs and the log that commits them; knows no policy."""

from __future__ import annotations

from brimful.shards.format import BATCH_ROWS, ShardReader, ShardWriter
from brimful.shards.log import EndRecord, ShardRecord, StreamLog, shard_key
from brimful.shards.pack import FingerprintedPacks, Pack, PackSequence, assemble_pack
from brimful.shards.rows import PackRows

__all__ = [
    "BATCH_ROWS",
    "EndRecord",
    "FingerprintedPacks",
    "Pack",
    "PackRows",
    "PackSequence",
    "ShardReader",
    "ShardRecord",
    "ShardWriter",
    "StreamLog",
    "assemble_pack",
    "shard_key",
]
