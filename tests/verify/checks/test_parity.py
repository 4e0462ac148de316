"""Parity on a model of milliseconds: logits, gradients, weights of micro-batches, and the backward alone."""

import pytest

torch = pytest.importorskip("torch")

from brimful.verify import Status  # noqa: E402
from brimful.verify.checks.loss_sums import AuxiliaryLoss  # noqa: E402
from brimful.verify.checks.parity import check_backward, check_parity, check_passes, check_weights  # noqa: E402
from brimful.verify.drawn_samples import random_trees  # noqa: E402
from tests.verify import faults, tree_faults  # noqa: E402
from tests.verify.toys import Toy, samples, setup_of  # noqa: E402


def parity_of(collator=faults.right, model=None, rows=None, **options):
    setup = setup_of(collator, model, rows, **options)
    findings, _ = check_parity(setup, setup.per_sample_reference(), setup.batch)
    return {finding.check: finding for finding in findings}


def weights_of(collator=faults.right, model=None, rows=None, auxiliary=None):
    setup = setup_of(collator, model, rows)
    return check_weights(setup, setup.per_sample_reference(), auxiliary)


def test_right_batches_have_the_numbers_of_the_samples_one_by_one():
    """Nothing is compared that was not asked for: without gradients, and without labels."""
    assert [(check, finding.passed) for check, finding in parity_of().items()] == [
        ("logits", True), ("loss", True), ("gradients", True),
    ]  # fmt: skip
    assert list(parity_of(with_gradients=False)) == ["logits", "loss"]
    unlabeled = parity_of(lambda rows: faults.without(faults.right(rows), "labels"))
    assert list(unlabeled) == ["logits"]
    frozen = Toy().requires_grad_(False)
    assert list(parity_of(model=frozen)) == ["logits", "loss"]


def test_the_sample_with_the_largest_difference_is_named():
    """The first sample of a row sees no other, so it is right whatever the mask is."""

    class Scaled(faults.Around):
        def change(self, logits, batch):
            scale = torch.ones(logits.shape[1])
            if len(scale) == 25:
                scale[7:16], scale[16:21] = 1.5, 1.1
            return logits * scale[None, :, None]

    found = parity_of(model=Scaled(Toy()))
    assert found["logits"].detail == "sample 1 has other logits in the batch than alone"
    assert found["gradients"].failed


class Unused(Toy):
    """A parameter that only packs use."""

    def __init__(self):
        super().__init__()
        self.extra = torch.nn.Parameter(torch.zeros(()))

    def forward(self, input_ids=None, **batch):
        out = super().forward(input_ids=input_ids, **batch)
        if input_ids.shape[1] == 25:
            out.logits = out.logits + self.extra
            out.loss = out.loss + self.extra if out.loss is not None else None
        return out


def test_a_parameter_without_a_gradient_alone_has_zeros_there():
    """Experts that got no token of a sample; one that packs alone move is named."""
    assert parity_of(model=Unused())["gradients"].detail == "largest in extra"


def test_micro_batches_are_weighed_by_the_targets_of_the_step():
    """The first feature is one micro-batch, the others are another; one without targets weighs nothing."""
    passed = weights_of()
    assert (passed.status, passed.detail) == (Status.PASS, "2 micro-batches, 17 targets")
    assert passed.measured < 1e-5
    found = weights_of(model=faults.PerMicroBatchMean(Toy()))
    assert (found.failed, found.cause[:13]) == (True, "per-pack mean")
    assert "the mean over all 17 targets" in found.detail
    unlabeled = samples()
    unlabeled[0]["labels"] = [-100] * 7
    assert weights_of(rows=unlabeled).passed


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rows": samples([5, 6, 7])}, "needs two features"),
        ({"rows": [{"input_ids": [5, 6], "labels": [-100] * 2}] * 2}, "needs two features"),
        ({"collator": lambda rows: faults.without(faults.right(rows), "labels")}, "needs two features"),
        ({"auxiliary": AuxiliaryLoss("", True)}, "auxiliary loss of labels"),
    ],
)
def test_what_cannot_be_weighed_is_said(options, words):
    """A PASS of nothing would be read as a proof."""
    finding = weights_of(**options)
    assert finding.status is Status.NOT_SUPPORTED
    assert words in finding.detail
    assert weights_of(rows=samples([5, 6, 7], [8, 9]), auxiliary=AuxiliaryLoss("", False)).passed


def test_a_model_without_a_count_of_the_step_or_a_loss_is_told():
    class NoCount(faults.Around):
        def forward(self, input_ids=None, position_ids=None, labels=None, use_cache=None):
            return self.inner(input_ids=input_ids, position_ids=position_ids, labels=labels, use_cache=use_cache)

    batch = lambda rows: faults.without(faults.right(rows), "cu_seq", "max", "seq_idx")  # noqa: E731
    assert "does not take num_items_in_batch" in weights_of(batch, NoCount(Toy())).detail
    silent = faults.Around(Toy())
    silent.loss = lambda logits, labels, batch: None  # type: ignore[method-assign]
    assert weights_of(model=silent).detail == "the model returns no loss"


def test_a_backward_that_leaks_alone_is_found():
    """Every second sample has a loss, then the others; gradients at the tokens of the rest are zero."""
    assert check_backward(setup_of()) is None
    finding = check_backward(setup_of(model=faults.BackwardLeak(Toy())))
    assert finding is not None
    assert "leak in the backward" in finding.cause
    assert 0.01 < finding.measured < 1
    assert check_backward(setup_of(model=faults.BackwardLeak(Toy()), with_gradients=False)) is None
    one_target = samples()
    for row in one_target[1:]:
        row["labels"] = [-100] * len(row["labels"])
    assert check_backward(setup_of(rows=one_target)) is None
    assert check_backward(setup_of(lambda rows: faults.without(faults.right(rows), "labels"))) is None


def named(fault=lambda batch, packs: batch):
    def collate(batch, packs):
        mask = tree_faults.with_mask(batch, tree_faults.pairs(batch))
        return fault({**mask, **{key: batch[key] for key in batch if key.startswith("loss_")}}, packs)

    return tree_faults.Trees(collate, branch="index")


def test_places_that_predict_are_weighed_over_micro_batches():
    """Σ weight · loss ÷ Σ weight of two micro-batches is the mean over the targets of the samples."""
    trees = random_trees(64)
    right = weights_of(named(), rows=trees)
    assert (right.passed, right.measured < 1e-5) == (True, True)
    assert right.detail == f"2 micro-batches, {setup_of(rows=trees).samples.num_targets} targets"
    wrong = weights_of(named(tree_faults.weights_of_a_micro_batch), rows=trees)
    assert (wrong.failed, wrong.cause[:24]) == (True, "the weights of a target ")


def test_a_pass_without_gradients_equals_the_training_pass():
    """The ratio of new to old probabilities is 1 in the first step, to the last bit."""
    setup = setup_of(
        tree_faults.Trees(tree_faults.no_window), tree_faults.OtherKernelInTraining(Toy()), random_trees(64)
    )
    finding = check_passes(setup)
    assert (finding.failed, finding.limit) == (True, 0.0)
    assert check_passes(setup_of()).passed
