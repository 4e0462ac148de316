"""Choice of the segment whose tokens are exchanged, and of segments that run alone.

::

    rows       a a | b b b | c c       b: in the middle of a row, so that samples lie on both sides
               d d d | e e . .
    exchanged  a a | x x x | c c       special tokens stay, and marks that begin or end samples
    alone      c c · · · · ·           late samples, one for each row
               e e · · · · ·
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any

import numpy as np

from brimful.base.typing import BoolArray, Int64Array
from brimful.doctor.batch.claims import claims_of, is_mask_of_pairs, visible_pairs
from brimful.doctor.batch.rewrite import next_tokens
from brimful.doctor.batch.view import BatchView, RowSegment
from brimful.doctor.batch.words import BatchWord, Role, as_array
from brimful.doctor.probing.leaks import Reach
from brimful.doctor.probing.model_facts import media_tokens, tokens_of_config

_SPECIAL = ("pad", "bos", "eos", "unk", "mask", "sep", "cls", "decoder_start")
"""Special tokens of configurations: trainers and models look for them."""

_MAX_ROWS = 2
"""Rows whose hidden states are kept: the one that is changed and one that no leak reaches."""


@dataclass(frozen=True)
class Trial:
    """Samples of a batch, the place that is exchanged, and the samples that run alone.

    It has no tokens, so ranks can send it to each other.

    Attributes:
        shape: rows and tokens of the batch.
        segments: all samples.
        evidence: word of the batch that tells where samples begin; empty if nothing does.
        exchanged: segment, or padding of a row, that gets other tokens; None for none.
        is_padding: the exchanged place is padding, which no sample may see.
        alone: segment that runs alone in each row; None if a row has none.
        excused: columns of the exchanged row that a mask of the batch lets see the exchanged place,
            as answers see a shared prompt.
        mask: ``pairs`` if the batch has a mask of all pairs of tokens, ``tokens`` if it has another
            one that does not tell the samples.
        positions_run_on: positions do not begin again with each sample.
        early: positions by which samples begin before the first one of the model.
        has_parts: a row begins within a sample, whose beginning another rank has.
    """

    shape: tuple[int, int]
    segments: tuple[RowSegment, ...]
    evidence: str = ""
    exchanged: RowSegment | None = None
    is_padding: bool = False
    alone: tuple[RowSegment, ...] | None = None
    excused: tuple[int, ...] = ()
    mask: str = ""
    positions_run_on: bool = False
    early: int = 0
    has_parts: bool = False

    @property
    def rows(self) -> tuple[int, ...]:
        """Rows whose hidden states are kept; the exchanged one first."""
        first = 0 if self.exchanged is None else self.exchanged.row
        return (first, *(row for row in range(self.shape[0]) if row != first))[:_MAX_ROWS]

    def reach(self, *, is_coupled: bool) -> Reach:
        """Say which tokens of the kept rows a leak of the exchanged place would move.

        Args:
            is_coupled: numbers of a token may depend on the whole batch. Without a second row, tokens
                before the place show their rounding then: causality protects them.
        """
        rows = self.rows
        segments = tuple(
            item._replace(row=rows.index(item.row)) for item in self.segments if item.row in rows
        )
        sample = np.zeros((len(rows), self.shape[1]), dtype=bool)
        for row, start, stop in segments:
            sample[row, start:stop] = True
        own_tokens, rows_apart = np.zeros_like(sample), np.zeros_like(sample)
        if self.exchanged is not None:
            _, start, stop = self.exchanged
            own_tokens[0, start:stop] = True
            rows_apart[1:] = sample[1:]
            if len(rows) == 1 and is_coupled:
                rows_apart[0, :start] = sample[0, :start]
        neighbors = sample & ~own_tokens & ~rows_apart
        neighbors[0, list(self.excused)] = False
        return Reach(own_tokens, neighbors, rows_apart, segments, rows)

    def is_told_by(self, value: Any) -> bool:
        """Return whether an array tells where samples begin, as boundaries, a mask, numbers of
        samples or positions.
        """
        width = self.shape[1]
        starts = [row * width + start for row, start, _ in self.segments]
        tokens = {row * width + column for row, *span in self.segments for column in range(*span)}
        roles = (Role.BOUNDARIES, Role.MASK, Role.NUMBERS, Role.POSITIONS)
        words = [BatchWord((), role, value, as_array(value)) for role in roles]
        claims = claims_of(words, self.shape)
        return any(sorted(tokens.intersection(claim.starts.tolist())) == starts for claim in claims)

    def as_dict(self) -> dict[str, Any]:
        """Return plain numbers, for other ranks."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Trial":
        """Return the trial of ``as_dict``, after JSON too."""
        place, single = values["exchanged"], values["alone"]
        return cls(
            **{
                **values,
                "shape": tuple(values["shape"]),
                "segments": tuple(RowSegment(*item) for item in values["segments"]),
                "exchanged": None if place is None else RowSegment(*place),
                "alone": None if single is None else tuple(RowSegment(*item) for item in single),
                "excused": tuple(values["excused"]),
            }
        )


