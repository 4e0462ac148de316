"""Prefixes that samples share: the forest of all samples, as one order and the tokens that
neighbors in it share.

Samples of a tree, in the order of their tokens as words in a dictionary, stand next to the ones that
they share most with; trees are in the order of their first samples. What any two samples share is
the least that neighbors between them share (the longest common prefixes of a suffix array: Manber
and Myers, 1993)::

    order   sample          shared
    0       a b c d         0
    2       a b c x y       3        with sample 0
    1       a b z           2        with sample 2, and with sample 0
    3       q r             0        the next tree begins
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from brimful.base.checks import whole_number
from brimful.base.fingerprint import fingerprint_array
from brimful.base.ragged import offsets_of
from brimful.base.sharing import LEAST_SHARED, ShareMode
from brimful.base.tables import ColumnTable
from brimful.base.typing import (
    AnyIntArray,
    Int32Array,
    Int64Array,
    IntArrayLike,
    Lengths,
    Offsets,
)
from brimful.base.wording import setting
from brimful.lengths.table import LengthTable
from brimful.trees.prefix_order import order_of_trees

HEAD_TOKENS = 16
"""Tokens from which a whole sample counts as the prefix of another: it costs no trunk."""

_AMOUNT = "prefix_shared_"
"""Beginning of the names of the columns with amounts in a saved table."""


@dataclass(frozen=True, eq=False)
class Prefixes:
    """Prefixes that samples share.

    Attributes:
        order: ``int64[num_samples]``: every sample once, the ones of a tree next to each other and
            in the order of their tokens.
        shared: ``int32[num_samples]``: tokens that sample ``order[i]`` shares with
            ``order[i - 1]``; 0 where a tree begins.
        least: shorter prefixes count as none, unless they are a whole sample of ``HEAD_TOKENS`` or
            more.
        amounts: ``int32[num_samples]`` of a budget's name: how much of it lies within the tokens
            that ``order[i]`` shares with ``order[i - 1]``, such as the patches of shared images.

    >>> prefixes = find_prefixes(np.array([5, 6, 7, 8, 5, 6, 9]), np.array([0, 3, 4, 7]), least=2)
    >>> prefixes.order.tolist(), prefixes.shared.tolist()
    ([0, 2, 1], [0, 2, 0])
    """

    order: Int64Array
    shared: Int32Array
    least: int = LEAST_SHARED
    amounts: Mapping[str, Int32Array] = field(default_factory=dict)
    kind: ClassVar[ShareMode] = ShareMode.PREFIXES

    @classmethod
    def of_columns(cls, columns: ColumnTable, description: Mapping[str, Any]) -> Prefixes:
        """Read prefixes from their ``columns`` in a saved table, by their ``description``."""
        amounts = {name: columns.flat(_AMOUNT + name) for name in description["amounts"]}
        order, shared = columns.flat("prefix_order"), columns.flat("prefix_shared")
        return cls(order, shared, description["least"], amounts)

    @classmethod
    def joined(cls, tables: Sequence[Prefixes]) -> Prefixes:
        """Concatenate the prefixes of several tables: samples of two tables share nothing."""
        starts = offsets_of([*map(len, tables)])
        return cls(
            np.concatenate(
                [prefixes.order + start for prefixes, start in zip(tables, starts, strict=False)]
            ),
            np.concatenate([prefixes.shared for prefixes in tables]),
            tables[0].least,
            {
                name: np.concatenate([prefixes.amounts[name] for prefixes in tables])
                for name in tables[0].amounts
            },
        )

    def __len__(self) -> int:
        return len(self.order)

    @cached_property
    def order_index(self) -> Int64Array:
        """``int64[num_samples]``: the place of each sample in ``order``."""
        inverse = np.empty(len(self), dtype=np.int64)
        inverse[self.order] = np.arange(len(self))
        return inverse

    def between(self, samples: AnyIntArray, others: AnyIntArray) -> Int64Array:
        """Return where in ``shared`` and ``amounts`` is what pairs of samples share:
        ``int64[num_pairs]``.

        >>> prefixes = Prefixes(np.array([0, 2, 1]), np.array([0, 3, 2]))
        >>> prefixes.shared[prefixes.between(np.array([0, 1]), np.array([2, 0]))].tolist()
        [3, 2]
        """
        one, other = self.order_index[samples], self.order_index[others]
        return lowest(self.shared, np.minimum(one, other) + 1, np.maximum(one, other) + 1)

    @property
    def description(self) -> dict[str, Any]:
        """Part of the description of a saved table that belongs to the columns."""
        return {"least": self.least, "amounts": list(self.amounts)}

    @property
    def columns(self) -> dict[str, AnyIntArray]:
        """Columns of a saved table that hold them."""
        return {
            "prefix_order": self.order,
            "prefix_shared": self.shared,
            **{_AMOUNT + name: column for name, column in self.amounts.items()},
        }

    @property
    def identity(self) -> dict[str, Any]:
        """Fingerprints of the columns, and ``least``, for the fingerprint of a length table."""
        columns = self.columns
        return {"least": self.least, **{k: fingerprint_array(v) for k, v in columns.items()}}


def find_prefixes(
    keys: AnyIntArray,
    offsets: Offsets,
    *,
    groups: IntArrayLike | None = None,
    least: int = LEAST_SHARED,
) -> Prefixes:
    """Find the prefixes that samples share.

    Args:
        keys: ``int[num_tokens]`` of all samples: two tokens with equal keys are equal in everything
            that a model reads. Ids of tokens are keys of texts; keys of images are of their bytes.
        offsets: ``int64[num_samples + 1]``: sample ``i`` is ``keys[offsets[i]:offsets[i + 1]]``.
        groups: ``int[num_samples]``: only samples of one number share, and a sample with -1 shares
            with none; None for all.
        least: shorter prefixes count as none, unless they are a whole sample of ``HEAD_TOKENS`` or
            more: a sample that another continues costs no branch.

    Cost: O(tokens + samples · log(samples of a tree)); about a billion tokens a second.

    Raises:
        SettingsError: ``least`` is below 1.
    """
    least = whole_number(setting("least_shared"), least, minimum=1)
    offsets = np.ascontiguousarray(offsets, dtype=np.int64)
    names = np.zeros(len(offsets) - 1) if groups is None else groups
    order, shared = order_of_trees(
        np.ascontiguousarray(keys),
        offsets,
        np.ascontiguousarray(names, dtype=np.int64),
        min(least, HEAD_TOKENS),
    )
    lengths = np.diff(offsets)[order]
    is_whole = np.append(False, shared[1:] == lengths[:-1])
    shared[(shared < least) & ~is_whole] = 0
    indices = by_first_sample(order, shared)
    return Prefixes(order[indices], shared[indices], least)


def by_first_sample(order: Int64Array, shared: Int32Array) -> Int64Array:
    """Return the places of an order by which its trees are in the order of their first samples:
    ``int64[num_samples]``.

    >>> by_first_sample(np.array([4, 2, 3, 1]), np.array([0, 5, 0, 6])).tolist()
    [2, 3, 0, 1]
    """
    starts = np.flatnonzero(shared == 0)
    sizes = np.diff(np.append(starts, len(order)))
    first = np.minimum.reduceat(order, starts) if len(starts) else starts
    return np.argsort(np.repeat(first, sizes), kind="stable")


def lowest(values: AnyIntArray, starts: Int64Array, stops: Int64Array) -> Int64Array:
    """Return the index of the least value of each range ``[begin, stop)``, none empty.

    Ranges are answered level by level, by two ranges of a power of two that cover them (a sparse
    table: Bender and Farach-Colton, 2000), of which one level is kept.

    >>> lowest(np.array([5, 3, 4, 9]), np.array([0, 2]), np.array([3, 4])).tolist()
    [1, 2]
    """
    result = np.zeros(len(starts), dtype=np.int64)
    levels = np.frexp((stops - starts).astype(np.float64))[1] - 1
    least = np.arange(len(values))
    for level in range(int(levels.max(initial=-1)) + 1):
        if level:
            half = 1 << (level - 1)
            left, right = least[:-half], least[half:]
            least = np.where(values[right] < values[left], right, left)
        rows = np.flatnonzero(levels == level)
        left, right = least[starts[rows]], least[stops[rows] - (1 << level)]
        result[rows] = np.where(values[right] < values[left], right, left)
    return result


def prefixes_of(table: LengthTable) -> Prefixes:
    """Return the prefixes that the samples of a table share, which were looked for."""
    assert isinstance(table.sharing, Prefixes)
    return table.sharing


@dataclass(frozen=True)
class SharedTotals:
    """Account of what samples share.

    Attributes:
        flat_tokens: sum of the lengths of the samples.
        tree_tokens: tokens that are left if each shared one is there once.
        num_trees: trees of several samples.
        shares: samples in such trees.
        too_short: other samples, of fewer tokens than a trunk needs.
        alone: longer ones whose first tokens no other sample has.
    """

    flat_tokens: int
    tree_tokens: int
    num_trees: int
    shares: int
    too_short: int
    alone: int

    @property
    def ratio(self) -> float:
        """Flat tokens for each token of the trees; 1 if there are none."""
        return self.flat_tokens / self.tree_tokens if self.tree_tokens else 1.0


def sharing_of(prefixes: Prefixes, lengths: Lengths) -> SharedTotals:
    """Count what samples share.

    Args:
        prefixes: of the samples.
        lengths: ``int32[num_samples]``, their tokens; rejected samples, with -1, are left out.

    >>> prefixes = find_prefixes(np.array([5, 6, 7, 8, 5, 6, 9]), np.array([0, 3, 4, 7]), least=2)
    >>> sharing_of(prefixes, np.array([3, 1, 3], dtype=np.int32))
    SharedTotals(flat_tokens=7, tree_tokens=5, num_trees=1, shares=2, too_short=1, alone=0)
    """
    is_shared = prefixes.shared > 0
    in_tree = is_shared.copy()
    in_tree[:-1] |= is_shared[1:]
    shares = int(np.count_nonzero(in_tree))
    samples = lengths[lengths > 0]
    in_order = lengths[prefixes.order]
    too_short = int(np.count_nonzero(~in_tree & (in_order > 0) & (in_order < prefixes.least)))
    flat_tokens = int(samples.sum(dtype=np.int64))
    return SharedTotals(
        flat_tokens=flat_tokens,
        tree_tokens=flat_tokens - int(prefixes.shared.sum(dtype=np.int64)),
        num_trees=int(np.count_nonzero(in_tree & ~is_shared)),
        shares=shares,
        too_short=too_short,
        alone=len(samples) - shares - too_short,
    )


def saved_in_groups(
    table: LengthTable, groups: Int64Array, sample_ids: Int64Array, lengths: AnyIntArray
) -> Int64Array:
    """Return the tokens that each sample need not take, because a member of its group that comes
    before it in the order of tokens has them: ``int64[num_samples]``.

    A fork takes a token, so a branch shares one less than its trunk has.

    Args:
        table: with prefixes.
        groups: ``int64[num_samples]``: -1 for a sample that is alone, or an id of at least 0.
        sample_ids: ``int64[num_samples]``.
        lengths: ``int[num_samples]``, tokens.

    >>> prefixes = Prefixes(np.array([1, 0]), np.array([0, 70]))
    >>> table = LengthTable({"tokens": [80, 90]}, sharing=prefixes)
    >>> saved_in_groups(table, np.array([5, 5]), np.array([0, 1]), np.array([80, 90])).tolist()
    [69, 0]
    """
    prefixes = prefixes_of(table)
    order = np.lexsort((prefixes.order_index[sample_ids], groups))
    follows = np.flatnonzero((np.diff(groups[order]) == 0) & (groups[order[1:]] >= 0))
    before, after = order[follows], order[follows + 1]
    shared = prefixes.shared[prefixes.between(sample_ids[before], sample_ids[after])]
    shortest = np.minimum(lengths[before], lengths[after])
    result = np.zeros(len(sample_ids), dtype=np.int64)
    result[after] = np.minimum(shared, shortest) - ((shared > 0) & (shared < shortest))
    return result


joined, of_table = Prefixes.joined, Prefixes.of_columns
