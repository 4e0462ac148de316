"""Boundaries: do they fit the row, each other, and the tokens?"""

from collections.abc import Iterator

import numpy as np

from brimful.base.ragged import offsets_of
from brimful.base.typing import Int64Array
from brimful.base.wording import counted
from brimful.doctor.batch.checks.case import BatchCase, suspect, wrong
from brimful.doctor.batch.claims import (
    Claim,
    counts_real_tokens,
    is_boundary_mask,
    rows_of_boundaries,
    rows_of_lengths,
)
from brimful.doctor.batch.words import Role
from brimful.doctor.report import Finding

_TOPIC = "isolation"


def check_ends(case: BatchCase) -> Iterator[Finding]:
    """Compare where boundaries begin and end with the row.

    Boundaries may leave out padding. They may not leave out tokens that are trained, or that
    differ, as padding does not.
    """
    rows, width = case.view.shape
    for word in case.view.words_with(Role.BOUNDARIES, Role.LENGTHS):
        if word.role is Role.BOUNDARIES:
            lists = rows_of_boundaries(word)
        else:
            lengths = rows_of_lengths(word, case.view.shape)
            lists = None if lengths is None else [offsets_of(row) for row in lengths]
        if lists is None or counts_real_tokens(word, case.view.words):
            continue
        size = rows * width if len(lists) == 1 else width
        for number, boundaries in enumerate(lists):
            if problem := _problem_of_ends(boundaries, size, case, number * width):
                yield wrong(_TOPIC, "boundaries_short", f"{word}{_row(lists, number)} {problem}")
                break


def _row(lists: list[Int64Array], number: int) -> str:
    return f" of row {number}" if len(lists) > 1 else ""


def _problem_of_ends(boundaries: Int64Array, size: int, case: BatchCase, offset: int) -> str:
    """Return what is wrong with the ends of boundaries, in words; empty if nothing is."""
    if not len(boundaries):
        return "is empty: attention gets no boundaries at all"
    if (np.diff(boundaries) < 0).any():
        return f"falls: {_few(boundaries)} is no running sum of lengths"
    first, last = int(boundaries[0]), int(boundaries[-1])
    if first > 0 and _holds_tokens(case, offset, offset + first):
        return f"begins at {first:,}: the tokens before belong to no sample"
    if last > size:
        return f"ends at {last:,}, and the row has {size:,} tokens"
    if last < size and _holds_tokens(case, offset + last, offset + size):
        return (
            f"ends at {last:,}, and the {counted(size - last, 'token')} after it are not padding: "
            f"they belong to no sample (row of {size:,}, {size / max(last, 1):.2f} times as long)"
        )
    return ""


def _holds_tokens(case: BatchCase, start: int, stop: int) -> bool:
    """Return whether tokens between two places are more than padding."""
    part = slice(start, min(stop, case.view.ids.size))
    marked = case.view.marked_padding.reshape(-1)[part]
    ids = case.ids[part][~marked]
    trained = case.is_target[part][~marked]
    return bool(len(ids)) and (bool(trained.any()) or bool((ids != ids[-1]).any()))


def check_end_marks(case: BatchCase) -> Iterator[Finding]:
    """Check that ``cu_seqlens_argmin`` is where the boundaries end.

    Readers of such batches cut the boundaries there. Without it they take the place of the least
    number, which is the 0 at the beginning unless a −1 follows the boundaries.
    """
    marks = {word.name: word for word in case.view.words_with(Role.END_MARK)}
    for word in case.view.words_with(Role.BOUNDARIES):
        array = word.array
        if array is None or array.dtype == object or not array.size:
            continue
        mark = marks.get(f"{word.name}_argmin")
        rows = np.atleast_2d(array)
        ends = [int(np.argmax(row < 0)) if (row < 0).any() else len(row) for row in rows]
        has_end = bool((array < 0).any())
        if mark is not None and mark.array is not None and mark.array.size == len(ends):
            cuts = mark.array.reshape(-1).tolist()
            if cuts != ends:
                yield wrong(
                    _TOPIC,
                    "boundaries_short",
                    f"{mark} is {cuts[0]:,}, and {word} ends at place {ends[0]:,}: readers cut the "
                    f"boundaries to {_few(np.atleast_2d(array)[0][: cuts[0]])}",
                    f"{mark}: {ends[0]}",
                )
        elif marks and mark is None and not has_end:
            yield wrong(
                _TOPIC,
                "boundaries_short",
                f"{next(iter(marks))} is in the batch and {word.name}_argmin is not: readers take "
                f"the place of the least number of {word}, the 0 at the beginning, and no "
                "boundary remains",
                f"{word.name}_argmin: {ends[0]}",
                "https://github.com/NVIDIA-NeMo/Megatron-Bridge/pull/4400",
            )


