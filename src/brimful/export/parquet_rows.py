"""Packs as Parquet, a few rows at a time."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from itertools import islice
from typing import Any

from brimful.blobs import BlobStore
from brimful.export.layout import ShardOutcome, Tally
from brimful.shards import Pack

ROWS = 64
"""Packs of a row group: readers fetch a whole group for one of its rows, so it should be a few megabytes."""


def write_parquet(
    packs: Iterable[tuple[int, Pack]],
    key: str,
    schema: Any,
    row: Callable[[int, Pack], dict[str, Any]],
    store: BlobStore,
    facts: Mapping[str, Any] | None = None,
) -> ShardOutcome:
    """Write one Parquet file with a row for each pack.

    Args:
        packs: index and pack, in order.
        key: of the file.
        schema: of Arrow.
        row: function from index and pack to a value for each column.
        store: the directory.
        facts: of the layout, which ``row`` may change meanwhile.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    tally = Tally()
    with store.blob(key) as blob:
        sink = pa.PythonFile(blob, mode="w")
        with closing(pq.ParquetWriter(sink, schema, compression="zstd")) as writer:
            iterator = iter(packs)
            while group := list(islice(iterator, ROWS)):
                rows = [row(index, pack) for index, pack in group]
                columns = [pa.array([values[field.name] for values in rows], type=field.type) for field in schema]
                writer.write_table(pa.Table.from_arrays(columns, schema=schema), row_group_size=ROWS)
                for _, pack in group:
                    tally.add(pack)
        blob.publish(key)
    return tally.outcome({key: blob.size}, facts)