def choose_trial(
    view: BatchView, config: Any, position_start: int = 0
) -> tuple[Trial, Int64Array | None]:
    """Choose what is exchanged in a batch, the same on all ranks that have this batch.

    Rows of one sample have no neighbors: there the padding is exchanged, if a row has any.

    Args:
        view: of the batch.
        config: of the model; None if it has none.
        position_start: position of the first token of a sample.

    Returns:
        The trial, and the tokens of the exchanged place afterwards: ``int64[n]``; None if the batch
        has neither neighbors nor padding, or no two tokens to exchange.
    """
    masks = view.words_with(Role.MASK)
    firsts = view.first_positions
    early = 0 if firsts is None else position_start - int(firsts.min(initial=position_start))
    place, ids, is_padding = _choose_place(view, config)
    trial = Trial(
        view.shape,
        tuple(view.segments),
        view.evidence,
        place,
        is_padding,
        _choose_alone(view, place),
        () if place is None else tuple(np.flatnonzero(_sees(view, place)).tolist()),
        (
            "pairs"
            if any(map(is_mask_of_pairs, masks))
            else "tokens"
            if masks and view.evidence not in map(str, masks)
            else ""
        ),
        positions_run_on=firsts is None or bool((firsts != firsts.min(initial=0)).any()),
        early=early,
        has_parts=firsts is not None and _has_parts(view, firsts, position_start - early),
    )
    return trial, ids


def _choose_place(
    view: BatchView, config: Any
) -> tuple[RowSegment | None, Int64Array | None, bool]:
    """Return a place, its other tokens, and whether it is padding."""
    packed_rows = sorted((row for row in _by_row(view) if len(row) > 1), key=len, reverse=True)
    begins_elsewhere = _begins_elsewhere(view)
    for row in packed_rows:
        # From the middle outwards. A part of a sample that begins on another rank comes last.
        order = sorted(row, key=lambda item: abs(row.index(item) - (len(row) - 1) // 2))
        for segment in sorted(order, key=begins_elsewhere):
            if (ids := _other_tokens(view, segment, config)) is not None:
                return segment, ids, False
    if packed_rows:
        return None, None, False
    tokens = np.unique(view.ids[~view.padding])
    tokens = tokens[~np.isin(tokens, media_tokens(config))]
    places = _padding_places(view)
    if not places or not len(tokens):
        return None, None, False
    return places[0], np.resize(tokens, places[0].length), True


def _choose_alone(view: BatchView, place: RowSegment | None) -> tuple[RowSegment, ...] | None:
    """Choose the last segment of each row that is not the exchanged one; None if a row has none."""
    choice = []
    for row in _by_row(view):
        candidates = [segment for segment in row if segment != place]
        if not candidates:
            return None
        choice.append(max(candidates, key=lambda item: (item.length > 1, item.start)))
    return tuple(choice) if len(choice) == view.shape[0] else None


def _by_row(view: BatchView) -> list[list[RowSegment]]:
    """Return the segments of each row that has any."""
    return [list(row) for _, row in groupby(view.segments, key=attrgetter("row"))]


def _has_parts(view: BatchView, firsts: Int64Array, position_start: int) -> bool:
    begins_row = np.array([segment == row[0] for row in _by_row(view) for segment in row])
    return bool((firsts[begins_row] != position_start).any())


def _begins_elsewhere(view: BatchView) -> Callable[[RowSegment], bool]:
    """Return whether positions say that a segment begins on another rank (context parallelism)."""
    positions, firsts = view.positions, view.first_positions
    if positions is None or firsts is None:
        return lambda segment: False

    def test(segment: RowSegment) -> bool:
        numbers = positions[segment.row, segment.start : segment.stop]
        return bool(numbers[0] != firsts.min() or (np.diff(numbers) < 0).any())

    return test


def _other_tokens(view: BatchView, segment: RowSegment, config: Any) -> Int64Array | None:
    """Replace each token by another one of the batch; special tokens and marks stay."""
    row, start, stop = segment
    flat, (starts, stops) = view.ids.reshape(-1), view.bounds
    special = {*media_tokens(config), *tokens_of_config(config, *_SPECIAL)}
    special |= set(np.unique(view.ids[view.padding]).tolist())
    # A token that begins or ends several samples may be a mark that is no special token.
    marks: set[int] = set()
    for places_of_ends in (starts, stops - 1):
        tokens, counts = np.unique(flat[places_of_ends], return_counts=True)
        marks |= set(tokens[counts > 1].tolist())
    candidates = np.unique(view.ids)
    ids = view.ids[row, start:stop].copy()
    # In a small vocabulary nearly every token is the end of some sample.
    for constants in (special | marks, special):
        places = ~np.isin(ids, list(constants))
        if places.any() and (~np.isin(candidates, list(constants))).sum() > 1:
            ids[places] = next_tokens(ids[places], candidates, exclude=constants)
            return ids
    return None


def _padding_places(view: BatchView) -> list[RowSegment]:
    """Return the longest run of padding of each row that has any, the longest first."""
    places = []
    for row, mask in enumerate(view.padding):
        edges = np.flatnonzero(np.diff(np.r_[False, mask, False]))
        runs = [RowSegment(row, *pair) for pair in edges.reshape(-1, 2).tolist()]
        places += sorted(runs, key=lambda run: run.length)[-1:]
    return sorted(places, key=lambda place: -place.length)


def _sees(view: BatchView, place: RowSegment) -> BoolArray:
    """Mark the tokens that a mask of the batch itself lets see a place: ``bool[T]``."""
    for word in view.words_with(Role.MASK):
        if (visible := visible_pairs(word, view.shape)) is not None:
            return np.asarray(visible[place.row, :, place.start : place.stop].any(axis=1))
    return np.zeros(view.shape[1], dtype=bool)
