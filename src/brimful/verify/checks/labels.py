"""Does every position predict its own sample's next token, and no other?"""

from __future__ import annotations

import numpy as np

from brimful.typing import IGNORE_INDEX, BoolArray, Int64Array
from brimful.verify.layout import Collated, expected_targets
from brimful.verify.report import Finding, Status
from brimful.verify.subject import Subject

__all__ = ["beside_padding", "check_labels"]


def check_labels(subject: Subject) -> Finding:
    """Targets of the batch against those of the samples one by one."""
    batch = subject.batch
    if batch.targets is None and subject.case.brings_labels:
        return Finding(
            "labels",
            Status.FAIL,
            detail="the samples have labels, and the batch has neither labels nor shift_labels",
            cause="the collator drops the labels, so nothing is trained, or another loss than that of the samples",
            way_out="let the collator emit labels, -100 on the first token of every sample",
        )
    if batch.targets is None:
        return Finding(
            "labels",
            Status.NOT_SUPPORTED,
            detail="neither the samples nor the batch have labels",
            way_out="let the collator emit labels, -100 on the first token of every sample",
        )
    wanted = expected_targets(batch, subject.case.segments)
    wrong = wanted != batch.targets
    wrong &= ~beside_padding(batch)
    count, right = int((batch.targets != IGNORE_INDEX).sum()), int((wanted != IGNORE_INDEX).sum())
    numbers = f"{count} targets in the batch, {right} one by one"
    if not wrong.any():
        return Finding("labels", Status.PASS, detail=f"{right} targets, as one by one")
    cause, way_out = _explain(batch, batch.targets, wanted, wrong)
    return Finding("labels", Status.FAIL, detail=f"{int(wrong.sum())} differ; {numbers}", cause=cause, way_out=way_out)


def _explain(batch: Collated, targets: Int64Array, wanted: Int64Array, wrong: BoolArray) -> tuple[str, str]:
    """Likely cause and way out, by the pattern of what is wrong."""
    key = "shift_labels" if batch.shifted else "labels"
    inside = wanted != IGNORE_INDEX
    ends = np.zeros_like(inside)
    for place in batch.places:
        if place is not None:
            ends[place.row, place.stop - 1] = True
    if _mostly(targets, _ahead(batch.ids, 2), inside & wrong, inside):
        return (
            "double shift: the labels are shifted already, and the model shifts them again, so every token is trained "
            "to predict the one after the next",
            "emit unshifted labels, or pass them as shift_labels",
        )
    if _mostly(targets, batch.ids, inside & wrong, inside):
        return (
            f"not shifted: under {key} every token is trained to predict itself",
            "shift inside each sample before the batch is made, or pass them as labels",
        )
    crossing = ends & wrong & (targets == _ahead(batch.ids, 1))
    if crossing.any():
        if batch.shifted:
            return (
                f"whole-pack label shift: the last token of {int(crossing.sum())} samples is trained to predict the "
                f"first of the next",
                "shift inside each sample, and end each with -100",
            )
        return (
            f"first label kept: {int(crossing.sum())} samples keep the label of their first token, which the last "
            f"token of the sample before is trained to predict",
            "set the first label of every sample to -100",
        )
    lost = inside & (targets == IGNORE_INDEX)
    if lost.any():
        tokens = np.unique(wanted[lost])
        if len(tokens) == 1:
            return (
                f"{int(lost.sum())} targets are lost, all of them token {tokens[0]}: padding is told by its token, and "
                f"this token also occurs in samples (pad id = EOS)",
                "tell padding by lengths, never by the token",
            )
        return (
            f"{int(lost.sum())} targets of the samples have no label in the batch",
            "carry the labels over as they are",
        )
    extra = ~inside & (targets != IGNORE_INDEX) & ~batch.free
    if extra.any():
        return (
            f"{int(extra.sum())} tokens without a label in their sample are trained on in the batch (prompts)",
            "copy the labels of the sample instead of its tokens",
        )
    return "targets are other tokens than in the samples", "carry the labels over as they are"


def beside_padding(batch: Collated) -> BoolArray:
    """``bool[B, T]``: padding, and tokens that padding follows: what the check of padding looks at."""
    beside = batch.padding.copy()
    beside[:, :-1] |= batch.padding[:, 1:]
    return beside


def _ahead(ids: Int64Array, by: int) -> Int64Array:
    moved = np.full_like(ids, IGNORE_INDEX)
    moved[:, :-by] = ids[:, by:]
    return moved


def _mostly(targets: Int64Array, pattern: Int64Array, wrong: BoolArray, inside: BoolArray) -> bool:
    """Whether most targets are wrong, and most of those follow the pattern."""
    if 2 * int(wrong.sum()) < int(inside.sum()) or not wrong.any():
        return False
    labelled = wrong & (targets != IGNORE_INDEX)
    return bool(labelled.any()) and float((targets == pattern)[labelled].mean()) > 0.8
