"""Rows and planner of TRL's asynchronous GRPO, ``trl.experimental.async_grpo``."""

from __future__ import annotations

import warnings
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from brimful.base.checks import whole_number
from brimful.base.optional import optional
from brimful.base.ragged import offsets_of, ranges
from brimful.base.typing import IGNORE_INDEX, Int32Array, Int64Array
from brimful.errors import InvalidLengthsError
from brimful.plan import CostModel
from brimful.rl.step_plan import StepPlan
from brimful.rl.step_planner import plan_step
from brimful.rl.step_trees import find_step_prefixes
from brimful.trees.pack_tree import PackTree

with optional("torch", "torch", "rows of TRL"):
    import torch
    from torch.utils.data import IterableDataset

__all__ = ["TokenBudgetBatcher", "TreeRow"]

COST_OF_TRL = CostModel(linear=0, quadratic=1, tile=1)
"""Cost that TRL balances: tokens that each token attends to. Pass the cost of your model instead."""


class TreeRow:
    """Samples of one rank, in which shared tokens are there once; its methods are the ones of TRL.

    Two samples share a token if they agree on it and on the one after it, so each branch repeats
    the last token of its trunk and every place predicts one token. Samples stay in the order in
    which they were added::

        samples      5 6 7 8 · 3 · 5 6 7 9 · 5 2
        order        5 6 7 8 · 5 6 7 9 · 3 · 5 2      the samples of a tree one after the other
        shared       0         2         0   0        with the sample before
        row          5 6 | 7 8 | 7 9 | 3 | 5 2

    TRL walks a dictionary for each token; here samples are kept sorted by their bytes, so that the
    one that shares most is next to the place of a new one.

    Attributes:
        samples: in the order in which they were added.
        groups: ``group_id`` of each.
        trained: targets of all samples, as TRL counts them: with the first token.
        load: sum over the tokens of the row of the tokens that each attends to.

    >>> row = TreeRow()
    >>> for ids in ([5, 6, 7, 8], [3], [5, 6, 7, 9], [5, 2]):
    ...     mask = np.ones(len(ids), dtype=np.int64)
    ...     row.add({"input_ids": np.array(ids), "completion_mask": mask, "group_id": 0,
    ...              "old_log_probs": -0.5 * mask, "advantage": 1.0})
    >>> packed = row.pack()
    >>> packed["input_ids"].tolist(), packed["position_ids"].tolist()
    ([5, 6, 7, 8, 7, 9, 3, 5, 2], [0, 1, 2, 3, 2, 3, 0, 0, 1])
    >>> packed["shift_labels"].tolist(), packed["token_index"].tolist()
    ([6, 7, 8, -100, 9, -100, -100, 2, -100], [0, 1, 2, 0, 1, 4, 7])
    """

    def __init__(self) -> None:
        self.samples: list[dict[str, Any]] = []
        self.groups: set[Any] = set()
        self.trained = 0
        self.load = 0
        self._num_tokens = 0
        self._shared: list[int] = []
        # Bytes of all samples, sorted, and the sample of each.
        self._keys: list[bytes] = []
        self._sorted: list[int] = []
        # Samples in the order of the row, and what each shares with the one before it.
        self._order: list[int] = []
        self._order_shared: list[int] = []

    @property
    def tokens(self) -> Int64Array:
        """Tokens of the row in the order in which they were added: ``int64[N]``."""
        pairs = zip(self.samples, self._shared, strict=True)
        suffixes = [_array(sample["input_ids"])[shared:] for sample, shared in pairs]
        return np.concatenate([*suffixes, np.zeros(0, dtype=np.int64)])

    def fits(self, sample: dict[str, Any], budget: int) -> bool:
        """Return whether the row has at most ``budget`` tokens and at most ``budget`` targets with
        the sample added.
        """
        ids = _array(sample["input_ids"])
        new = len(ids) - self._most_shared(ids, ids.tobytes())[0]
        trained = self.trained + int(sample["completion_mask"].sum())
        return self._num_tokens + new <= budget and trained <= budget

    def add(self, sample: dict[str, Any]) -> None:
        """Add a sample, whether it fits or not."""
        ids = _array(sample["input_ids"])
        key = ids.tobytes()
        shared, partner, index = self._most_shared(ids, key)
        sample_index, length = len(self.samples), len(ids)
        self._keys.insert(index, key)
        self._sorted.insert(index, sample_index)
        # After the last sample of the subtree that it joins.
        at = self._order.index(partner) + 1 if shared else sample_index
        while at < sample_index and self._order_shared[at] >= shared > 0:
            at += 1
        self._order.insert(at, sample_index)
        self._order_shared.insert(at, shared)
        self.samples.append(sample)
        self._shared.append(shared)
        self.groups.add(sample["group_id"])
        self.trained += int(sample["completion_mask"].sum())
        self._num_tokens += length - shared
        self.load += (length * (length + 1) - shared * (shared + 1)) // 2

    def pack(self) -> dict[str, torch.Tensor]:
        """Return the row of N tokens in S segments, with its M targets.

        ==========================================  =====================================================
        ``input_ids, position_ids``                 ``int64[N]``; positions are depths
        ``shift_labels``                            ``int64[N]``, the next token; -100 if no sample trains it
        ``tree_kv_index``                           ``int64[K]``: places of the path to each segment, and its own
        ``tree_cu_seqlens_q``                       ``int32[S + 1]``, boundaries of segments
        ``tree_cu_seqlens_k``                       ``int32[S + 1]``, boundaries in ``tree_kv_index``
        ``tree_max_seqlens``                        ``int64[2]``: the longest segment, the longest path
        ``token_index``                             ``int64[M]``: the place that predicts each target
        ``old_log_probs, advantages``               ``float32[M]``
        ``segment_id``                              ``int64[M]``: the sample of each target, in the order of ``samples``
        ==========================================  =====================================================

        A target that several samples train is there for each.
        """
        ids = [_array(sample["input_ids"]) for sample in self.samples]
        lengths = [len(ids[sample_index]) for sample_index in self._order]
        parents, ends, depths = _segments(lengths, self._order_shared)
        sizes = depths - np.where(parents < 0, 0, depths[parents])
        cu_seqlens = offsets_of(sizes)
        none = np.zeros(0, dtype=np.int32)
        every = np.arange(len(parents), dtype=np.int32)
        paths = PackTree(parents, every, none, none).positions(cu_seqlens)
        shift_labels = np.full(int(cu_seqlens[-1]), IGNORE_INDEX)
        token_index, old_log_probs, num_targets = [], [], []
        for sample_index, end in enumerate(ends[np.argsort(self._order)].tolist()):
            sample, positions = self.samples[sample_index], paths.row(end)
            predicting = np.flatnonzero(np.asarray(sample["completion_mask"])[1:])
            shift_labels[positions[predicting]] = ids[sample_index][predicting + 1]
            token_index.append(positions[predicting])
            old_log_probs.append(np.asarray(sample["old_log_probs"])[predicting + 1])
            num_targets.append(len(predicting))
        advantages = np.array([sample["advantage"] for sample in self.samples], dtype=np.float32)
        pairs = zip(self._order, self._order_shared, strict=True)
        arrays = {
            "input_ids": np.concatenate(
                [ids[sample_index][shared:] for sample_index, shared in pairs]
            ),
            "position_ids": ranges(depths - sizes, sizes),
            "shift_labels": shift_labels,
            "tree_kv_index": paths.values,
            "tree_cu_seqlens_q": cu_seqlens.astype(np.int32),
            "tree_cu_seqlens_k": paths.offsets.astype(np.int32),
            "tree_max_seqlens": np.array([sizes.max(), depths.max()]),
            "token_index": np.concatenate(token_index),
            "old_log_probs": np.concatenate(old_log_probs).astype(np.float32),
            "advantages": np.repeat(advantages, num_targets),
            "segment_id": np.repeat(np.arange(len(ids)), num_targets),
        }
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def _most_shared(self, ids: Int64Array, key: bytes) -> tuple[int, int, int]:
        """Return how many tokens are shared with the row, a sample that shares them, and the place
        of their bytes, the ``key``, in ``_keys``.
        """
        index = bisect_left(self._keys, key)
        shared, partner = 0, -1
        for neighbor in range(max(index - 1, 0), min(index + 1, len(self._keys))):
            other = np.frombuffer(self._keys[neighbor], dtype=np.int64)
            common = min(len(ids), len(other))
            differs = ids[:common] != other[:common]
            same = int(differs.argmax()) if differs.any() else common
            # The last token of a sample has none after it, which only an equal sample shares.
            same -= not same == len(ids) == len(other)
            if same > shared:
                shared, partner = same, self._sorted[neighbor]
        return shared, partner, index


