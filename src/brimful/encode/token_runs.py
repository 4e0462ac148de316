"""Token runs on disk: samples that are already encoded, one file for each block of the source.

A job that measures and then writes tokenizes once: measuring leaves its tokens here, and writing reads them. The files
are temporary and belong to one job. Each process compares a file with its checksum when it first opens it: packs are
made from these files, and no later step would notice wrong tokens.

Media are kept by their places among the tokens, with the state in which each file was measured (``Medium.stamp``).
Bytes that came with a row are not copied: read them from the row.
"""

import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence

import numpy as np

from brimful.encode.encoded import EncodedSample
from brimful.errors import BrimfulError, CorruptFileError
from brimful.media import BadMediumError, PlacedMedium
from brimful.media.placed_json import media_from_json, media_to_json
from brimful.ragged import offsets_of
from brimful.tables import Ragged, open_table, write_table
from brimful.typing import LossMask, TokenIds

_MAX_OPEN_FILES = 512
_CHUNK_TOKENS = 1 << 16

_NOT_OPEN = Ragged(np.empty(0, dtype=np.uint8), np.zeros(1, dtype=np.int64))
"""Mark of a file whose media are not yet mapped; None is a file without media."""


def write_stored(
    path: str | os.PathLike[str],
    ids: Ragged,
    loss_mask: LossMask,
    media: Mapping[int, Sequence[PlacedMedium]] | None = None,
) -> None:
    """Write the samples of one block.

    Args:
        ids: ``int32``, a row for each sample; empty for a rejected one.
        loss_mask: ``bool[len(ids.values)]``.
        media: media of each row that has any.
    """
    write_signed(path, Ragged(mask_as_complement(ids.values, loss_mask), ids.offsets), media)


def write_signed(
    path: str | os.PathLike[str], signed_ids: Ragged, media: Mapping[int, Sequence[PlacedMedium]] | None = None
) -> None:
    """Write the samples of one block, with tokens in the form of ``mask_as_complement``.

    Args:
        signed_ids: ``int32``, a row for each sample; empty for a rejected one.
        media: media of each row that has any.
    """
    columns = {"signed_ids": signed_ids}
    if media:
        texts = [media_to_json(media[row]) if row in media else b"" for row in range(len(signed_ids))]
        columns["media"] = Ragged(np.frombuffer(b"".join(texts), dtype=np.uint8), offsets_of([*map(len, texts)]))
    write_table(path, columns, {"kind": "encoded"})


def is_stored(path: str | os.PathLike[str], count: int) -> bool:
    """Return true if a file holds ``count`` samples, byte for byte as written, and their media are unchanged."""
    try:
        if len(_open_runs(path)) != count:
            return False
        media = _open_media(path)
        return media is None or all(_is_unchanged(media.row(row).tobytes()) for row in range(count))
    except (FileNotFoundError, BrimfulError):
        return False


def _is_unchanged(text: bytes) -> bool:
    """Return true if the files of a sample's media are in the state in which they were measured."""
    try:
        return all(item.medium.stamp() == item.stamp for item in media_from_json(text))
    except BadMediumError:
        return False


def _open_media(path: str | os.PathLike[str], *, checked: bool = True) -> Ragged | None:
    """Return the JSON of the media of each row, mapped; None for a file without media."""
    table = open_table(path)
    return table.ragged("media", checked=checked) if "media" in table else None


def _open_runs(path: str | os.PathLike[str], *, checked: bool = True) -> Ragged:
    return open_table(path).ragged("signed_ids", checked=checked)


def mask_as_complement(ids: TokenIds, loss_mask: LossMask) -> TokenIds:
    """Return ``int32[num_tokens]``: the token id at a target, its bitwise complement (below 0) elsewhere.

    One number thus holds a token and whether it is a target.
    """
    return np.where(loss_mask, ids, ~ids)


