"""Checks of batches, one file for each topic; ``findings_of`` asks all questions."""

from collections.abc import Callable, Iterable, Sequence

from brimful.doctor.batch.checks import (
    alignment,
    boundaries,
    masks,
    padding,
    positions,
    targets,
    tokens,
)
from brimful.doctor.batch.view import BatchView
from brimful.doctor.report import Finding

BATCH_CHECKS: tuple[Callable[[BatchView], Iterable[Finding]], ...] = (
    boundaries.check_ends,
    boundaries.check_end_marks,
    boundaries.check_agreement,
    boundaries.check_rows,
    boundaries.check_longest,
    boundaries.check_boundary_mask,
    masks.check_flat_mask,
    masks.check_pairs,
    positions.check_run_on,
    positions.check_shape,
    positions.check_rope_rows,
    targets.check_crossing,
    targets.check_padding,
    targets.check_labels,
    targets.check_roles,
    targets.check_any,
    tokens.check_doubled_bos,
    tokens.check_lost_eos,
    tokens.check_several_samples,
    padding.check_padding_segments,
    targets.check_own_divisor,
    alignment.check_multiples,
    alignment.check_types,
)
"""Questions about one batch."""

RUN_CHECKS: tuple[Callable[[Sequence[BatchView]], Iterable[Finding]], ...] = (
    padding.check_packing,
    padding.check_pairs,
    targets.check_step_divisor,
)
"""Questions about all batches together."""
