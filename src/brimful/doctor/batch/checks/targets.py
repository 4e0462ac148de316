"""Targets: is each trained token predicted by the one before it, in its own sample, and is the loss
divided by their number?
"""

import re
from collections.abc import Iterator, Sequence

import numpy as np

from brimful.base.typing import IGNORE_INDEX, Int64Array
from brimful.base.wording import counted, percent
from brimful.doctor.batch.view import BatchView, Labeling
from brimful.doctor.batch.words import Role
from brimful.doctor.report import Finding, suspect, wrong

_TOPIC = "targets"

_SHIFTS = {
    0: "the token itself, and the name says that they are shifted",
    1: "the next token",
    2: "the token after the next one: they were shifted twice",
    -1: "the token before: they were shifted in the wrong direction",
}
"""Meaning of the place from which labels are taken, relative to their own."""

_SAME = 0.98
"""Share of the labels that must come from one place to name it."""

_HEADERS = re.compile(
    r"<\|im_start\|>(user|system|tool)|<\|start_header_id\|>(user|system|tool|ipython)"
    r"|<start_of_turn>(user)|<\|(user|system|tool|observation)\|>|<(tool_response|tool_outputs?)>"
    r"|\[(TOOL_RESULTS)\]|<(environment|function_response)>"
)
"""Beginnings of turns that a model reads and does not write, in the templates of its families."""

_SHOWN_TEXT = 60
"""Characters of a text that a finding shows."""


def crossing_targets(view: BatchView) -> Int64Array:
    """Return the last tokens of samples that predict the first token of the next one."""
    if not view.has_labels:
        return np.zeros(0, dtype=np.int64)
    segment, width = view.segment_of, view.shape[1]
    targets = np.flatnonzero(view.is_target)
    targets = targets[targets % width < width - 1]
    here, following = segment[targets], segment[targets + 1]
    return np.asarray(targets[(here >= 0) & (following >= 0) & (here != following)])


def check_crossing(view: BatchView) -> Iterator[Finding]:
    """Check that no token is predicted by the last one of another sample.

    Pretraining does that on purpose: every token is trained, and the loader or the trainer has
    shifted the row as a whole.
    """
    crossing = crossing_targets(view)
    as_tokens = view.labeling is Labeling.AS_TOKENS
    if not len(crossing) or (not as_tokens and _trains_everything(view)):
        return
    place = "last" if view.labeling is Labeling.SHIFTED else "first"
    yield wrong(
        _TOPIC,
        "wrong_targets",
        f"the first token of {counted(len(crossing), 'sample')} is predicted from the last token "
        f"of the sample before: {view.places(crossing + 1)}",
        f"{view.labels_name}: no target at the {place} token of each sample",
    )


def _trains_everything(view: BatchView) -> bool:
    """Return whether each token of a row but the first is a target."""
    real = ~view.padding
    follows = real[:, :-1] & real[:, 1:]
    return bool(view.is_target.reshape(view.shape)[:, :-1][follows].all())


def check_padding(view: BatchView) -> Iterator[Finding]:
    """Check that padding does not predict padding. The token before it may predict an end."""
    if not view.has_labels:
        return
    padding = view.padding
    number = int((view.is_predicted.reshape(padding.shape) & padding)[:, 1:][padding[:, :-1]].sum())
    if number:
        yield wrong(
            _TOPIC,
            "wrong_targets",
            f"{counted(number, 'token')} of padding are trained",
            f"{view.labels_name}: {IGNORE_INDEX} in padding",
        )


def check_labels(view: BatchView) -> Iterator[Finding]:
    """Check that labels are integers, and tokens of the batch from the right place."""
    for word in view.words_with(Role.LABELS, Role.SHIFTED_LABELS):
        if word.array is not None and word.array.dtype.kind == "f":
            yield wrong(_TOPIC, "wrong_targets", f"{word} are {word.array.dtype}, not integers")
    if view.labels is None:
        return
    shares = {shift: _share(view, shift) for shift in _SHIFTS}
    named_shifted = view.labels_word in view.words_with(Role.SHIFTED_LABELS)
    right = shares[1] if named_shifted else max(shares[0], shares[1])
    best = max(shares, key=lambda shift: shares[shift])
    if right < shares[best] and shares[best] >= _SAME:
        yield wrong(
            _TOPIC,
            "wrong_targets",
            f"{percent(shares[best])} of {view.labels_name} are {_SHIFTS[best]}",
            "shift labels once: in the collator, or in the model",
        )


def _share(view: BatchView, shift: int) -> float:
    """Return the share of labels that are the token ``shift`` places on in their row."""
    labels, ids = view.labels, view.ids
    assert labels is not None
    rows, columns = np.nonzero(labels != IGNORE_INDEX)
    inside = (columns + shift >= 0) & (columns + shift < ids.shape[1])
    rows, columns = rows[inside], columns[inside]
    return float((labels[rows, columns] == ids[rows, columns + shift]).mean()) if len(rows) else 0.0