def unmask_complement(ids: TokenIds) -> tuple[TokenIds, LossMask]:
    """Return ids and mask from the result of ``mask_as_complement``. The ids are changed in place.

    >>> ids, mask = unmask_complement(np.array([5, ~7], dtype=np.int32))
    >>> ids.tolist(), mask.tolist()
    ([5, 7], [True, False])
    """
    mask = ids >= 0
    # In chunks, so that the temporary array stays in the processor's cache.
    for start in range(0, len(ids), _CHUNK_TOKENS):
        chunk = ids[start : start + _CHUNK_TOKENS]
        chunk ^= chunk >> 31  # the shift is -1 for a complement, otherwise 0
    return ids, mask


class StoredSamples:
    """Encoded samples by sample id, from the files of several blocks.

    Picklable: a file is opened when it is first read.
    """

    def __init__(self, parts: Sequence[tuple[int, str]]) -> None:
        """``parts``: the first sample id of each file, ascending, and its path."""
        self._first_ids = [first_id for first_id, _ in parts]
        self._paths = [path for _, path in parts]
        self._open: OrderedDict[int, tuple[TokenIds, list[int], int]] = OrderedDict()
        self._checked: set[int] = set()
        self._media: OrderedDict[int, Ragged | None] = OrderedDict()
        self._checked_media: set[int] = set()

    def __reduce__(self) -> tuple[object, ...]:
        return StoredSamples, (list(zip(self._first_ids, self._paths, strict=True)),)

    def __getitem__(self, sample_id: int) -> EncodedSample:
        """Return the tokens of a sample, without its media."""
        return EncodedSample(*unmask_complement(self.masked_runs([sample_id])[0].copy()))

    def masked_runs(self, sample_ids: Sequence[int]) -> list[TokenIds]:
        """Return views of the stored rows, in the form of ``mask_as_complement``."""
        file_indices = np.searchsorted(self._first_ids, sample_ids, side="right") - 1
        runs = []
        # One lookup per sample: this is the inner loop of writing packs, whose samples come in random order.
        for sample_id, file_index in zip(sample_ids, file_indices.tolist(), strict=True):
            values, offsets, first_id = self._open.get(file_index) or self._open_file(file_index)
            row = sample_id - first_id
            runs.append(values[offsets[row] : offsets[row + 1]])
        return runs

    def media(self, sample_ids: Sequence[int]) -> dict[int, tuple[PlacedMedium, ...]]:
        """Return the media of the given samples that have any; bytes that came with rows are not among them."""
        file_indices = np.searchsorted(self._first_ids, sample_ids, side="right") - 1
        media: dict[int, tuple[PlacedMedium, ...]] = {}
        for sample_id, file_index in zip(sample_ids, file_indices.tolist(), strict=True):
            # Looked up once: another thread may close the file between two lookups.
            rows = self._media.get(file_index, _NOT_OPEN)
            if rows is _NOT_OPEN:
                rows = self._open_media_of(file_index)
            if rows is not None and (
                items := media_from_json(rows.row(sample_id - self._first_ids[file_index]).tobytes())
            ):
                media[sample_id] = items
        return media

    def _open_media_of(self, file_index: int) -> Ragged | None:
        """Map the media of a file's rows; like the tokens, they are compared with their checksum once."""
        try:
            rows = _open_media(self._paths[file_index], checked=file_index not in self._checked_media)
        except CorruptFileError as error:
            raise CorruptFileError(f"{error.message}: run the same command again, which rebuilds this file") from error
        self._checked_media.add(file_index)
        self._media[file_index] = rows
        if len(self._media) > _MAX_OPEN_FILES:
            self._media.popitem(last=False)
        return rows

    def _open_file(self, file_index: int) -> tuple[TokenIds, list[int], int]:
        """Return the tokens of a file, the offsets of its rows, and the sample id of its first row."""
        try:
            rows = _open_runs(self._paths[file_index], checked=file_index not in self._checked)
        except CorruptFileError as error:
            raise CorruptFileError(f"{error.message}: run the same command again, which rebuilds this file") from error
        self._checked.add(file_index)
        self._open[file_index] = (rows.values, rows.offsets.tolist(), self._first_ids[file_index])
        # A process may map a limited number of files; the checksum of a reopened file is known to be right.
        if len(self._open) > _MAX_OPEN_FILES:
            self._open.popitem(last=False)
        return self._open[file_index]
