"""Packs by index as a list has them, over one method that reads a pack."""

from __future__ import annotations

import abc
from collections.abc import Iterator
from typing import overload

from brimful.checks import position, positions
from brimful.shards import Pack


class IndexedPacks(abc.ABC):
    """Base of sequences of packs: negative indices, slices and iteration as of a list."""

    _noun = "pack"
    """One element, for messages."""

    @abc.abstractmethod
    def __len__(self) -> int: ...

    @abc.abstractmethod
    def _pack(self, index: int) -> Pack:
        """Return the pack of an index from 0 to ``len(self) - 1``."""

    @overload
    def __getitem__(self, index: int) -> Pack: ...

    @overload
    def __getitem__(self, index: slice) -> list[Pack]: ...

    def __getitem__(self, index: int | slice) -> Pack | list[Pack]:
        """Return one pack, or those of a slice; as of a list.

        Raises:
            IndexError: no such pack.
            CorruptFileError: the file was damaged since it was written; names file and row.
        """
        if isinstance(index, slice):
            return [self._pack(i) for i in positions(index, len(self))]
        return self._pack(position(index, len(self), self._noun))

    def __iter__(self) -> Iterator[Pack]:
        return (self._pack(index) for index in range(len(self)))
