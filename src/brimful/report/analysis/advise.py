"""Advice on a step that packing changes: samples a step, steps an epoch, and settings that keep
training the same.

Most reports that "packing made my model worse" are caused by a change of the step: with unchanged
settings, n samples a step become n packs a step, so the batch grows by the packing factor and the
epoch shrinks by it::

    8 ranks, micro-batch 1, accumulation 4, 8.4 samples a pack

    unpacked           8 · 1 · 4 samples           =  32 samples a step
    packed, as set     8 · 1 · 4 packs · 8.4       = 269 samples a step, an eighth of the steps
    accumulation 1     8 · 1 · 1 packs · 8.4       =  67 samples a step: as near to 32 as whole packs allow

The arithmetic is exact for a plan; the speed-up is the cost model's, of arithmetic alone.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np

from brimful.base.typing import Float64Array
from brimful.errors import PlanMismatchError, SettingsError
from brimful.measure import LengthTable
from brimful.plan import Plan
from brimful.plan.counts.histogram import Histogram
from brimful.plan.schedule import pack_costs
from brimful.report.analysis.advice import Advice, Choice, PaddedRun, StepSize, is_same
from brimful.report.analysis.advice_notes import notes_of, sharing_notes
from brimful.report.analysis.shared_work import SharedWork
from brimful.report.analysis.training_run import TrainingRun
from brimful.store.plan_trees import lengths_in_packs, sample_ends


def advise(
    lengths: LengthTable | None, plan: Plan, run: TrainingRun | None = None, **settings: Any
) -> Advice:
    """Compare the run without packing to the run with it, and recommend settings.

    Pure: no I/O, no randomness. The unpacked run has one row for each segment of the plan: the same
    samples, dropped and cut by the same policy; of a plan with trees, one for each sample. The longest row of a random micro-batch is its
    exact expectation over all micro-batches
    of different samples, not a draw: with n rows, of which c are at most l long, no row of a
    micro-batch of m is longer with probability c/n · (c−1)/(n−1) · … of m factors.

    ::

        lengths 4 4 2 2, capacity 8, 1 rank, micro-batch 2, accumulation 1

        one plan               4 4 | 2 2            2 samples a pack
        unpacked               2 samples, 6 tokens a step, 2 steps an epoch
        packed, as set         2 packs, 4 samples, 12 tokens a step, 1 step an epoch
        nearest to 2 samples   1 pack a step: 2 samples, 6 tokens, 2 steps
        longest of two         2 with probability 2/4 · 1/3 = 1/6, else 4: 3.67 tokens a row on average

    Args:
        lengths: the table that was planned, for its ``loss_tokens``; None without a table.
        plan: the packs.
        run: the training run, without and with packing.
        settings: of a ``TrainingRun``, instead of ``run``: ``dp_world_size``, ``micro_batch_size``,
            …

    Raises:
        SettingsError: a count below 1, a learning rate that is not above 0, or a plan without
            packs.
        PlanMismatchError: a table of another number of samples than the plan's.

    >>> from brimful.plan import CostModel, plan_packs
    >>> plan = plan_packs([4, 4, 2, 2], capacity=8, algorithm="next_fit")
    >>> advice = advise(None, plan, dp_world_size=1, micro_batch_size=2, gradient_accumulation_steps=1,
    ...                 cost_model=CostModel(linear=1, quadratic=0))
    >>> advice.packing_factor, advice.unpacked.samples, advice.packed.samples
    (2.0, 2.0, 4.0)
    >>> [(choice.merits, choice.packs_per_micro_batch, choice.step.samples) for choice in advice.choices]
    [(['keeps samples', 'nearest to padded tokens'], 1, 2.0), (['keeps settings'], 2, 4.0)]
    >>> round(advice.padded_to_longest.row_tokens, 2)
    3.67
    """
    run = run or TrainingRun(**settings)
    if not plan.num_packs:
        raise SettingsError("the plan has no packs, so nothing can be compared")
    rows = Histogram.of(lengths_in_packs(plan))
    shared = SharedWork.of(plan, run.cost_model)
    loss_tokens = _loss_tokens(lengths, plan)

    # Both epochs hold the same samples and tokens: only the rows they are cut into differ.
    def step_size(num_rows: int, rows_of_epoch: int) -> StepSize:
        share = min(1.0, num_rows / rows_of_epoch)  # an epoch may be smaller than a step
        return StepSize(
            rows=num_rows,
            samples=rows.num_items * share,
            tokens=rows.total * share,
            loss_tokens=None if loss_tokens is None else loss_tokens * share,
            steps_per_epoch=-(-rows_of_epoch // num_rows),
        )

    unpacked_step = step_size(run.samples_per_step, rows.num_items)
    padded_to_longest, padded_to_capacity = _padded_runs(rows, plan.capacity, run, shared)
    packing_factor = rows.num_items / plan.num_packs
    # Padding of an alignment is part of a step of packs, as padding of rows is part of an unpacked
    # step.
    positions = int(plan.pack_tokens.sum()) + sum(plan.padding)
    positions_per_token = positions / rows.total
    step_positions = padded_to_longest.step_tokens

    # Packs of one rank in a step: as set now, nearest to the samples, and nearest to the positions
    # of the unpacked run.
    current_packs = run.packs_per_forward * run.gradient_accumulation_steps
    pack_positions = positions_per_token * rows.total / plan.num_packs
    samples_of_rank = run.micro_batch_size * run.gradient_accumulation_steps
    exact_numbers = {
        "samples": samples_of_rank / packing_factor,
        "padded tokens": step_positions / run.dp_world_size / pack_positions,
    }
    # From this number on a step is the whole epoch: all larger numbers are one choice.
    whole_epoch = -(-plan.num_packs // run.dp_world_size)
    nearest = {}
    for name, packs in exact_numbers.items():
        # The possible number nearest in ratio: whole forwards, or one smaller forward. 1 pack for 2
        # is as far off as 4 for 2.
        unit = run.packs_per_forward if packs >= run.packs_per_forward else 1
        low = max(1, math.floor(packs / unit) * unit)
        high = max(1, math.ceil(packs / unit) * unit)
        number = low if packs / low <= high / packs else high
        nearest[name] = number if number < whole_epoch else max(current_packs, whole_epoch)

    def choice(packs: int) -> Choice:
        step = step_size(run.dp_world_size * packs, plan.num_packs)
        ratios = {
            "samples": step.samples / unpacked_step.samples,
            "padded tokens": step.tokens * (positions_per_token / step_positions),
        }
        names = [name for name, nearest_packs in nearest.items() if nearest_packs == packs]
        keeps = [name for name in names if is_same(ratios[name])]
        # The largest forward that divides the packs: accumulation counts whole forwards.
        forward = next(
            size for size in range(min(packs, run.packs_per_forward), 0, -1) if packs % size == 0
        )
        ratio, warmup = ratios["samples"], run.warmup_steps
        return Choice(
            keeps=tuple(keeps + ["settings"] * (packs == current_packs)),
            nearest_to=tuple(name for name in names if name not in keeps),
            packs_per_micro_batch=forward,
            gradient_accumulation_steps=packs // forward,
            step=step,
            batch_ratio=ratio,
            warmup_steps=max(1, round(warmup / ratio)) if warmup else warmup,
        )

    numbers = sorted({*nearest.values(), current_packs})
    advice = Advice(
        dp_world_size=run.dp_world_size,
        micro_batch_size=run.micro_batch_size,
        gradient_accumulation_steps=run.gradient_accumulation_steps,
        packs_per_micro_batch=run.packs_per_forward,
        learning_rate=run.learning_rate,
        warmup_steps=run.warmup_steps,
        capacity=plan.capacity,
        longest=int(rows.lengths[-1]),
        packing_factor=packing_factor,
        positions_per_token=positions_per_token,
        unpacked=unpacked_step,
        packed=step_size(run.packs_per_step, plan.num_packs),
        padded_to_longest=padded_to_longest,
        padded_to_capacity=padded_to_capacity,
        choices=tuple(choice(packs) for packs in numbers),
        recommended=numbers.index(nearest["samples"]),
    )
    # Notes are written on the finished numbers, so they cannot say anything else.
    return replace(advice, notes=(*sharing_notes(lengths, shared, run), *notes_of(advice)))


def _loss_tokens(lengths: LengthTable | None, plan: Plan) -> int | None:
    """Count the targets in the packed samples, each sample once; None if they were not measured."""
    if lengths is None:
        return None
    if len(lengths) != plan.ledger.samples_in:
        raise PlanMismatchError(
            f"the plan is for {plan.ledger.samples_in:,} samples and the length table has "
            f"{len(lengths):,}: plan these lengths again"
        )
    column = lengths.budgets.get("loss_tokens")
    if column is None:
        return None
    # A sample that was split has several segments, and one of them begins at 0.
    sample_ids = plan.sample_ids
    if plan.parents is not None:
        sample_ids = sample_ids[sample_ends(plan)]
    elif plan.ledger.samples_split:
        sample_ids = sample_ids[plan.starts == 0]
    return int(column[sample_ids].sum(dtype=np.int64))


def _padded_runs(
    rows: Histogram, capacity: int, run: TrainingRun, shared: SharedWork | None
) -> tuple[PaddedRun, PaddedRun]:
    """Return the unpacked run padded to the longest of each micro-batch, and padded to the
    capacity; ``shared`` is the work of a plan with trees.
    """
    lengths = np.append(rows.lengths, capacity)
    costs = pack_costs(
        np.arange(len(lengths) + 1), lengths, run.cost_model
    )  # one row of each length
    flat_cost = float(rows.counts @ costs[:-1])
    packed_cost = flat_cost if shared is None else shared.tree_cost
    # Expected cost of a row: a micro-batch is as long as its longest row, and each of its rows
    # costs that.
    probabilities = _probabilities_of_longest(rows, run.micro_batch_size)

    def padded_run(row_tokens: float, row_cost: float) -> PaddedRun:
        cost = row_cost * rows.num_items
        return PaddedRun(
            row_tokens=row_tokens,
            step_tokens=row_tokens * min(run.samples_per_step, rows.num_items),
            padding_ratio=max(0.0, 1 - rows.total / rows.num_items / row_tokens),
            compute_ratio=max(0.0, 1 - flat_cost / cost),
            speedup=max(1.0, cost / packed_cost),
        )

    return (
        padded_run(float(probabilities @ rows.lengths), float(probabilities @ costs[:-1])),
        padded_run(float(capacity), float(costs[-1])),
    )


def _probabilities_of_longest(rows: Histogram, draws: int) -> Float64Array:
    """Return the probability of each length to be the longest of ``draws`` different rows,
    ``float64[num_lengths]``.
    """
    at_most = np.cumsum(rows.counts).astype(np.float64)
    none_longer = np.ones(len(at_most))
    # Drawn without replacement: each draw leaves one row fewer, and one fewer that is not longer.
    for draw in range(min(draws, rows.num_items)):
        none_longer *= np.maximum(at_most - draw, 0.0) / (rows.num_items - draw)
    return np.diff(none_longer, prepend=0.0)
