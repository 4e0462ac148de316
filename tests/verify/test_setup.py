"""Runs that batches are compared with: samples alone and with a row each, and the differences between numbers."""

import pytest

torch = pytest.importorskip("torch")

from brimful.errors import CollateError, SettingsError  # noqa: E402
from brimful.verify.drawn_samples import random_trees  # noqa: E402
from brimful.verify.setup import batch_loss, difference  # noqa: E402
from tests.verify import faults, tree_faults  # noqa: E402
from tests.verify.toys import NeverRun, Toy, samples, setup_of  # noqa: E402

INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("reference", "actual", "expected"),
    [
        ([], [], 0.0),
        ([1.0, -2.0], [1.0, -2.0], 0.0),
        ([0.25, 0.5], [0.25, 0.75], 0.25),
        ([4.0, 0.0], [4.0, 1.0], 0.25),
        ([-4.0, 0.0], [-3.0, 0.0], 0.25),
        ([-INF, 1.0], [-INF, 1.5], 0.5),
        ([-INF, -INF], [-INF, -INF], 0.0),
        ([-INF, 8.0], [-INF, 4.0], 0.5),
        ([INF, 1.0], [1.0, 1.0], INF),
        ([1.0], [NAN], INF),
        ([NAN], [1.0], INF),
    ],
)
def test_a_difference_is_relative_to_the_largest_number(reference, actual, expected):
    """Or absolute below 1; equal infinities differ by nothing, and NaN differs by all."""
    assert difference(torch.tensor(reference), torch.tensor(actual)) == expected


def test_samples_alone_and_in_rows_have_no_collator():
    """The last token of text fills a row, which no earlier token sees; labels and own positions are the samples'."""
    rows = samples([5, 9], [6, 7, 8], prompts=1)
    setup = setup_of(lambda features: 1 / 0, NeverRun(image_token_id=9), rows)
    batch = setup.in_rows()
    assert batch.ids.tolist() == [[5, 9, 5], [6, 7, 8]]
    assert batch.kwargs["labels"].tolist() == [[-100, 9, -100], [-100, 7, 8]]
    assert list(batch.kwargs) == ["input_ids", "labels"]
    assert [(place.row, place.start, place.stop) for _, place in batch.located] == [(0, 0, 2), (1, 0, 3)]
    alone = setup.alone(1)
    assert (alone.ids.tolist(), alone.num_targets) == ([[6, 7, 8]], 2)
    assert setup_of(rows=rows).in_rows().kwargs["use_cache"] is False
    for row in rows:
        row["position_ids"] = [[3 + place for place in range(len(row["input_ids"]))]] * 3
    own = setup_of(rows=rows).in_rows().kwargs["position_ids"]
    assert own.tolist() == [[[3, 4, 4], [3, 4, 5]]] * 3
    rows[0].pop("position_ids")
    assert "position_ids" not in setup_of(rows=rows).in_rows().kwargs


def test_the_truth_is_each_sample_alone():
    """Sums of losses, and gradients of the mean over all targets, which the samples' add up to."""
    setup = setup_of()
    reference = setup.per_sample_reference()
    assert [len(logits) for logits in reference.logits] == [7, 9, 1, 4]
    whole = setup.output(setup.batch.kwargs)
    assert sum(reference.loss_sums) / 17 == pytest.approx(float(whole.loss.detach()), abs=1e-6)
    whole.loss.backward()
    gradients = setup.take_gradients()
    assert gradients.keys() == reference.gradients.keys() == {"embedding.weight", "head"}
    for name, gradient in gradients.items():
        assert difference(reference.gradients[name], gradient) < 1e-6
    assert all(parameter.grad is None for parameter in setup.model.parameters())
    assert setup_of(with_gradients=False).per_sample_reference().gradients == {}


def test_losses_of_trees_are_weighed():
    setup = setup_of(tree_faults.Trees(tree_faults.no_window), rows=random_trees(64))
    batch, logits = setup.batch, setup.logits(setup.batch.kwargs)
    losses = torch.nn.functional.cross_entropy(logits[0, :-1], batch.kwargs["labels"][0, 1:], reduction="none")
    expected = float((losses * batch.kwargs["loss_weights"][0, 1:]).sum())
    assert float(batch_loss(logits, batch)) == pytest.approx(expected, rel=1e-5)


def test_outputs_in_any_form_are_read():
    """A mapping, an object, logits without a batch axis; other losses by their names."""

    class Form(faults.Around):
        form = staticmethod(lambda out: out)

        def forward(self, **batch):
            return self.form(super().forward(**batch))

    model = Form(Toy())
    for form in (
        lambda out: {"logits": out.logits, "loss": 3.0},
        lambda out: {
            "logits": out.logits[0],
            "aux_loss": torch.ones(1),
            "z_loss": torch.ones(2),
            "loss_": torch.ones(1),
        },
    ):
        model.form = form
        setup = setup_of(model=model)
        assert setup.output(setup.batch.kwargs).logits.shape == (1, 25, 64)
    assert setup.output(setup.batch.kwargs).other_losses == ["aux_loss"]
    model.form = lambda out: {"hidden": out.logits}
    with pytest.raises(SettingsError, match="returns no logits"):
        setup_of(model=model).logits({"input_ids": torch.tensor([[5]])})
    with pytest.raises(CollateError, match="input_ids of the batch must be a tensor and are a NoneType"):
        _ = setup_of(lambda features: [features]).batch


def test_a_forward_may_take_any_keyword():
    assert setup_of().accepts("seq_idx")
    assert not setup_of(model=NeverRun()).accepts("seq_idx")
    assert setup_of(model=faults.Around(Toy())).accepts("anything")
