"""Samples that were encoded before: token runs on disk, one file a block of the source.

A job that measures and then writes tokenises once: measuring leaves its tokens here, writing reads them. The
files are temporary and belong to one job.
"""

from __future__ import annotations

import bisect
import os
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from brimful.columns import Columns, Ragged, open_columns, write_columns
from brimful.encode.encoded import EncodedSample

__all__ = ["StoredSamples", "write_stored"]

_FILES_KEPT_OPEN = 512


def write_stored(path: str | os.PathLike[str], samples: Sequence[EncodedSample | None]) -> None:
    """Write the samples of one block; None stands for one that was rejected.

    A token that is no target is stored as its bitwise complement, so that one int32 holds both.
    """
    runs = [
        np.where(sample.loss_mask, sample.input_ids, ~sample.input_ids) if sample is not None else _NONE
        for sample in samples
    ]
    offsets = np.zeros(len(runs) + 1, dtype=np.int64)
    np.cumsum([len(run) for run in runs], out=offsets[1:])
    values = np.concatenate([*runs, _NONE])
    write_columns(path, {"signed_ids": Ragged(values, offsets)}, {"kind": "encoded"})


_NONE = np.empty(0, dtype=np.int32)


class StoredSamples:
    """Encoded samples by sample id, from the files of several blocks.

    Picklable: the files are opened when they are first read.
    """

    def __init__(self, parts: Sequence[tuple[int, str]]) -> None:
        """``parts``: the first sample id of each file, ascending, and its path."""
        self._starts = [start for start, _ in parts]
        self._paths = [path for _, path in parts]
        self._open: OrderedDict[int, tuple[Columns, Ragged]] = OrderedDict()

    def __reduce__(self) -> tuple[object, ...]:
        return StoredSamples, (list(zip(self._starts, self._paths, strict=True)),)

    def __getitem__(self, sample_id: int) -> EncodedSample:
        number = bisect.bisect_right(self._starts, sample_id) - 1
        signed = self._part(number).row(sample_id - self._starts[number])
        mask = signed >= 0
        return EncodedSample(np.where(mask, signed, ~signed), mask)

    def _part(self, number: int) -> Ragged:
        found = self._open.get(number)
        if found is None:
            table = open_columns(self._paths[number])
            found = (table, table.ragged("signed_ids"))
            self._open[number] = found
            if len(self._open) > _FILES_KEPT_OPEN:
                self._open.popitem(last=False)
        return found[1]
