"""Boundaries: do they fit the row, each other, and the tokens?"""

from collections.abc import Iterator

import numpy as np

from brimful.base.typing import Int64Array
from brimful.base.wording import counted
from brimful.doctor.batch.claims import (
    counts_real_tokens,
    is_boundary_mask,
    rows_of_boundaries,
    running_sums,
)
from brimful.doctor.batch.view import BatchView
from brimful.doctor.batch.words import Role
from brimful.doctor.report import Finding, suspect, wrong

_TOPIC = "isolation"
_SHORT = "boundaries_short"


def check_ends(view: BatchView) -> Iterator[Finding]:
    """Compare the ends of boundaries, and sums of lengths, with the row.

    They may leave out padding. They may not leave out tokens that are trained, or that differ.
    """
    num_rows, width = view.shape
    for word in view.words_with(Role.BOUNDARIES, Role.LENGTHS):
        rows = running_sums(word, view.shape)
        if rows is None or counts_real_tokens(word, view.words):
            continue
        size = num_rows * width if len(rows) == 1 else width
        for number, boundaries in enumerate(rows):
            if problem := _problem_of_ends(boundaries, size, view, number * width):
                row = f" of row {number}" if len(rows) > 1 else ""
                yield wrong(_TOPIC, _SHORT, f"{word}{row} {problem}")
                break


def _problem_of_ends(boundaries: Int64Array, size: int, view: BatchView, offset: int) -> str:
    """Return the problem of the ends of boundaries, in words; empty without one.

    Args:
        boundaries: of one row, or of the whole batch.
        size: tokens that they have to cover.
        view: the batch.
        offset: first token of the row in the flattened batch.
    """
    if not len(boundaries):
        return "is empty: attention gets no boundaries at all"
    if (np.diff(boundaries) < 0).any():
        return f"falls: {_first_few(boundaries)} is not a running sum of lengths"
    first, last = int(boundaries[0]), int(boundaries[-1])
    if first > 0 and _has_tokens(view, offset, offset + first):
        return f"begins at {first:,}: the tokens before belong to no sample"
    if last > size:
        return f"ends at {last:,}, and the row has {size:,} tokens"
    if last < size and _has_tokens(view, offset + last, offset + size):
        return (
            f"ends at {last:,}, and the {counted(size - last, 'token')} after it are not padding "
            f"(the row of {size:,} is {size / max(last, 1):.2f} times as long)"
        )
    return ""


def _has_tokens(view: BatchView, start: int, stop: int) -> bool:
    """Return whether tokens between two places are more than padding."""
    part = slice(start, min(stop, view.ids.size))
    is_open = ~view.marked_padding.reshape(-1)[part]
    ids = view.tokens[part][is_open]
    return len(ids) > 0 and bool(view.is_target[part][is_open].any() or (ids != ids[-1]).any())


def check_end_marks(view: BatchView) -> Iterator[Finding]:
    """Check that ``cu_seqlens_argmin`` is the place at which the boundaries end.

    Readers of such batches cut the boundaries there. Without it they take the place of the least
    number, which is the 0 at the beginning unless a −1 follows the boundaries.
    """
    marks = {word.name: word for word in view.words_with(Role.END_MARK)}
    families = {_family(name.removesuffix("_argmin")) for name in marks}
    for word in view.words_with(Role.BOUNDARIES):
        array = word.array
        if array is None or array.dtype == object or not array.size:
            continue
        if _family(word.name) not in families:
            continue
        row = np.atleast_2d(array)[0]
        # A number below 0 ends them, or the array does.
        end = int(np.argmax(np.append(row < 0, True)))
        name = f"{word.name}_argmin"
        mark = marks.get(name)
        if mark is None and end == len(row):
            yield wrong(
                _TOPIC,
                _SHORT,
                f"{next(iter(marks))} is in the batch and {name} is not: readers take the place "
                f"of the least number of {word}, the 0 at the beginning, and no boundary remains",
                f"{name}: {end}",
                "https://github.com/NVIDIA-NeMo/Megatron-Bridge/pull/4400",
            )
        elif mark is not None and mark.array is not None and mark.array.size:
            place = int(mark.array.reshape(-1)[0])
            if place != end:
                yield wrong(
                    _TOPIC,
                    _SHORT,
                    f"{mark} is {place}, and {word} ends at place {end}: readers cut it to "
                    f"{_first_few(row[:place])}",
                    f"{name}: {end}",
                )


