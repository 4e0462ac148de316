"""Advice on a step: its size without and with packing, and the choices of settings."""

import math
from dataclasses import dataclass

from brimful.base.wording import counted

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
