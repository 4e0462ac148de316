"""VeOmni: packs in the shape that its micro-batch collator unwraps. ``PackCollator(dialect="veomni")`` is the collator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from brimful.shards import Pack

__all__ = ["VeomniPacks"]


class _Packs(Protocol):
    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Pack: ...


class VeomniPacks:
    """A map-style data set for ``build_dataloader`` of VeOmni with ``dyn_bsz=False``: each item is a list of one pack.

    VeOmni's transforms may make several samples of one, so its ``MakeMicroBatchCollator`` takes the first of each item.

    >>> from brimful.testing.toys import toy_packs
    >>> packs = VeomniPacks(toy_packs(3))
    >>> len(packs), packs[2][0].sample_ids.tolist()
    (3, [2])
    """

    def __init__(self, packs: _Packs) -> None:
        self._packs = packs

    def __len__(self) -> int:
        return len(self._packs)

    def __getitem__(self, index: int) -> list[Pack]:
        return [self._packs[int(index)]]

    def __iter__(self) -> Iterator[list[Pack]]:
        return (self[index] for index in range(len(self)))
