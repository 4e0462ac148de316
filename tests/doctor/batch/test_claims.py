"""Places of samples in rows of a batch: one layout, told in many words, is one and the same."""

import numpy as np
import pytest

pytest.importorskip("torch")

from brimful.collate.dialects import DIALECTS
from brimful.doctor.batch.view import read_batch
from brimful.doctor.batch.words import Role, role_of

LAYOUTS = [
    [[3, 2], [4], [1, 1, 2]],
    [[2, 1], [1, 1], [1, 1], [2], [1, 2]],
    [[2, 2], [3], [1, 1], [4]],
    [[1, 3, 2]],
    [[2], [2]],
    [[5, 1], [2, 2, 1]],
]
"""Lengths of the samples of each row; what is left of a row is padding. More rows than tokens, as many, and fewer."""


class Layout:
    def __init__(self, rows, extra):
        self.rows, self.width = rows, max(map(sum, rows)) + extra
        self.numbers = np.full((len(rows), self.width), -1)
        self.segments, number = [], 0
        for row, lengths in enumerate(rows):
            start = 0
            for index, length in enumerate(lengths):
                self.numbers[row, start : start + length] = index
                self.segments.append((row, start, start + length))
                start, number = start + length, number + 1
        self.real = self.numbers >= 0
        self.ids = np.where(self.real, np.arange(self.real.size).reshape(self.real.shape) + 5, 0)

    @property
    def positions(self):
        positions = np.zeros_like(self.ids)
        for row, start, stop in self.segments:
            positions[row, start:stop] = np.arange(stop - start)
        return positions

    @property
    def pairs(self):
        same = self.numbers[:, :, None] == self.numbers[:, None]
        return same & np.tril(np.ones((self.width, self.width), bool)) & self.real[:, :, None]

    def ends(self, real=False):
        """Boundaries over the whole batch; with the padding of each row as a place, or counting real tokens alone."""
        lengths = []
        for row in self.rows:
            lengths += [*row, *([] if real else [self.width - sum(row)] * (sum(row) < self.width))]
        return np.cumsum([0, *lengths])

    def table(self, values, fill):
        width = max(map(len, values)) + 1
        return np.array([[*row, *[fill] * (width - len(row))] for row in values])


def words_of(layout):
    mask = {"attention_mask": layout.real.astype(int)}
    numbered = np.where(layout.real, layout.numbers + 1, 0)
    positions = layout.positions
    rows = [np.cumsum([0, *row]).tolist() for row in layout.rows]
    full = [[*row, *([layout.width] if row[-1] < layout.width else [])] for row in rows]
    yield "numbers from 0", {"seq_idx": layout.numbers}
    yield "numbers from 1", {"segment_ids": numbered}
    if layout.numbers.max() > 0:
        yield "numbered mask", {"attention_mask": numbered}
    yield "positions", {"position_ids": positions, **mask}
    for axis in (0, 1) if len(rows) != 4 else (0,):
        yield f"mRoPE {axis}", {"position_ids": np.stack([positions] * 4, axis=axis), **mask}
    yield "pairs", {"attention_mask": layout.pairs}
    yield "pairs of heads", {"attention_mask": layout.pairs[:, None]}
    yield "additive", {"attention_mask": np.where(layout.pairs, 0.0, -1e9)[:, None]}
    yield "boundaries", {"cu_seqlens": layout.ends(), **mask}
    if len(rows) > 1:
        yield "boundaries of rows", {"cu_seqlens": layout.table(full, -1), **mask}
        yield "boundaries without padding", {"cu_seqlens": layout.table(rows, -1)}
    yield "lengths", {"seq_lengths": layout.table(layout.rows, 0)}
    yield "lengths in lists", {"seq_lengths": layout.rows, **mask}


CASES = [
    pytest.param(rows, extra, name, id=f"{index}-{extra}-{name}")
    for index, rows in enumerate(LAYOUTS)
    for extra in (0, 2)
    for name, _ in words_of(Layout(rows, extra))
]


@pytest.mark.parametrize(("rows", "extra", "name"), CASES)
def test_each_word_tells_the_same_places(rows, extra, name):
    """A word that is read wrongly in batches of several rows accuses right runs."""
    layout = Layout(rows, extra)
    words = dict(words_of(layout))[name]
    view = read_batch({"input_ids": layout.ids, **words})
    found = [segment for segment in view.segments if layout.real[segment[0], segment[1]]]
    assert [tuple(segment) for segment in found] == layout.segments
    # A single token of padding that a mask of pairs hides looks like a sample of its own.
    assert (view.padding == ~layout.real).all() or name in ("pairs", "pairs of heads", "additive")
    claim = view.claims[0] if view.claims else view.believed
    assert claim.starts[0] == 0
    assert (np.diff(claim.starts) > 0).all()
    assert ((claim.starts <= claim.stops) & (claim.stops <= claim.ends)).all()
    assert claim.ends[-1] == layout.ids.size


