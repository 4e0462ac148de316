"""File format of packs and the log that commits them; independent of policies."""

from brimful.shards.format import BATCH_ROWS, MEDIA_VERSION, SHARD_VERSION, ShardReader, ShardWriter
from brimful.shards.log import LANES, EndRecord, ShardRecord, StreamLog, shard_key
from brimful.shards.pack import FingerprintedPacks, Pack, PackRows, PackSequence, assemble_pack
from brimful.shards.plain_pack import PlainPack

__all__ = [
    "BATCH_ROWS",
    "LANES",
    "MEDIA_VERSION",
    "SHARD_VERSION",
    "EndRecord",
    "FingerprintedPacks",
    "Pack",
    "PackRows",
    "PackSequence",
    "PlainPack",
    "ShardReader",
    "ShardRecord",
    "ShardWriter",
    "StreamLog",
    "assemble_pack",
    "shard_key",
]
