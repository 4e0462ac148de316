"""Boundaries for kernels: exactly between the samples."""

import numpy as np
import torch

from brimful.base.typing import Int64Array
from brimful.base.wording import counted
from brimful.doctor.batch.claims import counts_real_tokens
from brimful.doctor.batch.words import Role, words_of
from brimful.verify.checks.seen_tokens import check_seen_tokens
from brimful.verify.collated_batch import as_integers
from brimful.verify.setup import PackingSetup
from brimful.verify.verify_report import CheckResult, failed, passed

_MULTIPLES = (128, 64, 32, 16, 8, 4, 2)
"""Numbers of tokens that context parallelism may round lengths to, the largest first: a multiple of
4 is one of 2 too.
"""


def check_boundaries(setup: PackingSetup) -> CheckResult:
    """Check that each sample begins at a boundary, none lies inside one, and ``seq_idx`` changes
    exactly there.

    A CPU run cannot see this: SDPA and eager attention use positions, and only varlen kernels read
    boundaries.
    """
    batch = setup.batch
    if batch.has_trees:
        return check_seen_tokens(setup)
    words = words_of(batch.kwargs)
    boundaries = [
        word
        for word in words
        if word.role is Role.BOUNDARIES and not counts_real_tokens(word, words)
    ]
    keys = list(map(str, boundaries))
    seq_idx = batch.per_token("seq_idx")
    if not keys and seq_idx is None:
        return passed("boundaries", "the batch has none; positions alone mark the samples")
    # Kernels see the rows of a batch as one long row, so boundaries count tokens from the first row
    # on.
    width = batch.ids.shape[1]
    intervals = np.array(
        sorted(
            (place.row * width + place.start, place.row * width + place.stop)
            for _, place in batch.located
        )
    ).reshape(-1, 2)
    starts, stops = intervals.T
    for word in boundaries:
        values = as_integers(word.array).reshape(-1)
        if problem := _boundary_problem(values, starts, stops, batch.ids.size):
            detail, cause = problem
            text = np.array2string(values, threshold=8)
            way_out = (
                "align before packing, so that the aligned length is the planned one; pass the "
                "padded boundaries under their own key"
            )
            return failed("boundaries", f"{word} = {text}; {detail}", cause, way_out)
        if (dtype := getattr(word.value, "dtype", None)) not in (torch.int32, np.int32):
            cause = "flash attention reads 32-bit boundaries"
            return failed("boundaries", f"{word} is {dtype}", cause, f"make {word} torch.int32")
    longest = int((stops - starts).max(initial=0))
    for word in words:
        if word.role is Role.LONGEST and int(as_integers(word.array).max()) < longest:
            return failed(
                "boundaries",
                f"{word} is {as_integers(word.array).max()}, the longest sample has {longest} tokens",
                "the kernel never computes the end of the longest sample",
                f"{word} is the longest difference of the boundaries",
            )
    if seq_idx is None:
        return passed("boundaries", ", ".join(keys))
    numbers = seq_idx.reshape(-1)
    changes = 1 + np.flatnonzero(np.diff(numbers))
    is_constant = not any(((starts < place) & (place < stops)).any() for place in changes)
    if is_constant and (numbers[stops[:-1] - 1] != numbers[starts[1:]]).all():
        return passed("boundaries", ", ".join([*keys, "seq_idx"]))
    cause = (
        "recurrent layers carry their state from one sample into the next, or lose it inside one"
    )
    # The last change may begin the padding, which has no interval.
    first_changes = changes[: len(starts) - 1]
    if len(first_changes) == len(starts) - 1 and (
        offset := _common_offset(first_changes - starts[1:])
    ):
        cause = (
            f"seq_idx off by {_size(offset)}: it changes {_away(offset)} every beginning; {cause}"
        )
    return failed(
        "boundaries",
        "seq_idx does not change exactly where samples begin",
        cause,
        "seq_idx is the number of the sample that each token belongs to, int32[1, T]",
    )


def _boundary_problem(
    values: Int64Array, starts: Int64Array, stops: Int64Array, num_tokens: int
) -> tuple[str, str] | None:
    """Return the first fault of some boundaries and its likely cause; None if they are right."""
    if not len(values) or (np.diff(values) < 0).any() or values[0] != 0:
        return "they must rise from 0", "the boundaries are not a running sum of lengths"
    for start, stop in zip(starts, stops, strict=True):
        inside = values[(start < values) & (values < stop)]
        if len(inside):
            fault = (
                f"a boundary at {inside[0]} cuts the sample in [{start}, {stop}) of "
                f"{stop - start} tokens"
            )
            return fault, _boundary_cause(values, starts, stops)
        if start not in values:
            fault = f"the sample in [{start}, {stop}) does not begin at a boundary"
            return fault, _boundary_cause(values, starts, stops)
    if values[-1] != num_tokens:
        return (
            f"they end at {values[-1]} and the row has {num_tokens} tokens",
            "padding at the end is in no segment: kernels leave it undefined",
        )
    return None


def _boundary_cause(values: Int64Array, starts: Int64Array, stops: Int64Array) -> str:
    """Name the likely cause of wrong boundaries, by how far each one lies from the beginning of its
    sample.
    """
    count, lengths = len(starts), stops - starts
    kernel_lengths = np.diff(values)[:count]
    if len(values) >= count and (offset := _common_offset(values[1:count] - starts[1:])):
        return (
            f"boundaries off by {_size(offset)}: every one lies {_away(offset)} the beginning "
            "of its sample"
        )
    if len(kernel_lengths) == count:
        deficits = lengths - kernel_lengths
        # With one boundary for each sample, the last segment also holds the remainder of the row.
        if offset := _common_offset(deficits if len(values) - 1 > count else deficits[:-1]):
            return (
                f"lengths off by {_size(offset)}: every sample is given to the kernel with "
                f"{abs(offset)} too {'few' if offset > 0 else 'many'} (lengths of shifted labels, "
                "or without the token at the end)"
            )
        for multiple in _MULTIPLES:
            rounded_down = lengths // multiple * multiple
            rounded_up = -(-lengths // multiple) * multiple
            if any(
                np.array_equal(kernel_lengths, rounded_lengths)
                for rounded_lengths in (rounded_down, rounded_up)
            ):
                first = int(np.flatnonzero(deficits)[0])
                return (
                    f"context-parallel rounding: {lengths[first]} tokens are given to the kernel "
                    f"as {kernel_lengths[first]}, a multiple of {multiple}"
                )
    return (
        "the boundaries come from other lengths than the samples' (another batch, the whole "
        "row, or another order)"
    )


def _common_offset(offsets: Int64Array) -> int:
    """Return the offset if all are equal, else 0."""
    return int(offsets[0]) if len(offsets) and (offsets == offsets[0]).all() else 0


def _size(offset: int) -> str:
    return "one" if abs(offset) == 1 else str(abs(offset))


def _away(offset: int) -> str:
    return f"{counted(abs(offset), 'token')} {'after' if offset > 0 else 'before'}"
