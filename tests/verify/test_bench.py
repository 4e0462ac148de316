"""No finding hides another, each names its own cause, and unusual models and batches end in a report or in one line."""

from typing import Any, cast

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from brimful import PackCollator  # noqa: E402
from brimful.errors import CollateError, SettingsError  # noqa: E402
from brimful.verify import Status, verify_packing  # noqa: E402
from brimful.verify.checks import check_batch  # noqa: E402
from brimful.verify.checks.parity import check_backward  # noqa: E402
from brimful.verify.models import tiny_model  # noqa: E402
from brimful.verify.reference_samples import ReferenceSamples  # noqa: E402
from brimful.verify.setup import PackingSetup  # noqa: E402
from tests.verify import faults  # noqa: E402
from tests.verify.toys import report  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

IDS = [[5, 9, 3, 7], [11, 12, 5, 13, 14], [31, 5, 32]]


def samples(**fields):
    return [{"input_ids": list(ids), "labels": list(ids), **fields} for ids in IDS]


@pytest.fixture(scope="module")
def model():
    return tiny_model("qwen2")


def run(model, collator=faults.right, attention="eager", rows=None, gradients=False):
    return verify_packing(model, collator, rows or samples(), attention=attention, gradients=gradients)


def failures(report):
    return {(finding.check, finding.attention): finding for finding in report.failures}


def found(report, check):
    return [finding.status for finding in report.findings if finding.check == check]


class LeakAndRefusal(faults.LeakOf):
    """Samples see each other, and the loss cannot be computed."""

    def loss(self, logits, labels, batch):
        if self.training or not self.only_in_training:
            raise RuntimeError("no kernel for this loss")
        return super().loss(logits, labels, batch)


def test_a_refusal_does_not_hide_a_leak_that_was_measured(model):
    """Without the leak the report would say that nothing could be shown, and ask for another machine."""
    report = run(LeakAndRefusal(model, 0.1))
    assert ("isolation", "eager") in failures(report)
    assert found(report, "attention") == [Status.NOT_SUPPORTED]


def test_a_refusal_of_training_mode_does_not_hide_a_leak_in_it(model):
    """Parity is then measured in eval(), where nothing leaks: the report would pass."""
    report = run(LeakAndRefusal(model, 0.1, only_in_training=True))
    assert found(report, "isolation") == [Status.PASS]
    assert failures(report)["training", "eager"].cause.startswith("in training mode only: ")


class OneRow(faults.Around):
    """A model of packed rows that takes no second one, as with kernels for variable lengths."""

    def change(self, logits, batch):
        if len(batch["input_ids"]) > 1:
            raise RuntimeError("one row only")
        return super().change(logits, batch)


class LeakInOneRow(OneRow, faults.LeakOf):
    pass


class BiasOfPacks(OneRow):
    """Logits that are wrong in rows of more than one sample, each sample alone."""

    def change(self, logits, batch):
        return super().change(logits, batch) * (2 if (batch.get("position_ids", torch.zeros(1)) == 0).sum() > 1 else 1)


def test_a_leak_is_found_in_a_model_that_takes_one_row_only(model):
    """The row for each sample, which shows what rounding does, is refused: a leak of 0.1 is none of that."""
    isolation = failures(run(LeakInOneRow(model, 0.1)))["isolation", "eager"]
    assert "a row for each sample is refused" in isolation.detail


def test_wrong_logits_are_found_in_a_model_that_takes_one_row_only(model):
    """The same row would tell whether it is the packing; without it the failure still is one."""
    found = failures(run(BiasOfPacks(model)))
    assert {check for check, _ in found} >= {"logits", "loss"}
    assert "is refused" in found["logits", "eager"].cause


class FaultByAttention(faults.Around):
    """Each attention implementation has a fault of its own."""

    def change(self, logits, batch):
        if self.inner.config._attn_implementation == "eager":
            return faults.LeakOf.change(cast(Any, self), logits, batch)
        return faults.BackwardLeak.change(cast(Any, self), logits, batch)


def test_a_failure_with_one_attention_explains_none_with_another(model):
    """The second would be said to follow from the first, and would not be looked at."""
    wrapper: Any = FaultByAttention(model)
    wrapper.size, wrapper.only_in_training = 0.1, False
    found = failures(run(wrapper, attention=["eager", "sdpa"], gradients=True))
    assert ("isolation", "eager") in found
    assert ("isolation", "sdpa") not in found
    assert "leak in the backward" in found["gradients", "sdpa"].cause


def test_no_attention_at_all_is_refused(model):
    """An empty list means a mistake of its author, and not every implementation."""
    with pytest.raises(SettingsError, match="attention is empty"):
        run(model, attention=[])


def test_a_frozen_model_has_no_gradients_and_passes():
    """Nothing is trained in it, so a backward pass would fail."""
    report = run(tiny_model("qwen2").requires_grad_(False), gradients=True)
    assert report.ok, str(report)
    assert (found(report, "loss"), found(report, "gradients")) == ([Status.PASS], [])


class _FreesItsBuffers(torch.autograd.Function):  # type: ignore[name-defined]
    """Identity whose backward runs once, as in compiled attention on a GPU."""

    @staticmethod
    def forward(ctx, values):
        ctx.runs = 0
        return values.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.runs += 1
        assert ctx.runs == 1, "the buffers of this backward are gone"
        return gradient


def test_a_kernel_whose_backward_runs_once_is_supported():
    """Flex attention was refused on an H200, and with it every model that has no other."""
    own = tiny_model("qwen2")
    own.model.layers[0].register_forward_hook(lambda *call: _FreesItsBuffers.apply(call[-1]))
    assert run(own, gradients=True).ok


