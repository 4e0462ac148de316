"""Plan of context parallelism: the ranks and the micro-batch of each sample."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from brimful.base.checks import setting_number
from brimful.base.fingerprint import fingerprint_array, fingerprint_of, short
from brimful.base.typing import Fingerprint, Float64Array, Int64Array
from brimful.base.wording import counted


@dataclass(frozen=True, eq=False)
class ContextParallelPlan:
    """Micro-batches whose samples are each shared by a number of ranks, from ``plan_context_parallel``.

    Attributes:
        world_size: ranks of data and context parallelism together.
        max_tokens_per_rank: maximum tokens of a rank in a micro-batch.
        num_micro_batches: number of micro-batches of every rank; no micro-batch is empty.
        micro_batch_of: ``int64[num_samples]``.
        first_rank_of: ``int64[num_samples]``: a multiple of the degree.
        degree_of: ``int64[num_samples]``: ranks that share the sample, a power of two (``local_cp_size``).
        tokens: ``int64[num_micro_batches, world_size]``: tokens of each rank, each share padded to two equal chunks.
        costs: ``float64[num_micro_batches, world_size]``, in the unit of the cost model.

    >>> from brimful import plan_context_parallel
    >>> plan_context_parallel([16, 4, 4, 3, 1], max_tokens_per_rank=8, world_size=4, slack=0.2)
    ... # doctest: +ELLIPSIS
    ContextParallelPlan(5 samples, 4 ranks, micro-batches 1, at most 8 tokens a rank, degrees 1 to 2, fingerprint ...)
    """

    world_size: int
    max_tokens_per_rank: int
    num_micro_batches: int
    micro_batch_of: Int64Array
    first_rank_of: Int64Array
    degree_of: Int64Array
    tokens: Int64Array
    costs: Float64Array

    def __post_init__(self) -> None:
        for array in (self.micro_batch_of, self.first_rank_of, self.degree_of, self.tokens, self.costs):
            array.setflags(write=False)

    def __len__(self) -> int:
        return len(self.degree_of)

    @property
    def sample_id_groups(self) -> list[list[list[int]]]:
        """``sample_id_groups[micro_batch][rank]``: ids of samples, longest first.

        A sample is in the list of each of its ranks. This is the structure of Megatron-Core's schedulers; each call
        makes new lists.

        >>> from brimful import plan_context_parallel
        >>> plan_context_parallel([16, 4, 4, 3, 1], max_tokens_per_rank=8, world_size=4, slack=0.2).sample_id_groups
        [[[0], [0], [1, 3], [2, 4]]]
        """
        groups: list[list[list[int]]] = [[[] for _ in range(self.world_size)] for _ in range(self.num_micro_batches)]
        columns = (self.micro_batch_of, self.first_rank_of, self.degree_of)
        rows = zip(*(column[self._longest_first].tolist() for column in columns), strict=True)
        for sample, (micro_batch, first, degree) in zip(self._longest_first.tolist(), rows, strict=True):
            for rank in range(first, first + degree):
                groups[micro_batch][rank].append(sample)
        return groups

    @cached_property
    def _longest_first(self) -> Int64Array:
        return np.argsort(-self.degree_of, kind="stable")

    def micro_batches(self, rank: int) -> list[Int64Array]:
        """Return the samples of a rank, micro-batch by micro-batch, ascending: ``int64[number]`` each.

        Raises:
            SettingsError: the rank does not exist.
        """
        rank = setting_number("rank", rank, minimum=0, maximum=self.world_size - 1)
        samples = np.flatnonzero((self.first_rank_of <= rank) & (rank < self.first_rank_of + self.degree_of))
        order = np.argsort(self.micro_batch_of[samples], kind="stable")
        counts = np.bincount(self.micro_batch_of[samples], minlength=self.num_micro_batches)
        return np.split(samples[order], np.cumsum(counts)[:-1])

    @property
    def imbalance(self) -> float:
        """Σ over micro-batches of the slowest rank ÷ the time of perfectly equal ranks."""
        ideal = float(self.costs.mean(axis=1).sum())
        return max(1.0, float(self.costs.max(axis=1).sum()) / ideal) if ideal else 1.0

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """Fingerprint of the assignment: equal on all ranks."""
        arrays = (self.micro_batch_of, self.first_rank_of, self.degree_of)
        return fingerprint_of([self.world_size, self.max_tokens_per_rank, *map(fingerprint_array, arrays)])

    def __repr__(self) -> str:
        return (
            f"ContextParallelPlan({counted(len(self), 'sample')}, {counted(self.world_size, 'rank')}, micro-batches "
            f"{self.num_micro_batches:,}, at most {self.max_tokens_per_rank:,} tokens a rank, degrees "
            f"{int(self.degree_of.min())} to {int(self.degree_of.max())}, fingerprint {short(self.fingerprint)})"
        )
