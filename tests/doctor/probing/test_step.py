"""Divisors of a step, on one rank and on several."""

import math

import pytest

pytest.importorskip("torch")

from brimful.doctor.probing.step import StepCount, step_report
from brimful.doctor.report import Judgment


def report(*counts):
    return step_report({rank: count.as_dict() for rank, count in enumerate(counts)})


@pytest.mark.parametrize(
    ("count", "evidence"),
    [
        (StepCount([10], [2], total=20.0, loss=2.0), "shown"),
        (StepCount([10, 30], [2, 3], num_items=40, total=20.0, loss=0.5, divisor=40), "shown"),
        (StepCount([10], [2], total=20.0, extra=0.5, loss=2.4), "shown"),
        (StepCount([10], [2], total=20.0, loss=0.693, due_loss=0.6931, is_told=True), "unknown"),
        (StepCount([10], [2], total=20.0, loss=0.15, due_loss=0.1, is_told=True), "unknown"),
        (StepCount([10, 30], [2, 3], total=20.0, loss=0.8, divisor=25, is_told=True), "shown"),
        (StepCount([10, 10], [2, 3], total=20.0, loss=1.0, is_told=True), "shown"),
        (StepCount([10, 30], [2, 3], total=20.0, loss=0.5, is_told=True), "shown"),
        (StepCount([10, 30], [2, 3], total=20.0, loss=0.5), "shown"),
        (StepCount([10, 30], [2, 3], num_items=40, total=20.0, loss=2.0, divisor=10, is_told=True), "shown"),
        (StepCount([10, 30], [2, 3], num_items=40, total=20.0, loss=0.5, divisor=40, is_told=True), "shown"),
        (StepCount([10], [2], total=1e-3, loss=1e-4), "shown"),
        (StepCount([1], [1], total=2.0, loss=2.0), "shown"),
        (StepCount([1000, 1050], [2, 3], total=2000.0, loss=2.0), "shown"),
        (StepCount([10], [2], total=20.0, loss=2.31), "unknown"),
        (StepCount([10], [2], total=20.0, loss=2.31, is_told=True), "unknown"),
        (StepCount([10], [2]), "unknown"),
        (StepCount(), None),
    ],
)
def test_right_steps(count, evidence):
    """Of a loss that was compared the divisor is shown."""
    found = report(count)
    assert found.ok, str(found)
    assert [line.evidence.value for line in found.lines if line.topic == "divisor"] == [evidence] * (
        evidence is not None
    )


@pytest.mark.parametrize(
    ("count", "problem", "judgment", "text"),
    [
        (StepCount([10], [2], total=20.0, loss=1.0), "divisor", Judgment.WRONG, "it is divided by 20"),
        (StepCount([10], [2], total=20.0, loss=2.5), "divisor", Judgment.SUSPECT, "it is divided by 8"),
        (StepCount([10], [2], num_items=8), "divisor", Judgment.WRONG, "num_items_in_batch is 8, and the step has 10"),
        (StepCount([1000], [2], num_items=998), "divisor", Judgment.SUSPECT, "is 998, and the step has 1,000"),
        (StepCount([1000], [2], num_items=999), "divisor", Judgment.SUSPECT, "is 999, and the step has 1,000 targets"),
        (StepCount([20, 22], [2, 3], total=40.0, loss=2.0), "divisor", Judgment.SUSPECT, "20 to 22 targets"),
        (StepCount([10], [2], total=1e-3, loss=1.25e-4), "divisor", Judgment.SUSPECT, "it is divided by 8"),
        (StepCount([10], [2, 5], total=20.0, loss=2.5), "divisor", Judgment.SUSPECT, "it is divided by 8"),
        (StepCount([1], [1], total=2.0, moved=(1.5, 1), loss=1.5), "wrong_targets", Judgment.WRONG, "one place off"),
        (StepCount([10, 30], [2, 3], total=20.0, loss=2.0), "divisor", Judgment.SUSPECT, "10 to 30 targets"),
        (
            StepCount([10, 30], [2, 3], total=20.0, loss=2.0, is_told=True),
            "divisor",
            Judgment.SUSPECT,
            "10 to 30 targets",
        ),
        (
            StepCount([10, 30], [2, 3], total=20.0, loss=1.0, is_told=True),
            "divisor",
            Judgment.SUSPECT,
            "10 to 30 targets",
        ),
        (StepCount([10], [2], sizes=[16], total=20.0, loss=1.25), "divisor", Judgment.WRONG, "it is divided by 16"),
        (StepCount([10], [2], sizes=[16, 12, 4], total=20.0, loss=5.0), "divisor", Judgment.SUSPECT, "divided by 4"),
        (
            StepCount([10], [2], sizes=[16, 12, 3, 2], total=20.0, loss=20 / 3 / 512, is_told=True),
            "divisor",
            Judgment.WRONG,
            "it is divided by 1,536",
        ),
        (
            StepCount([10, 30], [2, 3], num_items=40, total=20.0, loss=0.25, divisor=40, is_told=True),
            "divisor",
            Judgment.WRONG,
            "it is divided by 80",
        ),
        (
            StepCount([10], [2], total=20.0, moved=(19.9, 10), loss=1.99),
            "wrong_targets",
            Judgment.WRONG,
            "labels that stand one place off",
        ),
        (StepCount([10], [2], loss=4.2, due_loss=0.69, is_told=True), "padding_as_samples", Judgment.WRONG, "is 4.2"),
        (StepCount([10], [2], repeats=1), "computed_twice", Judgment.SUSPECT, "1 forward of a step"),
    ],
)
def test_wrong_steps(count, problem, judgment, text):
    (finding,) = report(count).findings
    assert (finding.problem, finding.judgment) == (problem, judgment)
    assert text in finding.detail
    if "divided by" in text:
        assert not [line for line in report(count).lines if line.topic == "divisor"], "no line of what is wrong"


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_divisors_of_ranks(ranks):
    """Own targets; of all ranks; or of all, where pairs of ranks have the same rows."""
    for num_items in (5, 10, 40 / 3, 15, 20, 25, 30, 40, 50, 80):
        counts = [StepCount([10], [2], num_items=num_items) for _ in range(ranks)]
        is_right = num_items in {10 * ranks / part for part in range(1, ranks + 1) if ranks % part == 0}
        assert report(*counts).ok is is_right, num_items
        assert ("on all ranks" in str(report(*counts).findings)) is (ranks > 1 and not is_right)
    # A rank without a micro-batch of its own: shares need not be whole.
    assert report(StepCount([3], [1], num_items=1.5), StepCount()).ok


