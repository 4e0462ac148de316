"""View of a batch of any loader: tokens, targets, positions, and the segments that it claims."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
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
    per_token,
    rows_of_boundaries,
)
from brimful.doctor.batch.padding import marked_padding, unmarked_padding
from brimful.doctor.batch.words import Path, Role, Word, children_of, words_of
from brimful.errors import CollateError

__all__ = ["BatchView", "Labeling", "Segment", "read_batch"]


class Segment(NamedTuple):
    """Tokens of one sample: ``ids[row, start:stop]``."""

    row: int
    start: int
    stop: int

    @property
    def length(self) -> int:
        """Number of tokens."""
        return self.stop - self.start


class Labeling(str, Enum):
    """Ways to give targets."""

    AS_TOKENS = "as tokens"
    """The label of a token is the token itself: the model shifts."""
    SHIFTED = "shifted"
    """The label of a token is the next token: the model does not shift."""
    BY_MASK = "by mask"
    """No labels; a mask marks the tokens that are targets."""
    NONE = "none"
    """Nothing says what is trained: every token, as far as the batch tells."""
    OTHER = "other"
    """Labels that belong neither to their own token nor to the next one."""


@dataclass(frozen=True, eq=False)
class BatchView:
    """Contents of one batch, in host memory.

    B: rows, T: tokens of a row with its padding.

    Attributes:
        words: all values of the batch with known names.
        ids: ``int64[B, T]``.
        ids_word: keys that lead to them.
        row_lengths: ``int64[B]``: tokens that the loader gave for each row; T unless rows are
            nested or lists of several lengths.
        targets: ``int64[B, T]``: the token that each position is trained to predict, -100 if none.
        labeling: how the targets are given.
        labels: ``int64[B, T]``, as the batch has them, -100 where a mask leaves them out; None
            without labels.
        labels_word: keys that lead to the labels, or to the mask of targets; None without either.
        positions: ``int64[B, T]``, of the text with mRoPE; None if the batch has none, or some of
            another shape.
        positions_word: keys that lead to them.
        claims: what each word says about segments, the strongest first.
        believed: the claim that the segments are taken from.
    """

    words: tuple[Word, ...]
    ids: Int64Array
    ids_word: Path
    row_lengths: Int64Array
    targets: Int64Array
    labeling: Labeling
    labels: Int64Array | None
    labels_word: Path | None
    positions: AnyArray | None
    positions_word: Path | None
    claims: tuple[Claim, ...]
    believed: Claim

    @property
    def shape(self) -> Shape:
        """Rows and tokens of a row."""
        return self.ids.shape[0], self.ids.shape[1]

    def words_with(self, *roles: Role) -> list[Word]:
        """Return the words with one of these roles."""
        return [word for word in self.words if word.role in roles]

    @cached_property
    def padding(self) -> BoolArray:
        """Tokens of no sample: ``bool[B, T]``.

        A word marks them, or they end a row, all the same and none of them trained.
        """
        known = self.marked_padding | self.believed.padding.reshape(self.shape)
        targets = None if self.labeling is Labeling.NONE else self.targets
        return known | unmarked_padding(self.believed, self.ids, targets, known)

    @cached_property
    def marked_padding(self) -> BoolArray:
        """Tokens that a word of the batch calls padding: ``bool[B, T]``."""
        return marked_padding(self.words, self.shape, self.row_lengths)

    @cached_property
    def segments(self) -> list[Segment]:
        """Segments of samples, row by row, without padding."""
        width = self.shape[1]
        starts, stops = self.bounds
        return [
            Segment(start // width, start % width, start % width + stop - start)
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
    def evidence(self) -> str:
        """Word that tells where samples begin in a row; empty if nothing does.

        Positions that run through each row tell nothing.
        """
        believed, width = self.believed, self.shape[1]
        if believed.role is Role.IDS:
            return ""
        tells = believed.role is not Role.POSITIONS or bool((self.bounds[0] % width).any())
        return believed.word if tells else ""

    @cached_property
    def why_unread(self) -> str:
        """Reason that the segments of this batch cannot be judged, in words; empty if they can.

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
            return f"{tree[0]} makes a tree of samples with shared prefixes"
        return ""

    @property
    def is_nested(self) -> bool:
        """True if the batch has rows of several lengths, each a sample."""
        return bool((self.row_lengths < self.shape[1]).any())


