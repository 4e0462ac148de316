"""View of a batch of any loader: tokens, targets, positions, and the segments that it claims."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from brimful.base.checks import check_type
from brimful.base.typing import IGNORE_INDEX, AnyArray, BoolArray, Int64Array
from brimful.doctor.batch.claims import (
    Claim,
    Shape,
    claim_of_rows,
    claims_of,
    filled_rows,
    is_boundary_mask,
    per_token,
    rows_of_boundaries,
)
from brimful.doctor.batch.run_facts import NO_FACTS, RunFacts
from brimful.doctor.batch.targets import BatchTargets, Labeling
from brimful.doctor.batch.words import BatchWord, Role, items_of, words_of
from brimful.errors import CollateError

__all__ = ["BatchView", "Labeling", "RowSegment", "read_batch"]


_LEAST_TAIL = 2
"""Equal tokens at the end of a row that are padding although no boundary stands before them."""


class RowSegment(NamedTuple):
    """Tokens of one sample: ``ids[row, start:stop]``."""

    row: int
    start: int
    stop: int

    @property
    def length(self) -> int:
        """Number of tokens."""
        return self.stop - self.start


@dataclass(frozen=True, eq=False, kw_only=True)
class BatchView(BatchTargets):
    """Contents of one batch, in host memory.

    B: rows, T: tokens of a row with its padding.

    Attributes:
        words: all values of the batch with known names.
        ids: ``int64[B, T]``.
        ids_word: the tokens in the batch.
        row_lengths: ``int64[B]``: tokens that the loader gave for each row; T unless rows are
            nested or lists of several lengths.
        positions: ``int64[B, T]``, of the text with mRoPE; None if the batch has none, or some of
            another shape.
        positions_word: the positions in the batch.
        claims: what each word says about segments, the strongest first.
        believed: the claim that the segments are taken from.
        facts: special tokens and settings of the run.
        prefix: of its words, such as ``chosen_``.
    """

    words: tuple[BatchWord, ...]
    ids: Int64Array
    ids_word: BatchWord
    row_lengths: Int64Array
    positions: AnyArray | None
    positions_word: BatchWord | None
    claims: tuple[Claim, ...]
    believed: Claim
    facts: RunFacts
    prefix: str

    @property
    def shape(self) -> Shape:
        """Rows and tokens of a row."""
        return self.ids.shape[0], self.ids.shape[1]

    def words_with(self, *roles: Role) -> list[BatchWord]:
        """Return the words with one of these roles."""
        return [word for word in self.words if word.role in roles]

    @cached_property
    def padding(self) -> BoolArray:
        """Tokens of no sample: ``bool[B, T]``.

        A word marks them, or they end a row, all the same and none of them trained.
        """
        mask = self.marked_padding | self.believed.padding.reshape(self.shape)
        targets = None if self.labeling is Labeling.NONE else self.targets
        return mask | _unmarked_padding(self.believed, self.ids, targets, mask)

    @cached_property
    def marked_padding(self) -> BoolArray:
        """Tokens that a word of the batch calls padding: ``bool[B, T]``."""
        return _marked_padding(self.words, self.shape, self.row_lengths)

    @cached_property
    def segments(self) -> list[RowSegment]:
        """Segments of samples, row by row, without padding."""
        width = self.shape[1]
        starts, stops = self.bounds
        return [
            RowSegment(start // width, start % width, start % width + stop - start)
            for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)
        ]

    @cached_property
    def bounds(self) -> tuple[Int64Array, Int64Array]:
        """First token and end of each segment in the flattened batch: two ``int64[n]``."""
        tokens = np.flatnonzero(~self.padding.reshape(-1)).astype(np.int64)
        # Padding at the beginning or the end of a place is not a part of its segment.
        first = np.searchsorted(tokens, self.believed.starts)
        end = np.searchsorted(tokens, self.believed.stops)
        has_tokens = end > first
        return tokens[first[has_tokens]], tokens[end[has_tokens] - 1] + 1

    @property
    def rows_of_segments(self) -> Int64Array:
        """Row of each segment: ``int64[n]``."""
        return self.bounds[0] // self.shape[1]

    @property
    def first_positions(self) -> AnyArray | None:
        """Position of the first token of each segment: ``int64[n]``; None without positions."""
        return None if self.positions is None else self.positions.reshape(-1)[self.bounds[0]]

    @property
    def num_tokens(self) -> int:
        """Tokens without padding."""
        return int((~self.padding).sum())

    @property
    def evidence(self) -> str:
        """Word that tells where samples begin in a row; empty if nothing does.

        Positions that run through each row tell nothing.
        """
        rows = self.rows_of_segments
        is_packed = len(np.unique(rows)) < len(rows)
        if self.believed.role in (Role.POSITIONS, Role.IDS) and not is_packed:
            return "rows" if self.is_nested else ""
        return self.believed.word

    @cached_property
    def why_unread(self) -> str:
        """Reason for which the segments of this batch cannot be judged; empty if they can.

        Ranks of sequence and context parallelism have boundaries of a row that is several times as
        long as theirs. In a tree of shared prefixes a token sees several segments.
        """
        size = self.ids.size
        for word in self.words_with(Role.BOUNDARIES):
            rows = rows_of_boundaries(word)
            if rows is not None and len(rows) == 1 and len(rows[0]):
                last = int(rows[0][-1])
                if last > size and last % size == 0:
                    return (
                        f"{word} ends at {last:,}: the batch is one of {last // size} parts of a "
                        "longer row"
                    )
        if tree := self.words_with(Role.TREE):
            return f"trees: {tree[0]} says which samples have shared prefixes"
        return ""

    @property
    def is_nested(self) -> bool:
        """True if the batch has rows of several lengths."""
        return bool((self.row_lengths < self.shape[1]).any())

    @property
    def tokens(self) -> Int64Array:
        """Tokens of the flattened batch: ``int64[N]``."""
        return self.ids.reshape(-1)

    @cached_property
    def is_target(self) -> BoolArray:
        """Positions that are trained to predict, in the flattened batch: ``bool[N]``."""
        if self.labeling is Labeling.NONE:
            return np.zeros(self.ids.size, dtype=bool)
        return np.asarray(self.targets.reshape(-1) != IGNORE_INDEX)

    @cached_property
    def is_predicted(self) -> BoolArray:
        """Tokens that are trained to be predicted, in the flattened batch: ``bool[N]``."""
        table = np.zeros(self.shape, dtype=bool)
        table[:, 1:] = self.is_target.reshape(self.shape)[:, :-1]
        return table.reshape(-1)

    @property
    def num_targets(self) -> int:
        """Targets of the batch."""
        return int(self.is_target.sum())

    @property
    def has_labels(self) -> bool:
        """True if the batch says what is trained, in a way that was understood."""
        return self.labeling not in (Labeling.NONE, Labeling.OTHER)

    @property
    def labels_name(self) -> str:
        """Keys that lead to the labels."""
        return str(self.labels_word or "labels")

    @property
    def positions_name(self) -> str:
        """Keys that lead to the positions."""
        return str(self.positions_word or "position_ids")

    @cached_property
    def padding_tokens(self) -> tuple[int, ...]:
        """Tokens of padding: of the tokenizer, or the only one in the padding of the batch."""
        if self.facts.pad:
            return self.facts.pad
        tokens = np.unique(self.ids[self.padding])
        has_one = len(tokens) == 1 and self.labeling is not Labeling.NONE
        return (int(tokens[0]),) if has_one else ()

    @cached_property
    def sample_stops(self) -> Int64Array:
        """End of each segment without the padding that no word marks: ``int64[n]``.

        EOS that is padding as well ends a sample once.
        """
        starts, stops = self.bounds
        is_fill = np.isin(self.tokens, (*self.padding_tokens, 0)) & ~self.is_predicted
        places = np.where(is_fill, -1, np.arange(self.ids.size))
        fill_starts = np.maximum(np.maximum.accumulate(places)[stops - 1], starts) + 1
        is_end = np.isin(self.tokens, self.facts.ends)
        is_untrained_end = (fill_starts < stops) & is_end[np.minimum(fill_starts, stops - 1)]
        has_end = is_end[fill_starts - 1] & self.is_predicted[fill_starts - 1]
        return np.asarray(fill_starts + (is_untrained_end & ~has_end))

    @cached_property
    def segment_of(self) -> Int64Array:
        """Segment of each token of the flattened batch, -1 in padding: ``int64[N]``."""
        starts, stops = self.bounds
        owner = np.searchsorted(starts, np.arange(self.ids.size), side="right") - 1
        inside = (owner >= 0) & (np.arange(self.ids.size) < stops[owner])
        return np.where(inside, owner, -1).astype(np.int64)

    @property
    def row_starts(self) -> Int64Array:
        """First token of each row in the flattened batch."""
        rows, width = self.shape
        return np.arange(rows, dtype=np.int64) * width

    def inner_starts(self, claim: Claim) -> Int64Array:
        """Return the beginnings of a claim at tokens of samples, other than those of rows."""
        starts = claim.starts[claim.real]
        is_real = ~self.padding.reshape(-1)[starts]
        return np.setdiff1d(starts[is_real], self._first_tokens)

    @cached_property
    def _first_tokens(self) -> Int64Array:
        """First token of each row that is not padding."""
        starts, _ = self.bounds
        rows = self.rows_of_segments
        return starts[np.append(True, rows[1:] != rows[:-1])] if len(starts) else starts

    def place(self, token: int) -> str:
        """Return row and column of a token of the flattened batch, in words."""
        row, column = divmod(int(token), self.shape[1])
        return f"row {row}, token {column:,}" if self.shape[0] > 1 else f"token {column:,}"

    def places(self, tokens: Int64Array) -> str:
        """Return the first places of some tokens, in words."""
        text = "; ".join(self.place(token) for token in tokens[:3].tolist())
        return f"{text} and {len(tokens) - 3:,} more" if len(tokens) > 3 else text


def read_batch(batch: Any, *, prefix: str = "", facts: RunFacts = NO_FACTS) -> BatchView:
    """Read one batch of any loader.

    ::

        tokens     a a a | b b | . .       ids       int64[1, 7]
        cu_seqlens 0       3     5   7     segments  (0, 0, 3) (0, 3, 5), the padding left out
        labels     as tokens, or shifted   targets   a a - b - - -, at the position that predicts

    The batch is not changed. Tensors may be on any device; lists, NumPy arrays and nested tensors
    are read as well.

    Args:
        batch: a mapping, an object with attributes, a pair ``(inputs, labels)``, or a tensor of
            tokens; mappings may be nested.
        prefix: read the words with this prefix, such as ``chosen_`` of a pair of answers.
        facts: special tokens and settings of the run.

    Raises:
        WrongTypeError: not a batch.
        CollateError: no tokens under a known name, or tokens of more than two dimensions.

    >>> view = read_batch({"input_ids": [[5, 6, 7, 8, 9]], "position_ids": [[0, 1, 2, 0, 1]]})
    >>> view.segments, view.evidence
    ([RowSegment(row=0, start=0, stop=3), RowSegment(row=0, start=3, stop=5)], 'position_ids')
    """
    words = words_of(batch, prefix)
    ids_word = _ids_word(batch, words, prefix)
    assert ids_word.array is not None
    ids, row_lengths = _rows_of(ids_word.array)
    shape: Shape = (ids.shape[0], ids.shape[1])
    claims = claims_of([word for word in words if word is not ids_word], shape)
    rows = claim_of_rows(shape, row_lengths)
    strongest = next((claim for claim in claims if claim.real.any()), rows)
    believed_claim = strongest.cut_at(rows.starts)
    numbered = (
        (word, positions)
        for word in words
        if word.role is Role.POSITIONS and (positions := per_token(word.array, shape)) is not None
    )
    positions_word, positions = next(numbered, (None, None))
    if positions is not None and positions.ndim == 3:
        positions = positions[0]
    return BatchView(
        **vars(BatchTargets.of(words, ids, row_lengths, believed_claim.starts)),
        words=tuple(words),
        ids=ids,
        ids_word=ids_word,
        row_lengths=row_lengths,
        positions=positions,
        positions_word=positions_word,
        claims=tuple(claims),
        believed=believed_claim,
        facts=facts,
        prefix=prefix,
    )


def _ids_word(batch: Any, words: list[BatchWord], prefix: str) -> BatchWord:
    for word in words:
        if word.role is Role.IDS and word.array is not None and _is_ids(word.array):
            return word
    if not any(True for _ in items_of(batch)):
        check_type("a batch", batch, (), "a mapping with input_ids")
    names = ", ".join(str(key) for key, _ in items_of(batch))
    raise CollateError(
        f"no token ids in the batch: none of its {names or 'parts'} is an array of integers with "
        f"a name such as {prefix}input_ids or {prefix}tokens, [B, T] or [T]"
    )


def _is_ids(array: AnyArray) -> bool:
    if array.dtype == object:
        return all(row.ndim == 1 and row.dtype.kind in "iu" for row in array)
    return array.ndim in (1, 2) and array.dtype.kind in "iu" and array.size > 0


def _rows_of(array: AnyArray) -> tuple[Int64Array, Int64Array]:
    """Return tokens as ``int64[B, T]`` and the number of each row, ``int64[B]``."""
    if array.dtype == object:
        lengths = np.array([len(row) for row in array], dtype=np.int64)
        table = filled_rows(array, int(lengths.max()))
        assert table is not None
        return table.astype(np.int64), lengths
    ids = np.atleast_2d(array).astype(np.int64)
    return ids, np.full(len(ids), ids.shape[1], dtype=np.int64)


def _marked_padding(words: Iterable[BatchWord], shape: Shape, row_lengths: Int64Array) -> BoolArray:
    """Mark the tokens that a word of the batch calls padding: ``bool[B, T]``.

    Args:
        words: of the batch.
        shape: rows and tokens of the batch.
        row_lengths: ``int64[B]``: tokens that each row has.
    """
    columns = np.arange(shape[1])
    mask: BoolArray = columns >= row_lengths[:, None]
    for word in words:
        values = per_token(word.array, shape)
        if word.role is Role.TAIL:
            if word.array is not None and word.array.size == shape[0]:
                mask = mask | (columns >= shape[1] - word.array.reshape(-1, 1))
        elif values is None or values.ndim != 2:
            continue
        elif word.role is Role.PADDING_MASK:
            mask = mask | (values != 0)
        # A mask of zeros alone tells nothing.
        elif word.role is Role.MASK and not is_boundary_mask(word, shape) and values.any():
            mask = mask | (values == 0)
    return mask


def _unmarked_padding(
    claim: Claim, ids: Int64Array, targets: Int64Array | None, padding: BoolArray
) -> BoolArray:
    """Mark the padding at the end of rows that no word marks: ``bool[B, T]``.

    ::

        tokens     a a a | b b | 0 0 0      places after the samples: equal tokens, none trained
        tokens     a a a 0 0 0              a row without boundaries that ends in equal tokens

    The first place of a row is a sample, whatever its tokens.

    Args:
        claim: places of segments.
        ids: ``int64[B, T]``.
        targets: ``int64[B, T]``; None if nothing says what is trained.
        padding: ``bool[B, T]``: padding that is known.
    """
    width = ids.shape[1]
    is_target = np.zeros(ids.shape, dtype=bool) if targets is None else targets != IGNORE_INDEX
    is_idle = padding | ((ids == ids[:, -1:]) & ~is_target)
    tail = _at_the_end(is_idle)
    if targets is None:
        tail &= _is_long(tail & ~padding)
    # A place that begins in the tail lies in it as a whole.
    is_first = np.append(True, claim.starts[1:] // width != claim.starts[:-1] // width)
    is_last = np.append(is_first[1:], True)
    is_idle_place = tail.reshape(-1)[claim.starts] & ~is_first
    sizes = claim.ends - claim.starts
    mask = np.repeat(is_idle_place, sizes).reshape(ids.shape)
    # A batch that marks padding marks all of it: equal tokens at the end are of the sample.
    if claim.role in (Role.IDS, Role.POSITIONS) and not padding.any():
        # The last token of a sample may be the token of padding: then it is predicted.
        is_predicted = np.zeros(ids.shape, dtype=bool)
        is_predicted[:, 1:] = is_target[:, :-1]
        if targets is not None:
            is_predicted[:, 1:] &= targets[:, :-1] == ids[:, 1:]
        tail = _at_the_end(is_idle & ~is_predicted)
        has_more = (~tail).any(axis=1, keepdims=True)
        is_alone = np.repeat(is_first & is_last, sizes).reshape(ids.shape)
        mask |= tail & is_alone & has_more & _is_long(tail)
    return mask


def _is_long(tail: BoolArray) -> BoolArray:
    """Return whether the tail of each row has enough tokens: ``bool[B, 1]``."""
    return np.asarray(tail.sum(axis=1, keepdims=True) >= _LEAST_TAIL)


def _at_the_end(mask: BoolArray) -> BoolArray:
    """Return a mask with the true values of each row after which no false one comes.

    >>> _at_the_end(np.array([[True, False, True, True]])).tolist()
    [[False, False, True, True]]
    """
    return np.array(np.logical_and.accumulate(mask[:, ::-1], axis=1)[:, ::-1])
