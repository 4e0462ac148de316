"""Plans of one step: samples by rank and micro-batch, whole or shared among ranks, and the weights
of their losses.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from brimful.base.checks import check_factor, check_rank, choice_of, setting_number
from brimful.base.fingerprint import fingerprint_array, fingerprint_of, short
from brimful.base.typing import (
    AnyIntArray,
    Fingerprint,
    Float64Array,
    Int32Array,
    Int64Array,
    Offsets,
)
from brimful.base.wording import counted, percent
from brimful.errors import SettingsError
from brimful.plan.schedule.balance import Barrier, imbalance
from brimful.trees.pack_tree import ends_sample, segments_above


class LossMean(str, Enum):
    """Definition of the mean loss of a step, under the trainers' names.

    With n targets in a sample, and N targets and S samples with a target in the whole step, the
    weight of a target is:
    """

    TOKEN_MEAN = "token-mean"
    """1/N: every target counts equally. (DAPO, 2025)"""
    SEQ_MEAN_TOKEN_MEAN = "seq-mean-token-mean"
    """1/(S·n): every sample counts equally, by the mean of its targets. (GRPO, 2024)"""
    SEQ_MEAN_TOKEN_SUM = "seq-mean-token-sum"
    """1/S: every sample counts by the sum of its targets."""
    CONSTANT = "constant"
    """1/constant, such as S times the maximum answer length. (Dr. GRPO, 2025)"""


def loss_weights(
    loss_tokens: Int64Array,
    mean: LossMean | str,
    *,
    constant: float | None = None,
    scale: float = 1.0,
) -> Float64Array:
    """Return the weight of each target of a sample, so that Σ weight · loss over the step is the
    chosen mean.

    Micro-batches and ranks add their sums: counts need not be gathered, and no micro-batch is
    divided by its own count.

    Pure: no I/O.

    Args:
        loss_tokens: ``int64[num_samples]``: targets of each sample of the step, on all ranks.
        mean: ``token-mean``, ``seq-mean-token-mean``, ``seq-mean-token-sum`` or ``constant``.
        constant: divisor of ``constant``; above 0.
        scale: a factor: the number of ranks if the trainer averages gradients over them (DDP, FSDP)
            instead of adding them.

    Returns:
        ``float64[num_samples]``; 0 for a sample without a target.

    Raises:
        SettingsError: no such mean, ``constant`` without its divisor, or a divisor with another
            mean.

    >>> loss_weights(np.array([4, 1, 0]), "seq-mean-token-mean").tolist()
    [0.125, 0.5, 0.0]
    """
    mean = choice_of(LossMean, mean, argument="mean")
    if (constant is not None) != (mean is LossMean.CONSTANT):
        raise SettingsError(
            'constant belongs to the mean "constant", and to no other: give both or neither'
        )
    check_factor("scale", scale)
    if constant is not None:
        check_factor("constant", constant)
    has_target = loss_tokens > 0
    num_samples = max(int(has_target.sum()), 1)
    divisors: dict[LossMean, Any] = {
        LossMean.TOKEN_MEAN: max(int(loss_tokens.sum()), 1),
        LossMean.SEQ_MEAN_TOKEN_MEAN: num_samples * np.maximum(loss_tokens, 1),
        LossMean.SEQ_MEAN_TOKEN_SUM: num_samples,
        LossMean.CONSTANT: constant,
    }
    return np.where(has_target, scale / divisors[mean], 0.0)


@dataclass(frozen=True, eq=False)
class StepTrees:
    """Trees of all micro-batches of a step, segment by segment in depth-first order, as in a
    ``Plan``.

    Attributes:
        offsets: ``int64[dp_world_size · num_micro_batches + 1]``: the segments of each micro-batch,
            rank after rank.
        sample_ids: ``int64[num_segments]``: the sample that ends with the segment; of the next
            segment if none does.
        starts: ``int32[num_segments]``: depth of its first token.
        lengths: ``int32[num_segments]``: its tokens.
        parents: ``int32[num_segments]``: an earlier segment, counted from the first of the
            micro-batch; -1 for a root.
    """

    offsets: Offsets
    sample_ids: Int64Array
    starts: Int32Array
    lengths: Int32Array
    parents: Int32Array

    def __post_init__(self) -> None:
        for array in self.arrays:
            array.setflags(write=False)

    @property
    def arrays(self) -> tuple[AnyIntArray, ...]:
        """Arrays in the order of the attributes."""
        return self.offsets, self.sample_ids, self.starts, self.lengths, self.parents

    def __len__(self) -> int:
        return len(self.sample_ids)

    @property
    def samples(self) -> Int64Array:
        """``int64[num_samples]``: the sample of each segment that ends one."""
        above = segments_above(self.parents, self.offsets)
        return self.sample_ids[ends_sample(above, self.sample_ids, self.lengths)]

    def micro_batch(self, micro_batch: int) -> StepTrees:
        """Return the trees of one micro-batch, by its number among the ones of all ranks."""
        first, end = self.offsets[micro_batch : micro_batch + 2].tolist()
        return StepTrees(
            np.array([0, end - first]),
            self.sample_ids[first:end],
            self.starts[first:end],
            self.lengths[first:end],
            self.parents[first:end],
        )


@dataclass(frozen=True, eq=False)
class StepPlan:
    """Micro-batches of one step, from ``plan_step``. Immutable.

    The same plan serves every pass over the samples: log-probabilities from the same micro-batches
    as in the training step are the same numbers, so that their ratio is exactly 1 at the first
    inner step.

    Attributes:
        capacity: maximum tokens of a micro-batch.
        dp_world_size: data-parallel ranks.
        num_micro_batches: number of micro-batches of every rank; none is empty.
        order: ``int64[num_samples]``: positions in the lengths, rank after rank, micro-batch after
            micro-batch.
        offsets: ``int64[dp_world_size · num_micro_batches + 1]``: begins of the micro-batches in
            ``order``.
        tokens: ``int64[dp_world_size, num_micro_batches]``; of trees, each shared token once.
        costs: ``float64[dp_world_size, num_micro_batches]``, in the unit of the cost model.
        loss_tokens: ``int64[num_samples]``: targets of each sample, in order of arrival.
        trees: segments of the micro-batches, if samples share their beginnings; None otherwise.

    >>> from brimful.rl import plan_step
    >>> plan_step([3, 3, 5, 6, 1, 1], capacity=7, dp_world_size=2)  # doctest: +ELLIPSIS
    StepPlan(6 samples, 2 ranks of 2 micro-batches, capacity 7, fill 67.9 %, fingerprint ...)
    """

    capacity: int
    dp_world_size: int
    num_micro_batches: int
    order: Int64Array
    offsets: Offsets
    tokens: Int64Array
    costs: Float64Array
    loss_tokens: Int64Array = field(repr=False)
    trees: StepTrees | None = None

    def __post_init__(self) -> None:
        for array in (self.order, self.offsets, self.tokens, self.costs, self.loss_tokens):
            array.setflags(write=False)

    def __len__(self) -> int:
        return len(self.order)

    def micro_batches(self, dp_rank: int) -> list[Int64Array]:
        """Return the micro-batches of a rank: positions in the lengths, ascending,
        ``int64[number]`` each; of trees, in the order in which samples end in the row.

        Every rank has the same number of micro-batches, in order of falling cost. No communication
        is needed.

        Raises:
            SettingsError: the rank does not exist.

        >>> from brimful.rl import plan_step
        >>> step = plan_step([3, 3, 5, 6, 1, 1], capacity=7, dp_world_size=2)
        >>> [rows.tolist() for rows in step.micro_batches(0)]
        [[3], [1]]
        """
        first = check_rank(dp_rank, self.dp_world_size)[0] * self.num_micro_batches
        bounds = self.offsets[first : first + self.num_micro_batches + 1].tolist()
        return [self.order[a:b].copy() for a, b in pairwise(bounds)]

    def positions(self, dp_rank: int) -> Int64Array:
        """Return the samples of a rank in the order in which it computes them: ``int64[number]``.

        Raises:
            SettingsError: the rank does not exist.
        """
        return np.concatenate(self.micro_batches(dp_rank))

    @cached_property
    def restore(self) -> Int64Array:
        """``int64[num_samples]``: the permutation back to the order of arrival.

        ``results[step.restore]`` is in the order of the lengths if ``results`` has one row per
        sample in the order of ``order``: rank after rank, micro-batch after micro-batch.

        >>> from brimful.rl import plan_step
        >>> step = plan_step([3, 3, 5, 6, 1, 1], capacity=7, dp_world_size=2)
        >>> results = np.array([3, 3, 5, 6, 1, 1])[step.order]
        >>> results[step.restore].tolist()
        [3, 3, 5, 6, 1, 1]
        """
        restore = np.empty(len(self.order), dtype=np.int64)
        restore[self.order] = np.arange(len(self.order))
        restore.setflags(write=False)
        return restore

    def weights(
        self, mean: LossMean | str, *, constant: float | None = None, scale: float = 1.0
    ) -> Float64Array:
        """Return the weight of each target of a sample: Σ weight · loss over all ranks is the mean
        of the whole step.

        Args:
            mean: ``token-mean``, ``seq-mean-token-mean``, ``seq-mean-token-sum`` or ``constant``
                (``LossMean``).
            constant: divisor of ``constant``.
            scale: a factor; ``dp_world_size`` if gradients are averaged over ranks (DDP, FSDP)
                instead of added.

        Returns:
            ``float64[num_samples]``, in order of arrival; 0 for a sample without a target.

        Raises:
            SettingsError: no such mean, or a missing or unexpected constant.

        >>> from brimful.rl import plan_step
        >>> step = plan_step([3, 3, 5], capacity=8, dp_world_size=1, loss_tokens=[1, 0, 3])
        >>> step.weights("token-mean").tolist()
        [0.25, 0.0, 0.25]
        """
        return loss_weights(self.loss_tokens, mean, constant=constant, scale=scale)

    def imbalance(self, barrier: Barrier | str = Barrier.MICRO_BATCH) -> float:
        """Return the time of the step in units of the time of perfectly equal ranks, see
        ``schedule.imbalance``.

        >>> from brimful.rl import plan_step
        >>> plan_step([4, 4, 2, 2], capacity=4, dp_world_size=2).imbalance()
        1.0
        """
        schedule = np.arange(self.costs.size).reshape(1, *self.costs.shape, 1)
        return float(imbalance(schedule, self.costs.reshape(-1), barrier=barrier)[0])

    @property
    def fill_ratio(self) -> float:
        """Tokens ÷ (micro-batches × capacity)."""
        return float(self.tokens.sum()) / (self.tokens.size * self.capacity)

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """Fingerprint of the assignment: equal on all ranks, which a trainer may compare once."""
        shape = [self.capacity, self.dp_world_size, self.num_micro_batches]
        arrays = [self.order, self.offsets, *(self.trees.arrays if self.trees else ())]
        return fingerprint_of([*shape, *map(fingerprint_array, arrays)])

    def __repr__(self) -> str:
        return (
            f"StepPlan({counted(len(self), 'sample')}, {counted(self.dp_world_size, 'rank')} of "
            f"{counted(self.num_micro_batches, 'micro-batch').replace('batchs', 'batches')}, "
            f"capacity {self.capacity:,}, fill {percent(self.fill_ratio)}, "
            f"{'trees, ' if self.trees else ''}fingerprint {short(self.fingerprint)})"
        )


@dataclass(frozen=True, eq=False)
class ContextParallelPlan:
    """Micro-batches whose samples are each shared by a number of ranks, from
    ``plan_context_parallel``.

    Attributes:
        world_size: ranks of data and context parallelism together.
        max_tokens_per_rank: maximum tokens of a rank in a micro-batch.
        num_micro_batches: number of micro-batches of every rank; no micro-batch is empty.
        micro_batch_of: ``int64[num_samples]``.
        first_rank_of: ``int64[num_samples]``: a multiple of the degree.
        degree_of: ``int64[num_samples]``: ranks that share the sample, a power of two
            (``local_cp_size``).
        tokens: ``int64[num_micro_batches, world_size]``: tokens of each rank, each share padded to
            two equal chunks.
        costs: ``float64[num_micro_batches, world_size]``, in the unit of the cost model.

    >>> from brimful.rl import plan_context_parallel
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

    def __len__(self) -> int:
        return len(self.degree_of)

    @property
    def sample_id_groups(self) -> list[list[list[int]]]:
        """``sample_id_groups[micro_batch][rank]``: ids of samples, longest first.

        A sample is in the list of each of its ranks. This is the structure of Megatron-Core's
        schedulers; each call makes new lists.

        >>> from brimful.rl import plan_context_parallel
        >>> plan_context_parallel([16, 4, 4, 3, 1], max_tokens_per_rank=8, world_size=4, slack=0.2).sample_id_groups
        [[[0], [0], [1, 3], [2, 4]]]
        """
        groups: list[list[list[int]]] = [
            [[] for _ in range(self.world_size)] for _ in range(self.num_micro_batches)
        ]
        longest_first = np.argsort(-self.degree_of, kind="stable")
        columns = (longest_first, *(column[longest_first] for column in self._columns))
        for sample, micro_batch, first, degree in np.stack(columns, axis=1).tolist():
            for rank in range(first, first + degree):
                groups[micro_batch][rank].append(sample)
        return groups

    @property
    def _columns(self) -> tuple[Int64Array, ...]:
        return self.micro_batch_of, self.first_rank_of, self.degree_of

    def micro_batches(self, rank: int) -> list[Int64Array]:
        """Return the samples of a rank, micro-batch by micro-batch, ascending: ``int64[number]``
        each.

        Raises:
            SettingsError: the rank does not exist.
        """
        rank = setting_number("rank", rank, minimum=0, maximum=self.world_size - 1)
        of_rank = (by_rank[rank] for by_rank in self.sample_id_groups)
        return [np.array(sorted(samples), dtype=np.int64) for samples in of_rank]

    @property
    def imbalance(self) -> float:
        """Σ over micro-batches of the slowest rank ÷ the time of perfectly equal ranks."""
        schedule = np.arange(self.costs.size).reshape(self.costs.shape).T[None, :, :, None]
        return float(imbalance(schedule, self.costs.reshape(-1))[0])

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """Fingerprint of the assignment: equal on all ranks."""
        return fingerprint_of(
            [self.world_size, self.max_tokens_per_rank, *map(fingerprint_array, self._columns)]
        )

    def __repr__(self) -> str:
        return (
            f"ContextParallelPlan({counted(len(self), 'sample')}, "
            f"{counted(self.world_size, 'rank')}, micro-batches {self.num_micro_batches:,}, at "
            f"most {self.max_tokens_per_rank:,} tokens a rank, degrees {int(self.degree_of.min())} "
            f"to {int(self.degree_of.max())}, fingerprint {short(self.fingerprint)})"
        )
