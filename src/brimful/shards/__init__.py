"""The file format of packs and the log that commits them; knows no policy."""

from brimful.shards.format import BATCH_ROWS, ShardReader, ShardWriter
from brimful.shards.log import LANES, EndRecord, ShardRecord, StreamLog, shard_key
from brimful.shards.media_census import KindCount, MediaCensus
from brimful.shards.pack import FingerprintedPacks, Pack, PackRows, PackSequence, assemble_pack

__all__ = [
    "BATCH_ROWS",
    "LANES",
    "EndRecord",
    "FingerprintedPacks",
    "KindCount",
    "MediaCensus",
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