def _family(name: str) -> str:
    """Return the name that boundaries with and without padding share."""
    return name.removesuffix("_unpadded").removesuffix("_padded")


def check_agreement(view: BatchView) -> Iterator[Finding]:
    """Compare all claims of a batch with the one that attention obeys first.

    Positions that run on through the row, and a mask without documents, have checks of their own.
    """
    believed = view.believed
    own_starts = view.inner_starts(believed)
    for claim in view.claims:
        starts = view.inner_starts(claim)
        is_mute = claim.role in (Role.POSITIONS, Role.MASK) and not len(starts)
        if claim.word == believed.word or is_mute or np.array_equal(starts, own_starts):
            continue
        differences = (
            (believed.word, np.setdiff1d(own_starts, starts)),
            (claim.word, np.setdiff1d(starts, own_starts)),
        )
        number = sum(len(tokens) for _, tokens in differences)
        texts = [
            f"{word} begins a sample at {view.places(tokens)}"
            for word, tokens in differences
            if len(tokens)
        ]
        yield wrong(
            _TOPIC,
            _SHORT,
            f"{believed.word} and {claim.word} contradict each other at "
            f"{counted(number, 'place')}: {', '.join(texts)}",
        )


def check_rows(view: BatchView) -> Iterator[Finding]:
    """Check that boundaries of the whole batch have one at the beginning of each row."""
    num_rows, width = view.shape
    for word in view.words_with(Role.BOUNDARIES):
        rows = rows_of_boundaries(word)
        if num_rows == 1 or rows is None or len(rows) != 1:
            continue
        # Boundaries that end with the first row are too short, which ``check_ends`` tells.
        if not len(rows[0]) or int(rows[0][-1]) <= width:
            continue
        if counts_real_tokens(word, view.words):
            continue
        gaps = np.setdiff1d(view.row_starts[1:], rows[0])
        if len(gaps):
            yield wrong(
                _TOPIC,
                _SHORT,
                f"{word} has no boundary at {view.place(gaps[0])}: kernels see the {num_rows} rows "
                "as one, and a sample goes on in the next row",
            )


def check_longest(view: BatchView) -> Iterator[Finding]:
    """Check that kernels are told a length that no segment exceeds."""
    claim = view.believed
    if claim.role is not Role.BOUNDARIES:
        return
    longest = int((claim.stops - claim.starts).max())
    for word in view.words_with(Role.LONGEST):
        if word.array is not None and word.array.size and int(word.array.max()) < longest:
            yield wrong(
                _TOPIC,
                _SHORT,
                f"{word} is {int(word.array.max()):,}, and the longest segment has {longest:,} "
                "tokens: kernels leave out its end",
                f"{word}: {longest}",
            )


def check_boundary_mask(view: BatchView) -> Iterator[Finding]:
    """Tell of an ``attention_mask`` that holds boundaries."""
    for word in view.words_with(Role.MASK):
        if word.array is not None and is_boundary_mask(word, view.shape):
            yield suspect(
                _TOPIC,
                "mask_is_boundaries",
                f"{word} holds the boundaries {_first_few(word.array)}, and models expect one "
                "value for each token",
                "pass them as cu_seq_lens_q and cu_seq_lens_k, and no attention_mask",
            )


def _first_few(values: Int64Array) -> str:
    text = ", ".join(map(str, values[:6].tolist()))
    return f"[{text}{', …' if len(values) > 6 else ''}]"
