"""What changes when packing is turned on: samples a step, steps an epoch, and what to set so that training stays itself.

Most reports that "packing made my model worse" are a change of the step in disguise: with every setting left alone, a
step sees as many packs as it saw samples, so the batch grows by the packing factor and the epoch shrinks by it::

    8 ranks, micro-batch 1, accumulation 4, 8.4 samples a pack

    unpacked           8 · 1 · 4 samples           =  32 samples a step
    packed, as set     8 · 1 · 4 packs · 8.4       = 269 samples a step, an eighth of the steps
    accumulation 1     8 · 1 · 1 packs · 8.4       =  67 samples a step: as near to 32 as whole packs allow

The arithmetic is exact for a plan; the speed-up is the cost model's, of arithmetic alone.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from brimful.errors import PlanMismatchError, SettingsError
from brimful.measure import LengthTable
from brimful.messages import setting
from brimful.plan import Plan
from brimful.plan.counts.histogram import Histogram
from brimful.plan.schedule import CostModel, pack_costs
from brimful.report.notes import Note, is_same, write_notes
from brimful.typing import Float64Array

__all__ = ["Advice", "Choice", "Padded", "StepSize", "advise"]

_MOST_CHOICES = 6


@dataclass(frozen=True)
class StepSize:
    """What one optimizer step sees, on all ranks together, on average over an epoch.

    Attributes:
        rows: sequences: samples if unpacked, packs if packed.
        samples: segments, where the overflow policy splits samples.
        tokens: real ones, without padding.
        loss_tokens: targets of the loss; None if they were not measured.
        steps_per_epoch: the last one may be smaller than the others.
    """

    rows: int
    samples: float
    tokens: float
    loss_tokens: float | None
    steps_per_epoch: int


@dataclass(frozen=True)
class Padded:
    """The unpacked run under one way of padding.

    Attributes:
        row_tokens: positions of a row, padding included, on average.
        step_tokens: positions of a step, padding included, on average.
        padding_ratio: of the positions, those that are padding.
        compute_ratio: of the arithmetic, what goes into padding, by the cost model.
        speedup: arithmetic of the padded epoch ÷ that of the packed one.
    """

    row_tokens: float
    step_tokens: float
    padding_ratio: float
    compute_ratio: float
    speedup: float


@dataclass(frozen=True)
class Choice:
    """One way to set the packed run.

    Attributes:
        keeps: what a step has as the unpacked run had it, or within a tenth: ``samples`` (and so real tokens),
            ``padded tokens`` (and so about the time of a step), or ``settings``.
        nearest_to: of ``samples`` and ``padded tokens``, which it comes nearest to of all choices and does not keep.
        packs_per_micro_batch, gradient_accumulation_steps: to set.
        step: what a step then sees.
        batch_ratio: samples a step ÷ those of the unpacked run.
        linear_lr_ratio: what linear scaling multiplies the learning rate by (SGD; Goyal et al., 2017).
        sqrt_lr_ratio: what square root scaling multiplies it by (Adam; Malladi et al., 2022).
        warmup_steps: that see as many samples as the unpacked run's warm-up; None if that was not given.
    """

    keeps: tuple[str, ...]
    nearest_to: tuple[str, ...]
    packs_per_micro_batch: int
    gradient_accumulation_steps: int
    step: StepSize
    batch_ratio: float
    linear_lr_ratio: float
    sqrt_lr_ratio: float
    warmup_steps: int | None

    @property
    def merits(self) -> list[str]:
        """What speaks for it, in words."""
        return [f"keeps {name}" for name in self.keeps] + [f"nearest to {name}" for name in self.nearest_to]


@dataclass(frozen=True)
class Advice:
    """The unpacked run beside the packed one, and the choices there are.

    Attributes:
        dp_world_size, micro_batch_size, gradient_accumulation_steps, packs_per_micro_batch: as given.
        learning_rate, warmup_steps: of the unpacked run, as given.
        capacity: tokens of a pack, at most.
        longest: tokens of the longest row of the unpacked run.
        packing_factor: samples a pack, on average.
        positions_per_token: of the packs; above 1 where segments and rows are padded to an alignment.
        unpacked: a step of the unpacked run.
        packed: a step of the packed run with nothing else changed.
        padded_to_longest: unpacked rows padded to the longest of their micro-batch.
        padded_to_capacity: unpacked rows padded to the capacity.
        choices: fewest packs a step first.
        recommended: index of the choice nearest to the samples a step.
        loss_tokens_are_most: whether cuts may have taken some of the loss tokens that are counted.
    """

    dp_world_size: int
    micro_batch_size: int
    gradient_accumulation_steps: int
    packs_per_micro_batch: int
    learning_rate: float | None
    warmup_steps: int | None
    capacity: int
    longest: int
    packing_factor: float
    positions_per_token: float
    unpacked: StepSize
    packed: StepSize
    padded_to_longest: Padded
    padded_to_capacity: Padded
    choices: tuple[Choice, ...]
    recommended: int
    loss_tokens_are_most: bool

    @property
    def nothing_to_set(self) -> bool:
        """Whether the recommended choice is the run with nothing changed."""
        return "settings" in self.choices[self.recommended].keeps

    @property
    def notes(self) -> list[Note]:
        """What to set and why, in words, each with its source."""
        return write_notes(self)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "notes": [asdict(note) for note in self.notes]}


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
    """Compare the run without packing to the run with it, and say what to set.

    Pure: no I/O, no randomness. The unpacked run has one row for each segment of the plan: the same samples, dropped
    and cut by the same policy. What the longest of a random micro-batch is, is its exact expectation over all
    micro-batches of different samples, not a draw: with n rows, of which c are at most l long, a micro-batch of m has
    none longer with probability c/n · (c−1)/(n−1) · … of m factors.

    ::

        lengths 4 4 2 2, capacity 8, 1 rank, micro-batch 2, accumulation 1

        one plan               4 4 | 2 2            2 samples a pack
        unpacked               2 samples, 6 tokens a step, 2 steps an epoch
        packed, as set         2 packs, 4 samples, 12 tokens a step, 1 step an epoch
        nearest to 2 samples   1 pack a step: 2 samples, 6 tokens, 2 steps
        longest of two         2 with probability 2/4 · 1/3 = 1/6, else 4: 3.67 tokens a row on average

    Args:
        lengths: the table that was planned, for its ``loss_tokens``; None if there is none.
        plan: the packs.
        dp_world_size: data-parallel ranks.
        micro_batch_size: samples of one forward of the unpacked run.
        gradient_accumulation_steps: forwards of a step on one rank.
        cost_model: for the share of padding in the arithmetic.
        packs_per_micro_batch: packs of one forward; ``micro_batch_size`` if None, which is what happens if a trainer's
            batch size is left as it was.
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
    packs_a_forward = micro_batch_size if packs_per_micro_batch is None else packs_per_micro_batch
    _check(dp_world_size, micro_batch_size, gradient_accumulation_steps, packs_a_forward, learning_rate, warmup_steps)
    if not plan.num_packs:
        raise SettingsError("the plan has no packs: there is nothing to compare")
    items = Histogram.of(plan.lengths)
    factor = items.num_items / plan.num_packs
    loss_tokens = _loss_tokens(lengths, plan)
    rows = dp_world_size * micro_batch_size * gradient_accumulation_steps

    def step_of(packs: int) -> StepSize:
        return _step(packs, plan.num_packs, items.num_items, items.total, loss_tokens)

    unpacked = _step(rows, items.num_items, items.num_items, items.total, loss_tokens)
    longest, full = _padded(items, plan.capacity, rows, micro_batch_size, cost_model)
    # Packs of a rank in a step that come nearest to what the unpacked run had.
    as_set = packs_a_forward * gradient_accumulation_steps
    same_samples = _nearest(micro_batch_size * gradient_accumulation_steps / factor, packs_a_forward)
    positions_per_token = 1 + sum(plan.padding) / items.total
    positions_of_pack = positions_per_token * items.total / plan.num_packs
    same_padded = _nearest(longest.step_tokens / dp_world_size / positions_of_pack, packs_a_forward)
    nearest = {"samples": same_samples, "padded tokens": same_padded}
    enough = -(-plan.num_packs // dp_world_size)  # packs of a rank in a step that is the whole epoch: more are the same
    if as_set >= enough or max(nearest.values()) >= enough:
        whole = as_set if as_set >= enough else min(number for number in nearest.values() if number >= enough)
        nearest = {name: whole if number >= enough else number for name, number in nearest.items()}
    choices = tuple(
        _choice(
            number,
            as_set,
            [name for name, near in nearest.items() if near == number],
            packs_a_forward,
            unpacked,
            step_of(dp_world_size * number),
            positions_per_token / longest.step_tokens,
            warmup_steps,
        )
        for number in _ladder({*nearest.values(), as_set}, nearest["samples"], min(as_set, enough))
    )
    return Advice(
        dp_world_size=dp_world_size,
        micro_batch_size=micro_batch_size,
        gradient_accumulation_steps=gradient_accumulation_steps,
        packs_per_micro_batch=packs_a_forward,
        learning_rate=learning_rate,
        warmup_steps=warmup_steps,
        capacity=plan.capacity,
        longest=int(items.lengths[-1]),
        packing_factor=factor,
        positions_per_token=positions_per_token,
        unpacked=unpacked,
        packed=step_of(dp_world_size * as_set),
        padded_to_longest=longest,
        padded_to_capacity=full,
        choices=choices,
        recommended=next(at for at, choice in enumerate(choices) if "samples" in (*choice.keeps, *choice.nearest_to)),
        loss_tokens_are_most=loss_tokens is not None
        and bool(plan.ledger.tokens_truncated or plan.ledger.samples_split),
    )


def _check(
    world: int, micro_batch: int, accumulation: int, packs: int, learning_rate: float | None, warmup_steps: int | None
) -> None:
    for name, value, least in (
        ("dp_world_size", world, 1),
        ("micro_batch_size", micro_batch, 1),
        ("gradient_accumulation_steps", accumulation, 1),
        ("packs_per_micro_batch", packs, 1),
        ("warmup_steps", warmup_steps, 0),
    ):
        if value is not None and value < least:
            raise SettingsError(f"{setting(name)} must be at least {least} and is {value}")
    if learning_rate is not None and not 0 < learning_rate < math.inf:
        raise SettingsError(f"{setting('learning_rate')} must be a number above 0 and is {learning_rate}")


def _loss_tokens(lengths: LengthTable | None, plan: Plan) -> int | None:
    """Targets in the packed samples, each sample counted once."""
    if lengths is None:
        return None
    if len(lengths) != plan.ledger.samples_in:
        raise PlanMismatchError(
            f"the plan is for {plan.ledger.samples_in:,} samples and the length table has {len(lengths):,}: "
            f"plan these lengths anew"
        )
    column = lengths.budgets.get("loss_tokens")
    if column is None:
        return None
    # A sample that was split has several segments, and one of them begins at 0.
    return int(
        column[plan.sample_ids[plan.starts == 0] if plan.ledger.samples_split else plan.sample_ids].sum(dtype=np.int64)
    )


def _step(rows: int, num_rows: int, samples: int, tokens: int, loss_tokens: int | None) -> StepSize:
    """A full step of ``rows`` rows, of an epoch of ``num_rows`` that holds so many samples and tokens."""
    share = min(1.0, rows / num_rows)  # an epoch may be smaller than a step
    return StepSize(
        rows=rows,
        samples=samples * share,
        tokens=tokens * share,
        loss_tokens=None if loss_tokens is None else loss_tokens * share,
        steps_per_epoch=-(-num_rows // rows),
    )


def _padded(
    items: Histogram, capacity: int, rows: int, micro_batch_size: int, model: CostModel
) -> tuple[Padded, Padded]:
    """The unpacked run padded to the longest of each micro-batch, and to the capacity."""
    number, mean = items.num_items, items.total / items.num_items
    each = np.append(items.lengths, capacity)
    costs = pack_costs(np.arange(len(each) + 1), each, model)
    packed = float(items.counts @ costs[:-1])
    chances = _chances_of_longest(items, micro_batch_size)

    def padded(row_tokens: float, row_cost: float) -> Padded:
        cost = row_cost * number
        return Padded(
            row_tokens=row_tokens,
            step_tokens=row_tokens * min(rows, number),
            padding_ratio=max(0.0, 1 - mean / row_tokens),
            compute_ratio=max(0.0, 1 - packed / cost),
            speedup=max(1.0, cost / packed),
        )

    longest = padded(float(chances @ items.lengths), float(chances @ costs[:-1]))
    return longest, padded(float(capacity), float(costs[-1]))


def _chances_of_longest(items: Histogram, draws: int) -> Float64Array:
    """``float64[d]``: with which chance each length is the longest of so many different items."""
    number = items.num_items
    at_most = np.cumsum(items.counts).astype(np.float64)
    none_longer = np.ones(len(at_most))
    for drawn in range(min(draws, number)):
        none_longer *= np.maximum(at_most - drawn, 0.0) / (number - drawn)
    return np.diff(none_longer, prepend=0.0)


def _nearest(packs: float, packs_a_forward: int) -> int:
    """The number of packs nearest in ratio that a rank can take in a step: whole forwards, or one smaller forward."""
    unit = packs_a_forward if packs >= packs_a_forward else 1
    below = max(1, math.floor(packs / unit) * unit)
    above = max(1, math.ceil(packs / unit) * unit)
    return below if packs / below <= above / packs else above


def _ladder(named: set[int], least: int, most: int) -> list[int]:
    """The named numbers, with doublings between the least and the most as far as there is room."""
    doublings = range(1, max(1, most // least).bit_length())
    between = [least << times for times in doublings if least << times < most and least << times not in named]
    keep = max(0, _MOST_CHOICES - len(named))
    if len(between) > keep:
        between = [between[round(at * (len(between) - 1) / max(1, keep - 1))] for at in range(keep)]
    return sorted(named | set(between))


def _choice(
    packs: int,
    as_set: int,
    nearest_to: list[str],
    packs_a_forward: int,
    unpacked: StepSize,
    step: StepSize,
    padded_ratio_of_tokens: float,
    warmup: int | None,
) -> Choice:
    forward = next(size for size in range(min(packs, packs_a_forward), 0, -1) if packs % size == 0)
    ratio = step.samples / unpacked.samples
    ratios = {"samples": ratio, "padded tokens": step.tokens * padded_ratio_of_tokens}
    keeps = [name for name in nearest_to if is_same(ratios[name])]
    return Choice(
        keeps=tuple(keeps + ["settings"] * (packs == as_set)),
        nearest_to=tuple(name for name in nearest_to if name not in keeps),
        packs_per_micro_batch=forward,
        gradient_accumulation_steps=packs // forward,
        step=step,
        batch_ratio=ratio,
        linear_lr_ratio=ratio,
        sqrt_lr_ratio=math.sqrt(ratio),
        warmup_steps=max(1, round(warmup / ratio)) if warmup else warmup,
    )
