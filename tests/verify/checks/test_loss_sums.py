"""Loss of a batch: the right mean passes, a wrong one is named by its nearest, and an addition is told from a wrong weighing."""

import pytest

torch = pytest.importorskip("torch")

from brimful.verify import Status  # noqa: E402
from brimful.verify.checks.loss_sums import check_loss, loss_difference  # noqa: E402
from brimful.verify.drawn_samples import random_trees  # noqa: E402
from tests.verify import faults, tree_faults  # noqa: E402
from tests.verify.toys import Toy, samples, setup_of  # noqa: E402


def loss_of(model, collator=faults.right, rows=None, **options):
    """The finding of the loss, and what the model adds to it."""
    setup = setup_of(collator, model, samples(prompts=1) if rows is None else rows, **options)
    reference, batch = setup.per_sample_reference(), setup.batch
    return check_loss(setup, reference, batch, setup.output(batch.kwargs))


class Loss(faults.Around):
    """A model whose loss is a function of the losses of its tokens, ``[T - 1]``, and of which count."""

    def __init__(self, total):
        super().__init__(Toy())
        self.total = total

    def loss(self, logits, labels, batch):
        losses = torch.nn.functional.cross_entropy(
            logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="none"
        )
        return self.total(losses, labels[:, 1:].flatten() != faults.IGNORE, batch)


@pytest.mark.parametrize(
    ("total", "cause"),
    [
        (lambda losses, valid, batch: losses.sum(), "the sum over all targets"),
        (lambda losses, valid, batch: losses.sum() / 25, "divided by all 25 tokens of the batch"),
        (lambda losses, valid, batch: losses.sum() / 24, "divided by all 25 tokens of the batch"),
        (lambda losses, valid, batch: losses.sum() / 21, "divided by the 21 tokens of the samples, prompts included"),
        (lambda losses, valid, batch: by_sample(losses, valid, batch).mean(), "a mean of per-sample means"),
        (lambda losses, valid, batch: (losses.sum() / 16).float() * 1.0, ""),
    ],
)
def test_a_wrong_mean_is_named(total, cause):
    """The name is the change to make; each divisor is one that a trainer has had."""
    finding, auxiliary = loss_of(Loss(total), rows=faulty())
    assert finding.cause.startswith(f"the loss is {cause}" if cause else "")
    assert finding.failed == bool(cause)
    assert auxiliary is None
    if cause:
        assert "as the mean over the 16 targets of the samples" in finding.detail
        assert finding.measured == pytest.approx(finding_size(finding))


def finding_size(finding):
    batch, mean = (float(word) for word in finding.detail.replace(",", "").split() if word[0].isdigit() and "." in word)
    return pytest.approx(abs(batch - mean) / max(1, mean), rel=1e-4)


def faulty():
    rows = samples()
    rows[1]["labels"][1] = -100
    return rows


def by_sample(losses, valid, batch):
    number = (batch["position_ids"] == 0).cumsum(-1)[0, 1:]
    return torch.stack([losses[valid & (number == one)].mean() for one in number[valid].unique()])


def test_a_mean_of_means_of_rows_is_named():
    """Each row of a batch weighs the same, with any number of targets."""

    def in_rows(features):
        parts = [faults.right(features[:1]), faults.right(features[1:])]
        return {
            key: torch.cat(
                [torch.nn.functional.pad(part[key], (0, 18 - part[key].shape[1]), value=fill) for part in parts]
            )
            for key, fill in (("input_ids", 0), ("labels", -100), ("position_ids", 0))
        }

    def total(losses, valid, batch):
        sums, counts = (values.reshape(2, -1).sum(-1) for values in (losses, valid))
        return (sums / counts).mean()

    finding, _ = loss_of(Loss(total), lambda features: {**in_rows(features), "use_cache": False})
    assert finding.cause.startswith("the loss is a mean of per-row means: each row weighs the same")