def test_parts_in_eval_mode_stay_in_it_while_training_mode_is_checked(model):
    """Statistics over the batch of a frozen encoder would look like a leak."""
    wrapper: Any = faults.Around(model)
    modes = set()
    wrapper.change = lambda logits, batch: modes.add((wrapper.training, wrapper.inner.training)) or logits
    wrapper.train()
    wrapper.inner.eval()
    report = run(wrapper)
    assert report.ok, str(report)
    assert modes == {(False, False), (True, False)}


def test_a_buffer_that_is_assigned_anew_is_put_back(model):
    """``self.mean = 0.9 * self.mean`` makes a new tensor; the old one alone holds what the model had."""
    wrapper: Any = faults.Around(model)
    wrapper.register_buffer("mean", torch.zeros(()))
    own = wrapper.mean

    def change(logits, batch):
        wrapper.mean = wrapper.mean + 1
        return logits

    wrapper.change = change
    assert run(wrapper).ok
    assert wrapper.mean is own
    assert float(own) == 0


def test_an_infinite_logit_in_both_runs_is_no_difference(model):
    """Entries that pad a vocabulary are set to -inf by some models."""
    wrapper: Any = faults.Around(model)

    def change(logits, batch):
        padded = torch.zeros(logits.shape[-1], dtype=bool)
        padded[100:] = True
        return logits.masked_fill(padded, float("-inf"))

    wrapper.change = change
    report = run(wrapper)
    assert report.ok, str(report)


def test_an_interruption_is_no_refusal(model):
    """Ctrl-C while the backward is looked at must end the program."""
    wrapper: Any = faults.Around(model)

    def change(logits, batch):
        raise KeyboardInterrupt

    wrapper.change = change
    setup = PackingSetup(wrapper, faults.right, ReferenceSamples(samples()))
    with pytest.raises(KeyboardInterrupt):
        check_backward(setup)


def test_a_collator_that_writes_into_nested_lists_is_found(model):
    """Rows of mRoPE are lists of lists: a copy of the outer one alone would change with them."""
    rows = samples()
    for row in rows:
        row["position_ids"] = [list(range(len(row["input_ids"])))] * 4

    def collator(features):
        features[0]["position_ids"][1][0] = 7
        return faults.right(features)

    assert failures(run(model, collator, rows=rows))["untouched", ""].cause.startswith("the collator writes into the ")


def test_fields_that_are_no_arrays_are_compared_as_they_are(model):
    """Records with the tokens, as data sets have them: lists of several lengths, and a number that is none."""
    assert run(model, rows=samples(tags=[["a"], ["b", "c"]], score=float("nan"))).ok


def test_a_collator_that_empties_its_list_is_right(model):
    """It may do with the list what it likes; the samples are what is kept."""

    def collator(features):
        return faults.right([features.pop(0) for _ in range(len(features))])

    assert run(model, collator).ok


def test_positions_of_mrope_that_the_collator_leaves_out_are_named(model):
    """A row of text positions for a sample that brings three of its own."""
    rows = samples()
    rows[0]["position_ids"] = [[0, 1, 2, 3], [0, 0, 1, 1], [0, 1, 0, 1]]
    assert "positions" in {check for check, _ in failures(run(model, rows=rows))}


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ({"input_ids": [[1, 2], [3]]}, "input_ids of the batch must be a tensor and are a list"),
        ({"input_ids": None}, "input_ids of the batch must be a tensor and are a NoneType"),
        ({"position_ids": torch.arange(3)[None]}, "position_ids of the batch have the shape"),
        ({"seq_idx": torch.arange(3)[None]}, "seq_idx of the batch have the shape"),
    ],
)
def test_a_batch_that_cannot_be_read_is_refused_in_one_line(model, batch, words):
    """A traceback of NumPy names no key."""
    with pytest.raises(CollateError, match=words):
        run(model, lambda features: {**faults.right(features), **batch})


def test_boundaries_without_an_entry_are_wrong_boundaries(model):
    """The sum of no lengths, where the leading 0 was forgotten too."""
    empty = torch.tensor(np.zeros(0, dtype=np.int32))
    report = run(model, lambda features: {**faults.right(features), "cu_seq_lens_q": empty})
    assert "they must rise from 0" in failures(report)["boundaries", ""].detail


def test_arrays_are_compared_without_a_run_of_the_model():
    """Without it a batch can only be looked at on a machine that runs its model."""

    class NeverRun(torch.nn.Linear):  # type: ignore[name-defined]
        def forward(self, input_ids=None, position_ids=None, labels=None):
            raise AssertionError("the model was run")

    samples = ReferenceSamples([{"input_ids": [5, 6, 7]}, {"input_ids": [8, 9]}])
    right = check_batch(PackingSetup(NeverRun(2, 2), PackCollator(pad_to=8), samples))
    assert {finding.check for finding in right} == {"complete", "labels", "positions", "boundaries", "padding"}
    assert all(finding.passed for finding in right)
    wrong = check_batch(PackingSetup(NeverRun(2, 2), lambda features: PackCollator()(features[:1]), samples))
    assert "complete" in [finding.check for finding in wrong if finding.failed]


def test_weights_of_flat_samples_are_no_weights_of_trees():
    """A model that reads them has the mean that it was asked for, and it is named."""
    (loss,) = [item for item in report(PackCollator(loss_weights="sample")).failures if item.check == "loss"]
    assert loss.cause.startswith("the loss is a mean of per-sample means")
