"""Targets of the batch: every position predicts its own sample's next token; samples once, padding
without labels.
"""

import pickle
from typing import Any

import numpy as np

from brimful.base.typing import IGNORE_INDEX, BoolArray, Int64Array
from brimful.verify.checks.branch_targets import check_branch_targets
from brimful.verify.checks.positions import position_rows
from brimful.verify.collated_batch import CollatedBatch
from brimful.verify.reference_samples import fields_of
from brimful.verify.setup import PackingSetup
from brimful.verify.verify_report import CheckResult, failed, not_supported, passed

_PATTERN_SHARE = 0.8
"""Share of wrong targets that must follow a pattern for it to be the cause."""

_MAX_NAMED_SAMPLES = 4
"""Maximum number of lost samples that one message names."""


def check_labels(setup: PackingSetup) -> CheckResult:
    """Compare the targets of the batch with the targets of the samples one by one."""
    batch = setup.batch
    if batch.terms is None:
        way_out = "let the collator emit labels, -100 on the first token of every sample"
        if setup.samples.has_labels:
            detail = "the samples have labels, and the batch has neither labels nor shift_labels"
            cause = (
                "the collator drops the labels, so nothing is trained, or another loss than "
                "the samples'"
            )
            return failed("labels", detail, cause, way_out)
        return not_supported("labels", "neither the samples nor the batch have labels", way_out)
    if batch.has_trees:
        return check_branch_targets(setup)
    assert batch.targets is not None
    sample_targets = np.full(batch.ids.shape, IGNORE_INDEX, dtype=np.int64)
    for sample, place in batch.located:
        sample_targets[place.row, place.start : place.stop - 1] = sample.labels[1:]
    wrong = (sample_targets != batch.targets) & ~is_near_padding(batch)
    num_expected = int((sample_targets != IGNORE_INDEX).sum())
    if not wrong.any():
        return passed("labels", f"{num_expected} targets, as one by one")
    detail = (
        f"{int(wrong.sum())} differ; {batch.num_targets} targets in the batch, "
        f"{num_expected} one by one"
    )
    return failed("labels", detail, *_diagnose(batch, batch.targets, sample_targets, wrong))


def _diagnose(
    batch: CollatedBatch, targets: Int64Array, sample_targets: Int64Array, wrong: BoolArray
) -> tuple[str, str]:
    """Name the likely cause and the way out by the pattern of the wrong targets."""
    is_target = sample_targets != IGNORE_INDEX
    is_ignored = targets == IGNORE_INDEX
    next_ids = np.full_like(batch.ids, IGNORE_INDEX)
    next_ids[:, :-1] = batch.ids[:, 1:]
    # Shifts move all targets, so they are looked for first: they also leave marks at ends and in
    # prompts.
    is_moved = is_target & wrong & ~is_ignored
    if 2 * int((is_target & wrong).sum()) >= int(is_target.sum()) and is_moved.any():
        ids_after_next = np.roll(next_ids, -1, axis=1)
        if (targets == ids_after_next)[is_moved].mean() > _PATTERN_SHARE:
            return (
                "double shift: the labels are shifted already, and the model shifts them again, so "
                "every token is trained to predict the one after the next",
                "emit unshifted labels, or pass them as shift_labels",
            )
        if (targets == batch.ids)[is_moved].mean() > _PATTERN_SHARE:
            key = "shift_labels" if batch.shifted else "labels"
            return (
                f"not shifted: under {key} every token is trained to predict itself",
                "shift inside each sample before the batch is made, or pass them as labels",
            )
    # The last token of a sample has no target; one that equals the next token belongs to the next
    # sample.
    is_end = np.zeros_like(is_target)
    for _, place in batch.located:
        is_end[place.row, place.stop - 1] = True
    num_crossing = int((is_end & wrong & (targets == next_ids)).sum())
    if num_crossing and batch.shifted:
        return (
            f"whole-pack label shift: the last token of {num_crossing} samples is trained to "
            "predict the first of the next",
            "shift inside each sample, and end each with -100",
        )
    if num_crossing:
        return (
            f"first label kept: {num_crossing} samples keep the label of their first token, which "
            "the last token of the sample before is trained to predict",
            "set the first label of every sample to -100",
        )
    way_out = "carry the labels over as they are"
    lost_tokens = sample_targets[is_target & is_ignored]
    if len(np.unique(lost_tokens)) == 1:
        return (
            f"{len(lost_tokens)} targets are lost, all of them token {lost_tokens[0]}: padding "
            "is recognized by "
            "its token, and this token also occurs in samples (pad id = EOS)",
            "recognize padding by lengths, never by the token",
        )
    if len(lost_tokens):
        return f"{len(lost_tokens)} targets of the samples have no label in the batch", way_out
    if num_extra := int((~is_target & ~is_ignored & ~batch.free).sum()):
        return (
            f"{num_extra} tokens without a label in their sample are trained on in the batch "
            "(prompts)",
            "copy the labels of the sample instead of its tokens",
        )
    return "targets are other tokens than in the samples", way_out


