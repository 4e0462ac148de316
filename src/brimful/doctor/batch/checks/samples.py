"""Samples: is each one that was given in the batches, once, whole, and alone in its segment?"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from brimful.base.checks import check_type
from brimful.base.typing import IGNORE_INDEX, BoolArray, Int64Array
from brimful.base.wording import counted, first_few
from brimful.doctor.batch.run_facts import RunFacts
from brimful.doctor.batch.view import BatchView
from brimful.doctor.batch.words import as_array
from brimful.doctor.report import Finding, suspect, wrong

_TOPIC = "samples"

_KEY = 8
"""First tokens by which samples are looked up inside a segment."""


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
    if segments < number:
        yield wrong(
            _TOPIC,
            "samples_lost",
            f"{counted(number, 'sample')} were given, and the batches have "
            f"{counted(segments, 'segment')}: {number - segments:,} samples are missing, or merged "
            "with others",
        )
    elif segments > number:
        yield suspect(
            _TOPIC,
            "samples_repeated",
            f"{counted(number, 'sample')} were given, and the batches have "
            f"{counted(segments, 'segment')}: samples are cut, or come more than once",
        )


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
    places, remainder = _whole(pieces, samples, views[0].facts)
    open_samples = [sample for sample in samples if sample.number not in places]
    merged, remainder = _merged(remainder, open_samples)
    placed = places.keys() | {number for numbers in merged.values() for number in numbers}
    open_samples = [sample for sample in open_samples if sample.number not in placed]
    parts = _parts(remainder, open_samples)
    yield from _tell_merged(merged)
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


def _whole(
    pieces: list[_Piece], samples: list[SampleAlone], facts: RunFacts
) -> tuple[dict[int, list[_Piece]], list[_Piece]]:
    """Return the segments that are a whole sample, by its number, and the other segments.

    Samples of the same tokens take segments in turn; further segments are repeats of the last one.
    """
    numbers: dict[bytes, list[int]] = {}
    for sample in samples:
        numbers.setdefault(sample.ids.tobytes(), []).append(sample.number)
    lengths = {len(sample.ids) for sample in samples}
    own_pieces: dict[bytes, list[_Piece]] = {}
    remainder = []
    for piece in pieces:
        variants = (part for part in _variants(piece, facts) if len(part.ids) in lengths)
        part = next((part for part in variants if part.ids.tobytes() in numbers), None)
        if part is None:
            remainder.append(piece)
        else:
            own_pieces.setdefault(part.ids.tobytes(), []).append(part)
    places: dict[int, list[_Piece]] = {}
    for key, own in own_pieces.items():
        twins = numbers[key]
        for index, piece in enumerate(own):
            places.setdefault(twins[min(index, len(twins) - 1)], []).append(piece)
    return places, remainder


def _variants(piece: _Piece, facts: RunFacts) -> Iterator[_Piece]:
    """Yield a segment as it is, then without the tokens that a trainer may add to a sample, then
    with the equal tokens at the end of its row.

    Added are BOS, EOS, and padding of the gap after a sample. Equal tokens that nothing marks as
    padding may be the end of a sample.
    """
    additions = {*facts.eos, *facts.pad, 0}
    ids = piece.ids.tolist()
    starts = [0, 1] if ids[0] in facts.bos else [0]
    stop = len(ids)
    while True:
        for start in starts:
            if start < stop:
                yield _Piece(piece.view, piece.start + start, piece.start + stop)
        if not stop or ids[stop - 1] not in additions:
            break
        stop -= 1
    view, width = piece.view, piece.view.shape[1]
    row_end = (piece.start // width + 1) * width
    if not view.marked_padding.reshape(-1)[piece.stop : row_end].any():
        for stop in range(piece.stop + 1, row_end + 1):
            if piece.view.tokens[stop - 1] != piece.view.tokens[row_end - 1]:
                return
            yield _Piece(piece.view, piece.start, stop)


def _merged(
    pieces: list[_Piece], samples: list[SampleAlone]
) -> tuple[dict[int, list[int]], list[_Piece]]:
    """Return the samples in each segment that holds several, by the index of the segment, and the
    segments that do not.
    """
    by_key: dict[bytes, list[SampleAlone]] = {}
    for sample in samples:
        by_key.setdefault(sample.ids[:_KEY].tobytes(), []).append(sample)
    sizes = sorted({min(_KEY, len(sample.ids)) for sample in samples}, reverse=True)
    merged: dict[int, list[int]] = {}
    remainder = []
    numbers_used: set[int] = set()
    # Samples are sought only where the first two tokens of one stand.
    keys = [_pairs(sample.ids)[0] for sample in samples if len(sample.ids) > 1]
    single_tokens = [sample.ids[0] for sample in samples if len(sample.ids) == 1]
    for index, piece in enumerate(pieces):
        ids, stop = piece.ids, 0
        numbers: list[int] = []
        places = np.flatnonzero(np.isin(_pairs(ids), keys) | np.isin(ids, single_tokens))
        for place in places.tolist():
            whole = None if place < stop else _sample_at(ids, place, by_key, sizes, numbers_used)
            if whole is not None:
                numbers_used.add(whole.number)
                numbers.append(whole.number)
                stop = place + len(whole.ids)
        if numbers:
            merged[index] = numbers
        else:
            remainder.append(piece)
    return merged, remainder


def _pairs(ids: Int64Array) -> Int64Array:
    """Return each token and the next one as one number: ``int64[n]``."""
    return np.asarray((ids << 32) + np.append(ids[1:], -1), dtype=np.int64)


def _sample_at(
    ids: Int64Array,
    position: int,
    by_key: dict[bytes, list[SampleAlone]],
    sizes: list[int],
    numbers_used: set[int],
) -> SampleAlone | None:
    """Return the longest sample whose tokens stand at a place of a segment; None without one."""
    candidates = [
        sample
        for size in sizes
        for sample in by_key.get(ids[position : position + size].tobytes(), ())
        if sample.number not in numbers_used
        and np.array_equal(ids[position : position + len(sample.ids)], sample.ids)
    ]
    return max(candidates, key=lambda sample: len(sample.ids), default=None)


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


def _tell_merged(merged: dict[int, list[int]]) -> Iterator[Finding]:
    several = [numbers for numbers in merged.values() if len(numbers) > 1]
    if several:
        number = sum(map(len, several))
        yield wrong(
            "isolation",
            "boundaries_missing",
            f"{counted(number, 'sample')} share {counted(len(several), 'segment')}: samples "
            f"{first_few(several[0], len(several[0]))} are in one, without a boundary between them",
            "boundaries between all samples of a row",
        )
    single = [numbers[0] for numbers in merged.values() if len(numbers) == 1]
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
