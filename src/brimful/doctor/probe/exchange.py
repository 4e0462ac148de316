"""Choice of the segment whose tokens are exchanged, and of segments that run alone.

::

    rows       a a | b b b | c c       b: in the middle of a row, so that samples lie on both sides
               d d d | e e . .
    exchanged  a a | x x x | c c       special tokens stay, and marks that begin or end samples
    alone      c c · · · · ·           late samples, one for each row
               e e · · · · ·
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from brimful.base.typing import BoolArray, Int64Array
from brimful.doctor.batch.claims import visible_pairs
from brimful.doctor.batch.view import BatchView, Segment
from brimful.doctor.batch.words import Role
from brimful.doctor.probe.leaks import Reach
from brimful.verify.reference_samples import ReferenceSamples
from brimful.verify.setup import media_tokens, tokens_of_config

_SPECIAL = ("pad", "bos", "eos", "unk", "mask", "sep", "cls", "decoder_start")
"""Special tokens of configurations: trainers and models look for them."""

_MAX_ROWS = 2
"""Rows whose hidden states are kept: the one that is changed and one that no leak reaches."""


@dataclass(frozen=True, eq=False)
class Exchange:
    """Other tokens in one segment, or in the padding of one row.

    Attributes:
        segment: its place.
        ids: ``int64[n]``: its tokens afterwards.
        is_padding: the place is padding, which no sample may see.
    """

    segment: Segment
    ids: Int64Array
    is_padding: bool = False


def choose_exchange(view: BatchView, config: Any) -> Exchange | None:
    """Choose a segment of the batch and its other tokens, the same on all ranks with this batch.

    Rows of one sample have no neighbors: there the padding is exchanged, if a row has any.

    Args:
        view: of the batch.
        config: of the model; None if it has none.

    Returns:
        None if the batch has neither neighbors nor padding, or no two tokens to exchange.
    """
    by_row = _by_row(view)
    packed_rows = sorted((row for row in by_row if len(row) > 1), key=len, reverse=True)
    for row in packed_rows:
        # From the middle of the row outwards; of two segments, the first.
        middle = (len(row) - 1) // 2
        order = sorted(range(len(row)), key=lambda index: abs(index - middle))
        # A part of a sample whose beginning is on another rank comes last.
        for segment in sorted((row[index] for index in order), key=_is_part(view)):
            if (ids := _other_tokens(view, segment, config)) is not None:
                return Exchange(segment, ids)
    if packed_rows:
        return None
    for place in _padding_places(view):
        tokens = np.unique(view.ids[~view.padding])
        tokens = tokens[~np.isin(tokens, media_tokens(config))]
        if len(tokens):
            return Exchange(place, np.resize(tokens, place.length), is_padding=True)
    return None


def choose_alone(view: BatchView, exchange: Exchange | None) -> list[Segment] | None:
    """Choose one segment for each row: the last one that is not the exchanged one; None if a row
    has no other.
    """
    choice = []
    for row in _by_row(view):
        others = [segment for segment in row if exchange is None or segment != exchange.segment]
        if not others:
            return None
        choice.append(max(others, key=lambda item: (item.length > 1, item.start)))
    return choice


def recorded_rows(view: BatchView, exchange: Exchange | None) -> list[int]:
    """Return the rows whose hidden states are kept."""
    first = 0 if exchange is None else exchange.segment.row
    others = [row for row in range(view.shape[0]) if row != first]
    return [first, *others][:_MAX_ROWS]


def reach_of(
    view: BatchView, exchange: Exchange | None, rows: Sequence[int], *, coupled: bool
) -> Reach:
    """Say which tokens of the recorded rows a leak of the exchanged segment would move.

    Without a second row, tokens before the segment show the rounding of a model whose numbers
    depend on the whole batch; causality protects them.
    """
    shape = (len(rows), view.shape[1])
    own, sample = np.zeros(shape, dtype=bool), np.zeros(shape, dtype=bool)
    segments = tuple(
        Segment(rows.index(item.row), item.start, item.stop)
        for item in view.segments
        if item.row in rows
    )
    for row, start, stop in segments:
        sample[row, start:stop] = True
    if exchange is None:
        return Reach(own, sample, np.zeros_like(own), segments, tuple(rows))
    place = exchange.segment
    own[0, place.start : place.stop] = True
    exposed, protected = sample & ~own, np.zeros_like(own)
    if len(rows) > 1:
        exposed[1:] = False
        protected[1:] = sample[1:]
    elif coupled:
        exposed[0, : place.start] = False
        protected[0, : place.start] = sample[0, : place.start]
    exposed[0] &= ~_sees(view, place)
    return Reach(own, exposed, protected, segments, tuple(rows))


def _by_row(view: BatchView) -> list[list[Segment]]:
    rows: list[list[Segment]] = [[] for _ in range(view.shape[0])]
    for segment in view.segments:
        rows[segment.row].append(segment)
    return rows


def _is_part(view: BatchView) -> Callable[[Segment], bool]:
    """Return whether positions say that a segment begins on another rank (context parallelism)."""
    if view.positions is None:
        return lambda segment: False
    positions = view.positions
    lowest = positions.reshape(-1)[view.bounds[0]].min(initial=0)

    def begins_elsewhere(segment: Segment) -> bool:
        own = positions[segment.row, segment.start : segment.stop]
        return bool(own[0] != lowest or (np.diff(own) < 0).any())

    return begins_elsewhere


def _other_tokens(view: BatchView, segment: Segment, config: Any) -> Int64Array | None:
    """Replace each token by another one of the batch; special tokens and marks stay."""
    row, start, stop = segment
    flat, (starts, stops) = view.ids.reshape(-1), view.bounds
    special = {*media_tokens(config), *tokens_of_config(config, *_SPECIAL)}
    special |= set(np.unique(view.ids[view.padding]).tolist())
    # A token that begins or ends several samples may be a mark that is no special token.
    ends: set[int] = set()
    for places_of_ends in (starts, stops - 1):
        tokens, counts = np.unique(flat[places_of_ends], return_counts=True)
        ends |= set(tokens[counts > 1].tolist())
    samples = ReferenceSamples([{"input_ids": tokens.tolist()} for tokens in view.ids])
    ids = view.ids[row, start:stop].copy()
    # In a small vocabulary nearly every token is the end of some sample.
    for fixed in (special | ends, special):
        places = ~np.isin(ids, list(fixed))
        if places.any() and (~np.isin(samples.token_ids, list(fixed))).sum() > 1:
            ids[places] = samples.next_tokens(ids[places], exclude=fixed)
            return ids
    return None


def _padding_places(view: BatchView) -> list[Segment]:
    """Return the longest run of padding of each row that has any, the longest first."""
    places = []
    for row, mask in enumerate(view.padding):
        edges = np.flatnonzero(np.diff(np.r_[False, mask, False]))
        runs = [Segment(row, *pair) for pair in edges.reshape(-1, 2).tolist()]
        places += sorted(runs, key=lambda run: run.length)[-1:]
    return sorted(places, key=lambda place: -place.length)


def _sees(view: BatchView, place: Segment) -> BoolArray:
    """Mark the tokens that a mask of the batch itself lets see a place, as answers see a shared
    prompt: ``bool[T]``.
    """
    for word in view.words_with(Role.MASK):
        if (visible := visible_pairs(word, view.shape)) is not None:
            seen: BoolArray = visible[place.row, :, place.start : place.stop].any(axis=1)
            return seen
    return np.zeros(view.shape[1], dtype=bool)