def is_near_padding(batch: CollatedBatch) -> BoolArray:
    """Return ``bool[B, T]``: padding, and tokens that padding follows, which the check of padding
    covers.
    """
    is_near = batch.padding.copy()
    is_near[:, :-1] |= batch.padding[:, 1:]
    return is_near


def check_inputs_unmodified(setup: PackingSetup) -> CheckResult:
    """Find fields that the collator writes into: cached samples would be spoiled for the next
    epoch.
    """
    features = setup.samples.copies()
    fields_before = list(map(_pickled_fields, features))
    setup.collator(list(features))
    # A key on one side only was added or removed, and counts as modified like a changed value.
    modifications = [
        (index, key)
        for index, (old_fields, new_fields) in enumerate(
            zip(fields_before, map(_pickled_fields, features), strict=True)
        )
        for key in sorted({*old_fields, *new_fields})
        if old_fields.get(key) != new_fields.get(key)
    ]
    if not modifications:
        return passed("untouched")
    index, key = modifications[0]
    return failed(
        "untouched",
        f"{len(modifications)} fields of {len({index for index, _ in modifications})} samples "
        f"changed: {key!r} of {index}",
        f"the collator writes into the {key} of the sample it is given (in-place labels)",
        "copy before writing: a cached sample is collated again in the next epoch",
    )


def _pickled_fields(feature: Any) -> dict[str, bytes]:
    return {name: pickle.dumps(value) for name, value in fields_of(feature).items()}


def check_complete(setup: PackingSetup) -> CheckResult:
    """Find lost, repeated and foreign tokens: row and token counts can be right with one sample
    lost and one repeated.
    """
    batch, segments = setup.batch, setup.samples.segments
    if not batch.layout.certain:
        return not_supported(
            "complete",
            "where the samples lie is not certain: the collator lays tokens that occur once out "
            "in another way, or refuses them, and the tokens of these samples fit into the batch "
            "in several ways, or not at all",
            "verify with samples that cannot be confused with others: no repeats, no sample of a "
            "single token",
        )
    absent = [
        segment
        for segment, place in zip(segments, batch.layout.places, strict=True)
        if place is None
    ]
    num_foreign = int((batch.free & ~batch.padding).sum())
    if not absent and not num_foreign:
        return passed("complete", f"{len(segments)} samples, each once")
    names = ", ".join(
        f"{segment.name} ({len(segment.ids)} tokens)" for segment in absent[:_MAX_NAMED_SAMPLES]
    )
    detail = f"{len(absent)} of {len(segments)} samples are not in the batch as a whole: {names}"
    if num_foreign:
        foreign = f"{num_foreign} tokens belong to no sample and are not padding"
        detail = f"{detail}; {foreign}" if absent else foreign
    # A repeat explains foreign tokens, and usually also the sample whose place it took.
    if batch.layout.repeated:
        cause = f"{segments[batch.layout.repeated[0]].name} is repeated"
        cause += f" and {absent[0].name} is lost" if absent else ""
    elif absent:
        cause = f"{absent[0].name} is lost, truncated or split by the collator"
    else:
        cause = "the collator adds tokens of its own between samples, or pads with several tokens"
    return failed("complete", detail, cause, "count samples and tokens in and out")


def check_padding(setup: PackingSetup) -> CheckResult:
    """Check that padding has no label and is not cut into samples of one token each."""
    batch = setup.batch
    padding = batch.padding
    count = int(padding.sum())
    if not count:
        return passed("padding", "no padding in the batch")
    if batch.terms is not None:
        near = is_near_padding(batch)
        if batch.kwargs.get("loss_index") is not None:
            near = padding  # a token that padding follows may predict a branch elsewhere
        num_targets = int(np.count_nonzero(near.reshape(-1)[batch.terms.places]))
        if num_targets:
            detail = f"{num_targets} targets are padding, of {count} padding tokens"
            return failed(
                "padding",
                detail,
                "labels are copied from the padded tokens",
                "label padding with -100",
            )
    # Boundaries are read from positions only without a mask, and only matter where samples share a
    # row.
    rows = position_rows(setup)
    is_packed = len({place.row for _, place in batch.located}) < len(batch.located)
    if rows is not None and is_packed and batch.kwargs.get("attention_mask") is None:
        pairs = padding[:, 1:] & padding[:, :-1]
        num_resets = int((pairs & (np.diff(rows[0], axis=-1) == 0)).sum())
        if num_resets:
            position = int(rows[0][padding][0])
            return failed(
                "padding",
                f"{num_resets + 1} of {count} padding tokens stand at position {position}",
                f"pad at position {position}: where boundaries are read from positions, every "
                "padding token is a sample of its own, and kernels allocate for each or crash",
                "number the padding 0, 1, 2, … as one last segment",
            )
    return passed("padding", f"{count} tokens, no label among them")
