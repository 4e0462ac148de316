"""Advice on a step that packing changes: samples a step, steps an epoch, and settings that keep training the same.

Most reports that "packing made my model worse" are caused by a change of the step: with unchanged settings, n samples a
step become n packs a step, so the batch grows by the packing factor and the epoch shrinks by it::

    8 ranks, micro-batch 1, accumulation 4, 8.4 samples a pack

    unpacked           8 · 1 · 4 samples           =  32 samples a step
    packed, as set     8 · 1 · 4 packs · 8.4       = 269 samples a step, an eighth of the steps
    accumulation 1     8 · 1 · 1 packs · 8.4       =  67 samples a step: as near to 32 as whole packs allow

The arithmetic is exact for a plan; the speed-up is the cost model's, of arithmetic alone.
"""

import math
from dataclasses import replace

import numpy as np

from brimful.errors import PlanMismatchError, SettingsError
from brimful.measure import LengthTable
from brimful.plan import Plan
from brimful.plan.counts.histogram import Histogram
from brimful.plan.schedule import CostModel, pack_costs
from brimful.report.analysis.advice import Advice, Choice, PaddedRun, StepSize, is_same
from brimful.report.analysis.notes import write_notes
from brimful.report.analysis.training_run import TrainingRun
from brimful.typing import Float64Array

_MAX_CHOICES = 6
"""Maximum number of choices: the nearest to each quantity, and doublings between them."""


