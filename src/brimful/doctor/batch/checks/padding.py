"""Padding: how much of it, and does any of it count as a sample?"""

from collections.abc import Iterator, Sequence

import numpy as np

from brimful.base.typing import BoolArray, Int64Array
from brimful.base.wording import counted, percent
from brimful.doctor.batch.run_facts import WITHOUT_PADDING
from brimful.doctor.batch.view import BatchView
from brimful.doctor.batch.words import Role
from brimful.doctor.report import Finding, wrong

_LEAST_RUN = 2
"""Tokens of padding that begin a segment by mistake; one may be a token of the sample."""


def check_packing(views: Sequence[BatchView]) -> Iterator[Finding]:
    """Check that batches of a run that asked for packing are not padded rows of one sample each.

    Packs of long samples may be such rows, but then no two samples fit into one.
    """
    asked = views[0].facts.packing
    if not asked or not (asked == WITHOUT_PADDING or any(map(_has_room, views))):
        return
    rows = sum(view.shape[0] for view in views)
    segments = sum(len(view.segments) for view in views)
    positions = sum(view.ids.size for view in views)
    tokens = sum(view.num_tokens for view in views)
    if segments <= rows and rows > 1 and tokens < positions and not views[0].is_nested:
        shape = list(views[0].shape)
        yield wrong(
            "packing",
            "packing_off",
            f"{asked} is on, and the batch of shape {shape} has one sample in each row: "
            f"{percent(tokens / positions)} of its positions are tokens, the others padding",
            f"find what replaced the collator or the data of {asked}",
        )


def _has_room(view: BatchView) -> bool:
    """Return whether the two shortest samples of a batch fit into one row."""
    starts, stops = view.bounds
    room = max(view.shape[1], view.facts.max_length)
    return len(starts) > 1 and int(np.sort(stops - starts)[:2].sum()) <= room


def check_padding_segments(view: BatchView) -> Iterator[Finding]:
    """Check that no padding is a part of a sample, or a sample of its own before others.

    At the end of a row padding may be one segment or several: nothing is computed for each segment,
    but in batches of pairs.
    """
    starts, stops = view.bounds
    if not view.padding_tokens or not len(starts):
        return
    is_pad = np.isin(view.tokens, view.padding_tokens) & ~view.is_predicted
    run = _run_lengths(is_pad)[starts]
    run = np.minimum(run, stops - starts)
    begins = np.flatnonzero(run >= _LEAST_RUN)
    if len(begins):
        first = int(begins[0])
        length = int(stops[first] - starts[first])
        is_whole = int(run[first]) == length
        yield wrong(
            "samples",
            "padding_as_samples",
            f"the segment of {view.believed.word} at {view.place(starts[first])} "
            f"{'is' if is_whole else 'begins with'} {counted(int(run[first]), 'token')} of padding "
            f"({view.tokens[starts[first]]}){'' if is_whole else f' out of {length:,}'}; {len(begins)} of {len(starts)} "
            "segments are like it",
            "leave padding out of the boundaries, or make it a segment after all samples",
        )


def check_pairs(views: Sequence[BatchView]) -> Iterator[Finding]:
    """Check that chosen and rejected answers have as many segments, none of them of padding.

    Sums of log probabilities are made for each segment of the boundaries.
    """
    halves = {view.prefix: view for view in views if view.prefix in ("chosen_", "rejected_")}
    if len(halves) < 2:
        return
    numbers = {prefix: len(view.segments) for prefix, view in halves.items()}
    for prefix, view in halves.items():
        claim = view.believed
        if claim.role is not Role.BOUNDARIES:
            continue
        counted_places = _places_of_boundaries(view)
        if counted_places > numbers[prefix]:
            yield wrong(
                "samples",
                "padding_as_samples",
                f"{claim.word} has {counted(counted_places, 'segment')}, and "
                f"{numbers[prefix]} of them hold a sample: the others are padding",
                f"end {claim.word} with the last sample",
            )
    if len(set(numbers.values())) > 1:
        yield wrong(
            "samples",
            "samples_lost",
            "chosen and rejected answers do not pair: "
            + " and ".join(f"{number} of {prefix[:-1]}" for prefix, number in numbers.items()),
        )


def _places_of_boundaries(view: BatchView) -> int:
    """Return the number of places that the believed boundaries have, padding included."""
    word = next(word for word in view.words if str(word) == view.believed.word)
    assert word.array is not None
    return int((np.diff(word.array.reshape(-1)) > 0).sum())


def _run_lengths(mask: BoolArray) -> Int64Array:
    """Return for each place the number of true values from there on without a gap."""
    index = np.arange(len(mask) + 1)
    # The next false value after each place.
    ends = np.where(np.append(mask, False), len(mask), index)
    ends = np.minimum.accumulate(ends[::-1])[::-1]
    return (ends - index)[:-1]