class TokenBudgetBatcher(IterableDataset[list[TreeRow]]):
    """Batcher of a stream of rollouts: rows of samples, one row for each process, within a budget
    of tokens.

    TRL closes all rows when one sample fits into none of them; here ``window`` samples are planned
    together, so that rows are full and have about the same cost. Rows keep both limits of TRL:
    tokens, of which shared ones count once, and targets. A sample above the budget is dropped with
    a warning and counted in ``metrics``, as in TRL; so is a sample without tokens, on which TRL 1.16
    fails. Samples at the end of the stream that are too few for a row of each process, fewer than
    the processes, are dropped with a warning.

    A sample waits until its window is full: with a window above the samples of a step it is staler
    than TRL assumes when it checks its age.

    Args:
        dataset: rollouts, dictionaries with ``input_ids`` and ``completion_mask``.
        num_processes: data-parallel ranks.
        token_budget: maximum tokens of a row, and maximum targets.
        metrics: TRL's lists by name.
        window: samples that are planned together, rounded up to a multiple of the processes; a
            last, shorter window is planned too.
        cost: model of the cost that is balanced.

    Raises:
        SettingsError: a window or a number of processes below 1.

    Yields a list of ``num_processes`` rows at a time, each a ``TreeRow``.

    >>> rollouts = [
    ...     {"input_ids": np.array(ids), "completion_mask": np.ones(len(ids), dtype=int), "group_id": 0}
    ...     for ids in ([1, 2, 3, 4], [8, 9], [1, 2, 3, 5])
    ... ]
    >>> batches = TokenBudgetBatcher(rollouts, num_processes=1, token_budget=10, metrics={})
    >>> [[row.tokens.tolist() for row in rows] for rows in batches]
    [[[1, 2, 3, 4, 8, 9, 3, 5]]]
    """

    def __init__(
        self,
        dataset: Iterable[dict[str, Any]],
        num_processes: int,
        token_budget: int,
        metrics: dict[str, list[float]],
        *,
        window: int = 1024,
        cost: CostModel = COST_OF_TRL,
    ) -> None:
        self.dataset = dataset
        self.num_processes = whole_number("num_processes", num_processes, minimum=1)
        self.token_budget = token_budget
        self.metrics = metrics
        # At least as many samples as rows can always be planned: no window waits for another
        # sample.
        self.window = (
            -(-whole_number("window", window, minimum=1) // self.num_processes) * self.num_processes
        )
        self.cost = cost

    def __iter__(self) -> Iterator[list[TreeRow]]:
        samples: list[dict[str, Any]] = []
        for sample in self.dataset:
            length = len(sample["input_ids"])
            if not 1 <= length <= self.token_budget:
                reason, name = (
                    (f"exceeds token_budget={self.token_budget}", "oversize")
                    if length
                    else ("is empty", "empty")
                )
                warnings.warn(
                    f"a rollout of {length:,} tokens {reason} and is dropped", stacklevel=2
                )
                self.metrics.setdefault(f"batch/dropped_{name}_total", []).append(1.0)
                continue
            samples.append(sample)
            if len(samples) == self.window:
                yield from self._rows(samples, self._plan(samples))
                samples = []
        num_beyond = len(samples) % self.num_processes
        try:
            step = self._plan(samples) if samples else None
        except InvalidLengthsError:
            # Too few samples is the only possible cause: all lengths are within the budget.
            warnings.warn(
                f"{num_beyond} rollouts are too few for {self.num_processes:,} rows and are "
                "dropped",
                stacklevel=2,
            )
            samples = samples[: len(samples) - num_beyond]
            step = self._plan(samples) if samples else None
        if step is not None:
            yield from self._rows(samples, step)

    def _plan(self, samples: list[dict[str, Any]]) -> StepPlan:
        tokens = [_array(sample["input_ids"]) for sample in samples]
        prefixes = find_step_prefixes(tokens, least=1)
        # Samples of a row share one token less than they have in common.
        prefixes = replace(prefixes, shared=np.maximum(prefixes.shared - 1, 0))
        return plan_step(
            [len(ids) for ids in tokens],
            capacity=self.token_budget,
            dp_world_size=self.num_processes,
            cost=self.cost,
            budgets={"loss_tokens": self.token_budget},
            loss_tokens=[int(sample["completion_mask"].sum()) for sample in samples],
            prefixes=prefixes,
        )

    def _rows(self, samples: list[dict[str, Any]], step: StepPlan) -> Iterator[list[TreeRow]]:
        by_rank = [step.micro_batches(rank) for rank in range(self.num_processes)]
        for micro_batch in range(step.num_micro_batches):
            yield [
                _row([samples[sample] for sample in sorted(rows[micro_batch].tolist())])
                for rows in by_rank
            ]

    def __repr__(self) -> str:
        return (
            f"TokenBudgetBatcher({self.num_processes} rows of {self.token_budget:,} tokens, "
            f"{self.window:,} samples at a time)"
        )


def _row(samples: list[dict[str, Any]]) -> TreeRow:
    row = TreeRow()
    for sample in samples:
        row.add(sample)
    return row


def _array(values: Any) -> Int64Array:
    """Return integers in host memory, a tensor or an array, as ``int64``."""
    return np.ascontiguousarray(values, dtype=np.int64)


def _segments(lengths: list[int], shared: list[int]) -> tuple[Int32Array, Int32Array, Int64Array]:
    """Cut the samples of a row where others leave them.

    Args:
        lengths: of the samples, tree after tree.
        shared: tokens that each shares with the one before it.

    Returns:
        The parent of each segment, depth first, -1 for none; the segment that ends each sample; and
        the depth at the end of each segment.

    >>> [part.tolist() for part in _segments([4, 4, 4, 2], [0, 2, 4, 0])]
    [[-1, 0, 0, -1], [1, 2, 2, 3], [2, 4, 4, 2]]
    """
    # Depths at which later samples leave, from the outermost to the innermost.
    leaving: list[int] = []
    cuts: list[list[int]] = []
    for length, upto in zip(reversed(lengths), reversed(shared), strict=True):
        own = [length] if length > upto else []
        while leaving and leaving[-1] > upto:
            depth = leaving.pop()
            if depth < length:
                own.append(depth)
        if not leaving or leaving[-1] < upto:
            leaving.append(upto)
        cuts.append(own)
    parents: list[int] = []
    ends: list[int] = []
    depths: list[int] = []
    path: list[int] = []
    for own, upto in zip(reversed(cuts), shared, strict=True):
        while path and depths[path[-1]] > upto:
            path.pop()
        for depth in reversed(own):
            parents.append(path[-1] if path else -1)
            path.append(len(depths))
            depths.append(depth)
        ends.append(path[-1])
    return np.array(parents, dtype=np.int32), np.array(ends, dtype=np.int32), np.array(depths)
