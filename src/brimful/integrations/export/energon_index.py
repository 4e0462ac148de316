"""The index of all members of an Energon data set: ``index.sqlite``, as version 7 makes it."""

import sqlite3
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import groupby
from pathlib import Path

from brimful.base.blobs import BlobStore
from brimful.integrations.export.export_layout import chunks_of_file, write_blob

_TABLES = """
CREATE TABLE samples (
    tar_file_id INTEGER NOT NULL,
    sample_key TEXT NOT NULL UNIQUE,
    sample_index INTEGER NOT NULL,
    byte_offset INTEGER,
    byte_size INTEGER
);
CREATE TABLE sample_parts (
    tar_file_id INTEGER,
    sample_index INTEGER,
    part_name TEXT,
    content_byte_offset INTEGER,
    content_byte_size INTEGER
);
"""

_INDEXES = """
CREATE INDEX idx_samples_by_tar_and_idx ON samples(tar_file_id, sample_index);
CREATE INDEX idx_sample_parts_seq ON sample_parts(tar_file_id, sample_index, content_byte_offset);
CREATE INDEX idx_sample_parts_full ON sample_parts(tar_file_id, sample_index, part_name, content_byte_offset, content_byte_size);
"""


def write_index(tars: Sequence[str], store: BlobStore, key: str) -> list[str]:
    """Write the index of some tars, reading only their headers; return its key.

    A remote store gets none: Energon needs it only to read single samples by their keys, not to train.

    Args:
        tars: keys of the tars, in the order of the data set.
        store: that holds them.
        key: of the index.
    """
    if tars and store.local_path(tars[0]) is None:
        return []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "index.sqlite"
        with closing(sqlite3.connect(path)) as connection:
            connection.executescript(_TABLES)
            for number, name in enumerate(tars):
                tar = store.local_path(name)
                assert tar is not None
                samples = []
                for index, (sample_key, begin, end, parts) in enumerate(_samples(tar)):
                    samples.append((number, sample_key, index, begin, end - begin))
                    connection.executemany(
                        "INSERT INTO sample_parts VALUES (?, ?, ?, ?, ?)", ((number, index, *part) for part in parts)
                    )
                connection.executemany("INSERT INTO samples VALUES (?, ?, ?, ?, ?)", samples)
                connection.commit()
            connection.executescript(_INDEXES)
            connection.commit()
        write_blob(store, key, chunks_of_file(path))
    return [key]


def _samples(path: str) -> Iterator[tuple[str, int, int, list[tuple[str, int, int]]]]:
    """Yield key, first and last byte of each sample, and name, first byte and size of each of its parts."""
    with tarfile.open(path, "r:") as tar:
        for key, group in groupby(_members(tar), key=lambda member: member.name.partition(".")[0]):
            members = list(group)
            parts = [(member.name.partition(".")[2], member.offset_data, member.size) for member in members]
            last = members[-1]
            yield (
                key,
                members[0].offset,
                last.offset_data + -(-last.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE,
                parts,
            )


def _members(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    while (member := tar.next()) is not None:
        # A tar file keeps every member that it has read, and a shard has many.
        tar.members = []  # type: ignore[attr-defined]
        yield member