def test_a_loss_that_more_is_added_to_is_not_compared():
    """Label smoothing and a z-loss make it larger by no number that a batch has."""
    (line,) = [line for line in report(StepCount([10], [2], total=20.0, loss=2.31)).lines if line.topic == "divisor"]
    assert (line.evidence.value, "what else is in it was not looked at" in line.text) == ("unknown", True)


@pytest.mark.parametrize(
    ("counts", "is_right"),
    [
        ([StepCount([96], [2], loss=2.0), StepCount([11], [2], loss=2.0)], False),
        ([StepCount([96], [2], num_items=96), StepCount([11], [2], num_items=11)], False),
        ([StepCount([96], [2], num_items=107), StepCount([11], [2], num_items=107)], True),
        ([StepCount([96], [2], loss=2.0), StepCount([96], [3], loss=1.0)], True),
        ([StepCount([96], [2], loss=2.0), StepCount()], True),
        ([StepCount([96], [2], loss=2.0, is_part=True), StepCount([11], [2], loss=2.0, is_part=True)], True),
    ],
)
def test_means_of_ranks(counts, is_right):
    """DDP averages over ranks, whatever each has divided by."""
    found = report(*counts)
    assert found.ok is is_right, str(found)
    if not is_right:
        assert "ranks have 11 to 96 of them" in found.findings[0].detail


def test_ranks_that_differ_are_told_apart():
    report_of_two = report(StepCount([10], [2], total=20.0, loss=2.0), StepCount([10], [2], total=20.0, loss=1.0))
    (finding,) = report_of_two.findings
    assert finding.detail.startswith("rank 1: the loss is 1")
    assert [line.text for line in report_of_two.lines if line.topic == "step"] == [
        "2 samples and 10 targets in a micro-batch"
    ]


def test_a_told_loss_of_pairs_is_not_accused_in_a_batch_of_any_size():
    """In large batches its ratio to the sum of losses is near some whole number, not a divisor."""
    for targets in range(60, 200_000, 977):
        sizes = [2 * targets, 2 * targets - 8, 2, 8]
        step = StepCount([targets], [8], sizes=sizes, total=5.3 * targets, loss=math.log(2), is_told=True)
        assert report(step).ok, targets


def test_ranks_may_divide_by_the_targets_of_all_times_the_ranks():
    """A loss is told in the form that finding and ``scale_for_ddp`` ask for."""
    counts = [StepCount([n], [2], total=2.0 * n, loss=2.0 * n * 2 / 40, is_told=True) for n in (10, 30)]
    assert report(*counts).ok
    counts = [StepCount([n], [2], total=2.0 * n, loss=2.0 * n / 40, is_told=True) for n in (10, 30)]
    assert not report(*counts).ok, "averaged over ranks once more"
