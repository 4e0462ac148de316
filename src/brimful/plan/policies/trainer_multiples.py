"""Multiples that trainers pad segments and rows to, by parallelism and number format.

A rule takes the ranks of context parallelism, the ranks of tensor parallelism that divide the
sequence, and the tokens of a scaling block (1 without low precision), and returns the multiples of
a segment and of a row. Ranks of context parallelism each take an early and a late part of every
segment, so that segments are cut into ``2·cp`` parts.
"""

from collections.abc import Callable, Mapping
from math import lcm

_SLIME_TOKENS = 128
"""slime's ``data_pad_size_multiplier`` of a row on each rank, unless it is set."""


def _num_chunks(cp: int) -> int:
    return 2 * cp if cp > 1 else 1


def _as_kernels_need(cp: int, tp: int, block: int) -> tuple[int, int]:
    """Return the least common multiple that Megatron-Bridge pads each segment to; a row takes the
    scaling block on each rank.
    """
    segment = lcm(_num_chunks(cp), cp * tp)
    return segment, lcm(segment, cp * tp * block)


def _as_swift_pads(cp: int, tp: int, block: int) -> tuple[int, int]:
    return _num_chunks(cp), lcm(_num_chunks(cp), cp * tp * block)


def _as_nemo_pads(cp: int, tp: int, block: int) -> tuple[int, int]:
    return _num_chunks(cp) * tp, _num_chunks(cp) * tp * block


def _as_skyrl_pads(cp: int, tp: int, block: int) -> tuple[int, int]:
    """Return its multiples since it counts both: blocks of 128 are on each rank of tensor
    parallelism, and without it 16 are enough.
    """
    segment, on_ranks = _num_chunks(cp) * tp, 32 * cp * tp if block == 32 else 128 * cp * tp
    row = 1 if block == 1 else 16 * cp if tp == 1 and block != 32 else on_ranks
    return segment if cp > 1 else 1, lcm(segment, row)


def _as_slime_pads(cp: int, tp: int, block: int) -> tuple[int, int]:
    return _num_chunks(cp), _SLIME_TOKENS * cp * tp


def _as_verl_pads(cp: int, tp: int, block: int) -> tuple[int, int]:
    """Return its multiples: any FP8 takes 16 a segment and 128 a row."""
    segment = _num_chunks(cp) * tp
    return (segment, segment) if block == 1 else (lcm(16, segment), 128 * segment)


KERNELS = "kernels"
"""Name of the rule of no trainer: the least that kernels take."""

RULES: Mapping[str, Callable[[int, int, int], tuple[int, int]]] = {
    KERNELS: _as_kernels_need,
    "megatron_swift": _as_swift_pads,
    "nemo_rl": _as_nemo_pads,
    "skyrl": _as_skyrl_pads,
    "slime": _as_slime_pads,
    "verl": _as_verl_pads,
}
"""Rule of each trainer that pads in another way than the kernels need."""

PADS_FOR_FUSED_ATTENTION = (KERNELS, "megatron_swift")
"""Rules that know 64 tokens on each rank for cuDNN's fused attention."""