def read_batch(batch: Any, *, prefix: str = "") -> BatchView:
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

    Raises:
        WrongTypeError: not a batch.
        CollateError: no tokens under a known name, or tokens of more than two dimensions.

    >>> view = read_batch({"input_ids": [[5, 6, 7, 8, 9]], "position_ids": [[0, 1, 2, 0, 1]]})
    >>> view.segments, view.evidence
    ([Segment(row=0, start=0, stop=3), Segment(row=0, start=3, stop=5)], 'position_ids')
    """
    words = words_of(batch, prefix)
    ids_word = _ids_word(batch, words, prefix)
    assert ids_word.array is not None
    ids, row_lengths = _rows_of(ids_word.array)
    shape: Shape = (ids.shape[0], ids.shape[1])
    claims = claims_of([word for word in words if word is not ids_word], shape)
    rows = claim_of_rows(shape, row_lengths)
    # Rows of several lengths are samples: nothing in the batch is packed.
    is_nested = bool((row_lengths < shape[1]).any())
    strongest = next((claim for claim in claims if claim.real.any() and not is_nested), rows)
    believed = strongest.cut_at(rows.starts)
    targets, labeling, labels, labels_word = _targets(words, ids, row_lengths, believed)
    positions_word = next(
        (
            word
            for word in words
            if word.role is Role.POSITIONS and per_token(word.array, shape) is not None
        ),
        None,
    )
    return BatchView(
        words=tuple(words),
        ids=ids,
        ids_word=ids_word.path,
        row_lengths=row_lengths,
        targets=targets,
        labeling=labeling,
        labels=labels,
        labels_word=labels_word,
        positions=None if positions_word is None else _text_positions(positions_word, shape),
        positions_word=None if positions_word is None else positions_word.path,
        claims=tuple(claims),
        believed=believed,
    )


def _ids_word(batch: Any, words: list[Word], prefix: str) -> Word:
    for word in words:
        if word.role is Role.IDS and word.array is not None and _is_ids(word.array):
            return word
    # A tensor of tokens alone.
    if not any(True for _ in children_of(batch)):
        words.extend(words_of((batch,)))
        if words and words[-1].array is not None and _is_ids(words[-1].array):
            return words[-1]
        check_type("a batch", batch, (Mapping,), "a mapping with input_ids")
    names = ", ".join(str(key) for key, _ in children_of(batch))
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


def _text_positions(word: Word, shape: Shape) -> AnyArray:
    positions = per_token(word.array, shape)
    assert positions is not None
    return positions[0] if positions.ndim == 3 else positions


def _targets(
    words: list[Word], ids: Int64Array, row_lengths: Int64Array, believed: Claim
) -> tuple[Int64Array, Labeling, Int64Array | None, Path | None]:
    """Return the target at each position that predicts, how it is given, the labels, and the
    word.
    """
    shape: Shape = (ids.shape[0], ids.shape[1])
    following = np.full(shape, IGNORE_INDEX, dtype=np.int64)
    following[:, :-1] = np.where(
        np.arange(1, shape[1]) < row_lengths[:, None], ids[:, 1:], IGNORE_INDEX
    )
    mask, mask_word = _loss_mask(words, shape)
    word, labels = _labels(words, shape)
    if word is None or labels is None:
        if mask is None or mask_word is None:
            return following, Labeling.NONE, None, None
        trained = np.zeros(shape, dtype=bool)
        trained[:, :-1] = mask[:, 1:]
        return np.where(trained, following, IGNORE_INDEX), Labeling.BY_MASK, None, mask_word.path
    labels = np.where(labels < 0, IGNORE_INDEX, labels)
    if mask is not None:
        labels = np.where(mask, labels, IGNORE_INDEX)
    labeling = (
        Labeling.SHIFTED
        if word.role is Role.SHIFTED_LABELS
        else labeling_of(labels, ids, believed.starts)
    )
    if labeling is not Labeling.AS_TOKENS:
        return labels, labeling, labels, word.path
    targets = np.full(shape, IGNORE_INDEX, dtype=np.int64)
    targets[:, :-1] = labels[:, 1:]
    return targets, labeling, labels, word.path


def _labels(words: list[Word], shape: Shape) -> tuple[Word | None, Int64Array | None]:
    for role in (Role.SHIFTED_LABELS, Role.LABELS):
        for word in words:
            if word.role is role:
                labels = per_token(word.array, shape, IGNORE_INDEX)
                if labels is not None and labels.ndim == 2 and labels.dtype.kind in "iu":
                    return word, labels.astype(np.int64)
    return None, None


def _loss_mask(words: list[Word], shape: Shape) -> tuple[BoolArray | None, Word | None]:
    """Return the tokens that a mask marks as targets; several masks must all mark them."""
    mask, first = None, None
    has_labels = any(word.role in (Role.LABELS, Role.SHIFTED_LABELS) for word in words)
    for word in words:
        # Masks of answers are made into labels: with labels they mean nothing any more.
        if word.role is Role.LOSS_MASK and not (has_labels and word.name in _MASKS_OF_ANSWERS):
            values = per_token(word.array, shape)
            if values is not None and values.ndim == 2:
                mask = values != 0 if mask is None else mask & (values != 0)
                first = first or word
    return mask, first


def labeling_of(labels: Int64Array, ids: Int64Array, starts: Int64Array) -> Labeling:
    """Return whether labels are the tokens themselves, or the next tokens.

    Args:
        labels: ``int64[B, T]``, -100 if not a target.
        ids: ``int64[B, T]``.
        starts: first token of each segment in the flattened batch: a row of one repeated token
            fits both, and is read so that no target crosses a segment.

    >>> labeling_of(np.array([[6, 7, -100]]), np.array([[5, 6, 7]]), np.array([0])).value
    'shifted'
    """
    trained = labels != IGNORE_INDEX
    number = int(trained.sum())
    if not number:
        return Labeling.AS_TOKENS
    as_tokens = int((labels == ids)[trained].sum())
    # The label of the last token of a row is none of its tokens.
    shifted = int((labels[:, :-1] == ids[:, 1:])[trained[:, :-1]].sum())
    inner = int(trained[:, :-1].sum())
    if as_tokens == number and shifted == inner:
        flat = trained.reshape(-1)
        crossings_as_tokens = int(flat[starts].sum())
        crossings_shifted = int(flat[starts[1:] - 1].sum()) + int(flat[-1])
        return Labeling.AS_TOKENS if crossings_as_tokens <= crossings_shifted else Labeling.SHIFTED
    if as_tokens == number or (as_tokens > shifted and as_tokens >= _MATCH * number):
        return Labeling.AS_TOKENS
    if shifted > as_tokens and shifted >= _MATCH * inner:
        return Labeling.SHIFTED
    return Labeling.OTHER


_MASKS_OF_ANSWERS = ("completion_mask", "assistant_masks")
"""Masks of TRL, which has labels or one of these."""

_MATCH = 0.8
"""Share of labels that must be tokens of the batch: a few may be replaced, as in distillation."""
