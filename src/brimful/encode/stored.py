"""Samples that were encoded before: token runs on disk, one file a block of the source.

A job that measures and then writes tokenises once: measuring leaves its tokens here, writing reads them. The
files are temporary and belong to one job. Each process holds a file against its checksum when it first opens it: what
is packed is read from here, and nothing behind it would notice other tokens.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from brimful.encode.encoded import EncodedSample
from brimful.errors import BrimfulError, CorruptFileError
from brimful.tables import Ragged, open_table, write_table
from brimful.typing import LossMask, TokenIds

__all__ = ["StoredSamples", "is_stored", "signed", "unsigned", "write_stored"]

_FILES_KEPT_OPEN = 512
_CHUNK_TOKENS = 1 << 16


def write_stored(path: str | os.PathLike[str], samples: Sequence[EncodedSample | None]) -> None:
    """Write the samples of one block; None stands for one that was rejected.

    A token that is no target is stored as its bitwise complement, so that one int32 holds both.
    """
    runs = [signed(sample) if sample is not None else _NONE for sample in samples]
    offsets = np.zeros(len(runs) + 1, dtype=np.int64)
    np.cumsum([len(run) for run in runs], out=offsets[1:])
    values = np.concatenate([*runs, _NONE])
    write_table(path, {"signed_ids": Ragged(values, offsets)}, {"kind": "encoded"})


def is_stored(path: str | os.PathLike[str], count: int) -> bool:
    """Whether a file holds ``count`` samples, byte for byte as they were written."""
    try:
        return len(_opened(path)) == count
    except (FileNotFoundError, BrimfulError):
        return False


def _opened(path: str | os.PathLike[str], *, checked: bool = True) -> Ragged:
    table = open_table(path)
    if not table.checksummed:
        raise CorruptFileError(f"{os.fspath(path)} was written by an earlier version, without checksums")
    return table.ragged("signed_ids", checked=checked)


def signed(sample: EncodedSample) -> TokenIds:
    """``int32``: tokens with those that are no targets complemented."""
    return np.where(sample.loss_mask, sample.input_ids, ~sample.input_ids)


def unsigned(ids: TokenIds) -> tuple[TokenIds, LossMask]:
    """The inverse of ``signed``: ids and mask. The ids are changed in place.

    >>> ids, mask = unsigned(np.array([5, ~7], dtype=np.int32))
    >>> ids.tolist(), mask.tolist()
    ([5, 7], [True, False])
    """
    mask = ids >= 0
    for start in range(0, len(ids), _CHUNK_TOKENS):  # so that the temporary stays in the processor's cache
        chunk = ids[start : start + _CHUNK_TOKENS]
        chunk ^= chunk >> 31  # the shift is -1 for a complement, 0 else
    return ids, mask


_NONE = np.empty(0, dtype=np.int32)


class StoredSamples:
    """Encoded samples by sample id, from the files of several blocks.

    Picklable: the files are opened when they are first read.
    """

    def __init__(self, parts: Sequence[tuple[int, str]]) -> None:
        """``parts``: the first sample id of each file, ascending, and its path."""
        self._starts = [start for start, _ in parts]
        self._paths = [path for _, path in parts]
        self._open: OrderedDict[int, tuple[TokenIds, list[int], int]] = OrderedDict()
        self._checked: set[int] = set()

    def __reduce__(self) -> tuple[object, ...]:
        return StoredSamples, (list(zip(self._starts, self._paths, strict=True)),)

    def __getitem__(self, sample_id: int) -> EncodedSample:
        return EncodedSample(*unsigned(self.signed([sample_id])[0].copy()))

    def signed(self, sample_ids: Sequence[int]) -> list[TokenIds]:
        """Views of the stored rows: a token that is no target stands as its complement."""
        places = np.searchsorted(self._starts, sample_ids, side="right") - 1
        rows = []
        for sample_id, number in zip(sample_ids, places.tolist(), strict=True):
            found = self._open.get(number)
            values, offsets, first = found if found is not None else self._part(number)
            row = sample_id - first
            rows.append(values[offsets[row] : offsets[row + 1]])
        return rows

    def _part(self, number: int) -> tuple[TokenIds, list[int], int]:
        """Tokens of a file, where its rows begin, and the sample of its first row."""
        try:
            rows = _opened(self._paths[number], checked=number not in self._checked)
        except CorruptFileError as error:
            raise CorruptFileError(f"{error.message}: run the same command again, it makes this file anew") from error
        self._checked.add(number)
        found = (rows.values, rows.offsets.tolist(), self._starts[number])
        self._open[number] = found
        if len(self._open) > _FILES_KEPT_OPEN:
            self._open.popitem(last=False)
        return found
