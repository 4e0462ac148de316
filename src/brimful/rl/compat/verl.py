"""Planning functions of verl, ``verl.utils.seqlen_balancing``; slime and OpenRLHF have its
partitions of equal sums too.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from brimful.base.optional import optional
from brimful.base.typing import AnyIntArray
from brimful.errors import InvalidLengthsError, OversizedSampleError, SettingsError
from brimful.plan import CostModel
from brimful.rl.compat.megatron import dynamic_cp_scheduler
from brimful.rl.compat.replaced import check_replaceable
from brimful.rl.step_planner import plan_step

__all__ = [
    "get_seqlen_balanced_partitions",
    "install",
    "micro_batch_indices",
    "rearrange_micro_batches",
]

COST_OF_VERL = CostModel(linear=24576, quadratic=1, tile=1)
"""Workload that verl assumes, for a 7B model: FLOPs of 24576·l + l². Pass the cost of your model
instead.
"""


def get_seqlen_balanced_partitions(
    seqlen_list: Sequence[int], k_partitions: int, equal_size: bool
) -> list[list[int]]:
    """Divide items into partitions of nearly equal sums, by least load instead of differencing.

    Args:
        seqlen_list: lengths, or workloads of any size.
        k_partitions: number of partitions, none of them empty.
        equal_size: give each the same number of items; ``k_partitions`` has to divide the number of
            items.

    Returns:
        Ascending positions of each partition.

    Raises:
        InvalidLengthsError: fewer items than partitions.
        SettingsError: ``equal_size``, and ``k_partitions`` does not divide the number of items.

    >>> get_seqlen_balanced_partitions([5, 3, 7, 2, 6, 1], 2, equal_size=True)
    [[1, 2, 3], [0, 4, 5]]
    """
    num_items = len(seqlen_list)
    if equal_size and num_items % k_partitions:
        raise SettingsError(
            f"equal_size needs a multiple of {k_partitions:,} items, not {num_items:,}"
        )
    # Every item takes one place: the capacity counts items, and the values are the cost.
    step = plan_step(
        np.ones(num_items, dtype=np.int32),
        capacity=max(1, num_items // k_partitions if equal_size else num_items),
        dp_world_size=k_partitions,
        cost=np.asarray(seqlen_list, dtype=np.float64),
        barrier="step",
    )
    return [step.micro_batches(partition)[0].tolist() for partition in range(k_partitions)]


def micro_batch_indices(
    seq_len_effective: AnyIntArray,
    max_token_len: int,
    num_batches_divided_by: int | None = None,
    min_num_micro_batch: int | None = None,
    force_group_size: int = 1,
    cost: CostModel = COST_OF_VERL,
) -> list[list[int]]:
    """Return the positions of each micro-batch of one rank: the planning half of
    ``rearrange_micro_batches``.

    Args:
        seq_len_effective: ``int[num_samples]``: tokens of each sample of this rank.
        max_token_len: maximum tokens of a micro-batch, never exceeded.
        num_batches_divided_by: the number of micro-batches is a multiple of this (virtual pipeline
            stages).
        min_num_micro_batch: minimum number of micro-batches.
        force_group_size: this many neighbors share a micro-batch.
        cost: model of the cost that is balanced.

    Raises:
        OversizedSampleError: a sample or a group exceeds the budget.
        InvalidLengthsError: fewer samples than micro-batches; no micro-batch may be empty.

    >>> micro_batch_indices(np.array([3, 3, 5, 6, 1, 1]), 7)
    [[0, 1, 5], [3], [2, 4]]
    """
    groups = np.arange(len(seq_len_effective)) // force_group_size if force_group_size > 1 else None
    step = plan_step(
        seq_len_effective,
        capacity=max_token_len,
        dp_world_size=1,
        cost=cost,
        groups=groups,
        groups_share="micro_batch",
        multiple_of=1 if num_batches_divided_by is None else num_batches_divided_by,
        min_micro_batches=min_num_micro_batch or 1,
    )
    return [rows.tolist() for rows in step.micro_batches(0)]


def rearrange_micro_batches(
    batch: Any,
    max_token_len: int,
    dp_group: Any = None,
    num_batches_divided_by: int | None = None,
    same_micro_num_in_dp: bool = True,
    min_num_micro_batch: int | None = None,
    use_dynamic_bsz_balance: bool = True,
    force_group_size: int = 1,
) -> tuple[list[Any], list[list[int]]]:
    """Split the batch of a rank into micro-batches within a budget of tokens.

    Like verl's function, with its batches (``TensorDict``) and groups, but the plan keeps the
    budget directly, without trying one number of micro-batches after the other. Ranks agree on the
    number of micro-batches with one ``all_reduce``, and if one rank has no plan, all raise: no rank
    waits for another in the next collective.

    Args:
        batch: has ``input_ids``, nested, or an ``attention_mask``.
        dp_group: the ranks that need the same number of micro-batches.
        same_micro_num_in_dp: false if each rank may have its own number.
        use_dynamic_bsz_balance: the cheapest micro-batches are at both ends, where the stages of a
            pipeline wait; false for the order of falling cost.
        max_token_len, num_batches_divided_by, min_num_micro_batch, force_group_size: as in
            ``micro_batch_indices``.

    Returns:
        The micro-batches, and the positions of each.

    Raises:
        The errors of ``micro_batch_indices``.
    """
    with optional("torch", "torch", "rearrange_micro_batches"):
        import torch
    input_ids = batch["input_ids"]
    lengths = (
        input_ids.offsets().diff() if input_ids.is_nested else batch["attention_mask"].sum(dim=1)
    )
    values = lengths.cpu().numpy()

    def plan(min_number: int | None) -> list[list[int]]:
        try:
            return micro_batch_indices(
                values, max_token_len, num_batches_divided_by, min_number, force_group_size
            )
        except OversizedSampleError as error:
            raise OversizedSampleError(
                f"{error.message}, which is max_token_len_per_gpu times the ranks of a sequence"
            ) from error

    if same_micro_num_in_dp and dp_group is not None and torch.distributed.is_initialized():
        try:
            rows, failure = plan(min_num_micro_batch), None
        except (InvalidLengthsError, OversizedSampleError) as error:
            rows, failure = [], error
        # A rank without a plan takes part in the collective: the others would wait in it.
        facts = [len(rows), -(len(values) // force_group_size), int(failure is not None)]
        largest = torch.tensor(facts, device=lengths.device)
        torch.distributed.all_reduce(largest, op=torch.distributed.ReduceOp.MAX, group=dp_group)
        most, fewest, failed = largest.tolist()
        if failure is not None:
            raise failure
        if failed:
            raise InvalidLengthsError(
                "another rank has no micro-batches for this step, and says why"
            )
        if most > -fewest:
            raise InvalidLengthsError(
                f"one rank needs {most:,} micro-batches and another has {-fewest:,} samples or "
                "groups: raise max_token_len, or give each rank more samples"
            )
        if most > len(rows):
            rows = plan(most)
    else:
        rows = plan(min_num_micro_batch)
    if use_dynamic_bsz_balance:
        rows = rows[::2][::-1] + rows[1::2]
    return [_select(batch, positions) for positions in rows], rows


def install() -> list[str]:
    """Put ``rearrange_micro_batches``, and the scheduler of dynamic context parallelism if this
    verl has one, in the place of verl's, in this process.

    Modules that are imported later bind them too. verl calls this in every process if
    ``BRIMFUL_VERL=1`` is set (``brimful.integrations.verl_plugin``).

    Returns:
        Names of the modules that have them now.

    Raises:
        ImportError: verl is not installed.
        SettingsError: verl's function has arguments that ours does not know.
    """
    from verl.utils import seqlen_balancing

    name = rearrange_micro_batches.__name__
    theirs = getattr(seqlen_balancing, name)
    check_replaceable(theirs, rearrange_micro_batches, "leave BRIMFUL_VERL unset")
    modules = _replace(theirs, name, rearrange_micro_batches)
    try:
        from verl.utils import dynamic_cp_scheduler as dynamic
    except ImportError:
        return modules
    name = "get_megatron_dynamic_cp_scheduler_cls"
    return modules + _replace(getattr(dynamic, name), name, dynamic_cp_scheduler)


def _replace(theirs: Any, name: str, ours: Any) -> list[str]:
    """Put a function under a name into all modules of verl that hold theirs; return their names."""
    modules = {
        title: module
        for title, module in sorted(sys.modules.items())
        if title.partition(".")[0] == "verl" and vars(module).get(name) is theirs
    }
    for module in modules.values():
        setattr(module, name, ours)
    return list(modules)


def _select(batch: Any, positions: list[int]) -> Any:
    """Select rows of a batch; nested tensors need verl's own function."""
    try:
        from verl.utils.tensordict_utils import index_select_tensor_dict
    except ImportError:
        return batch[positions]
    return index_select_tensor_dict(batch, positions)
