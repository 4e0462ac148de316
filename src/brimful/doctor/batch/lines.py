"""Lines of the report about batches, and the texts of the first segments."""

from collections.abc import Iterator, Sequence

import numpy as np

from brimful.base.ragged import offsets_of
from brimful.base.typing import AnyArray, Int64Array
from brimful.base.wording import counted, percent
from brimful.doctor.batch.checks.alignment import common_multiple, place_lengths
from brimful.doctor.batch.checks.targets import crossing_targets
from brimful.doctor.batch.checks.tokens import LAST_TOKENS
from brimful.doctor.batch.view import BatchView, Labeling
from brimful.doctor.batch.words import Role
from brimful.doctor.report import Evidence, Line

_LABELS = {
    Labeling.AS_TOKENS: "the label of a token is the token itself: the model must shift",
    Labeling.SHIFTED: "the label of a token is the next one: the model must not shift",
    Labeling.BY_MASK: "a mask marks the trained tokens: the trainer makes the labels",
    Labeling.NONE: "nothing in the batch says what is trained",
    Labeling.OTHER: "labels are neither the tokens nor the next ones",
}

_SEGMENTS_SHOWN = 3
_TOKENS_SHOWN = 96
"""Tokens of a segment whose text is shown: its first and last ones."""


def lines_of(views: Sequence[BatchView]) -> Iterator[Line]:
    """Yield what is seen in batches, a line for each topic."""
    yield _packing(views)
    yield _isolation(views[0])
    yield _positions(views[0])
    yield _targets(views)
    yield _divisor(views)
    yield _tokens(views)
    yield _alignment(views)


def _packing(views: Sequence[BatchView]) -> Line:
    rows = [np.bincount(view.rows_of_segments, minlength=view.shape[0]) for view in views]
    numbers = np.concatenate(rows)
    positions = sum(view.ids.size for view in views)
    padding = sum(int(view.padding.sum()) for view in views)
    text = (
        f"{counted(int(numbers.sum()), 'segment')} in {counted(len(numbers), 'row')}, "
        f"{_span(numbers)} a row; "
        f"{percent(1 - padding / positions)} of {positions:,} positions are tokens of samples"
    )
    return Line("packing", text, Evidence.SEEN, str(views[0].ids_word))


def _span(numbers: AnyArray) -> str:
    """Return the least and the largest of some numbers, or the only one."""
    minimum, maximum = int(numbers.min()), int(numbers.max())
    return f"{minimum}" if minimum == maximum else f"{minimum} to {maximum}"


def _isolation(view: BatchView) -> Line:
    if view.why_unread:
        return Line("isolation", f"not judged: {view.why_unread}")
    if view.is_nested and not len(view.inner_starts(view.believed)):
        return Line(
            "isolation", "rows have lengths of their own: each is one sample", Evidence.SEEN
        )
    if view.evidence:
        allies = [
            claim.word
            for claim in view.claims
            if claim.word != view.believed.word
            and np.array_equal(view.inner_starts(claim), view.inner_starts(view.believed))
        ]
        suffix = f"; {', '.join(allies)} say the same" if allies else ""
        text = f"{view.evidence} tells where samples begin{suffix}"
        return Line("isolation", text, Evidence.SEEN, view.evidence)
    if view.shape[0] > 1 and view.padding.any():
        text = "one segment a row, as far as the batch tells; rows end in padding"
        return Line("isolation", text, Evidence.SEEN)
    return Line("isolation", "nothing in the batch tells samples of a row apart")


def _positions(view: BatchView) -> Line:
    first = view.first_positions
    if first is None or view.positions is None:
        return Line("positions", "none in the batch: the model numbers each row", Evidence.SEEN)
    name = view.positions_name
    if not len(first):
        return Line("positions", f"{name}, and no segment", Evidence.SEEN, name)
    longest = int(view.positions[~view.padding].max())
    text = f"from {_span(first)} at the beginning of segments, up to {longest:,}"
    return Line("positions", text, Evidence.SEEN, name)


def _targets(views: Sequence[BatchView]) -> Line:
    view = views[0]
    text = _LABELS[view.labeling]
    # Labels of another shape than the tokens.
    unread = view.words_with(Role.SHIFTED_LABELS, Role.LABELS)
    if view.labeling is Labeling.NONE and unread:
        text = f"{unread[0]} do not fit the tokens"
    if view.has_labels:
        targets = sum(one.num_targets for one in views)
        tokens = sum(one.num_tokens for one in views)
        without = sum(_without_target(one) for one in views)
        text = f"{percent(targets / max(tokens, 1))} of tokens are targets; {text}"
        if without:
            text += f"; {counted(without, 'segment')} without a target"
        if crossing := sum(len(crossing_targets(one)) for one in views):
            text += f"; {counted(crossing, 'first token')} predicted from the sample before"
    return Line("targets", text, Evidence.SEEN, view.labels_name if view.has_labels else "")


