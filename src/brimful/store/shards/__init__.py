"""File format of packs and the log that commits them; independent of policies."""

from brimful.store.shards.format import (
    ATTACHMENT_VERSION,
    BATCH_ROWS,
    SHARD_VERSION,
    ShardWriter,
    version_of,
)
from brimful.store.shards.log import LANES, StreamLog
from brimful.store.shards.pack import (
    FingerprintedPacks,
    Pack,
    PackRows,
    PackSequence,
    PlainPack,
    assemble_pack,
)
from brimful.store.shards.shard_reader import ShardReader, checked_file
from brimful.store.shards.shard_record import EndRecord, ShardRecord, add_shard, new_producer_id

__all__ = [
    "BATCH_ROWS",
    "LANES",
    "ATTACHMENT_VERSION",
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
    "add_shard",
    "assemble_pack",
    "checked_file",
    "new_producer_id",
    "version_of",
]
