"""Checks, one file for each question; ``check_batch`` asks all questions that need no run of a
model.
"""

from collections.abc import Callable

from brimful.verify.checks.boundaries import check_boundaries
from brimful.verify.checks.labels import check_complete, check_labels, check_padding
from brimful.verify.checks.media import check_media
from brimful.verify.checks.positions import check_positions
from brimful.verify.checks.token_values import check_restored_paths
from brimful.verify.setup import PackingSetup
from brimful.verify.verify_report import CheckResult

BATCH_CHECKS: tuple[Callable[[PackingSetup], CheckResult | None], ...] = (
    check_labels,
    check_positions,
    check_boundaries,
    check_padding,
    check_media,
    check_restored_paths,
)
"""Comparisons of a batch with its samples; None if a batch has nothing that the check looks at."""


def check_batch(setup: PackingSetup) -> list[CheckResult]:
    """Find the samples in the collator's batch, and compare its arrays with each sample's own."""
    findings: list[CheckResult | None] = [check_complete(setup)]
    # Without knowing which token belongs to which sample, the other checks would only guess.
    if setup.batch.layout.certain:
        findings += [check(setup) for check in BATCH_CHECKS]
    return [finding for finding in findings if finding is not None]
