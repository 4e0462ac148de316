"""Budgets: the quantities that packs are limited in, as one matrix with its capacities."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from math import lcm

import numpy as np

from brimful.base.checks import choice_of, whole_number
from brimful.base.typing import AnyIntArray, Int64Array
from brimful.base.wording import first_few, setting
from brimful.errors import InvalidLengthsError, SettingsError
from brimful.lengths.table import LengthTable
from brimful.plan.policies.trainer_multiples import KERNELS, PADS_FOR_FUSED_ATTENTION, RULES

_FUSED_ATTENTION = 64
"""cuDNN's fused attention needs a multiple of this number of tokens on each rank, as ms-swift pads
for it.
"""


class LowPrecision(str, Enum):
    """Number format of the matrix products, whose scaling blocks need a multiple of tokens on each
    rank.
    """

    FP8 = "fp8"
    """One scale for each tensor (delayed or current): 16, the block of an FP8 product in
    Transformer Engine.
    """
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

    Lengths include their padding *before* packing: rounded afterward, rows would grow over the
    capacity.

    ::

        segment 4, total 16, capacity 40          usable: 32, the largest multiple of 16 in 40
        lengths           5   9   3   13
        rounded           8  12   4   16          planned lengths
        pack              8 + 12 + 4 = 24         padded row 32: any pack within 32 fits

    Invariant: if rounded lengths sum to at most ``usable(capacity)``, ``padded_total`` of the sum
    is at most the capacity. The last segment of a pack is then the padding of the row, which is
    also a multiple of ``segment``.

    Attributes:
        segment: each segment's length is rounded up to a multiple of this number of tokens.
        total: a row's length is rounded up to a multiple of this number of tokens, itself a
            multiple of ``segment``.

    Raises:
        SettingsError: below 1, not a whole number, or a total that is not a multiple of
            ``segment``.

    >>> Alignment(segment=4, total=16).rounded(np.array([5, 9, 3, 13])).tolist()
    [8, 12, 4, 16]
    """

    segment: int = 1
    total: int = 1

    def __post_init__(self) -> None:
        for name, value in (("segment", self.segment), ("total", self.total)):
            object.__setattr__(
                self, name, whole_number(f"the alignment of the {name}", value, minimum=1)
            )
        if self.total == 1:
            object.__setattr__(self, "total", self.segment)
        if self.total % self.segment:
            raise SettingsError(
                f"the alignment of the total, {self.total}, must be a multiple of the segment's, "
                f"{self.segment}: the padding of a row is a segment too; use "
                f"{lcm(self.total, self.segment)}"
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
        trainer: str = KERNELS,
    ) -> Alignment:
        """Return the alignment that rows need with this parallelism, or that a trainer pads to.

        ============================  ==========================================================================
        segment, ``2·cp``             cp > 1: Transformer Engine gives each rank an early and a late slice of
                                      every segment, and cuts off a remainder
        segment, ``cp·tp``            sequence parallelism divides each CP slice among TP ranks; with both, the
                                      least common multiple, like Megatron-Bridge's ``pad_seq_to_mult``
        total, ``cp·tp·16``           FP8 and NVFP4; 32 for MXFP8, 128 blockwise (ms-swift's ``get_padding_to``)
        total, ``cp·tp·64``           at least, with fused attention (the same)
        ============================  ==========================================================================

        ``tp`` counts only with sequence parallelism: otherwise each of its ranks holds all tokens.

        A trainer that packs or pads by itself takes other multiples, and packs that were planned
        for fewer tokens exceed its limit once it pads them: name the trainer.

        ==================  ============================  ===================================
        ``trainer``         segment                       total with FP8; else the segment
        ==================  ============================  ===================================
        ``kernels``         ``2·cp`` and ``cp·tp``        ``cp·tp`` blocks: the table above
        ``megatron_swift``  ``2·cp``                      ``cp·tp`` blocks; else ``cp·tp``
        ``nemo_rl``         ``2·cp·tp``                   ``2·cp·tp`` blocks
        ``skyrl``           ``2·cp·tp``; 1 without CP     ``cp·tp`` blocks of 32 or 128, or
                                                          ``16·cp``; else ``2·cp·tp``
        ``slime``           ``2·cp``                      always ``128·cp·tp``
        ``verl``            ``2·cp·tp``, with FP8 of 16   128 times ``2·cp·tp``
        ==================  ============================  ===================================

        Without context parallelism, ``2·cp`` is 1. For NeMo RL the segment is the least
        ``make_sequence_length_divisible_by`` that it accepts.

        Raises:
            SettingsError: a size below 1, an unknown format or trainer, or fused attention with a
                trainer that does not pad for it.

        >>> Alignment.of_parallelism(cp=2, tp=2, sequence_parallel=True)
        Alignment(segment=4, total=4)
        >>> Alignment.of_parallelism(cp=2, tp=2, sequence_parallel=True, fp8="blockwise")
        Alignment(segment=4, total=512)
        >>> Alignment.of_parallelism(cp=2, tp=2, sequence_parallel=True, fp8="blockwise", trainer="verl")
        Alignment(segment=16, total=1024)
        """
        for name, value in (("cp", cp), ("tp", tp)):
            whole_number(setting(name), value, minimum=1)
        of_trainer = setting("align_for", trainer, python=f"trainer={trainer!r}")
        if trainer not in RULES:
            raise SettingsError(f"{of_trainer} is unknown: use one of {', '.join(RULES)}")
        block = 1 if fp8 is None else choice_of(LowPrecision, fp8, argument="fp8").tokens
        if fused_attention:
            if trainer not in PADS_FOR_FUSED_ATTENTION:
                raise SettingsError(
                    f"{of_trainer}: it does not pad for fused attention: leave "
                    f"{setting('fused_attention')} out"
                )
            block = max(block, _FUSED_ATTENTION)
        segment, total = RULES[trainer](cp, tp if sequence_parallel else 1, block)
        return cls(segment=segment, total=total)

    @property
    def is_none(self) -> bool:
        """True if lengths stay unpadded."""
        return self.total == 1

    def rounded(self, lengths: AnyIntArray) -> AnyIntArray:
        """Round each length up to a multiple of ``segment``; the same dtype, the same array if
        nothing changes.

        Raises:
            SettingsError: a rounded length exceeds the range of the dtype.
        """
        if self.segment == 1 or len(lengths) == 0:
            return lengths
        longest = -(-int(lengths.max()) // self.segment) * self.segment
        if longest > np.iinfo(lengths.dtype).max:
            raise SettingsError(
                f"a length of {int(lengths.max()):,} cannot be aligned to {self.segment} in "
                f"{lengths.dtype}"
            )
        rounded: AnyIntArray = (lengths + -lengths % self.segment).astype(lengths.dtype, copy=False)
        return rounded

    def padded_total(self, tokens: int) -> int:
        """Return the tokens of a padded row that holds ``tokens``."""
        return -(-tokens // self.total) * self.total

    def usable(self, capacity: int) -> int:
        """Return the longest row of at most ``capacity`` without padding, the limit of the sum of
        rounded lengths.

        It is also the longest sample that can be packed, at which overflow policies cut and drop,
        since the total is a multiple of ``segment``: a sample of this length is not rounded.

        Raises:
            SettingsError: no multiple fits.

        >>> Alignment(segment=4, total=512).usable(4100)
        4096
        """
        usable = capacity // self.total * self.total
        if usable < 1:
            raise SettingsError(
                f"{setting('capacity', capacity)} is below the alignment of {self.total:,} tokens "
                f"({self!r}): no row fits; choose a multiple of {self.total:,}"
            )
        return usable


UNALIGNED = Alignment()
"""Lengths as they are."""


DERIVED: Mapping[str, Callable[[Int64Array], Int64Array]] = {
    "samples": np.ones_like,
    "squares": np.square,
}
"""Budgets that follow from the tokens of a segment: 1 per segment, and length², the cost of
attention.
"""

LOSS_TOKENS = "loss_tokens"
"""Only budget of texts that has to be measured in addition to their tokens."""

_MAX_CAPACITY = 2**52
"""Largest capacity of a budget: sums up to it are exact in float64, in which the scores of packing
are computed.
"""

_WITH_LOSS_TOKENS = setting("budgets", "loss_tokens", python='budgets=["tokens", "loss_tokens"]')


def measured_budgets(budgets: Collection[str], of_encoder: Sequence[str]) -> tuple[str, ...]:
    """Return what has to be measured of samples for a plan with these budgets.

    Args:
        budgets: of the plan, by name.
        of_encoder: budgets that the encoder of the samples measures.

    Raises:
        SettingsError: a budget that packing cannot measure.

    >>> measured_budgets(["squares", "loss_tokens"], ())
    ('tokens', 'loss_tokens')
    """
    known_budgets = (LOSS_TOKENS, *DERIVED, *of_encoder)
    for name in budgets:
        if name not in known_budgets:
            raise SettingsError(
                f"{setting('budgets', name, python=f'budgets {name!r}')} is unknown: packing can "
                f"measure {', '.join(known_budgets)}"
            )
    return ("tokens", LOSS_TOKENS) if LOSS_TOKENS in budgets else ("tokens",)


@dataclass(frozen=True)
class Budgets:
    """Names and capacities; ``tokens`` is always the first.

    Attributes:
        names: names of the budgets, which are also their units.
        capacities: ``int64[num_budgets]``: limit of each budget in a pack. Never exceeded.

    >>> Budgets.of(4096, {"patches": 16384, "samples": 64})
    Budgets(tokens 4,096, patches 16,384, samples 64)
    """

    names: tuple[str, ...]
    capacities: Int64Array

    @classmethod
    def of(cls, capacity: int, budgets: Mapping[str, int] | None = None) -> Budgets:
        """Make budgets from the capacity of ``tokens`` and from further names and capacities.

        Raises:
            SettingsError: a capacity that is not a whole number from 1 to 2**52, or ``tokens``
                given twice.
        """
        if budgets and "tokens" in budgets:
            raise SettingsError(
                f"{setting('budgets', {'tokens': budgets['tokens']})}: the capacity in tokens is "
                f"{setting('capacity')}"
            )
        limits = {"tokens": capacity, **(budgets or {})}
        for name, limit in limits.items():
            title = setting("capacity") if name == "tokens" else _one_budget(name)
            if not 1 <= whole_number(title, limit) <= _MAX_CAPACITY:
                raise SettingsError(f"{title} must be from 1 to {_MAX_CAPACITY:,} and is {limit:,}")
        return cls(tuple(limits), np.array(list(limits.values()), dtype=np.int64))

    def sizes(
        self,
        table: LengthTable,
        *,
        lengths: AnyIntArray,
        sample_ids: Int64Array | None,
        rounded: AnyIntArray,
    ) -> Int64Array:
        """Return the size of each segment in each budget: ``int64[num_segments, num_budgets]``.

        A column of the table takes precedence over a derived budget of the same name. A segment
        that was cut from its sample still counts with the sample's whole value of a column: at
        worst too much.

        Args:
            table: table with the columns.
            lengths: ``int[num_segments]``, tokens of each segment, from which derived budgets
                follow.
            sample_ids: ``int64[num_segments]``; None if segment ``i`` is sample ``i``.
            rounded: ``int[num_segments]``, the tokens that the segments take: their aligned
                lengths.

        Raises:
            SettingsError: a budget that the table does not have; names the ones it has.
            InvalidLengthsError: a negative size.
        """
        sizes = np.empty((len(lengths), len(self.names)), dtype=np.int64)
        for column, name in enumerate(self.names):
            if name == "tokens":
                sizes[:, column] = rounded
            elif name in table.budgets:
                values = table.budgets[name]
                sizes[:, column] = values if sample_ids is None else values[sample_ids]
                if len(sizes) and int(sizes[:, column].min()) < 0:
                    row = int(np.argmin(sizes[:, column]))
                    sample = row if sample_ids is None else int(sample_ids[row])
                    raise InvalidLengthsError(
                        f"{name}: sample {sample} has {int(sizes[row, column])}, below 0"
                    )
            elif name in DERIVED:
                sizes[:, column] = DERIVED[name](np.asarray(lengths, dtype=np.int64))
            else:
                names = ", ".join(
                    [*(stored for stored in table.budgets if stored != "tokens"), *DERIVED]
                )
                ways = (
                    f"; lengths measured with {_WITH_LOSS_TOKENS} have them"
                    if name == "loss_tokens"
                    else ""
                )
                raise SettingsError(
                    f"{_one_budget(name)} is unknown: these lengths have {names}{ways}"
                )
        return sizes

    def first_exceeded(self, sizes: Int64Array) -> Int64Array:
        """Return the first budget that each row exceeds, -1 for none: ``int64[num_rows]``."""
        exceeded = sizes > self.capacities
        return np.where(exceeded.any(axis=1), np.argmax(exceeded, axis=1), -1)

    def describe_oversized(
        self, sizes: Int64Array, sample_ids: Int64Array | None = None
    ) -> tuple[str, str, str]:
        """Return words for samples that exceed a capacity, the setting with which they would fit,
        and the budget.
        """
        column, rows = self.exceeding(sizes)
        name = self.names[column]
        verb = "are longer than" if name == "tokens" else "exceed"
        ids = rows if sample_ids is None else sample_ids[rows]
        text = (
            f"{len(rows):,} of {len(sizes):,} samples {verb} the capacity of "
            f"{int(self.capacities[column]):,} {name}: sample "
            f"{examples_of(ids, sizes[rows, column])}"
        )
        return text, self.larger(column, int(sizes[rows, column].max())), name

    def exceeding(self, sizes: Int64Array) -> tuple[int, Int64Array]:
        """Return the first budget that a row exceeds, and the rows that exceed it; no rows if all
        fit.
        """
        exceeded = sizes > self.capacities
        column = int(np.argmax(exceeded.any(axis=0)))
        return column, np.flatnonzero(exceeded[:, column])

    def larger(self, column: int, size: int) -> str:
        """Return the setting with which an item of this size would fit into a pack."""
        name = self.names[column]
        return setting("capacity", size) if name == "tokens" else setting("budgets", {name: size})

    def __repr__(self) -> str:
        limits = zip(self.names, self.capacities.tolist(), strict=True)
        return f"Budgets({', '.join(f'{name} {limit:,}' for name, limit in limits)})"


def examples_of(sample_ids: AnyIntArray, sizes: AnyIntArray) -> str:
    """Return the first samples with their sizes, and the number of the rest.

    >>> examples_of(np.array([7, 12]), np.array([9000, 4100]))
    '7 (9,000), 12 (4,100)'
    """
    pairs = zip(sample_ids, sizes, strict=True)
    return first_few((f"{sample_id} ({size:,})" for sample_id, size in pairs), len(sample_ids))


def _one_budget(name: str) -> str:
    return setting("budgets", name, python=f"budgets[{name!r}]")
