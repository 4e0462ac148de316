"""Packed rows in ``chunk_00000.jsonl``, … as a stream: chunks replace shards, and their names
replace the log.

They have no header, no hashes and no end, so features of streams that need these (media,
acknowledgments, watching) are missing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from brimful.base.checks import MalformedRowError
from brimful.base.fingerprint import fingerprint_of
from brimful.base.ragged import offsets_of
from brimful.base.typing import IGNORE_INDEX, AnyPath
from brimful.base.wording import counted
from brimful.errors import BadSampleError, SettingsError, SourceError
from brimful.integrations.packed_layouts import CHUNK_NAME, rows_of_pack
from brimful.sources.lines import JsonLines
from brimful.store.shards import Pack, ShardRecord
from brimful.stream.assignment import StreamSettings
from brimful.stream.followed_packs import FollowedLog, FollowedPacks

_SETTLE_SECONDS = 1.0
"""Seconds for which the last chunk must stay unchanged; chunks before it are complete."""

_MAX_OPEN = 64
"""Maximum number of open chunks: enough for the lanes of typical trainings."""

_MAX_SAMPLES = 1 << 20
"""Sample numbers reserved for each pack."""


def holds_chunks(directory: AnyPath) -> bool:
    """Return true for a directory that has chunks and is not a stream.

    >>> holds_chunks(".")
    False
    """
    path = Path(directory)
    return (
        path.is_dir()
        and not (path / "stream.json").exists()
        and any(map(CHUNK_NAME.fullmatch, os.listdir(path)))
    )


class FollowedChunks(FollowedLog):
    """Chunks of a directory that may still grow, each as the record of a shard with one pack per
    line.

    Args:
        directory: directory of the chunks, which are numbered densely from 0.
        timeout: maximum seconds of one wait; None waits forever.
    """

    def __init__(self, directory: AnyPath, *, timeout: float | None = None) -> None:
        self.directory, self._timeout = Path(directory), timeout
        self.shards, self.end = [], None
        self.header = {
            "identity": {
                "plan": fingerprint_of(["chunks", os.path.realpath(directory)]),
                "lanes": 1,
            }
        }
        self._last_seen = (Path(), 0), 0.0
        self._lines = lru_cache(_MAX_OPEN)(self._opened)

    def _name(self, seq: int) -> str:
        return f"chunk_{seq:05d}.jsonl"

    def look(self) -> None:
        """Add the next chunk if it is complete.

        Raises:
            SourceError: the lines of an added chunk have changed.
        """
        seq = len(self.shards)
        path = self.directory / self._name(seq)
        if not path.exists() or not (
            (self.directory / self._name(seq + 1)).exists() or self._is_settled(path)
        ):
            return
        # The previous chunk was the last when it was added: lines appended later have no number. It
        # may be trained and removed.
        if self.shards and os.path.exists(self.shards[-1].file):
            self._opened(self.shards[-1])
        lines = JsonLines(path)
        count = len(lines)
        num_bytes, num_packs = path.stat().st_size, self.num_packs + count
        self.shards.append(
            ShardRecord(seq, str(path), num_bytes, lines.fingerprint, count, 0, num_packs, 0, "")
        )

    @staticmethod
    def _opened(record: ShardRecord) -> JsonLines:
        """Open a chunk; refuse it if it changed since it was added."""
        lines = JsonLines(record.file)
        if lines.fingerprint != record.xxh3_128:
            raise SourceError(
                f"{record.file} was changed since it was read ({counted(record.packs, 'line')} "
                f"then, {len(lines):,} now), {_SETTLE_SECONDS:g} s after the last: write a chunk "
                "under another name, and rename it when it is complete"
            )
        return lines

    def _is_settled(self, path: Path) -> bool:
        seen, time_now = (path, path.stat().st_size), time.monotonic()
        if self._last_seen[0] != seen:
            self._last_seen = (seen, time_now)
        return time_now - self._last_seen[1] >= _SETTLE_SECONDS

    def row(self, record: ShardRecord, line: int) -> tuple[Any, str]:
        """Return a line of a chunk, and its location for messages; the most recently used chunks
        stay open.
        """
        lines = self._lines(record)
        return next(iter(lines.read(line, line + 1))), lines.where(line)

    def _waiting(self, action: str) -> str:
        return f"{self.directory}: waiting for {action}, so for {self._name(len(self.shards))}"


class ChunkPacks(FollowedPacks):
    """Lines of chunks by number, for ``LazyShardedDataset``.

    Args:
        directory: directory of the chunks.
        settings: settings of the reader; with ``assign="lane"`` chunks belong to the lanes in turn.
        convert: function from a line and its number to an item; if None, a packed line becomes a
            pack.
    """

    def __init__(
        self,
        directory: AnyPath,
        settings: StreamSettings,
        convert: Callable[[Any, int], Any] | None = None,
    ) -> None:
        self.directory, self._convert = os.fspath(directory), convert or pack_of_line
        self._chunks = FollowedChunks(directory, timeout=settings.timeout)
        self._follow(self._chunks, settings)

    def __reduce__(self) -> tuple[object, ...]:
        return ChunkPacks, (self.directory, self.settings, self._convert)

    def __getitems__(self, positions: Sequence[int]) -> list[Any]:
        """Return the items at these positions.

        Raises:
            BadSampleError: a line is malformed, or contradicts itself.
        """
        return [*map(self._item, positions)]

    def _item(self, position: int) -> Any:
        chunk_and_row = self._order.find(position)
        assert chunk_and_row is not None
        row, where = self._chunks.row(*chunk_and_row)
        try:
            if isinstance(row, MalformedRowError):
                raise row
            return self._convert(row, position)
        except MalformedRowError as error:
            raise BadSampleError(str(error), sample_id=position, where=where) from error

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse, because chunks have no log to write to.

        Raises:
            SettingsError: always.
        """
        raise SettingsError(
            f"{self.directory} holds chunks, which do not record trainings: make a stream of them "
            f"with `brimful produce {self.directory}`"
        )

    state_at = ack = _refuse


def pack_of_line(row: Any, position: int) -> Pack:
    """Return the pack of a packed row; without ``sample_ids`` its samples are numbered from
    ``position`` × 2^20.

    Raises:
        MalformedRowError: the row contradicts itself, or a label differs from its token.

    >>> row = {"input_ids": [5, 6, 7], "labels": [-100, 6, 7], "lengths": [2, 1], "pack_length": 3}
    >>> pack_of_line(row, 0).cu_seqlens.tolist(), pack_of_line(row, 0).labels.tolist()
    ([0, 2, 3], [-100, 6, -100])
    """
    samples = rows_of_pack(row)
    if isinstance(samples[0], MalformedRowError):
        raise samples[0]
    ids, labels = (
        np.array(row["input_ids"], dtype=np.int32),
        np.array(row["labels"], dtype=np.int64),
    )
    mask = labels != IGNORE_INDEX
    if (labels != ids)[mask].any():
        raise MalformedRowError(f"its labels are neither its tokens nor {IGNORE_INDEX}")
    edges = offsets_of(row["lengths"]).astype(np.int32)
    mask[edges[:-1]] = False
    sample_ids = row.get("sample_ids") or [
        position * _MAX_SAMPLES + index for index in range(len(samples))
    ]
    starts = row.get("starts") or [0] * len(samples)
    return Pack(
        ids, mask, edges, np.array(sample_ids, dtype=np.int64), np.array(starts, dtype=np.int32)
    )