def advise(
    lengths: LengthTable | None,
    plan: Plan,
    *,
    dp_world_size: int,
    micro_batch_size: int,
    gradient_accumulation_steps: int,
    cost_model: CostModel,
    packs_per_micro_batch: int | None = None,
    learning_rate: float | None = None,
    warmup_steps: int | None = None,
) -> Advice:
    """Compare the run without packing to the run with it, and recommend settings.

    Pure: no I/O, no randomness. The unpacked run has one row for each segment of the plan: the same samples, dropped
    and cut by the same policy. The longest row of a random micro-batch is its exact expectation over all micro-batches
    of different samples, not a draw: with n rows, of which c are at most l long, no row of a micro-batch of m is longer
    with probability c/n · (c−1)/(n−1) · … of m factors.

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
        dp_world_size: data-parallel ranks.
        micro_batch_size: samples of one forward of the unpacked run.
        gradient_accumulation_steps: forwards of a step on one rank.
        cost_model: for the share of padding in the arithmetic.
        packs_per_micro_batch: packs of one forward; ``micro_batch_size`` if None, as if a trainer's batch size is not
            changed.
        learning_rate: of the unpacked run; only for the notes.
        warmup_steps: of the unpacked run.

    Raises:
        SettingsError: a count below 1, a learning rate that is not above 0, or a plan without packs.
        PlanMismatchError: a table of another number of samples than the plan's.

    >>> from brimful.plan import plan_packs
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
    run = TrainingRun(
        dp_world_size=dp_world_size,
        micro_batch_size=micro_batch_size,
        gradient_accumulation_steps=gradient_accumulation_steps,
        packs_per_micro_batch=packs_per_micro_batch,
        learning_rate=learning_rate,
        warmup_steps=warmup_steps,
        cost_model=cost_model,
    )
    return advise_run(lengths, plan, run)


def advise_run(lengths: LengthTable | None, plan: Plan, run: TrainingRun) -> Advice:
    """Compare the run without packing to the run with it, as ``advise`` does for loose settings."""
    if not plan.num_packs:
        raise SettingsError("the plan has no packs, so nothing can be compared")
    rows = Histogram.of(plan.lengths)
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
    padded_to_longest, padded_to_capacity = _padded_runs(rows, plan.capacity, run)
    packing_factor = rows.num_items / plan.num_packs
    # Padding of an alignment is part of a step of packs, as padding of rows is part of an unpacked step.
    positions_per_token = 1 + sum(plan.padding) / rows.total
    step_positions = padded_to_longest.step_tokens

    # Packs of one rank in a step: as set now, nearest to the samples, and nearest to the positions of the unpacked run.
    current_packs = run.packs_per_forward * run.gradient_accumulation_steps
    pack_positions = positions_per_token * rows.total / plan.num_packs
    samples_of_rank = run.micro_batch_size * run.gradient_accumulation_steps
    nearest = {
        "samples": _nearest(samples_of_rank / packing_factor, run.packs_per_forward),
        "padded tokens": _nearest(step_positions / run.dp_world_size / pack_positions, run.packs_per_forward),
    }

    # From this number on a step is the whole epoch: all larger numbers are one choice.
    whole_epoch = -(-plan.num_packs // run.dp_world_size)
    whole_epochs = [packs for packs in (current_packs, *nearest.values()) if packs >= whole_epoch]
    if whole_epochs:
        same_choice = current_packs if current_packs >= whole_epoch else min(whole_epochs)
        nearest = {name: same_choice if packs >= whole_epoch else packs for name, packs in nearest.items()}

    def choice(packs: int) -> Choice:
        step = step_size(run.dp_world_size * packs, plan.num_packs)
        ratios = {
            "samples": step.samples / unpacked_step.samples,
            "padded tokens": step.tokens * (positions_per_token / step_positions),
        }
        names = [name for name, nearest_packs in nearest.items() if nearest_packs == packs]
        keeps = [name for name in names if is_same(ratios[name])]
        # The largest forward that divides the packs: accumulation counts whole forwards.
        forward = next(size for size in range(min(packs, run.packs_per_forward), 0, -1) if packs % size == 0)
        ratio, warmup = ratios["samples"], run.warmup_steps
        return Choice(
            keeps=tuple(keeps + ["settings"] * (packs == current_packs)),
            nearest_to=tuple(name for name in names if name not in keeps),
            packs_per_micro_batch=forward,
            gradient_accumulation_steps=packs // forward,
            step=step,
            batch_ratio=ratio,
            linear_lr_ratio=ratio,
            sqrt_lr_ratio=math.sqrt(ratio),
            warmup_steps=max(1, round(warmup / ratio)) if warmup else warmup,
        )

    numbers = _ladder({*nearest.values(), current_packs}, nearest["samples"], min(current_packs, whole_epoch))
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
        loss_tokens_are_most=loss_tokens is not None
        and bool(plan.ledger.tokens_truncated or plan.ledger.samples_split),
    )
    # Notes are written on the finished numbers, so they cannot say anything else.
    return replace(advice, notes=tuple(write_notes(advice)))


def _loss_tokens(lengths: LengthTable | None, plan: Plan) -> int | None:
    """Count the targets in the packed samples, each sample once; None if they were not measured."""
    if lengths is None:
        return None
    if len(lengths) != plan.ledger.samples_in:
        raise PlanMismatchError(
            f"the plan is for {plan.ledger.samples_in:,} samples and the length table has {len(lengths):,}: "
            f"plan these lengths again"
        )
    column = lengths.budgets.get("loss_tokens")
    if column is None:
        return None
    # A sample that was split has several segments, and one of them begins at 0.
    sample_ids = plan.sample_ids[plan.starts == 0] if plan.ledger.samples_split else plan.sample_ids
    return int(column[sample_ids].sum(dtype=np.int64))


def _padded_runs(rows: Histogram, capacity: int, run: TrainingRun) -> tuple[PaddedRun, PaddedRun]:
    """Return the unpacked run padded to the longest of each micro-batch, and padded to the capacity."""
    lengths = np.append(rows.lengths, capacity)
    costs = pack_costs(np.arange(len(lengths) + 1), lengths, run.cost_model)  # one row of each length
    packed_cost = float(rows.counts @ costs[:-1])
    # Expected cost of a row: a micro-batch is as long as its longest row, and each of its rows costs that.
    probabilities = _probabilities_of_longest(rows, run.micro_batch_size)

    def padded_run(row_tokens: float, row_cost: float) -> PaddedRun:
        cost = row_cost * rows.num_items
        return PaddedRun(
            row_tokens=row_tokens,
            step_tokens=row_tokens * min(run.samples_per_step, rows.num_items),
            padding_ratio=max(0.0, 1 - rows.total / rows.num_items / row_tokens),
            compute_ratio=max(0.0, 1 - packed_cost / cost),
            speedup=max(1.0, cost / packed_cost),
        )

    return (
        padded_run(float(probabilities @ rows.lengths), float(probabilities @ costs[:-1])),
        padded_run(float(capacity), float(costs[-1])),
    )


def _probabilities_of_longest(rows: Histogram, draws: int) -> Float64Array:
    """Return the probability of each length to be the longest of ``draws`` different rows, ``float64[num_lengths]``."""
    at_most = np.cumsum(rows.counts).astype(np.float64)
    none_longer = np.ones(len(at_most))
    # Drawn without replacement: each draw leaves one row fewer, and one fewer that is not longer.
    for draw in range(min(draws, rows.num_items)):
        none_longer *= np.maximum(at_most - draw, 0.0) / (rows.num_items - draw)
    return np.diff(none_longer, prepend=0.0)


def _nearest(packs: float, packs_per_forward: int) -> int:
    """Return the possible number of packs nearest in ratio: whole forwards, or one smaller forward."""
    # Ratios are compared, not differences: 1 pack for 2 is as far off as 4 for 2.
    unit = packs_per_forward if packs >= packs_per_forward else 1
    low = max(1, math.floor(packs / unit) * unit)
    high = max(1, math.ceil(packs / unit) * unit)
    return low if packs / low <= high / packs else high


def _ladder(numbers: set[int], start: int, end: int) -> list[int]:
    """Return the numbers in order, with doublings of ``start`` below ``end`` up to ``_MAX_CHOICES`` in all."""
    # The largest doubling stays below the end, which the ladder already holds.
    powers = range(1, max(1, end // start).bit_length())
    doublings = [start << power for power in powers if start << power < end and start << power not in numbers]
    room = max(0, _MAX_CHOICES - len(numbers))
    if len(doublings) > room:
        # Evenly spread over the doublings, the first and the last included.
        doublings = [doublings[round(i * (len(doublings) - 1) / max(1, room - 1))] for i in range(room)]
    return sorted(numbers | set(doublings))
