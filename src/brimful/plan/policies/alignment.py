"""Alignment: lengths padded for parallelism and number formats."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import lcm

import numpy as np

from brimful.base.checks import choice_of, whole_number
from brimful.base.typing import AnyIntArray
from brimful.base.wording import setting
from brimful.errors import SettingsError

_FUSED_ATTENTION = 64
"""cuDNN's fused attention needs a multiple of this number of tokens on each rank, as ms-swift pads for it."""


class LowPrecision(str, Enum):
    """Number format of the matrix products, whose scaling blocks need a multiple of tokens on each rank."""

    FP8 = "fp8"
    """One scale for each tensor (delayed or current): 16, the block of an FP8 product in Transformer Engine."""
    NVFP4 = "nvfp4"
    """16, like FP8: the padding that ms-swift uses for formats without a row of their own."""
    MXFP8 = "mxfp8"
    """A scale for every 32 values: 32."""
    BLOCKWISE = "blockwise"
    """A scale for each block of 128 times 128: 128."""

    @property
    def tokens(self) -> int:
        """The multiple of tokens on each rank."""
        return {"fp8": 16, "nvfp4": 16, "mxfp8": 32, "blockwise": 128}[self.value]


@dataclass(frozen=True)
class Alignment:
    """Multiples that every segment, and the row as a whole, are padded up to.

    Lengths include their padding *before* packing: rounded afterward, rows would grow over the capacity.

    ::

        segment 4, total 16, capacity 40          usable: 32, the largest multiple of 16 in 40
        lengths           5   9   3   13
        rounded           8  12   4   16          planned lengths
        pack              8 + 12 + 4 = 24         padded row 32: any pack within 32 fits

    Invariant: if rounded lengths sum to at most ``usable(capacity)``, ``padded_total`` of the sum is at most the
    capacity. The last segment of a pack is then the padding of the row, which is also a multiple of ``segment``.

    Attributes:
        segment: each segment's length is rounded up to a multiple of this number of tokens.
        total: a row's length is rounded up to a multiple of this number of tokens, itself a multiple of ``segment``.

    Raises:
        SettingsError: below 1, not a whole number, or a total that is not a multiple of ``segment``.

    >>> Alignment(segment=4, total=16).rounded(np.array([5, 9, 3, 13])).tolist()
    [8, 12, 4, 16]
    """

    segment: int = 1
    total: int = 1

    def __post_init__(self) -> None:
        for name, value in (("segment", self.segment), ("total", self.total)):
            object.__setattr__(self, name, whole_number(f"the alignment of the {name}", value, minimum=1))
        if self.total == 1:
            object.__setattr__(self, "total", self.segment)
        if self.total % self.segment:
            raise SettingsError(
                f"the alignment of the total, {self.total}, must be a multiple of the segment's, {self.segment}: the "
                f"padding of a row is a segment too; use {lcm(self.total, self.segment)}"
            )

    @classmethod
    def of_parallelism(
        cls,
        *,
        cp: int = 1,
        tp: int = 1,
        sequence_parallel: bool = False,
        fp8: LowPrecision | str | None = None,
        fused_attention: bool = False,
    ) -> Alignment:
        """Return the alignment that the rows of a model need with this parallelism.

        ============================  ==========================================================================
        segment, ``2·cp``             cp > 1: Transformer Engine gives each rank an early and a late slice of
                                      every segment, and cuts off a remainder
        segment, ``cp·tp``            sequence parallelism divides each CP slice among TP ranks; with both, the
                                      least common multiple, like Megatron-Bridge's ``pad_seq_to_mult``
        total, ``cp·tp·16``           FP8 and NVFP4; 32 for MXFP8, 128 blockwise (ms-swift's ``get_padding_to``)
        total, ``cp·tp·64``           at least, with fused attention (the same)
        ============================  ==========================================================================

        ``tp`` counts only with sequence parallelism: otherwise each of its ranks holds all tokens. Other trainers
        need less or more: NeMo pads a pack to 16, verl aligns each segment to the format's block and the total to 128
        blocks; for this, pass ``Alignment(segment=16, total=2048)``.

        Raises:
            SettingsError: a size below 1, an unknown format.

        >>> Alignment.of_parallelism(cp=2, tp=2, sequence_parallel=True)
        Alignment(segment=4, total=4)
        >>> Alignment.of_parallelism(cp=2, tp=2, sequence_parallel=True, fp8="blockwise")
        Alignment(segment=4, total=512)
        """
        for name, value in (("cp", cp), ("tp", tp)):
            whole_number(setting(name), value, minimum=1)
        ranks = cp * tp if sequence_parallel else cp
        segment = lcm(2 * cp if cp > 1 else 1, cp * tp if sequence_parallel else 1)
        on_each_rank = 1 if fp8 is None else choice_of(LowPrecision, fp8, argument="fp8").tokens
        if fused_attention:
            on_each_rank = max(on_each_rank, _FUSED_ATTENTION)
        return cls(segment=segment, total=lcm(segment, ranks * on_each_rank))

    @property
    def is_none(self) -> bool:
        """True if lengths stay unpadded."""
        return self.total == 1

    def rounded(self, lengths: AnyIntArray) -> AnyIntArray:
        """Round each length up to a multiple of ``segment``; the same dtype, the same array if nothing changes.

        Raises:
            SettingsError: a rounded length exceeds the range of the dtype.
        """
        if self.segment == 1 or len(lengths) == 0:
            return lengths
        longest = -(-int(lengths.max()) // self.segment) * self.segment
        if longest > np.iinfo(lengths.dtype).max:
            raise SettingsError(
                f"a length of {int(lengths.max()):,} cannot be aligned to {self.segment} in {lengths.dtype}"
            )
        rounded: AnyIntArray = (lengths + -lengths % self.segment).astype(lengths.dtype, copy=False)
        return rounded

    def padded_total(self, tokens: int) -> int:
        """Return the tokens of a padded row that holds ``tokens``."""
        return -(-tokens // self.total) * self.total

    def usable(self, capacity: int) -> int:
        """Return the longest row of at most ``capacity`` without padding, the limit of the sum of rounded lengths.

        It is also the longest sample that can be packed, at which overflow policies cut and drop, since the total is a
        multiple of ``segment``: a sample of this length is not rounded.

        Raises:
            SettingsError: no multiple fits.

        >>> Alignment(segment=4, total=512).usable(4100)
        4096
        """
        usable = capacity // self.total * self.total
        if usable < 1:
            raise SettingsError(
                f"{setting('capacity', capacity)} is below the alignment of {self.total:,} tokens ({self!r}): no row fits; "
                f"choose a multiple of {self.total:,}"
            )
        return usable


UNALIGNED = Alignment()
"""Lengths as they are."""