def _without_target(view: BatchView) -> int:
    before = offsets_of(view.is_target)
    starts, stops = view.bounds
    return int((before[stops] == before[starts]).sum())


def _divisor(views: Sequence[BatchView]) -> Line:
    if not all(view.has_labels for view in views):
        return Line("divisor", "unknown without labels")
    targets = sum(view.num_targets for view in views)
    divisors = [
        f"{word} is {int(word.array)}"
        for word in views[0].words_with(Role.DIVISOR)
        if word.array is not None and word.array.ndim == 0
    ]
    names = f" ({', '.join(divisors)})" if divisors else ""
    batches = "this batch has" if len(views) == 1 else f"these {len(views)} batches have"
    text = (
        f"{batches} {counted(targets, 'target')}: a step is to be divided by the sum over its "
        f"micro-batches and ranks{names}"
    )
    return Line("divisor", text, Evidence.SEEN)


def _tokens(views: Sequence[BatchView]) -> Line:
    facts = views[0].facts
    if not facts.eos and not facts.bos:
        return Line("tokens", "BOS and EOS are unknown without a tokenizer")
    segments = sum(len(view.segments) for view in views)
    parts = []
    if facts.bos:
        number = sum(int(facts.is_bos(view.tokens[view.bounds[0]]).sum()) for view in views)
        parts.append(f"{number} of {counted(segments, 'segment')} begin with BOS")
    if facts.eos:
        trained = sum(int((facts.is_eos(view.tokens) & view.is_predicted).sum()) for view in views)
        parts.append(
            f"{sum(map(_ends_with_eos, views))} of {counted(segments, 'segment')} have EOS among "
            f"their last {LAST_TOKENS} tokens"
        )
        parts.append(f"{trained} EOS are trained")
    return Line("tokens", "; ".join(parts), Evidence.SEEN)


def _ends_with_eos(view: BatchView) -> int:
    """Return the number of segments that have EOS among their last tokens."""
    num_eos = offsets_of(view.facts.is_eos(view.tokens))
    starts, stops = view.bounds[0], view.sample_stops
    return int((num_eos[stops] > num_eos[np.maximum(starts, stops - LAST_TOKENS)]).sum())


def _alignment(views: Sequence[BatchView]) -> Line:
    lengths = np.concatenate([place_lengths(view) for view in views])
    widths = np.array([view.shape[1] for view in views], dtype=np.int64)
    names = {"all segments with their padding": lengths, "all rows": widths}
    texts = [
        f"{name} are multiples of {multiple}"
        for name, sizes in names.items()
        if (multiple := common_multiple(sizes)) > 1
    ]
    return Line("alignment", ", ".join(texts) or "lengths have no common multiple", Evidence.SEEN)


def notes_of(views: Sequence[BatchView]) -> Iterator[str]:
    """Yield the text of the first segments, with the trained text in ``«…»``."""
    view = views[0]
    if view.facts.tokenizer is None or not hasattr(view.facts.tokenizer, "decode"):
        return
    for index, (row, start, stop) in enumerate(view.segments[:_SEGMENTS_SHOWN]):
        yield f"segment {index} (row {row}, {start:,} to {stop:,}): {_marked_text(view, index)}"


def _marked_text(view: BatchView, segment: int) -> str:
    """Return the beginning and the end of a segment's text, with the trained parts marked."""
    starts, stops = (bound[segment] for bound in view.bounds)
    tokens = np.arange(starts, stops)
    shown = [tokens]
    if len(tokens) > _TOKENS_SHOWN:
        shown = [tokens[: _TOKENS_SHOWN // 2], tokens[-_TOKENS_SHOWN // 2 :]]
    return " … ".join(_text(view, part) for part in shown)


def _text(view: BatchView, tokens: Int64Array) -> str:
    trained = view.is_predicted[tokens]
    runs = np.split(tokens, np.flatnonzero(np.diff(trained)) + 1)
    texts = []
    for run in runs:
        text = str(view.facts.tokenizer.decode(view.tokens[run].tolist()))
        texts.append(f"«{text}»" if view.is_predicted[run[0]] else text)
    return "".join(texts).replace("\n", "⏎")