def test_a_loss_that_is_not_the_logits_own_is_an_addition_if_no_target_weighs_more():
    """Balance of experts, or z-loss: another number packed and alone, and no fault."""
    finding, auxiliary = loss_of(Loss(lambda losses, valid, batch: losses.sum() / valid.sum() + 0.25))
    assert finding.passed
    assert "adds an auxiliary loss of 0.25 (no name)" in finding.detail
    assert auxiliary is not None
    assert not auxiliary.depends_on_labels

    class Named(Loss):
        def forward(self, **batch):
            return {**vars(super().forward(**batch)), "aux_loss": torch.zeros(()), "all_loss": torch.zeros(2)}

    finding, _ = loss_of(Named(lambda losses, valid, batch: losses.sum() / valid.sum() + 0.25))
    assert "0.25 (aux_loss)" in finding.detail


def test_a_wrong_weighing_is_found_beneath_an_addition():
    """The heaviest sample is named with its weight."""

    def total(losses, valid, batch):
        weight = torch.ones_like(losses)
        if "position_ids" in batch:  # the pack only
            weight[16:20] = 3
            weight[7:15] = 1.5
        return (losses * weight).sum() / valid.sum() + 7

    finding, auxiliary = loss_of(Loss(total))
    assert finding.failed
    assert "targets of sample 3 weigh 3.00 times" in finding.cause
    assert auxiliary is not None
    assert not auxiliary.depends_on_labels


@pytest.mark.parametrize("silent", [0, 7])
def test_an_addition_of_labels_is_no_wrong_weighing(silent):
    """It moves with the labels of a sample alone as well, also if the first sample has none."""
    rows = samples(prompts=1)
    rows[0]["labels"][:silent] = [-100] * silent
    finding, auxiliary = loss_of(Loss(lambda losses, valid, batch: 1.5 * losses.sum() / valid.sum()), rows=rows)
    assert finding.passed
    assert "as it depends on labels, weights of targets in it are not shown" in finding.detail
    assert auxiliary is not None
    assert auxiliary.depends_on_labels


def test_logits_that_are_wrong_are_not_laid_to_the_loss():
    """Their own mean is wrong already."""
    finding, auxiliary = loss_of(Toy(), faults.mask_present)
    assert (finding.status, finding.cause, auxiliary) == (Status.FAIL, "", None)


def test_without_a_target_or_a_loss_of_the_model():
    """No target is nothing shown; a model without a loss is compared by its logits."""
    assert loss_of(Toy(), rows=[{"input_ids": [5, 6], "labels": [-100] * 2}])[0].status is Status.NOT_SUPPORTED
    silent = faults.Around(Toy())
    silent.loss = lambda logits, labels, batch: None  # type: ignore[method-assign]
    finding, auxiliary = loss_of(silent)
    assert (finding.passed, auxiliary) == (True, None)
    assert loss_difference(0.5, 0.75) == pytest.approx(0.25)
    assert loss_difference(4.0, 5.0) == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("total", "cause"),
    [
        (lambda losses, weights: (losses * weights).sum() / weights.sum(), ""),
        (
            lambda losses, weights: (losses * (weights > 0)).sum() / (weights > 0).sum(),
            "a mean in which a target that several",
        ),
        (lambda losses, weights: (losses * weights).sum(), "the sum over all targets"),
        (lambda losses, weights: (losses * weights).sum() / 112, "divided by all 112 tokens of the batch"),
        (lambda losses, weights: (losses * weights).sum() / (weights > 0).sum(), "divided by the labels of the row"),
    ],
)
def test_a_wrong_mean_of_a_tree_is_named(total, cause):
    """A shared target counts for each sample that has it."""

    class Weighted(faults.Around):
        def forward(self, labels=None, loss_weights=None, num_items_in_batch=None, **batch):
            out = self.inner(**batch)
            if labels is None:
                return out
            losses = torch.nn.functional.cross_entropy(out.logits[0, :-1], labels[0, 1:], reduction="none")
            return {"logits": out.logits, "loss": total(losses, loss_weights[0, 1:])}

    finding, _ = loss_of(Weighted(Toy()), tree_faults.Trees(tree_faults.no_window), random_trees(64))
    assert finding.failed == bool(cause)
    assert finding.cause.startswith(f"the loss is {cause}" if cause else "")
