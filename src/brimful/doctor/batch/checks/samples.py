"""Samples: is each one that was given in the batches, once, whole, and alone in its segment?"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from brimful.base.checks import check_type
from brimful.base.typing import IGNORE_INDEX, BoolArray, Int64Array
from brimful.base.wording import counted, first_few
from brimful.doctor.batch.view import BatchView
from brimful.doctor.batch.words import as_array
from brimful.doctor.report import Finding, suspect, wrong

_TOPIC = "samples"


class SampleAlone(NamedTuple):
    """A sample as the caller gave it.

    Attributes:
        number: its place in the list.
        ids: ``int64[n]``.
        trained: ``bool[n]``, true at tokens that are targets; None if the caller did not say.
    """

    number: int
    ids: Int64Array
    trained: BoolArray | None


def samples_alone(samples: Sequence[Any]) -> list[SampleAlone]:
    """Return the samples of a caller: lists of tokens, or mappings with ``input_ids``.

    Targets are read from ``labels`` (not shifted), ``completion_mask`` or ``loss_mask``.

    Raises:
        WrongTypeError: a sample is neither.
    """
    result = []
    for number, sample in enumerate(samples):
        ids = as_array(sample["input_ids"] if isinstance(sample, Mapping) else sample)
        if ids is None or ids.ndim != 1 or ids.dtype.kind not in "iu":
            check_type("a sample", sample, (), "a list of tokens, or a mapping with input_ids")
        assert ids is not None
        result.append(SampleAlone(number, ids.astype(np.int64), _trained(sample)))
    return result


def _trained(sample: Any) -> BoolArray | None:
    if not isinstance(sample, Mapping):
        return None
    if (labels := as_array(sample.get("labels"))) is not None:
        return np.asarray(labels != IGNORE_INDEX)
    for name in ("completion_mask", "loss_mask", "assistant_masks"):
        if (mask := as_array(sample.get(name))) is not None:
            return np.asarray(mask != 0)
    return None


class _Piece(NamedTuple):
    """Tokens of a segment, and where they are."""

    view: BatchView
    start: int
    stop: int

    @property
    def ids(self) -> Int64Array:
        return self.view.tokens[self.start : self.stop]

    @property
    def place(self) -> str:
        return self.view.place(self.start)


def check_number(views: Sequence[BatchView], number: int) -> Iterator[Finding]:
    """Compare the number of segments in all batches with the number of samples."""
    segments = sum(len(view.segments) for view in views)
    detail = (
        f"{counted(number, 'sample')} were given, and the batches have "
        f"{counted(segments, 'segment')}: "
    )
    if segments < number:
        detail += f"{number - segments:,} samples are missing, or merged with others"
        yield wrong(_TOPIC, "samples_lost", detail)
    elif segments > number:
        detail += "samples are cut, or come more than once"
        yield suspect(_TOPIC, "samples_repeated", detail)


def check_samples(views: Sequence[BatchView], samples: list[SampleAlone]) -> Iterator[Finding]:
    """Look for each sample in the segments of all batches.

    ::

        samples    a a a · b b · c c c c · d          segments   a a a b b | c c | c c
        merged     a and b, in one segment            cut        c, in two
        missing    d
    """
    pieces = [
        _Piece(view, start, stop)
        for view in views
        for start, stop in zip(*(bound.tolist() for bound in view.bounds), strict=True)
    ]
    places, pieces = _whole(pieces, samples)
    open_samples = [sample for sample in samples if sample.number not in places]
    groups, pieces = _merged(pieces, open_samples)
    numbers = set(chain(*groups))
    open_samples = [sample for sample in open_samples if sample.number not in numbers]
    parts = _parts(pieces, open_samples)
    yield from _tell_merged(groups)
    yield from _tell_parts(parts, samples)
    losses = [sample.number for sample in open_samples if sample.number not in parts]
    if losses:
        yield wrong(
            _TOPIC,
            "samples_lost",
            f"{counted(len(losses), 'sample')} of {len(samples):,} are not in the batches: "
            f"{first_few(losses, len(losses))}",
        )
    yield from _tell_repeats(places, samples)
    yield from _tell_targets(places, samples)


def _by_tokens(samples: list[SampleAlone]) -> dict[bytes, list[int]]:
    """Return the numbers of the samples by their tokens."""
    numbers: dict[bytes, list[int]] = {}
    for sample in samples:
        numbers.setdefault(sample.ids.tobytes(), []).append(sample.number)
    return numbers


def _whole(
    pieces: list[_Piece], samples: list[SampleAlone]
) -> tuple[dict[int, list[_Piece]], list[_Piece]]:
    """Return the segments that are a whole sample, by its number, and the other segments.

    Samples of the same tokens take segments in turn; further segments are repeats of the last one.
    """
    numbers, lengths = _by_tokens(samples), {len(sample.ids) for sample in samples}
    counts: Counter[bytes] = Counter()
    places: dict[int, list[_Piece]] = {}
    remainder = []
    for piece in pieces:
        variants = (part for part in _variants(piece) if part.stop - part.start in lengths)
        part = next((part for part in variants if part.ids.tobytes() in numbers), None)
        if part is None:
            remainder.append(piece)
            continue
        key = part.ids.tobytes()
        twins = numbers[key]
        places.setdefault(twins[min(counts[key], len(twins) - 1)], []).append(part)
        counts[key] += 1
    return places, remainder


def _variants(piece: _Piece) -> Iterator[_Piece]:
    """Yield a segment as it is, then without the tokens that a trainer may add to a sample, then
    with the equal tokens at the end of its row.

    Added are BOS, EOS, and padding of the gap after a sample. Equal tokens that nothing marks as
    padding may be the end of a sample.
    """
    view, start, end = piece
    tokens, facts, width = view.tokens, view.facts, view.shape[1]
    row_end = (start // width + 1) * width
    first_stop = last_stop = end
    while first_stop > start + 1 and tokens[first_stop - 1] in (*facts.eos, *facts.pad, 0):
        first_stop -= 1
    if not view.marked_padding.reshape(-1)[end:row_end].any():
        while last_stop < row_end and tokens[last_stop] == tokens[row_end - 1]:
            last_stop += 1
    starts = [start, start + 1] if tokens[start] in facts.bos else [start]
    for stop in (*range(end, first_stop - 1, -1), *range(end + 1, last_stop + 1)):
        yield from (_Piece(view, first, stop) for first in starts if first < stop)


def _merged(
    pieces: list[_Piece], samples: list[SampleAlone]
) -> tuple[list[list[int]], list[_Piece]]:
    """Return the samples in each segment that holds some and other tokens, and the other
    segments. Where several samples fit, the longest one stands.
    """
    numbers = _by_tokens(samples)
    lengths = sorted({len(sample.ids) for sample in samples}, reverse=True)
    # Samples are sought only where the first two tokens of one stand.
    pairs = [_pairs(sample.ids)[0] for sample in samples if len(sample.ids) > 1]
    single_tokens = [sample.ids[0] for sample in samples if len(sample.ids) == 1]
    groups: list[list[int]] = []
    remainder = []
    for piece in pieces:
        ids, stop = piece.ids, 0
        group: list[int] = []
        places = np.flatnonzero(np.isin(_pairs(ids), pairs) | np.isin(ids, single_tokens))
        for place in places.tolist():
            if place < stop:
                continue
            texts = (ids[place : place + length].tobytes() for length in lengths)
            text = next((text for text in texts if numbers.get(text)), None)
            if text is not None:
                group.append(numbers[text].pop(0))
                stop = place + len(text) // ids.itemsize
        if group:
            groups.append(group)
        else:
            remainder.append(piece)
    return groups, remainder


def _pairs(ids: Int64Array) -> Int64Array:
    """Return each token and the next one as one number: ``int64[n]``."""
    return np.asarray((ids << 32) + np.append(ids[1:], -1), dtype=np.int64)


def _parts(pieces: list[_Piece], samples: list[SampleAlone]) -> dict[int, list[_Piece]]:
    """Return the segments that are a part of a sample, by its number."""
    if not samples:
        return {}
    # All samples in one array, -1 after each: one search finds a segment in any of them.
    ends = np.cumsum([len(sample.ids) + 1 for sample in samples])
    text = np.concatenate([np.append(sample.ids, -1) for sample in samples]).tobytes()
    parts: dict[int, list[_Piece]] = {}
    for piece in pieces:
        place = _place_in(text, piece.ids)
        if place >= 0:
            sample = samples[int(np.searchsorted(ends, place, side="right"))]
            parts.setdefault(sample.number, []).append(piece)
    return parts


def _place_in(text: bytes, ids: Int64Array) -> int:
    """Return the first place of some tokens in the bytes of an array; -1 without one."""
    part, size = ids.tobytes(), ids.itemsize
    place = text.find(part)
    while place >= 0 and place % size:
        place = text.find(part, place + 1)
    return place // size if place >= 0 else -1


def _tell_merged(groups: list[list[int]]) -> Iterator[Finding]:
    several = [numbers for numbers in groups if len(numbers) > 1]
    if several:
        number = sum(map(len, several))
        yield wrong(
            "isolation",
            "boundaries_missing",
            f"{counted(number, 'sample')} share {counted(len(several), 'segment')}: samples "
            f"{first_few(several[0], len(several[0]))} are in one, without a boundary between them",
            "boundaries between all samples of a row",
        )
    single = [numbers[0] for numbers in groups if len(numbers) == 1]
    if single:
        yield suspect(
            _TOPIC,
            "samples_cut",
            f"{counted(len(single), 'sample')} stand in a segment with other tokens, which belong "
            f"to no sample that was given: {first_few(single, len(single))}",
        )


def _tell_parts(parts: dict[int, list[_Piece]], samples: list[SampleAlone]) -> Iterator[Finding]:
    split = {number: own for number, own in parts.items() if len(own) > 1}
    cut = {number: own for number, own in parts.items() if len(own) == 1}
    if split:
        number, own = next(iter(split.items()))
        yield wrong(
            "isolation",
            "boundaries_guessed",
            f"{counted(len(split), 'sample')} are cut into several segments: sample {number} of "
            f"{counted(len(samples[number].ids), 'token')} into {len(own)}, the first at "
            f"{own[0].place}",
            "take boundaries from the lengths of samples, not from a token",
        )
    if cut:
        number, (piece, *_) = next(iter(cut.items()))
        yield wrong(
            _TOPIC,
            "samples_cut",
            f"{counted(len(cut), 'sample')} are in the batches in part: sample {number} of "
            f"{counted(len(samples[number].ids), 'token')} with {len(piece.ids):,} of them, at "
            f"{piece.place}",
        )


def _tell_repeats(places: dict[int, list[_Piece]], samples: list[SampleAlone]) -> Iterator[Finding]:
    repeats = {number: len(own) for number, own in places.items() if len(own) > 1}
    if repeats:
        number, count = next(iter(repeats.items()))
        yield wrong(
            _TOPIC,
            "samples_repeated",
            f"{counted(len(repeats), 'sample')} of {len(samples):,} come more than once: sample "
            f"{number} {count} times",
        )


def _tell_targets(places: dict[int, list[_Piece]], samples: list[SampleAlone]) -> Iterator[Finding]:
    """Compare what is trained in each sample with what its labels say."""
    more: Counter[int] = Counter()
    less: Counter[int] = Counter()
    for number, (piece, *_) in places.items():
        trained = samples[number].trained
        if trained is None or not piece.view.has_labels:
            continue
        actual = piece.view.is_predicted[piece.start : piece.stop][1 : len(trained)]
        more[number] = int((actual & ~trained[1:]).sum())
        less[number] = int((~actual & trained[1:]).sum())
    for counts, text in ((+more, "trained, and not in"), (+less, "not trained, and are in")):
        if counts:
            number, count = counts.most_common(1)[0]
            yield wrong(
                "targets",
                "wrong_targets",
                f"{counted(sum(counts.values()), 'token')} of {counted(len(counts), 'sample')} are "
                f"{text} the labels of the samples alone: {count} of sample {number}",
            )
