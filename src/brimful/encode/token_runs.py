"""Token runs on disk: samples that were encoded before, one file for each block of the source.

A job that measures and then writes tokenises once: measuring leaves its tokens here, writing reads them. The
files are temporary and belong to one job. Each process compares a file with its checksum when it first opens it: packs
are made from these files, and no later step would notice other tokens.
"""

import os
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from brimful.encode.encoded import EncodedSample
from brimful.errors import BrimfulError, CorruptFileError
from brimful.ragged import offsets_of
from brimful.tables import Ragged, open_table, write_table
from brimful.typing import LossMask, TokenIds

_MAX_OPEN_FILES = 512
_CHUNK_TOKENS = 1 << 16
_EMPTY_RUN = np.empty(0, dtype=np.int32)


def write_stored(path: str | os.PathLike[str], samples: Sequence[EncodedSample | None]) -> None:
    """Write the samples of one block; None marks a rejected sample.

    A token that is no target is stored as its bitwise complement, so that one int32 holds both.
    """
    runs = [_EMPTY_RUN if sample is None else mask_as_complement(sample) for sample in samples]
    values = np.concatenate([*runs, _EMPTY_RUN])
    write_table(path, {"signed_ids": Ragged(values, offsets_of([len(run) for run in runs]))}, {"kind": "encoded"})


def is_stored(path: str | os.PathLike[str], count: int) -> bool:
    """Return true if a file holds ``count`` samples, byte for byte as they were written."""
    try:
        return len(_open_runs(path)) == count
    except (FileNotFoundError, BrimfulError):
        return False


def _open_runs(path: str | os.PathLike[str], *, checked: bool = True) -> Ragged:
    table = open_table(path)
    if not table.checksummed:
        raise CorruptFileError(f"{os.fspath(path)} was written by an earlier version, without checksums")
    return table.ragged("signed_ids", checked=checked)


def mask_as_complement(sample: EncodedSample) -> TokenIds:
    """Return ``int32[length]``: the token id at a target, its bitwise complement (below 0) elsewhere."""
    return np.where(sample.loss_mask, sample.input_ids, ~sample.input_ids)


def unmask_complement(ids: TokenIds) -> tuple[TokenIds, LossMask]:
    """Return ids and mask of the result of ``mask_as_complement``. The ids are changed in place.

    >>> ids, mask = unmask_complement(np.array([5, ~7], dtype=np.int32))
    >>> ids.tolist(), mask.tolist()
    ([5, 7], [True, False])
    """
    mask = ids >= 0
    # In chunks, so that the temporary array stays in the processor's cache.
    for start in range(0, len(ids), _CHUNK_TOKENS):
        chunk = ids[start : start + _CHUNK_TOKENS]
        chunk ^= chunk >> 31  # the shift is -1 for a complement, 0 else
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

    def __reduce__(self) -> tuple[object, ...]:
        return StoredSamples, (list(zip(self._first_ids, self._paths, strict=True)),)

    def __getitem__(self, sample_id: int) -> EncodedSample:
        return EncodedSample(*unmask_complement(self.masked_runs([sample_id])[0].copy()))

    def masked_runs(self, sample_ids: Sequence[int]) -> list[TokenIds]:
        """Return views of the stored rows, in the form of ``mask_as_complement``."""
        file_indices = np.searchsorted(self._first_ids, sample_ids, side="right") - 1
        runs = []
        # One look-up a sample: this is the inner loop of writing packs, whose samples come in random order.
        for sample_id, file_index in zip(sample_ids, file_indices.tolist(), strict=True):
            values, offsets, first_id = self._open.get(file_index) or self._open_file(file_index)
            row = sample_id - first_id
            runs.append(values[offsets[row] : offsets[row + 1]])
        return runs

    def _open_file(self, file_index: int) -> tuple[TokenIds, list[int], int]:
        """Return the tokens of a file, the offsets of its rows, and the sample id of its first row."""
        try:
            rows = _open_runs(self._paths[file_index], checked=file_index not in self._checked)
        except CorruptFileError as error:
            raise CorruptFileError(f"{error.message}: run the same command again, it makes this file anew") from error
        self._checked.add(file_index)
        self._open[file_index] = (rows.values, rows.offsets.tolist(), self._first_ids[file_index])
        # A process may map a limited number of files; the checksum of one that is opened again is known to be right.
        if len(self._open) > _MAX_OPEN_FILES:
            self._open.popitem(last=False)
        return self._open[file_index]
