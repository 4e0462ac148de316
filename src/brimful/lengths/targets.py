"""Targets of the loss in each sample, and the number of them that remain when a sample is cut; and
what was read.

The first token of a segment is not a target, even in the middle of a sample: no token before it
could predict it. So a document of ``n`` tokens has ``n - 1``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from brimful.base.checks import describe
from brimful.base.ragged import offsets_of, ranges
from brimful.base.tables import ColumnTable, Ragged
from brimful.base.typing import AnyIntArray, Int32Array, Int64Array, IntArrayLike, Lengths, LossMask
from brimful.errors import InvalidLengthsError

_MAX_LENGTH = 2**31 - 1
"""Largest length: they are int32."""


def as_lengths(lengths: IntArrayLike, name: str = "lengths") -> Lengths:
    """Convert one row of whole numbers to ``int32``; an ``int32`` array is returned unchanged.

    Raises:
        InvalidLengthsError: not one row, not whole numbers, or above 2**31 - 1.
    """
    if isinstance(lengths, (str, bytes)) or not (
        isinstance(lengths, Sequence) or hasattr(lengths, "__array__")
    ):
        raise InvalidLengthsError(
            f"{name} must be whole numbers, one for each sample, and is {describe(lengths)}: open "
            "a file of lengths by LengthTable.open or numpy.load, and measure data by "
            "measure_lengths"
        )
    try:
        array = np.asarray(lengths)
    except ValueError:  # rows of unequal length
        array = np.array([None])
    if array.size == 0:
        array = array.astype(np.int32)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InvalidLengthsError(f"{name} must be {_expectation(lengths, array)}")
    if array.dtype != np.int32:
        if int(array.max()) > _MAX_LENGTH:
            longest = int(np.argmax(array))
            raise InvalidLengthsError(
                f"{name}: sample {longest} has {int(array[longest]):,}, above the maximum, "
                f"{_MAX_LENGTH:,}"
            )
        # The conversion would wrap around numbers of wider types.
        if int(array.min()) < -_MAX_LENGTH:
            raise InvalidLengthsError(
                f"{name}: sample {int(np.argmin(array))} has {int(array.min()):,}"
            )
        array = array.astype(np.int32)
    return array


def _expectation(lengths: Any, array: np.ndarray[Any, Any]) -> str:
    """Return the end of the message ``… must be …``: expected numbers, and the first thing that
    differs.
    """
    items = lengths if isinstance(lengths, Sequence) else ()
    for index, item in enumerate(items):
        if not isinstance(item, (int, float, np.number)):
            return (
                f"whole numbers, one for each sample, and the one of sample {index} is "
                f"{describe(item)}: give the number of its tokens"
            )
    if array.ndim != 1:
        return f"one row of numbers and has shape {array.shape}"
    return f"whole numbers and are {array.dtype}"


_ROWS_AT_ONCE = 1 << 16
"""Rows whose targets are counted together: the temporary memory is some megabytes."""


@dataclass(eq=False)
class Targets:
    """Targets of all samples, as runs of tokens.

    Attributes:
        counts: ``int32[num_samples]``, targets of each sample when packed whole.
        runs: ``int32``; row ``i`` is ``[start, end, start, end, …]`` of sample ``i``, ascending.
            None: every token is a target.

    >>> masks = [np.array([False, True, True, False, True]), np.array([True, True, True]), np.array([False, False])]
    >>> masks = Ragged(np.concatenate(masks), offsets_of([5, 3, 2]))
    >>> targets = Targets.of_runs(runs_of_masks(masks))
    >>> targets.counts.tolist()
    [3, 2, 0]
    >>> targets.within(np.array([0, 0]), np.array([0, 2]), np.array([2, 3])).tolist()  # 0 1 | 2 3 4
    [1, 1]
    """

    counts: Int32Array
    runs: Ragged | None

    @classmethod
    def of_all_tokens(cls, tokens: Lengths) -> Targets:
        """Return the targets of samples in which every token is a target.

        Args:
            tokens: ``int32[num_samples]``, negative for rejected samples, which have none.
        """
        return cls(np.maximum(tokens - 1, 0), None)

    @classmethod
    def of_columns(cls, columns: ColumnTable, kind: str | None) -> Targets | None:
        """Read targets from their ``columns`` in a saved table, by their ``kind``; None if they
        were not measured.
        """
        if kind is None:
            return None
        if kind == "all":
            return cls.of_all_tokens(columns.flat("tokens"))
        return cls(columns.flat("targets"), columns.ragged("target_runs"))

    @property
    def kind(self) -> str:
        """``all`` if every token is a target, otherwise ``runs``."""
        return "all" if self.runs is None else "runs"

    @property
    def columns(self) -> dict[str, Any]:
        """Columns of a saved table that hold the targets."""
        return {} if self.runs is None else {"targets": self.counts, "target_runs": self.runs}

    @classmethod
    def of_runs(cls, runs: Ragged) -> Targets:
        """Count the targets in the runs of each sample."""
        counts = np.empty(len(runs), dtype=np.int32)
        for start in range(0, len(runs), _ROWS_AT_ONCE):
            offsets = np.asarray(runs.offsets[start : start + _ROWS_AT_ONCE + 1])
            values = runs.values[int(offsets[0]) : int(offsets[-1])]
            # Token 0 is not a target, so no run counts from before token 1.
            sizes = values[1::2] - np.maximum(values[::2], 1)
            totals = offsets_of(np.maximum(sizes, 0))
            edges = (offsets - offsets[0]) // 2
            counts[start : start + _ROWS_AT_ONCE] = totals[edges[1:]] - totals[edges[:-1]]
        return cls(counts, runs)

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def total(self) -> int:
        """Number of targets of all samples packed whole."""
        return int(self.counts.sum(dtype=np.int64))

    def within(
        self, sample_ids: AnyIntArray, starts: AnyIntArray, lengths: AnyIntArray
    ) -> Int64Array:
        """Count the targets in segments of samples.

        Args:
            sample_ids, starts, lengths: ``int[num_segments]``, as in a plan.

        Returns:
            ``int64[num_segments]``.
        """
        if self.runs is None:
            return np.asarray(lengths, dtype=np.int64) - 1
        # One pair for each segment and each run of its sample.
        edges = np.asarray(self.runs.offsets) // 2
        first_runs = edges[sample_ids]
        num_runs = edges[np.asarray(sample_ids) + 1] - first_runs
        segment = np.repeat(np.arange(len(num_runs)), num_runs)
        run = ranges(first_runs, num_runs)
        # The targets of a pair lie in both, after the first token of the segment.
        segment_starts = np.asarray(starts, dtype=np.int64)
        low = np.maximum(self.runs.values[::2][run], segment_starts[segment] + 1)
        high = np.minimum(self.runs.values[1::2][run], (segment_starts + lengths)[segment])
        return np.bincount(
            segment, weights=np.maximum(high - low, 0), minlength=len(num_runs)
        ).astype(np.int64)


def runs_of_masks(masks: Ragged) -> Ragged:
    """Return the runs of targets in each mask: ``[start, end, start, end, …]``, ascending."""
    values, offsets = masks.values, masks.offsets
    # The neighbors of token i are elements i and i + 2. Beyond its mask they count as not targets:
    # no run leaves its mask.
    neighbors = np.zeros(len(values) + 2, dtype=bool)
    neighbors[1:-1] = values
    previous_is_target, next_is_target = neighbors[:-2].copy(), neighbors[2:]
    has_tokens = offsets[1:] > offsets[:-1]
    previous_is_target[offsets[:-1][has_tokens]] = False
    next_is_target[offsets[1:][has_tokens] - 1] = False
    starts = np.flatnonzero(values > previous_is_target)
    ends = np.flatnonzero(values > next_is_target) + 1
    owners = np.searchsorted(offsets, starts, side="right") - 1
    edges = np.stack([starts, ends], axis=1) - offsets[owners][:, None]
    num_runs = np.bincount(owners, minlength=len(offsets) - 1)
    return Ragged(edges.reshape(-1).astype(np.int32), offsets_of(2 * num_runs))


def mask_of_runs(runs: AnyIntArray, num_tokens: int) -> LossMask:
    """Return the mask of one sample from its runs of targets.

    >>> mask_of_runs(np.array([1, 3]), 4).tolist()
    [False, True, True, False]
    """
    mask = np.zeros(num_tokens, dtype=bool)
    for start, end in zip(runs[::2].tolist(), runs[1::2].tolist(), strict=True):
        mask[start:end] = True
    return mask


def joined_rows(columns: Sequence[Ragged]) -> Ragged:
    """Concatenate the rows of several ragged columns of ``int32``."""
    values = [column.values[int(column.offsets[0]) : int(column.offsets[-1])] for column in columns]
    sizes = [np.diff(column.offsets) for column in columns]
    nothing = np.empty(0, dtype=np.int32)
    return Ragged(np.concatenate([nothing, *values]), offsets_of(np.concatenate([nothing, *sizes])))


@dataclass
class Account:
    """Counts of samples by what was read from them.

    Attributes:
        kinds: samples that are chats, texts and rows of tokens.
        unread: samples with a column that is not read, by its name.
        no_target: samples without a target of the loss, by the reason.

    >>> from brimful.sources import Sample
    >>> account = Account()
    >>> account.add([Sample(0, text="a", unread=("id",))])
    >>> account.as_dict()
    {'kinds': {'text': 1}, 'unread': {'id': 1}, 'no_target': {}}
    """

    kinds: Counter[str] = field(default_factory=Counter)
    unread: Counter[str] = field(default_factory=Counter)
    no_target: Counter[str] = field(default_factory=Counter)

    def add(self, samples: Iterable[Any]) -> None:
        """Count samples that were encoded, as their source gave them."""
        samples = list(samples)
        self.kinds.update([sample.kind for sample in samples])
        for unread in filter(None, [sample.unread for sample in samples]):
            self.unread.update(unread)

    @classmethod
    def sum(cls, accounts: Iterable[Mapping[str, Mapping[str, int]]]) -> Account:
        """Add the accounts of several parts of a data set, each in the form of ``as_dict``."""
        total = cls()
        for account in accounts:
            for name, counter in vars(total).items():
                counter.update(account.get(name, {}))
        return total

    def as_dict(self) -> dict[str, Any]:
        """Return the counts for JSON, in descending order."""
        return {name: dict(counter.most_common()) for name, counter in vars(self).items()}
