"""Packs as Parquet, a few rows at a time."""

from collections.abc import Callable
from contextlib import closing
from itertools import islice
from typing import Any

from brimful.integrations.export.export_layout import Shard
from brimful.store.shards import Pack

ROWS = 64
"""Packs of a row group: readers fetch a whole group for one of its rows, so it should be a few megabytes."""


def write_parquet(shard: Shard, key: str, schema: Any, row: Callable[[int, Pack], dict[str, Any]]) -> dict[str, int]:
    """Write one Parquet file with a row for each pack; return its size.

    Args:
        shard: to write.
        key: of the file.
        schema: of Arrow.
        row: function from index and pack to a value for each column.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    with shard.store.blob(key) as blob:
        sink = pa.PythonFile(blob, mode="w")
        with closing(pq.ParquetWriter(sink, schema, compression="zstd")) as writer:
            packs = iter(shard)
            while group := list(islice(packs, ROWS)):
                rows = [row(index, pack) for index, pack in group]
                writer.write_table(pa.Table.from_pylist(rows, schema), row_group_size=ROWS)
        blob.publish(key)
    return {key: blob.size}
