"""Planning functions of slime: ``slime.utils.dp_schedule`` and ``slime.utils.seqlen_balancing``."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from brimful.base.wording import counted
from brimful.errors import InvalidLengthsError, SettingsError
from brimful.plan import CostModel
from brimful.plan.schedule.pack_costs import sample_costs
from brimful.rl.compat.replaced import check_replaceable
from brimful.rl.compat.verl import get_seqlen_balanced_partitions
from brimful.rl.step_planner import plan_step

__all__ = ["build_dp_schedule", "get_seqlen_balanced_partitions", "install"]


def build_dp_schedule(
    args: Any,
    train_parallel_config: Mapping[str, int],
    total_lengths: Sequence[int],
    *,
    global_batch_size: int,
    rollout_indices: Sequence[int],
    sample_is_multimodal: Sequence[bool] | None = None,
) -> tuple[list[list[int]], list[list[list[int]]], list[int], list[int]]:
    """Divide the samples of several training steps among ranks and micro-batches.

    Like slime's function, but no micro-batch of several samples exceeds ``max_tokens_per_gpu ·
    cp_size``, balanced by FLOPs or not; a sample above this limit has its own micro-batch, as in
    slime, and is logged. Ranks are balanced over the step: by the FLOPs of the model if ``args``
    describes one, otherwise by tokens; with ``use_dynamic_batch_size=False`` always by tokens.

    Args:
        args: has ``use_dynamic_batch_size``, ``max_tokens_per_gpu`` or ``micro_batch_size``, and
            the sizes of the model under Megatron's names.
        train_parallel_config: ``dp_size``, ``cp_size``, ``vpp_size``,
            ``microbatch_group_size_per_vp_stage``.
        total_lengths: tokens of each sample.
        global_batch_size: rollouts of a step; the remaining rollouts, fewer than a step, are left
            out.
        rollout_indices: rollout of each sample; all samples of a rollout share a step.
        sample_is_multimodal: accepted if text and media may share a micro-batch.

    Returns:
        Samples of each rank; for each rank and micro-batch, positions in the samples of the rank;
        number of micro-batches of a rank in each step; number of rollouts of each step.

    Raises:
        InvalidLengthsError: too few rollouts for a step, or samples for the ranks.
        SettingsError: a token budget for steps, or text and media in separate micro-batches; only
            slime has these.

    >>> from types import SimpleNamespace
    >>> args = SimpleNamespace(use_dynamic_batch_size=True, max_tokens_per_gpu=7)
    >>> parallel = {"dp_size": 2, "cp_size": 1, "vpp_size": 1, "microbatch_group_size_per_vp_stage": 1}
    >>> build_dp_schedule(args, parallel, [3, 3, 5, 6, 1, 1], global_batch_size=6, rollout_indices=range(6))
    ([[3, 1, 5], [2, 0, 4]], [[[0], [1, 2]], [[0], [1, 2]]], [2], [6])
    """
    if getattr(args, "global_batch_tokens", None) is not None:
        raise SettingsError(
            "global_batch_tokens makes steps of a number of tokens: cut the steps before, or use "
            "slime's own scheduler"
        )
    if (
        sample_is_multimodal is not None
        and getattr(args, "multimodal_aware_packing", "off") != "off"
    ):
        raise SettingsError(
            "multimodal_aware_packing keeps text and media apart: plan each separately with "
            "plan_step"
        )
    ranks = train_parallel_config["dp_size"]
    multiple = (
        train_parallel_config["microbatch_group_size_per_vp_stage"]
        if train_parallel_config["vpp_size"] > 1
        else 1
    )
    rollouts: dict[int, list[int]] = {}
    for sample, rollout in enumerate(rollout_indices):
        rollouts.setdefault(rollout, []).append(sample)
    num_steps = len(rollouts) // global_batch_size
    if num_steps == 0:
        raise InvalidLengthsError(
            f"{len(rollouts):,} rollouts are fewer than one global_batch_size of "
            f"{global_batch_size:,}"
        )

    partitions: list[list[int]] = [[] for _ in range(ranks)]
    micro_batches: list[list[list[int]]] = [[] for _ in range(ranks)]
    num_micro_batches: list[int] = []
    is_dynamic, cost = args.use_dynamic_batch_size, _cost_model(args)
    if is_dynamic:
        margin = getattr(args, "packing_safety_margin", 1.0)
        capacity = max(1, int(args.max_tokens_per_gpu * train_parallel_config["cp_size"] * margin))
    else:
        capacity = args.micro_batch_size
    of_rollout = iter(rollouts.values())
    for _ in range(num_steps):
        samples = np.array(
            [sample for members in islice(of_rollout, global_batch_size) for sample in members]
        )
        lengths = np.asarray(total_lengths)[samples]
        # A sample that takes the whole budget, or more, is alone.
        sizes = np.minimum(lengths, capacity) if is_dynamic else np.ones_like(lengths)
        if is_dynamic and (num_long := int((lengths > capacity).sum())):
            logging.getLogger("brimful").warning(
                "%s above the %s tokens of a micro-batch, the longest of %s: each has its own; raise "
                "max_tokens_per_gpu if memory ends",
                counted(num_long, "sample"), f"{capacity:,}", f"{int(lengths.max()):,}",
            )  # fmt: skip
        step = plan_step(
            sizes,
            capacity=capacity,
            dp_world_size=ranks,
            cost=sample_costs(lengths, cost) if is_dynamic and cost else lengths.astype(np.float64),
            multiple_of=multiple,
            barrier="step",
        )
        num_micro_batches.append(step.num_micro_batches)
        for rank in range(ranks):
            for rows in step.micro_batches(rank):
                start = len(partitions[rank])
                partitions[rank].extend(samples[rows].tolist())
                micro_batches[rank].append(list(range(start, start + len(rows))))
    return partitions, micro_batches, num_micro_batches, [global_batch_size] * num_steps


def install() -> None:
    """Put our plan into slime's ``build_dp_schedule``, in this process, for all that hold it.

    The process of the rollout manager needs it: ``brimful.integrations.slime_rollout`` calls this
    there.

    Raises:
        ImportError: slime is not installed.
        SettingsError: slime's function has arguments that ours does not know.
    """
    from slime.utils import dp_schedule

    theirs = dp_schedule.build_dp_schedule
    if theirs.__code__ is not _planned_schedule.__code__:
        check_replaceable(theirs, build_dp_schedule, "use slime's own rollout function")
        # Ray sends the rollout manager by value: its methods hold the function itself, and a new
        # attribute of the module would not reach them.
        theirs.__code__ = _planned_schedule.__code__


def _planned_schedule(*args: Any, **settings: Any) -> Any:
    from brimful.rl.compat.slime import build_dp_schedule

    return build_dp_schedule(*args, **settings)


def _cost_model(args: Any) -> CostModel | None:
    """Read the model from Megatron's arguments; None if they do not describe one."""
    names = ("hidden_size", "num_layers", "num_attention_heads", "ffn_hidden_size")
    if any(getattr(args, name, None) is None for name in names):
        return None
    heads = args.num_attention_heads
    return CostModel.from_config(
        hidden_size=args.hidden_size,
        num_layers=args.num_layers,
        num_attention_heads=heads,
        num_key_value_heads=getattr(args, "num_query_groups", None) or heads,
        head_dim=getattr(args, "kv_channels", None) or args.hidden_size // heads,
        intermediate_size=args.ffn_hidden_size,
        vocab_size=getattr(args, "vocab_size", None) or 0,
    )