def check_agreement(case: BatchCase) -> Iterator[Finding]:
    """Compare all claims of a batch with the one that attention obeys first.

    Positions that run on through the row, and a mask without documents, have checks of their own.
    """
    believed = case.view.believed
    expected = case.inner_starts(believed)
    for claim in case.view.claims:
        starts = case.inner_starts(claim)
        is_silent = claim.role in (Role.POSITIONS, Role.MASK) and not len(starts)
        if claim.word == believed.word or is_silent or np.array_equal(starts, expected):
            continue
        other = np.setdiff1d(starts, expected), np.setdiff1d(expected, starts)
        where = np.union1d(*other)
        yield wrong(
            _TOPIC,
            "boundaries_short",
            f"{believed.word} and {claim.word} contradict each other at "
            f"{counted(len(where), 'place')}: {_versus(case, believed, claim, *other)}",
        )


def _versus(
    case: BatchCase,
    believed: Claim,
    claim: Claim,
    only_claim: Int64Array,
    only_believed: Int64Array,
) -> str:
    parts = [
        f"{word} begins a sample at {case.places(tokens)}"
        for word, tokens in ((believed.word, only_believed), (claim.word, only_claim))
        if len(tokens)
    ]
    return ", ".join(parts)


def check_rows(case: BatchCase) -> Iterator[Finding]:
    """Check that boundaries of the whole batch have the beginning of each row."""
    rows, width = case.view.shape
    for word in case.view.words_with(Role.BOUNDARIES):
        lists = rows_of_boundaries(word)
        if (
            lists is None
            or len(lists) != 1
            or rows == 1
            or counts_real_tokens(word, case.view.words)
        ):
            continue
        boundaries = lists[0]
        inner = case.row_starts[1:]
        # Boundaries of one row alone end with it, which ``check_ends`` tells.
        if len(boundaries) and int(boundaries[-1]) > width:
            missing = np.setdiff1d(inner, boundaries)
            if len(missing):
                yield wrong(
                    _TOPIC,
                    "boundaries_short",
                    f"{word} has no boundary where {case.place(missing[0])} begins: kernels see "
                    f"the {rows} rows as one, and a sample goes on in the next row",
                )


def check_longest(case: BatchCase) -> Iterator[Finding]:
    """Check that the longest segment that a kernel is told is as long as the longest there is."""
    claim = case.view.believed
    if claim.role is not Role.BOUNDARIES:
        return
    longest = int((claim.stops - claim.starts).max())
    for word in case.view.words_with(Role.LONGEST):
        if word.array is not None and word.array.size and int(word.array.max()) < longest:
            yield wrong(
                _TOPIC,
                "boundaries_short",
                f"{word} is {int(word.array.max()):,}, and the longest segment has {longest:,} "
                "tokens: kernels leave out its end",
                f"{word}: {longest}",
            )


def check_boundary_mask(case: BatchCase) -> Iterator[Finding]:
    """Tell of an ``attention_mask`` that holds boundaries."""
    for word in case.view.words_with(Role.MASK):
        if is_boundary_mask(word, case.view.shape):
            assert word.array is not None
            yield suspect(
                _TOPIC,
                "mask_is_boundaries",
                f"{word} holds the boundaries {_few(word.array.astype(np.int64))}, where models "
                "expect one value for each token",
                "pass them as cu_seq_lens_q and cu_seq_lens_k, and no attention_mask",
            )


def _few(values: Int64Array) -> str:
    text = ", ".join(map(str, values[:6].tolist()))
    return f"[{text}{', …' if len(values) > 6 else ''}]"
