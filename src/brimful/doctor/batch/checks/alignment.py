"""Alignment: lengths that parallelism and number formats can divide."""

from collections.abc import Iterator

import numpy as np

from brimful.base.typing import Int64Array
from brimful.base.wording import counted
from brimful.doctor.batch.checks.case import BatchCase, wrong
from brimful.doctor.report import Finding

_TOPIC = "alignment"


def check_multiples(case: BatchCase) -> Iterator[Finding]:
    """Compare lengths with the multiples that the caller names."""
    facts, width = case.facts, case.view.shape[1]
    if width % facts.row_multiple:
        yield wrong(
            _TOPIC,
            "alignment",
            f"the row has {width:,} tokens, which is no multiple of {facts.row_multiple}: "
            f"{width % facts.row_multiple} too many",
            f"pad rows to {width + -width % facts.row_multiple:,}",
        )
    lengths = place_lengths(case)
    off = lengths[lengths % facts.segment_multiple != 0]
    if len(off):
        yield wrong(
            _TOPIC,
            "alignment",
            f"{counted(len(off), 'segment')} of {len(lengths)} have a length that is no multiple "
            f"of {facts.segment_multiple}, such as {int(off[0]):,}",
            f"pad each segment to a multiple of {facts.segment_multiple}",
        )


def place_lengths(case: BatchCase) -> Int64Array:
    """Return the lengths of the segments with the padding that follows each."""
    claim = case.view.believed
    starts = claim.starts[claim.real]
    lengths = (claim.ends - claim.starts)[claim.real]
    return np.asarray(lengths[~case.view.padding.reshape(-1)[starts]])


def common_multiple(lengths: Int64Array) -> int:
    """Return the largest power of two that divides all lengths; 1 for none.

    >>> common_multiple(np.array([24, 16]))
    8
    """
    divisor = int(np.gcd.reduce(lengths)) if len(lengths) else 1
    return divisor & -divisor
