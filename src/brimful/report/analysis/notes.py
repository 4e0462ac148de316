"""Sentences of the advice, each with the paper or count that it rests on."""

from brimful.messages import counted
from brimful.report.analysis.advice import SAME_STEP_TOLERANCE, Advice, Note, is_same

GOYAL = "Goyal et al., 2017, Accurate, large minibatch SGD (arXiv 1706.02677)"
MALLADI = "Malladi et al., 2022, On the SDEs and scaling rules for adaptive gradient algorithms (arXiv 2205.10287)"
KRELL = "Krell et al., 2021, Efficient sequence packing without cross-contamination, section 3.3 (arXiv 2107.02027)"
KUNDU = "Kundu et al., 2024, Enhancing training efficiency using packing with flash attention (arXiv 2407.09105)"
WANG = "Wang et al., 2024, Packing analysis (arXiv 2410.08081)"
COUNTED = "counted from the plan"
MODELLED = "cost model: arithmetic of the forward pass"

_ADAM_BETA1 = 0.9
_TOO_FAR = f"That leaves nothing of a beta1 of {_ADAM_BETA1}: so large a ratio is beyond the rule, take a smaller step."


def write_notes(advice: Advice) -> list[Note]:
    """Write the notes of one advice, most important first."""
    return [
        _unchanged_settings(advice),
        *_same_batch(advice),
        *_smallest_step(advice),
        *_learning_rate(advice),
        *_warmup(advice),
        Note(
            "loss",
            "Take the mean of the loss over all targets of a step, not the mean of the means of its packs: packs have "
            "different numbers of targets.",
            "arithmetic; transformers.Trainer does so automatically",
        ),
        *_time(advice),
    ]


def _samples(number: float) -> str:
    return counted(round(number), "sample")


def _unchanged_settings(advice: Advice) -> Note:
    """Describe the packed step if no setting is changed."""
    unpacked_step, packed_step = advice.unpacked, advice.packed
    factor = packed_step.samples / unpacked_step.samples
    if is_same(factor):
        text = (
            f"With these settings a packed step sees {_samples(packed_step.samples)} and an unpacked one "
            f"{unpacked_step.samples:,.0f}: the same training, without the padding."
        )
    else:
        text = (
            f"With these settings a step sees {_samples(packed_step.samples)}, was {unpacked_step.samples:,.0f} unpacked "
            f"({factor:.1f} times), and an epoch has {counted(packed_step.steps_per_epoch, 'step')}, was "
            f"{unpacked_step.steps_per_epoch:,}."
        )
        if packed_step.steps_per_epoch < unpacked_step.steps_per_epoch:
            text += " Fewer updates are the usual reason why a packed run scores lower."
        if advice.nothing_to_set:
            text += " No other number of whole packs comes nearer to the unpacked step."
    return Note("as set", text, COUNTED)


def _same_batch(advice: Advice) -> list[Note]:
    """Describe the recommended settings; none if they equal the current ones."""
    if advice.nothing_to_set:
        return []
    best = advice.best
    text = (
        f"{advice.best_setting.capitalize()} gives {_samples(best.step.samples)} a step ({best.batch_ratio:.2f} times the "
        f"unpacked run) and {counted(best.step.steps_per_epoch, 'step')} an epoch"
    )
    if is_same(best.batch_ratio):
        topic, text = "same samples", f"{text}: keep learning rate, warm-up and everything else."
    else:
        topic, text = "nearest", f"{text}: as near as whole packs allow."
    return [Note(topic, text, f"{COUNTED}; {KRELL}")]


