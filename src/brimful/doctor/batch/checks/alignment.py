"""Alignment and types of numbers: lengths that parallelism and number formats can divide, and types
that kernels refuse, or round.
"""

from collections.abc import Iterator

import numpy as np

from brimful.base.typing import Int64Array
from brimful.base.wording import counted
from brimful.doctor.batch.view import BatchView
from brimful.doctor.batch.words import Role
from brimful.doctor.report import Finding, suspect, wrong

_TOPIC = "alignment"

_OTHER_KERNELS = "linear_attn_"
"""Boundaries for kernels of linear attention, which take 64 bits."""


def check_multiples(view: BatchView) -> Iterator[Finding]:
    """Compare lengths with the multiples that the caller names."""
    facts, width = view.facts, view.shape[1]
    if width % facts.row_multiple:
        yield wrong(
            _TOPIC,
            "alignment",
            f"the row has {width:,} tokens, which is no multiple of {facts.row_multiple}: "
            f"{width % facts.row_multiple} too many",
            f"pad rows to {width + -width % facts.row_multiple:,}",
        )
    lengths = place_lengths(view)
    off = lengths[lengths % facts.segment_multiple != 0]
    if len(off):
        yield wrong(
            _TOPIC,
            "alignment",
            f"{counted(len(off), 'segment')} of {len(lengths)} have a length that is no multiple "
            f"of {facts.segment_multiple}, such as {int(off[0]):,}",
            f"pad each segment to a multiple of {facts.segment_multiple}",
        )


def place_lengths(view: BatchView) -> Int64Array:
    """Return the lengths of the segments with the padding that follows each."""
    claim = view.believed
    starts = claim.starts[claim.real]
    lengths = (claim.ends - claim.starts)[claim.real]
    return lengths[~view.padding.reshape(-1)[starts]]


def common_multiple(lengths: Int64Array) -> int:
    """Return the largest power of two that divides all lengths; 1 for none.

    >>> common_multiple(np.array([24, 16]))
    8
    """
    divisor = int(np.gcd.reduce(lengths)) if len(lengths) else 1
    return divisor & -divisor


def check_types(view: BatchView) -> Iterator[Finding]:
    """Check that boundaries have 32 bits, and that positions are exact."""
    for word in view.words_with(Role.BOUNDARIES):
        dtype = str(getattr(word.value, "dtype", ""))
        if dtype == "torch.int64" and not word.name.startswith(_OTHER_KERNELS):
            yield suspect(
                "isolation",
                "number_types",
                f"{word} is int64, and flash attention reads boundaries of 32 bits",
                f"{word}.to(torch.int32)",
            )
        elif "float" in dtype:
            yield wrong("isolation", "number_types", f"{word} is {dtype}", f"make {word} integers")
    for word in view.words_with(Role.POSITIONS):
        dtype = str(getattr(word.value, "dtype", "")).removeprefix("torch.")
        if dtype in ("float16", "bfloat16"):
            yield wrong(
                "positions",
                "number_types",
                f"{word} are {dtype}, which rounds positions above "
                f"{256 if dtype == 'bfloat16' else 2048:,}",
                f"{word}.to(torch.int64)",
            )
