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
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from brimful.base.typing import Float64Array
from brimful.base.wording import counted, percent
from brimful.errors import PlanMismatchError, SettingsError
from brimful.measure import LengthTable
from brimful.plan import Plan
from brimful.plan.counts.histogram import Histogram
from brimful.plan.schedule import pack_costs
from brimful.report.analysis.shared_work import SharedWork
from brimful.report.analysis.training_run import TrainingRun
from brimful.trees.account import lengths_in_packs, sample_ends
from brimful.trees.prefixes import prefixes_of, sharing_of

SAME_STEP_TOLERANCE = 0.1
"""Share by which two steps may differ and still count as the same."""


def is_same(ratio: float) -> bool:
    """Return true if a step of this ratio to another counts as the same.

    >>> [is_same(ratio) for ratio in (1.0, 0.95, 1.09, 1.4, 7.66)]
    [True, True, True, False, False]
    """
    return abs(ratio - 1) < SAME_STEP_TOLERANCE


@dataclass(frozen=True)
class StepSize:
    """Size of one optimizer step on all ranks together, on average over an epoch.

    Attributes:
        rows: sequences: samples if unpacked, packs if packed.
        samples: segments, if the overflow policy splits samples.
        tokens: real ones, without padding.
        loss_tokens: targets of the loss, of which cuts may have taken some; None if they were not
            measured.
        steps_per_epoch: the last one may be smaller than the others.
    """

    rows: int
    samples: float
    tokens: float
    loss_tokens: float | None
    steps_per_epoch: int


@dataclass(frozen=True)
class PaddedRun:
    """The unpacked run under one way of padding.

    Attributes:
        row_tokens: mean positions of a row, padding included.
        step_tokens: mean positions of a step, padding included.
        padding_ratio: positions that are padding ÷ all positions.
        compute_ratio: arithmetic on padding ÷ all arithmetic, by the cost model.
        speedup: arithmetic of the padded epoch ÷ arithmetic of the packed epoch.
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
        keeps: quantities of a step that are within a tenth of the unpacked run's: ``samples`` (and
            so real tokens), ``padded tokens`` (and so about the time of a step), or ``settings``.
        nearest_to: which of ``samples`` and ``padded tokens`` it misses but comes nearest to of all
            choices.
        packs_per_micro_batch, gradient_accumulation_steps: to set.
        step: size of a step with these settings.
        batch_ratio: samples a step ÷ samples a step of the unpacked run: the factor of the learning
            rate by linear scaling (SGD; Goyal et al., 2017), and its root by square root scaling
            (Adam; Malladi et al., 2022).
        warmup_steps: steps that see the samples of the unpacked run's warm-up; None if unknown.
    """

    keeps: tuple[str, ...]
    nearest_to: tuple[str, ...]
    packs_per_micro_batch: int
    gradient_accumulation_steps: int
    step: StepSize
    batch_ratio: float
    warmup_steps: int | None

    @property
    def merits(self) -> list[str]:
        """Merits of the choice in words."""
        return [f"keeps {name}" for name in self.keeps] + [
            f"nearest to {name}" for name in self.nearest_to
        ]


@dataclass(frozen=True)
class Note:
    """One sentence or two of advice.

    Attributes:
        topic: a word or two for the margin.
        text: the sentences.
        source: paper or count that they rest on.
    """

    topic: str
    text: str
    source: str