def test_words_that_do_not_fit_say_nothing():
    """A mask of another shape, boundaries that fall, lengths of other rows."""
    ids = [[5, 6, 7, 8], [9, 4, 3, 2]]
    for words in (
        {"seq_idx": [[0, 0, 1]]},
        {"cu_seqlens": [0, 3, 2, 8]},
        {"cu_seqlens": [[0, 4], [0, 4], [0, 4]]},
        {"attention_mask": np.ones((2, 4, 5))},
        {"attention_mask": np.ones((3, 4, 4))},
        {"seq_lengths": [[1], [2], [3]]},
        {"position_ids": np.zeros((5, 3, 4))},
    ):
        view = read_batch({"input_ids": ids, **words})
        assert [tuple(segment) for segment in view.segments] == [(0, 0, 4), (1, 0, 4)], words


def test_one_number_for_each_row_is_the_length_of_the_row():
    """A list for the batch has another number of entries, or fills it."""
    ids = np.arange(12).reshape(3, 4) + 5
    view = read_batch({"input_ids": ids, "seq_lengths": [4, 2, 3]})
    assert [tuple(segment) for segment in view.segments] == [(0, 0, 4), (1, 0, 2), (2, 0, 3)]
    view = read_batch({"input_ids": ids, "seq_lengths": [6, 2, 4]})
    assert [segment[:2] for segment in view.segments] == [(0, 0), (1, 0), (1, 2), (2, 0)]


def test_places_with_padding_and_without_are_one_claim():
    """``cu_seqlens`` counts real tokens where ``cu_seqlens_padded`` has the places."""
    ids = [[5, 6, 7, 0, 8, 9, 0, 0]]
    view = read_batch({"input_ids": ids, "cu_seqlens_padded": [0, 4, 8], "cu_seqlens": [0, 3, 5]})
    assert [tuple(segment) for segment in view.segments] == [(0, 0, 3), (0, 4, 6)]
    assert view.padding.tolist() == [[False] * 3 + [True] + [False] * 2 + [True] * 2]
    late = read_batch({"input_ids": ids, "cu_seqlens": [4, 6]})
    assert [tuple(segment) for segment in late.segments] == [(0, 4, 6)]


def test_a_row_of_boundaries_may_end_before_its_row():
    """The rest is padding, also one token of it: as a sample it would be one too many."""
    ids = [[5, 6, 7, 8, 9, 0], [5, 6, 7, 8, 9, 3]]
    view = read_batch({"input_ids": ids, "cu_seqlens": [[0, 3, 5], [0, 4, 6]]})
    assert [tuple(segment) for segment in view.segments] == [(0, 0, 3), (0, 3, 5), (1, 0, 4), (1, 4, 6)]
    assert view.padding.sum() == 1
    view = read_batch({"input_ids": ids, "cu_seqlens": [[0, 3, 5], [-1, -1, -1]]})
    assert [tuple(segment) for segment in view.segments][:2] == [(0, 0, 3), (0, 3, 5)]


ROLES = {
    "tokens": [Role.IDS],
    "labels": [Role.LABELS],
    "shifted labels": [Role.LABELS, Role.SHIFTED_LABELS],
    "targets": [Role.LOSS_MASK],
    "positions": [Role.POSITIONS],
    "boundaries": [Role.BOUNDARIES],
    "boundaries without padding": [Role.BOUNDARIES],
    "index of -1": [Role.END_MARK],
    "longest segment": [Role.LONGEST],
    "lengths": [Role.LENGTHS],
    "lengths without padding": [Role.LENGTHS],
    "padding": [Role.PADDING_MASK],
    "padding at the end": [Role.TAIL],
    "divisor": [Role.DIVISOR],
}
"""What a key of a dialect holds, and what its name means to doctor. Others hold several things, or nothing that it reads."""


@pytest.mark.parametrize("holds", ROLES)
def test_keys_of_dialects_mean_what_the_table_says(holds):
    """A dialect that is new has keys that are read, or this names them."""
    keys = {key.name.rpartition(".")[2] for one in DIALECTS.values() for key in one.keys if key.holds == holds}
    assert keys
    assert {name: role_of(name) for name in keys if role_of(name) not in ROLES[holds] and "tree" not in name} == {}
