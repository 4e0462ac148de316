"""Targets of the batch: every position predicts its own sample's next token, and no other."""

import numpy as np

from brimful.base.typing import IGNORE_INDEX, BoolArray, Int64Array
from brimful.verify.setup import PackingSetup
from brimful.verify.verified_batch import CollatedBatch, expected_targets
from brimful.verify.verify_report import Diagnosis, Finding, failed, not_supported, passed

_PATTERN_SHARE = 0.8
"""Share of wrong targets that must follow a pattern for it to be the cause."""


def check_labels(setup: PackingSetup) -> Finding:
    """Compare the targets of the batch with the targets of the samples one by one."""
    batch = setup.batch
    if batch.targets is None:
        way_out = "let the collator emit labels, -100 on the first token of every sample"
        if setup.samples.has_labels:
            detail = "the samples have labels, and the batch has neither labels nor shift_labels"
            cause = "the collator drops the labels, so nothing is trained, or another loss than the samples'"
            return failed("labels", detail, cause, way_out)
        return not_supported("labels", "neither the samples nor the batch have labels", way_out)
    sample_targets = expected_targets(batch, setup.samples.segments)
    wrong = (sample_targets != batch.targets) & ~is_near_padding(batch)
    num_expected = int((sample_targets != IGNORE_INDEX).sum())
    if not wrong.any():
        return passed("labels", f"{num_expected} targets, as one by one")
    detail = f"{int(wrong.sum())} differ; {batch.num_targets} targets in the batch, {num_expected} one by one"
    return failed("labels", detail, *_diagnose(batch, batch.targets, sample_targets, wrong))


def _diagnose(batch: CollatedBatch, targets: Int64Array, sample_targets: Int64Array, wrong: BoolArray) -> Diagnosis:
    """Name the likely cause by the pattern of the wrong targets."""
    key = "shift_labels" if batch.shifted else "labels"
    is_target = sample_targets != IGNORE_INDEX
    # Shifts move all targets, so they are looked for first: they also leave marks at ends and in prompts.
    if _mostly_follow(targets, _shifted(batch.ids, 2), is_target & wrong, is_target):
        return Diagnosis(
            "double shift: the labels are shifted already, and the model shifts them again, so every token is trained "
            "to predict the one after the next",
            "emit unshifted labels, or pass them as shift_labels",
        )
    if _mostly_follow(targets, batch.ids, is_target & wrong, is_target):
        return Diagnosis(
            f"not shifted: under {key} every token is trained to predict itself",
            "shift inside each sample before the batch is made, or pass them as labels",
        )
    # The last token of a sample has no target; one that equals the next token belongs to the next sample.
    is_end = np.zeros_like(is_target)
    for _, place in batch.located:
        is_end[place.row, place.stop - 1] = True
    num_crossing = int((is_end & wrong & (targets == _shifted(batch.ids, 1))).sum())
    if num_crossing and batch.shifted:
        return Diagnosis(
            f"whole-pack label shift: the last token of {num_crossing} samples is trained to predict the first of the next",
            "shift inside each sample, and end each with -100",
        )
    if num_crossing:
        return Diagnosis(
            f"first label kept: {num_crossing} samples keep the label of their first token, which the last "
            f"token of the sample before is trained to predict",
            "set the first label of every sample to -100",
        )
    is_lost = is_target & (targets == IGNORE_INDEX)
    if is_lost.any():
        tokens = np.unique(sample_targets[is_lost])
        if len(tokens) == 1:
            return Diagnosis(
                f"{int(is_lost.sum())} targets are lost, all of them token {tokens[0]}: padding is recognized by its token, and "
                f"this token also occurs in samples (pad id = EOS)",
                "recognize padding by lengths, never by the token",
            )
        return Diagnosis(
            f"{int(is_lost.sum())} targets of the samples have no label in the batch",
            "carry the labels over as they are",
        )
    num_extra = int((~is_target & (targets != IGNORE_INDEX) & ~batch.free).sum())
    if num_extra:
        return Diagnosis(
            f"{num_extra} tokens without a label in their sample are trained on in the batch (prompts)",
            "copy the labels of the sample instead of its tokens",
        )
    return Diagnosis("targets are other tokens than in the samples", "carry the labels over as they are")


def is_near_padding(batch: CollatedBatch) -> BoolArray:
    """Return ``bool[B, T]``: padding, and tokens that padding follows, which the check of padding covers."""
    is_near = batch.padding.copy()
    is_near[:, :-1] |= batch.padding[:, 1:]
    return is_near


def _shifted(ids: Int64Array, steps: int) -> Int64Array:
    """Return ``int64[B, T]``: the token that comes this many steps later in the row."""
    following_ids = np.full_like(ids, IGNORE_INDEX)
    following_ids[:, :-steps] = ids[:, steps:]
    return following_ids


def _mostly_follow(targets: Int64Array, pattern: Int64Array, wrong: BoolArray, is_target: BoolArray) -> bool:
    """Return true if at least half of the targets are wrong, and most of those follow the pattern."""
    if 2 * int(wrong.sum()) < int(is_target.sum()) or not wrong.any():
        return False
    has_label = wrong & (targets != IGNORE_INDEX)
    return bool(has_label.any()) and float((targets == pattern)[has_label].mean()) > _PATTERN_SHARE
