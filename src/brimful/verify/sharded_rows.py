"""``verify_context_parallel``: columns, splits over ranks and the way back, checked without a
GPU.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from brimful.base.checks import choice_of, whole_number
from brimful.collate.columns import Column
from brimful.collate.extras import PackExtras
from brimful.collate.layout import lay_out
from brimful.collate.padding import Padding
from brimful.doctor.probing.model_facts import parity_limit_of
from brimful.doctor.probing.modes import evaluating
from brimful.doctor.probing.unchanged import preserved
from brimful.errors import SettingsError
from brimful.rl.context_parallel_split import (
    ContextParallelLayout,
    gather_from_context_parallel,
    split_for_context_parallel,
)
from brimful.rl.step_packs import RestoredTokens, restore_tokens
from brimful.store.shards import Pack
from brimful.verify.checks.sequence_shards import (
    Gather,
    Split,
    check_gathering,
    check_simulated,
    check_split,
)
from brimful.verify.checks.token_values import PackWithExtras, check_columns, check_restoring
from brimful.verify.verify_report import CheckResult, VerifyReport

_TOKEN_MARKER = "marker_of_the_token"


class ContextParallelReport(VerifyReport):
    """Findings of ``verify_context_parallel``; ``attention`` of a finding names the ranks."""

    @property
    def proven(self) -> bool:
        """True if columns and splits were shown to be right."""
        return bool(self._passed("columns"))

    def success(self) -> str:
        """Return the verdict if nothing failed."""
        ranks = self._passed("split")
        remark = "" if self._passed("parallel") else "; NO MODEL: arrays alone were compared"
        sentence = (
            f"rows over {', '.join(ranks)} hold what the whole row holds"
            if ranks
            else "columns lie at their tokens"
        )
        return f"PASS: {sentence}{remark}"


def verify_context_parallel(
    packs: Sequence[Pack | PackWithExtras],
    *,
    model: Any = None,
    collator: Any = None,
    cp_sizes: Sequence[int] = (2, 4, 8),
    layout: ContextParallelLayout | str = ContextParallelLayout.ZIGZAG_SEGMENTS,
    split: Split = split_for_context_parallel,
    gather: Gather = gather_from_context_parallel,
    restore: Callable[..., RestoredTokens] = restore_tokens,
    tolerance: float | None = None,
) -> ContextParallelReport:
    """Show that values of tokens stay with their tokens through packing, padding, splitting over
    ranks and restoring.

    Each pack is one micro-batch. Unique marks pass through all functions, and must be found again::

        columns      values, weights and fill of every token after packing and padding
        split        tokens, targets, weights, positions and columns of every rank
        gathering    parts of the ranks are the row again
        restoring    every sample gets its own values back, in the order of arrival
        parallel     with a model: logits and loss as the ranks would compute them, in one process

    The truth is written slice by slice, without the functions under test. The report names each
    mistake.

    Args:
        packs: packs with extras, as ``pack_step`` makes them; sample ids that differ.
        model: a causal language model of attention layers, on a CPU or any device; None compares
            arrays alone.
        collator: a ``PackCollator`` of one row, or a function from a list of one pack with extras
            to a ``PackedBatch``; if None, segments are padded as the largest of ``cp_sizes`` needs.
        cp_sizes: numbers of ranks.
        layout: of the trainer's attention.
        split: ``split_for_context_parallel``, or yours with its arguments.
        gather: ``gather_from_context_parallel``, or yours.
        restore: ``restore_tokens``, or yours.
        tolerance: largest relative difference of logits; by dtype if None.

    Raises:
        SettingsError: no packs, or an impossible number of ranks.
        CollateError: rows that do not divide among the ranks.

    >>> from brimful.testing.toys import toy_pack
    >>> verify_context_parallel([toy_pack([9, 4]), toy_pack([5], first_sample=2)]).verdict
    'PASS: rows over 2 ranks, 4 ranks, 8 ranks hold what the whole row holds; NO MODEL: arrays alone were compared'
    """
    if not packs:
        raise SettingsError("nothing to verify: give at least one pack")
    layout = choice_of(ContextParallelLayout, layout, argument="layout")
    sizes = [whole_number("cp_sizes", size, minimum=2) for size in cp_sizes]
    features = _with_markers(packs, with_weights=getattr(collator, "_loss_weights", None) is None)
    if collator is None:
        padding = Padding(segment_multiple_of=2 * max(sizes, default=1))
        batches = [lay_out([pack], extras=[extras], padding=padding) for pack, extras in features]
    elif hasattr(collator, "rows"):
        batches = [collator.rows([feature])[0] for feature in features]
    else:
        batches = [collator([feature]) for feature in features]
    findings = [_worst(list(map(check_columns, batches, features)))]
    for size in sizes:
        checks: list[Sequence[CheckResult]] = [
            [check_split(batch, size, layout, split) for batch in batches],
            [check_gathering(batch, size, layout, gather) for batch in batches],
        ]
        if model is not None:
            limit = (
                parity_limit_of(next(model.parameters()).dtype) if tolerance is None else tolerance
            )
            with preserved(model), evaluating(model):
                simulations = [
                    check_simulated(model, batch, size, layout, split, gather, limit)
                    for batch in batches
                ]
            # Logits and loss of each batch, or one refusal.
            checks += zip(*simulations, strict=False)
        findings += [replace(_worst(several), attention=f"{size} ranks") for several in checks]
    if findings[0].passed:
        outputs = [batch.column(_TOKEN_MARKER).values for batch in batches]
        findings.append(check_restoring(batches, features, restore, outputs, _TOKEN_MARKER))
    name = "arrays alone" if model is None else type(model).__name__
    subject = (
        f"{name}; {len(batches)} micro-batches, {sum(len(pack) for pack, _ in features):,} "
        f"tokens; {layout.value}"
    )
    return ContextParallelReport(subject, tuple(findings))


def _with_markers(
    packs: Sequence[Pack | PackWithExtras], *, with_weights: bool
) -> list[PackWithExtras]:
    """Return packs with weights and two more columns, all of whose values differ."""
    features: list[PackWithExtras] = []
    first = 1
    for item in packs:
        pack, extras = (item, PackExtras()) if isinstance(item, Pack) else item
        # Whole numbers below 2**24 are exact in float32.
        numbers = np.arange(first, first + len(pack), dtype=np.float32)
        first += len(pack)
        columns = (
            *extras.columns,
            Column(_TOKEN_MARKER, numbers, fill=-1, place="token"),
            Column("marker_of_the_target", np.stack([numbers, -numbers], axis=1), fill=-2),
        )
        weights = None
        if with_weights:
            weights = numbers if extras.loss_weights is None else extras.loss_weights
        features.append((pack, replace(extras, columns=columns, loss_weights=weights)))
    return features


def _worst(findings: Sequence[CheckResult]) -> CheckResult:
    """Return the first failure, or the finding with the largest difference."""
    failures = [finding for finding in findings if not finding.passed]
    return failures[0] if failures else max(findings, key=lambda finding: finding.measured or 0.0)