@dataclass(frozen=True)
class Advice:
    """The unpacked run compared with the packed one, and the choices of settings.

    Attributes:
        dp_world_size, micro_batch_size, gradient_accumulation_steps, packs_per_micro_batch: of the
            run.
        learning_rate, warmup_steps: of the unpacked run; None if unknown.
        capacity: most tokens of a pack.
        longest: tokens of the longest row of the unpacked run.
        packing_factor: mean samples of a pack.
        positions_per_token: of the packs; above 1 if segments and rows are padded to an alignment,
            below 1 if samples share.
        unpacked: a step of the unpacked run.
        packed: a step of the packed run with nothing else changed.
        padded_to_longest: unpacked rows padded to the longest of their micro-batch.
        padded_to_capacity: unpacked rows padded to the capacity.
        choices: ways to set the packed run, fewest packs a step first.
        recommended: index of the choice nearest to the samples a step.
        notes: settings to change and reasons, most important first.
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
    padded_to_longest: PaddedRun
    padded_to_capacity: PaddedRun
    choices: tuple[Choice, ...]
    recommended: int
    notes: tuple[Note, ...] = ()

    @property
    def best(self) -> Choice:
        """The recommended choice."""
        return self.choices[self.recommended]

    @property
    def nothing_to_set(self) -> bool:
        """True if the recommended choice is the run with nothing changed."""
        return "settings" in self.best.keeps

    @property
    def best_setting(self) -> str:
        """Settings of the recommended choice in a few words, with packs of a forward if they may be
        several.
        """
        packs = counted(self.best.packs_per_micro_batch, "pack")
        forward = "" if self.packs_per_micro_batch == 1 else f" of {packs}"
        return f"accumulation {self.best.gradient_accumulation_steps:,}{forward}"

    def rates(self, choice: Choice) -> tuple[str, str]:
        """Format the learning rates of a choice for SGD and Adam: factors if the unpacked run's
        rate is unknown.
        """
        # Without the rate of the unpacked run only the factor is known.
        ratios = (choice.batch_ratio, math.sqrt(choice.batch_ratio))
        if self.learning_rate is None:
            return f"× {ratios[0]:.2f}", f"× {ratios[1]:.2f}"
        return f"{self.learning_rate * ratios[0]:.3g}", f"{self.learning_rate * ratios[1]:.3g}"


def advise(
    lengths: LengthTable | None, plan: Plan, run: TrainingRun | None = None, **settings: Any
) -> Advice:
    """Compare the run without packing to the run with it, and recommend settings.

    Pure: no I/O, no randomness. The unpacked run has one row for each segment of the plan: the same
    samples, dropped and cut by the same policy; of a plan with trees, one for each sample. The
    longest row of a random micro-batch is its exact expectation over all micro-batches of different
    samples, not a draw: with n rows, of which c are at most l long, no row of a micro-batch of m is
    longer with probability c/n · (c−1)/(n−1) · … of m factors.

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
    exact_packs = {
        "samples": samples_of_rank / packing_factor,
        "padded tokens": step_positions / run.dp_world_size / pack_positions,
    }
    # From this number on a step is the whole epoch: all larger numbers are one choice.
    whole_epoch = -(-plan.num_packs // run.dp_world_size)
    nearest = {}
    for name, packs in exact_packs.items():
        # The possible number nearest in ratio: whole forwards, or one smaller forward. 1 pack for 2
        # is as far off as 4 for 2.
        unit = run.packs_per_forward if packs >= run.packs_per_forward else 1
        low = max(1, math.floor(packs / unit) * unit)
        high = max(1, math.ceil(packs / unit) * unit)
        num_packs = low if packs / low <= high / packs else high
        nearest[name] = num_packs if num_packs < whole_epoch else max(current_packs, whole_epoch)

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

    pack_counts = sorted({*nearest.values(), current_packs})
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
        choices=tuple(choice(packs) for packs in pack_counts),
        recommended=pack_counts.index(nearest["samples"]),
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
    if plan.sharing is not None:
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


_WORTH_SHARING = 0.05
"""Share of tokens that a tree must save to be advised: below it, gathered keys cost as much."""


def sharing_notes(
    lengths: LengthTable | None, shared: SharedWork | None, run: TrainingRun
) -> list[Note]:
    """Write the note on what samples share, or could share."""
    if shared is not None:
        text = (
            f"Samples share their beginnings: {shared.tokens.ratio:.2f} times fewer tokens, and "
            f"{shared.speedup:.2f} times as fast as the same packs without trees if arithmetic is "
            "the bottleneck. Targets are as many as before, so the loss and the optimizer have as "
            "much work, and a dense mask saves nothing in attention."
        )
        return [Note("shared", text, f"cost model of {run.model}: arithmetic of the forward pass")]
    if lengths is None or lengths.sharing is None:
        return []
    sharing = sharing_of(prefixes_of(lengths), lengths.tokens)
    if sharing.ratio < 1 + _WORTH_SHARING:
        return []
    text = (
        f"{counted(sharing.shares, 'sample')} share {percent(1 - 1 / sharing.ratio)} of all tokens "
        "with others, and each has its own copy: a plan that shares prefixes packs them once, "
        f"{sharing.ratio:.2f} times fewer tokens."
    )
    return [Note("not shared", text, "counted from the lengths")]


def notes_of(advice: Advice) -> list[Note]:
    """Write the notes of one advice, most important first; its tables have the other numbers."""
    best, notes = advice.best, []
    if best.step.rows == advice.dp_world_size and best.batch_ratio > 1 + SAME_STEP_TOLERANCE:
        # Shorter packs hold fewer samples in proportion, as long as every sample still fits.
        capacity = round(advice.capacity / best.batch_ratio)
        smaller = f"about {counted(capacity, 'token')}" if capacity >= advice.longest else "smaller"
        notes.append(
            Note(
                "smallest step",
                "One pack on each rank is the smallest possible step. Fewer ranks or a "
                f"capacity that is {smaller} would be nearer to the unpacked one; otherwise scale "
                "the learning rate.",
                "counted from the plan",
            )
        )
    ratio = max(best.batch_ratio, advice.packed.samples / advice.unpacked.samples)
    if not is_same(ratio):
        notes += [
            Note(
                "LR for SGD",
                "The learning rate times the ratio of samples a step, with a warm-up from the old "
                "one. Linear scaling was found with SGD, and fails for very large steps.",
                "Goyal et al., 2017, Accurate, large minibatch SGD (arXiv 1706.02677)",
            ),
            Note(
                "LR for Adam",
                "The learning rate times the root of the ratio. The rule also multiplies 1 − beta1 "
                "and 1 − beta2 by the ratio and divides epsilon by its root; it ends where the "
                "ratio times 1 − beta1 nears 1.",
                "Malladi et al., 2022, On the SDEs and scaling rules for adaptive gradient "
                "algorithms (arXiv 2205.10287)",
            ),
            Note(
                "warm-up",
                "Steps of warm-up are divided by the ratio, so that they see as many samples. A "
                "warm-up given as a share of all steps needs no change.",
                "arithmetic: the same share of the samples",
            ),
        ]
    longest, capacity_run = advice.padded_to_longest, advice.padded_to_capacity
    return [
        *notes,
        Note(
            "loss",
            "Take the mean of the loss over all targets of a step, not the mean of the means of "
            "its packs: packs have different numbers of targets.",
            "arithmetic; transformers.Trainer does so automatically",
        ),
        Note(
            "time",
            f"Padded to the longest of each micro-batch, {100 * longest.padding_ratio:.0f} % of "
            f"the positions and {100 * longest.compute_ratio:.0f} % of the arithmetic are "
            f"padding: packed is {longest.speedup:.2f} times as fast if arithmetic is the "
            f"bottleneck. Padded to {counted(advice.capacity, 'token')} it would be "
            f"{100 * capacity_run.padding_ratio:.0f} % of the positions and "
            f"{capacity_run.speedup:.2f} times.",
            "cost model: arithmetic of the forward pass",
        ),
        Note(
            "as measured",
            "By others, on short instruction data: 1.4 to 2 times the speed of padding; a 70B "
            "model on chats: 2.5 times.",
            "Kundu et al., 2024, Enhancing training efficiency using packing with flash attention "
            "(arXiv 2407.09105); Wang et al., 2024, Packing analysis (arXiv 2410.08081)",
        ),
    ]