def check_roles(view: BatchView) -> Iterator[Finding]:
    """Check, where some tokens are not trained, that turns of tools and users are not either.

    Reads the trained text of the first segments, so it needs a tokenizer.
    """
    if view.facts.tokenizer is None or not view.has_labels:
        return
    # The first token of a sample is never trained.
    is_inner = (view.segment_of >= 0) & (np.append(-1, view.segment_of[:-1]) == view.segment_of)
    if view.is_predicted[is_inner].mean() > _SAME:
        return
    roles: dict[str, str] = {}
    for segment in range(min(len(view.segments), _SEGMENTS_READ)):
        for text in trained_texts(view, segment):
            for match in _HEADERS.finditer(text):
                role = next(group for group in match.groups() if group)
                excerpt = text[match.start() :][:_SHOWN_TEXT]
                # A header at the very end is the stop of an answer.
                if len(text) > match.end():
                    roles.setdefault(role, excerpt)
    if roles:
        names = ", ".join(sorted(roles))
        yield suspect(
            _TOPIC,
            "wrong_targets",
            f"turns of {names} are trained, and other tokens are not: {next(iter(roles.values()))!r}",
            "train answers only: assistant_only_loss, or labels of -100 at these turns",
        )


_SEGMENTS_READ = 64
"""Segments whose text is read."""


def trained_texts(view: BatchView, segment: int) -> list[str]:
    """Return the texts of a segment that are trained, one for each run of targets."""
    starts, stops = view.bounds
    tokens = np.arange(starts[segment], stops[segment])
    edges = np.flatnonzero(np.diff(np.r_[False, view.is_predicted[tokens], False]))
    return [
        str(view.facts.tokenizer.decode(view.tokens[tokens[start:stop]].tolist()))
        for start, stop in edges.reshape(-1, 2).tolist()
    ]


def check_any(view: BatchView) -> Iterator[Finding]:
    """Check that some token is trained. A batch that only completes a step divides by 1."""
    if not view.has_labels or view.num_targets or view.words_with(Role.DIVISOR):
        return
    yield suspect(
        _TOPIC,
        "wrong_targets",
        f"no token is trained: all {view.ids.size:,} {view.labels_name} are {IGNORE_INDEX}",
    )


def check_own_divisor(view: BatchView) -> Iterator[Finding]:
    """Check that a divisor in the batch is at least the number of its targets.

    It may be more: other micro-batches and ranks add to a step.
    """
    for word in view.words_with(Role.DIVISOR):
        if word.array is None or word.array.size != 1 or not view.has_labels:
            continue
        number = int(word.array.reshape(-1)[0])
        if number < view.num_targets:
            yield wrong(
                "divisor",
                "divisor",
                f"{word} is {number:,}, and this batch has "
                f"{counted(view.num_targets, 'target')}{_explained(number, [view])}",
                f"{word}: the targets of all micro-batches and ranks of a step",
            )


def check_step_divisor(views: Sequence[BatchView]) -> Iterator[Finding]:
    """Compare the divisor that the caller names with the targets of all batches."""
    number = views[0].facts.num_items
    targets = sum(view.num_targets for view in views)
    if number is None or number == targets or not all(view.has_labels for view in views):
        return
    batches = "the batch has" if len(views) == 1 else f"the {len(views):,} batches have"
    small, large = sorted((number, targets))
    size = "large" if number < targets else "small"
    ratio = f": the loss is {large / small:.3f} times as {size}" if small else ""
    yield wrong(
        "divisor",
        "divisor",
        f"the divisor is {number:,}, and {batches} {counted(targets, 'target')}"
        f"{_explained(number, views)}{ratio}",
        f"num_items_in_batch: {targets}",
    )


def _explained(number: int, views: Sequence[BatchView]) -> str:
    """Return a likely reason for another number, in words; empty without one."""
    targets = sum(view.num_targets for view in views)
    segments = sum(len(view.segments) for view in views)
    tokens = sum(view.num_tokens for view in views)
    positions = sum(view.ids.size for view in views)
    reasons = {
        targets - segments: f"the {segments} boundaries are taken off a second time",
        targets - len(views): "one target of each batch is left out",
        positions: "padding is counted as well",
        tokens: "all tokens are counted",
        tokens - segments: "all tokens but the first of each sample are counted",
        segments: "samples are counted",
    }
    reason = reasons.get(number)
    if reason is None and targets and number < targets:
        return f" ({percent(number / targets)} of them)"
    return f" ({reason})" if reason else ""