def _smallest_step(advice: Advice) -> list[Note]:
    """Say what to change if one pack on every rank is a larger step than the unpacked one."""
    best = advice.best
    packs = best.packs_per_micro_batch * best.gradient_accumulation_steps
    if packs > 1 or best.batch_ratio <= 1 + SAME_STEP_TOLERANCE:
        return []
    # Shorter packs hold fewer samples in proportion, as long as every sample still fits.
    capacity = round(advice.capacity / best.batch_ratio)
    is_one_rank = advice.dp_world_size == 1
    ranks = "" if is_one_rank else f"on each of {advice.dp_world_size:,} ranks "
    text = f"One pack {ranks}is the smallest possible step. "
    if capacity >= advice.longest:
        text += (
            f"A capacity of about {counted(capacity, 'token')} would bring it to {_samples(advice.unpacked.samples)}; "
            f"otherwise scale the learning rate."
        )
    elif is_one_rank:
        text += "Scale the learning rate."
    else:
        text += "Fewer data-parallel ranks would make it smaller; otherwise scale the learning rate."
    return [Note("smallest step", text, COUNTED)]


def _learning_rate(advice: Advice) -> list[Note]:
    """Give both rules for the learning rate; nothing if a step keeps its samples."""
    ratio = max(advice.best.batch_ratio, advice.packed.samples / advice.unpacked.samples)
    if is_same(ratio):
        return []
    root = ratio**0.5

    def times(factor: float) -> str:
        rate = advice.learning_rate
        example = "" if rate is None else f" ({rate:g} becomes {rate * factor:.3g})"
        return f"times {factor:.2f}{example}"

    # The rule ends where 1 − beta1, times the ratio, reaches 1.
    beta1 = 1 - ratio * (1 - _ADAM_BETA1)
    return [
        Note(
            "LR for SGD",
            f"If you stay with {ratio:.1f} times the samples a step: learning rate {times(ratio)}, with a warm-up from the "
            f"old one. Linear scaling was found with SGD, and fails for very large steps.",
            GOYAL,
        ),
        Note(
            "LR for Adam",
            f"If you stay with {ratio:.1f} times the samples a step: learning rate {times(root)}. The rule also multiplies "
            f"1 − beta1 and 1 − beta2 by {ratio:.2f} and divides epsilon by {root:.2f}. "
            + (f"A beta1 of {_ADAM_BETA1} becomes {beta1:.2f}." if beta1 > 0 else _TOO_FAR),
            MALLADI,
        ),
    ]


def _warmup(advice: Advice) -> list[Note]:
    """Scale the warm-up, or say that a share of the steps needs no change."""
    steps, packed_steps = advice.warmup_steps, advice.best.warmup_steps
    if steps is None:
        text = (
            "A warm-up given as a share of all steps needs no change. One given in steps is divided by the ratio of "
            "samples a step, so that it sees as many samples."
        )
    elif not steps or packed_steps == steps or is_same(advice.best.batch_ratio):
        return []
    else:
        samples = _samples(steps * advice.unpacked.samples)
        text = (
            f"{counted(steps, 'unpacked step')} of warm-up {'sees' if steps == 1 else 'see'} {samples}; with "
            f"{advice.best_setting} that is {counted(packed_steps or 0, 'step')}."
        )
    return [Note("warm-up", text, "arithmetic: the same share of the samples")]


def _time(advice: Advice) -> list[Note]:
    """Compare the time of padded and packed runs, by the cost model and as others measured it."""
    to_longest, to_capacity = advice.padded_to_longest, advice.padded_to_capacity
    # A micro-batch of one is its own longest row.
    if advice.micro_batch_size == 1:
        text = (
            "One sample a forward needs no padding; what packing saves is many small forwards, which arithmetic "
            "does not show"
        )
    else:
        text = (
            f"Padded to the longest of each micro-batch, {100 * to_longest.padding_ratio:.0f} % of the positions and "
            f"{100 * to_longest.compute_ratio:.0f} % of the arithmetic are padding: packed is {to_longest.speedup:.2f} times "
            f"as fast if arithmetic is the bottleneck"
        )
    return [
        Note(
            "time",
            f"{text}. Padded to {counted(advice.capacity, 'token')} it would be {100 * to_capacity.padding_ratio:.0f} % of the "
            f"positions and {to_capacity.speedup:.2f} times.",
            MODELLED,
        ),
        Note(
            "as measured",
            "By others, on short instruction data: 1.4 to 2 times the speed of padding; a 70B model on chats: 2.5 times.",
            f"{KUNDU}; {WANG}",
        ),
    ]
