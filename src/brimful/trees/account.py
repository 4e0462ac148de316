"""Samples of a plan as paths of segments, and what they share."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from brimful.base.typing import Int64Array, Lengths
from brimful.base.wording import counted
from brimful.lengths.table import LengthTable
from brimful.plan import Plan
from brimful.trees.pack_tree import PackTree, segments_above
from brimful.trees.plan.plan_trees import parents_of
from brimful.trees.prefixes import Prefixes, prefixes_of, sharing_of

_NO_SPANS = np.zeros(0, dtype=np.int32)


def sample_ends(plan: Plan) -> Int64Array:
    """Return the segments that end a sample, ``int64[num_ends]``: in a flat plan every segment, so
    that a sample that was split counts in each of its parts.
    """
    return np.flatnonzero(plan.ends_sample)


def lengths_in_packs(plan: Plan) -> Lengths:
    """Return the tokens that packs hold of each sample of ``sample_ends``: ``int32[num_ends]``."""
    if plan.sharing is None:
        return plan.lengths
    ends = sample_ends(plan)
    return plan.starts[ends] + plan.lengths[ends]


def tree_of_pack(plan: Plan, index: int) -> PackTree:
    """Return the tree of one pack of a plan with trees, without targets."""
    rows = slice(int(plan.offsets[index]), int(plan.offsets[index + 1]))
    ends = np.flatnonzero(plan.ends_sample[rows]).astype(np.int32)
    return PackTree(parents_of(plan)[rows], ends, _NO_SPANS, np.zeros_like(ends))


@dataclass(frozen=True)
class NotShared:
    """Samples in packs that share nothing with another sample of their pack, and trunks that are in
    several packs.

    Attributes:
        too_short: samples of fewer tokens than may be shared.
        alone: longer ones whose first tokens no other sample has.
        apart: samples that share with others, none of which is in their pack.
        repeated_tokens: tokens of trunks that are in further packs too.
        least: tokens that may be shared, at least.
    """

    too_short: int
    alone: int
    apart: int
    repeated_tokens: int
    least: int

    @property
    def phrases(self) -> str:
        """The counts in words; empty if everything is shared."""
        reasons = {
            f"shorter than {self.least:,} tokens": self.too_short,
            "whose beginning no other has": self.alone,
            "in other packs than all that share with them": self.apart,
        }
        phrases = [f"{counted(count, 'sample')} {why}" for why, count in reasons.items() if count]
        if self.repeated_tokens:
            phrases.append(f"{counted(self.repeated_tokens, 'token')} of trunks in further packs")
        return ", ".join(phrases)


@dataclass(frozen=True)
class SharedTokens:
    """Tokens that the samples of a plan share, and the work that this saves.

    Attributes:
        flat_tokens: sum of the lengths of the samples in packs.
        tree_tokens: tokens in the packs.
        flat_squares, tree_squares: pairs of a token and one that it attends to, twice: the squares
            of the lengths of samples, and of segments the square of their end less the square of
            their start.
        samples: in packs.
        sharing: samples that share their first tokens with others of their pack.
        trees: of several samples.
        fork_tokens: room for the last token of each trunk, once more for each branch after its
            first.
        not_shared: what is not shared and why; None without the prefixes of all samples.
    """

    flat_tokens: int
    tree_tokens: int
    flat_squares: int
    tree_squares: int
    samples: int
    sharing: int
    trees: int
    fork_tokens: int
    not_shared: NotShared | None

    @classmethod
    def of(cls, plan: Plan, table: LengthTable | None = None) -> SharedTokens | None:
        """Count what the packs of a plan share; None for a flat plan, and without
        packs.

        Args:
            plan: the packs.
            table: the lengths that were planned, with their prefixes.
        """
        if plan.sharing is None or not plan.num_packs:
            return None
        parents = parents_of(plan)
        ends = sample_ends(plan)
        stops = plan.starts.astype(np.int64) + plan.lengths
        tree_ids = np.cumsum(parents < 0)
        samples_of_trees = np.bincount(tree_ids[ends])
        is_shared = samples_of_trees > 1
        # Branches of each trunk, in trunks of all packs: segments of a sample that ends in its
        # trunk have no token.
        is_branch = (parents >= 0) & (plan.lengths > 0)
        trunks = segments_above(parents, plan.offsets)[is_branch]
        tree_tokens = int(plan.lengths.sum(dtype=np.int64))
        shared = cls(
            flat_tokens=int(stops[ends].sum()),
            tree_tokens=tree_tokens,
            flat_squares=int((stops[ends] ** 2).sum()),
            tree_squares=int((stops**2 - plan.starts.astype(np.int64) ** 2).sum()),
            samples=len(ends),
            sharing=int(samples_of_trees[is_shared].sum()),
            trees=int(np.count_nonzero(is_shared)),
            fork_tokens=len(trunks) - len(np.unique(trunks)),
            not_shared=None,
        )
        if table is None or table.sharing is None:
            return shared
        packed = np.full(len(table), -1, dtype=np.int32)
        packed[plan.sample_ids[ends]] = stops[ends]
        prefixes = _among(prefixes_of(table), packed)
        sharing = sharing_of(prefixes, packed)
        return replace(
            shared,
            not_shared=NotShared(
                too_short=sharing.too_short,
                alone=sharing.alone,
                apart=sharing.shares - shared.sharing,
                repeated_tokens=tree_tokens - sharing.tree_tokens,
                least=prefixes.least,
            ),
        )

    @property
    def ratio(self) -> float:
        """Flat tokens for each token in the packs."""
        return self.flat_tokens / self.tree_tokens

    @property
    def square_ratio(self) -> float:
        """Pairs of attention of the flat samples for each pair of the trees."""
        return self.flat_squares / self.tree_squares

    def room(self, plan: Plan) -> str:
        """Describe the share of the packs that is room for forks; empty if there are none."""
        share = self.fork_tokens / (plan.num_packs * plan.capacity)
        return f", and {100 * share:.2f} % are room for forks" if self.fork_tokens else ""

    def lines(self) -> list[str]:
        """Describe what is shared, what is not and why, and the work that it saves."""
        lines = [
            f"shared         {self.flat_tokens:,} tokens of samples are {self.tree_tokens:,} in the "
            f"packs, {self.ratio:.2f} times fewer; {self.sharing:,} of "
            f"{counted(self.samples, 'sample')} share, in {counted(self.trees, 'tree')}"
        ]
        if self.not_shared is not None and self.not_shared.phrases:
            lines.append(f"not shared     {self.not_shared.phrases}")
        return [
            *lines,
            f"speed-up       {self.ratio:.2f} times in layers by their tokens, "
            f"{self.square_ratio:.2f} times in attention; head, loss and optimizer have no less "
            "work",
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return the counts for JSON."""
        return {**asdict(self), "ratio": self.ratio, "square_ratio": self.square_ratio}


def _among(prefixes: Prefixes, packed: Lengths) -> Prefixes:
    """Return the prefixes that the samples in packs share among themselves.

    Args:
        prefixes: of all samples.
        packed: ``int32[num_samples]``, tokens of each in a pack; -1 for the others.
    """
    order = prefixes.order[packed[prefixes.order] >= 0]
    shared = prefixes.shared[prefixes.between(order[:-1], order[1:])]
    # What truncation cut off is not shared.
    shared = np.minimum(shared, np.minimum(packed[order[:-1]], packed[order[1:]]))
    return Prefixes(order, np.append(np.int32(0), shared), prefixes.least)


account_of = SharedTokens.of
