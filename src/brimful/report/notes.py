"""What the advisor says in words, each sentence with the paper or count it rests on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from brimful.messages import counted

if TYPE_CHECKING:
    from brimful.report.advisor import Advice, Choice

__all__ = ["Note", "is_same", "setting", "write_notes"]

GOYAL = "Goyal et al., 2017, Accurate, large minibatch SGD (arXiv 1706.02677)"
MALLADI = "Malladi et al., 2022, On the SDEs and scaling rules for adaptive gradient algorithms (arXiv 2205.10287)"
KRELL = "Krell et al., 2021, Efficient sequence packing without cross-contamination, section 3.3 (arXiv 2107.02027)"
KUNDU = "Kundu et al., 2024, Enhancing training efficiency using packing with flash attention (arXiv 2407.09105)"
WANG = "Wang et al., 2024, Packing analysis (arXiv 2410.08081)"
COUNTED = "counted from the plan"
MODELLED = "cost model: arithmetic of the forward pass"

_SAME = 0.1
"""Steps that differ by less than this share are called the same."""
_ADAM_BETA1 = 0.9
_TOO_FAR = f"That leaves nothing of a beta1 of {_ADAM_BETA1}: so large a ratio is beyond the rule, take a smaller step."


def is_same(ratio: float) -> bool:
    """Whether what a step has is as good as what it had.

    >>> [is_same(ratio) for ratio in (1.0, 0.95, 1.09, 1.4, 7.66)]
    [True, True, True, False, False]
    """
    return abs(ratio - 1) < _SAME


@dataclass(frozen=True)
class Note:
    """One piece of advice.

    Attributes:
        topic: a word or two for the margin.
        text: one or two sentences.
        source: what it rests on.
    """

    topic: str
    text: str
    source: str


def write_notes(advice: Advice) -> list[Note]:
    """The notes of one advice, the most important first."""
    best = advice.choices[advice.recommended]
    return [
        _if_nothing_changes(advice),
        *_same_batch(advice, best),
        *_too_large(advice, best),
        *_learning_rate(advice, best),
        *_warmup(advice, best),
        Note(
            "loss",
            "Take the mean of the loss over all targets of a step, not the mean of the means of its packs: packs have "
            "different numbers of targets.",
            "arithmetic; transformers.Trainer does so by itself",
        ),
        *_time(advice),
    ]


def setting(advice: Advice, choice: Choice) -> str:
    """How a choice is set, in a few words: with the packs of a forward where they may be several."""
    forward = "" if advice.packs_per_micro_batch == 1 else f" of {counted(choice.packs_per_micro_batch, 'pack')}"
    return f"accumulation {choice.gradient_accumulation_steps:,}{forward}"


def _samples(number: float) -> str:
    return counted(round(number), "sample")


def _if_nothing_changes(advice: Advice) -> Note:
    before, after = advice.unpacked, advice.packed
    factor = after.samples / before.samples
    if is_same(factor):
        text = (
            f"With these settings a packed step sees {_samples(after.samples)} and an unpacked one "
            f"{before.samples:,.0f}: the same training, without the padding."
        )
    else:
        text = (
            f"With these settings a step sees {_samples(after.samples)}, was {before.samples:,.0f} unpacked "
            f"({factor:.1f} times), and an epoch has {counted(after.steps_per_epoch, 'step')}, was "
            f"{before.steps_per_epoch:,}."
        )
        if after.steps_per_epoch < before.steps_per_epoch:
            text += " Fewer updates are the usual reason why a packed run scores lower."
        if advice.nothing_to_set:
            text += " No other number of whole packs comes nearer to the unpacked step."
    return Note("as set", text, COUNTED)


def _same_batch(advice: Advice, best: Choice) -> list[Note]:
    """What to set, if that is anything but what is set."""
    if advice.nothing_to_set:
        return []
    text = (
        f"{setting(advice, best).capitalize()} gives {_samples(best.step.samples)} a step ({best.batch_ratio:.2f} times the "
        f"unpacked run) and {counted(best.step.steps_per_epoch, 'step')} an epoch"
    )
    if is_same(best.batch_ratio):
        topic, text = "same samples", f"{text}: keep learning rate, warm-up and everything else."
    else:
        topic, text = "nearest", f"{text}: as near as whole packs allow."
    return [Note(topic, text, f"{COUNTED}; {KRELL}")]


def _too_large(advice: Advice, best: Choice) -> list[Note]:
    """One pack on every rank is already a larger step than there was."""
    packs = best.packs_per_micro_batch * best.gradient_accumulation_steps
    if packs > 1 or best.batch_ratio <= 1 + _SAME:
        return []
    capacity = round(advice.capacity / best.batch_ratio)
    alone = advice.dp_world_size == 1
    text = (
        "One pack "
        + ("" if alone else f"on each of {advice.dp_world_size:,} ranks ")
        + "is the smallest step there is. "
    )
    if capacity >= advice.longest:
        text += (
            f"A capacity of about {counted(capacity, 'token')} would bring it to {_samples(advice.unpacked.samples)}; else "
            f"scale the learning rate."
        )
    elif alone:
        text += "Scale the learning rate."
    else:
        text += "Fewer data-parallel ranks would make it smaller; else scale the learning rate."
    return [Note("smallest step", text, COUNTED)]


def _learning_rate(advice: Advice, best: Choice) -> list[Note]:
    ratio = max(best.batch_ratio, advice.packed.samples / advice.unpacked.samples)
    if is_same(ratio):
        return []
    rate = advice.learning_rate
    root = ratio**0.5
    linear, rooted = f"times {ratio:.2f}", f"times {root:.2f}"
    if rate is not None:
        linear += f" ({rate:g} becomes {rate * ratio:.3g})"
        rooted += f" ({rate:g} becomes {rate * root:.3g})"
    beta1 = 1 - ratio * (1 - _ADAM_BETA1)
    return [
        Note(
            "LR for SGD",
            f"If you stay with {ratio:.1f} times the samples a step: learning rate {linear}, with a warm-up from the "
            f"old one. Linear scaling was found with SGD, and fails for very large steps.",
            GOYAL,
        ),
        Note(
            "LR for Adam",
            f"If you stay with {ratio:.1f} times the samples a step: learning rate {rooted}. The rule also multiplies "
            f"1 − beta1 and 1 − beta2 by {ratio:.2f} and divides epsilon by {root:.2f}. "
            + (f"A beta1 of {_ADAM_BETA1} becomes {beta1:.2f}." if beta1 > 0 else _TOO_FAR),
            MALLADI,
        ),
    ]


def _warmup(advice: Advice, best: Choice) -> list[Note]:
    old, new = advice.warmup_steps, best.warmup_steps
    if old is None:
        text = (
            "A warm-up given as a share of all steps needs no change. One given in steps is divided by the ratio of "
            "samples a step, so that it sees as many samples."
        )
    elif not old or new == old or is_same(best.batch_ratio):
        return []
    else:
        seen = _samples(old * advice.unpacked.samples)
        steps = f"{counted(old, 'unpacked step')} of warm-up {'sees' if old == 1 else 'see'} {seen}"
        text = f"{steps}; with {setting(advice, best)} that is {counted(new or 0, 'step')}."
    return [Note("warm-up", text, "arithmetic: the same share of the samples")]


def _time(advice: Advice) -> list[Note]:
    longest, full = advice.padded_to_longest, advice.padded_to_capacity
    if advice.micro_batch_size == 1:
        longest_text = (
            "One sample a forward needs no padding; what packing saves there are many small forwards, which arithmetic "
            "does not show"
        )
    else:
        longest_text = (
            f"Padded to the longest of each micro-batch, {100 * longest.padding_ratio:.0f} % of the positions and "
            f"{100 * longest.compute_ratio:.0f} % of the arithmetic are padding: packed is {longest.speedup:.2f} times "
            f"as fast if arithmetic is what takes the time"
        )
    return [
        Note(
            "time",
            f"{longest_text}. Padded to {counted(advice.capacity, 'token')} it would be {100 * full.padding_ratio:.0f} % of the "
            f"positions and {full.speedup:.2f} times.",
            MODELLED,
        ),
        Note(
            "as measured",
            "By others, on short instruction data: 1.4 to 2 times the speed of padding; a 70B model on chats: 2.5 times.",
            f"{KUNDU}; {WANG}",
        ),
    ]
