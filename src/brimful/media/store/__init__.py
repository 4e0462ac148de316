"""Media in a pack store: their columns in shards, the containers of their bytes, a census and a
check of them.

The package is the ``attachment_store`` of ``brimful.base.attachment``.
"""

from brimful.media.store.census import KindCount, LargestMedium, MediaCensus
from brimful.media.store.files import (
    ContainerWriter,
    MediaFiles,
    container_ends,
    files_of,
    padded,
    recorded_root,
    root_note,
)
from brimful.media.store.files import MediaCheck as check_of
from brimful.media.store.media_columns import (
    COLUMNS,
    cells_of,
    column_types,
    columns_of,
    from_json,
    stored,
    to_json,
)

__all__ = [
    "COLUMNS",
    "ContainerWriter",
    "KindCount",
    "LargestMedium",
    "MediaCensus",
    "MediaFiles",
    "cells_of",
    "check_of",
    "column_types",
    "columns_of",
    "container_ends",
    "files_of",
    "from_json",
    "padded",
    "recorded_root",
    "root_note",
    "stored",
    "to_json",
]
