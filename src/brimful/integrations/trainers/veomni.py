"""VeOmni: packs in lists for its micro-batch collator, and rows split for sequence parallelism.

``PackCollator(dialect="veomni")`` is the collator.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from brimful.base.wording import setting
from brimful.collate.features import Feature
from brimful.collate.torch import PackCollator
from brimful.errors import SettingsError
from brimful.store.shards import Pack, PackSequence

__all__ = ["SlicingCollator", "VeomniPacks"]


class VeomniPacks:
    """Map-style data set for ``build_dataloader`` of VeOmni with ``dyn_bsz=False``: each item is a
    list of one pack.

    VeOmni's transforms may turn one sample into several, so its ``MakeMicroBatchCollator`` takes
    the first of each item.

    >>> from brimful.testing.toys import toy_packs
    >>> packs = VeomniPacks(toy_packs(3))
    >>> len(packs), packs[2][0].sample_ids.tolist()
    (3, [2])
    """

    def __init__(self, packs: PackSequence) -> None:
        self._packs = packs

    def __len__(self) -> int:
        return len(self._packs)

    def __getitem__(self, index: int) -> list[Pack]:
        return [self._packs[int(index)]]

    def __iter__(self) -> Iterator[list[Pack]]:
        return (self[index] for index in range(len(self)))


class SlicingCollator:
    """``PackCollator`` and VeOmni's ``SequenceParallelCollator`` as the one function that
    ``build_dataloader`` takes.

    ::

        row of 8, 2 ranks     a a a b | b . . .
        rank 0                a a a b             labels and loss_weights shifted by one, then cut
        rank 1                          b . . .   boundaries of the uncut row, on both

    VeOmni's collator shifts the labels and cuts tokens and positions. It ignores ``loss_weights``,
    which are shifted and cut here. It finds boundaries at positions of 0, and counts padding that
    it did not make as a sample unless the row is a multiple of the ranks; other rows are refused
    here.

    Args:
        collator: with dialect ``veomni`` and rows that are a multiple of the ranks:
            ``Padding(multiple_of=sp)``.
        slices: VeOmni's ``SequenceParallelCollator()``, made after its parallel state.

    Raises:
        SettingsError: another dialect, or rows that are not a multiple of the ranks.
    """

    def __init__(self, collator: PackCollator, slices: Any) -> None:
        if collator.dialect.name != "veomni":
            raise SettingsError(
                "VeOmni cuts rows of its own kind, and the collator makes "
                f"{collator.dialect.name!r}: choose {setting('dialect', 'veomni')}"
            )
        unit = collator.padding.to or collator.padding.unit
        if unit % slices.sp_size:
            raise SettingsError(
                f"rows are cut for {slices.sp_size} ranks and their tokens are a multiple of "
                f"{unit:,}: choose padding=Padding({setting('multiple_of', slices.sp_size)})"
            )
        self._collator, self._slices = collator, slices

    def __call__(self, features: Sequence[Feature]) -> dict[str, Any]:
        """Return this rank's part of one batch."""
        batch = self._collator(features)
        boundaries = {key: batch[key] for key in _KEYS_OF_THE_UNCUT_ROW if key in batch}
        weights = batch.pop("loss_weights", None)
        part = {**self._slices(batch), **boundaries}
        if weights is not None:
            # The first token of a sample has no label and so no weight: the shift moves no weight
            # into another sample.
            next_weights = torch.nn.functional.pad(weights[:, 1:], (0, 1))
            part["loss_weights"] = next_weights.chunk(self._slices.sp_size, dim=1)[
                self._slices.sp_rank
            ]
        return part


_KEYS_OF_THE_UNCUT_ROW = (
    "cu_seq_lens_q",
    "cu_seq_lens_k",
    "linear_attn_cu_seq_lens_q",
    "max_length_q",
    "max_length_k",
    "tail_padding_length",
)
