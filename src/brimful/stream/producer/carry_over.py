"""Tokens that a producer has taken from its source and not yet committed: ready packs, and waiting
segments.

They are in a file in the format of shards, which the next record names by its hash: packs first,
then one row for each segment in the order of the window. So a stopped producer resumes without
reading its source again. For media in files it holds places and fingerprints
(``media/job/producer.py`` has the bytes of the others).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from brimful.base.blobs import Blob, BlobGroup, BlobStore
from brimful.base.typing import LossMask, TokenIds
from brimful.base.wording import setting
from brimful.errors import CollateError, OversizedSampleError
from brimful.store.shards import (
    ATTACHMENT_VERSION,
    SHARD_VERSION,
    Pack,
    ShardReader,
    ShardWriter,
    assemble_pack,
    checked_file,
)
from brimful.stream.stream_packs import StreamPacks

if TYPE_CHECKING:
    from brimful.media.job.producer import CarriedMedia


@dataclass
class _WaitingTokens:
    """Tokens of one waiting sample from its token ``start``, and the number that have left.

    Places of its media are counted from the sample's first token.
    """

    start: int
    input_ids: TokenIds
    loss_mask: LossMask
    media: tuple[Any, ...] = ()
    num_left: int = 0


class WaitingSamples:
    """Tokens of the samples in the window of a planner, by sample id.

    >>> waiting = WaitingSamples(splits=False)
    >>> waiting.add(7, np.array([5, 6], np.int32), np.array([True, True]))
    >>> one = np.array([0, 1]), np.array([7]), np.array([0], np.int32), np.array([2], np.int32)
    >>> waiting.take(StreamPacks(*one))[0].input_ids.tolist(), len(waiting)
    ([5, 6], 0)
    """

    def __init__(self, *, splits: bool) -> None:
        self._splits = splits
        self._samples: dict[int, list[_WaitingTokens]] = {}

    def __len__(self) -> int:
        return len(self._samples)

    def __iter__(self) -> Iterator[int]:
        return iter(self._samples)

    def add(
        self,
        sample_id: int,
        input_ids: TokenIds,
        loss_mask: LossMask,
        start: int = 0,
        media: tuple[Any, ...] = (),
    ) -> None:
        """Keep the tokens of a sample, or of a part that begins at ``start``; media keep their
        places in the sample.
        """
        self._samples.setdefault(sample_id, []).append(
            _WaitingTokens(start, input_ids, loss_mask, media)
        )

    def pack(
        self, sample_ids: Sequence[int], starts: Sequence[int], lengths: Sequence[int]
    ) -> Pack:
        """Return a pack of segments, without removing them.

        Raises:
            OversizedSampleError: a sample was cut within a medium.
        """
        pieces = [self._piece(*key) for key in zip(sample_ids, starts, strict=True)]
        offsets = [start - piece.start for start, piece in zip(starts, pieces, strict=True)]
        spans = [
            slice(offset, offset + length) for offset, length in zip(offsets, lengths, strict=True)
        ]
        try:
            return assemble_pack(
                [piece.input_ids[span] for piece, span in zip(pieces, spans, strict=True)],
                [piece.loss_mask[span] for piece, span in zip(pieces, spans, strict=True)],
                sample_ids,
                starts,
                [piece.media for piece in pieces],
            )
        except CollateError as error:
            raise OversizedSampleError(
                f"{error.message}: choose {setting('overflow', 'drop')}"
            ) from error

    def _piece(self, sample_id: int, start: int) -> _WaitingTokens:
        pieces = self._samples[sample_id]
        return next(
            piece for piece in pieces if piece.start <= start < piece.start + len(piece.input_ids)
        )

    def take(self, packs: StreamPacks) -> list[Pack]:
        """Return the packs that left the planner, with their tokens; remove samples with their last
        segment.
        """
        ready = []
        for columns in packs:
            sample_ids, starts, lengths = (column.tolist() for column in columns)
            ready.append(self.pack(sample_ids, starts, lengths))
            for segment in zip(sample_ids, starts, lengths, strict=True):
                self._drop(*segment)
        return ready

    def _drop(self, sample_id: int, start: int, length: int) -> None:
        pieces = self._samples[sample_id]
        piece = self._piece(sample_id, start)
        piece.num_left += length
        # Tokens that a policy cut off never leave; only a split sample leaves in parts.
        if not self._splits or piece.num_left == len(piece.input_ids):
            pieces.remove(piece)
        if not pieces:
            del self._samples[sample_id]


def write_packs_to(
    blob: Blob, packs: Sequence[Pack], media: Sequence[Sequence[Any]] | None = None
) -> str:
    """Write packs as a shard, with their media unless ``media`` is None; return the digests of its
    batches.
    """
    writer = ShardWriter(blob, version=SHARD_VERSION if media is None else ATTACHMENT_VERSION)
    writer.add_packs(packs, media)
    return writer.batches


def save_carry_over(
    files: BlobGroup,
    folder: str,
    seq: int,
    ready: Sequence[Pack],
    segments: Sequence[Pack],
    carried_media: CarriedMedia | None = None,
) -> dict[str, Any] | None:
    """Write the carry-over into a commit, and return its entry in the record; None if it is
    empty.
    """
    if not ready and not segments:
        return None
    rows = [*ready, *segments]
    media: list[list[Any]] | None = None
    containers: list[dict[str, Any]] = []
    if carried_media is not None:
        media, containers = carried_media.save(
            files, f"{folder}/media-{seq:08d}", [row.attachments for row in rows]
        )
    blob = files.blob(f"{folder}/{seq:08d}")
    write_packs_to(blob, rows, media)
    key = f"{folder}/{seq:08d}-{blob.xxh3_128[:16]}.arrow"
    files.add(key, blob)
    return {
        "file": key,
        "bytes": blob.size,
        "xxh3_128": blob.xxh3_128,
        "ready": len(ready),
        "waiting": len(segments),
        **({"containers": containers} if containers else {}),
    }


def load_carry_over(
    store: BlobStore, facts: dict[str, Any], carried_media: CarriedMedia | None = None
) -> tuple[list[Pack], list[Pack]]:
    """Return the packs that were ready and the segments that waited.

    Raises:
        FileNotFoundError: a later record was committed, and the file is gone.
        CorruptFileError: it is damaged.
    """
    files = None
    if carried_media is not None:
        files = carried_media.files(facts.get("containers", []))
    with checked_file(store, facts["file"], facts["xxh3_128"]) as path:
        reader = ShardReader(path, size=facts["bytes"], files=lambda: files)
        rows = [reader.pack(row) for row in range(facts["ready"] + facts["waiting"])]
    packs = [
        Pack(
            # Copies: the file is removed after the next records, and views would keep it mapped.
            np.array(row.input_ids),
            np.array(row.loss_mask),
            np.array(row.cu_seqlens),
            np.array(row.sample_ids),
            np.array(row.starts),
            () if carried_media is None else carried_media.loaded(row.attachments),
        )
        for row in rows
    ]
    return packs[: facts["ready"]], packs[facts["ready"] :]
