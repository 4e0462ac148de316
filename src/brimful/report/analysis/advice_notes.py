"""Notes of an advice: sentences about sharing, the learning rate and the loss, with sources."""

from brimful.base.wording import counted, percent
from brimful.lengths.prefixes import sharing_of
from brimful.measure import LengthTable
from brimful.report.analysis.advice import SAME_STEP_TOLERANCE, Advice, Note, is_same
from brimful.report.analysis.shared_work import SharedWork
from brimful.report.analysis.training_run import TrainingRun

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
    if lengths is None or lengths.prefixes is None:
        return []
    sharing = sharing_of(lengths.prefixes, lengths.tokens)
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
