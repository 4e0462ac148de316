"""Probe of a loop of one's own: when it acts, what it says, and that it never stands in the way."""

import gc
import subprocess
import sys
import weakref
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from brimful.doctor import probe
from brimful.doctor.probing.probe import Probe
from brimful.doctor.report import Evidence
from brimful.errors import BrimfulError, SettingsError
from brimful.verify.models import tiny_model
from tests.doctor.faults.jobs import LENGTHS, Body, Decoder, Job, batch, boundaries, documents, job, loss_of


def hooks(model):
    return sum(len(module._forward_pre_hooks) + len(module._forward_hooks) for module in model.modules())


def texts(report, topic):
    return [line.text for line in report.lines if line.topic == topic]


def test_hooks_go_with_the_step():
    model = Decoder().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe(model) as check:
        assert hooks(model)
        number = hooks(model)
        assert hooks(check.attach() and model) == number, "once"
        model(**batch()).loss.backward()
        assert "no forward" not in str(check.report)
        assert hooks(model)
        optimizer.step()
        assert check.complete
        assert not hooks(check.attach() and model)
        seen = []
        model.layers[0].register_forward_hook(lambda *_: seen.append(1))
        model(**batch())
        assert len(seen) == 1


def step_hooks():
    return len(sys.modules["torch.optim.optimizer"]._global_optimizer_post_hooks)


def trained(model, optimizer=None):
    model(**batch()).loss.backward()
    (optimizer or torch.optim.SGD(model.parameters(), lr=0.1)).step()


@pytest.mark.parametrize("is_first", [True, False])
def test_two_probes_and_a_foreign_hook(is_first):
    """Torch goes through the hooks of steps while they leave."""
    models, seen = [Decoder().train(), Decoder(leaky=[1]).train()], []
    handle = register_optimizer_step_post_hook(lambda *_: seen.append(1)) if is_first else None
    with probe(models[0]) as first, probe(models[1]) as second:
        handle = handle or register_optimizer_step_post_hook(lambda *_: seen.append(1))
        for model in models:
            trained(model)
        assert first.complete
        assert second.complete
        assert not sum(map(hooks, models))
    handle.remove()
    assert len(seen) == 2
    assert first.report.isolation is Evidence.SHOWN
    assert (first.report.ok, second.report.ok) == (True, False)
    assert step_hooks() == 0


def test_the_step_of_another_model_completes_no_probe():
    policy, critic = Decoder().train(), Decoder().train()
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (policy, critic)]
    with probe(policy) as check:
        trained(critic, optimizers[1])
        assert not check.complete
        policy(**batch()).loss.backward()
        trained(critic, optimizers[1])
        assert not check.complete
        optimizers[0].step()
        assert check.complete
    copies = [weight.detach().clone() for weight in policy.parameters()]
    with probe(policy) as check:
        policy(**batch()).loss.backward()
        for copied in copies:
            copied.grad = torch.zeros_like(copied)
        torch.optim.SGD(copies, lr=0.1).step()
        assert check.complete, "weights in another precision are the model's"


def test_models_that_share_layers_are_probed_apart():
    """The forwards of one probe are not the first forward of another one."""
    policy = Decoder().train()
    critic = nn.Sequential(policy).train()
    with probe(critic) as check, probe(policy):
        trained(policy)
    assert texts(check.report, "step") == ["7 samples and 57 targets in a micro-batch"]
    assert check.report.isolation is Evidence.SHOWN


def test_a_failed_run_keeps_no_model_in_memory():
    model = Decoder().train()
    check = probe(model).attach()
    gone = weakref.ref(model)
    number = step_hooks()
    del model, check
    gc.collect()
    assert gone() is None
    other = Decoder().train()
    with probe(other) as check:
        trained(other)
    assert check.report.isolation is Evidence.SHOWN
    trained(other)
    assert step_hooks() == number - 1


def test_a_report_without_findings_is_printed(logged, capsys):
    """On standard error, once, at the end of the step; what was not shown too."""
    made = job(Decoder())
    made.run(probe(made.model))
    out, err = capsys.readouterr()
    assert (out, logged) == ("", [])
    assert err.count("NOTHING FOUND: samples were shown to be apart\n") == 1
    made = job(Shy())
    made.run(probe(made.model))
    err = capsys.readouterr().err
    assert err.count("NOT SHOWN") == 1
    assert "targets             seen" in err, "the batch was read all the same"
    with probe(Decoder().eval()):
        pass
    assert "no module of the model was called in training mode" in capsys.readouterr().err


def test_only_training_is_probed():
    model = Decoder().eval()
    with probe(model) as check:
        model(**batch())
    assert texts(check.report, "isolation") == ["not shown: no module of the model was called in training mode"]
    assert not hooks(model)


def test_a_fault_ends_the_run_if_asked():
    model = Decoder(leaky=[1]).train()
    with (
        pytest.raises(BrimfulError, match=r"first in layers\.1 \(Block\) \(layer 2 of 3\)"),
        probe(model, on_fault="raise"),
    ):
        model(**batch())
    assert not hooks(model)


def test_the_report_is_logged(logged):
    job(Decoder(leaky=[0])).run(Probe(Decoder()))
    assert logged == []
    made = job(Decoder(leaky=[0]))
    made.run(Probe(made.model))
    assert len(logged) == 1
    assert "WRONG: samples apart" in logged[0]


class Shy(Decoder):
    """Refuses to run without gradients."""

    def forward(self, input_ids, position_ids, labels=None, num_items_in_batch=None):
        if not torch.is_grad_enabled():
            raise RuntimeError("not now. Please ask later")
        return super().forward(input_ids, position_ids, labels)


def test_a_model_that_refuses_is_trained_all_the_same():
    made = job(Shy())
    check = Probe(made.model)
    assert len(made.run(check)) == 2
    assert texts(check.report, "isolation") == ["not shown: a forward (as it is) failed: RuntimeError: not now"]
    assert check.report.ok


@pytest.mark.parametrize("options", [{"on_fault": "stop"}, {"timeout": 0}, {"timeout": "long"}])
def test_settings(options):
    with pytest.raises(SettingsError):
        Probe(Decoder(), **options)
    with pytest.raises(SettingsError):
        Probe("model")  # type: ignore[arg-type]


class Positional(Decoder):
    def forward(self, x, place, labels=None):
        return super().forward(x, place, labels)


def test_tokens_of_an_unusual_name():
    made = Job(Positional(leaky=[2]), [batch()], lambda model, one: model(*one.values()).loss)
    model = made.model

    def step(model, one):
        return model(one["input_ids"], one["position_ids"], one["labels"]).loss

    made.step = step
    check = Probe(model, tokens="x")
    with check:
        for one in made.batches:
            model.train()
            model(x=one["input_ids"], place=one["position_ids"], labels=one["labels"])
    assert "no row of this batch" in texts(check.report, "isolation")[0], "place is no known word"
    check = Probe(model, tokens="x")
    with check:
        for one in check.watch(made.batches):
            step(model, one)
    assert "first in layers.2 " in check.report.findings[0].detail


class Module(nn.Module):
    """A module that is never called itself, as of Lightning; the model in it is wrapped."""

    def __init__(self, wrap):
        super().__init__()
        self.model = wrap(Decoder(leaky=[1]))

    def training_step(self, one):
        return self.model(**one).loss


@pytest.mark.parametrize(
    "wrap", [lambda model: model, nn.DataParallel, lambda model: torch.compile(model, backend="eager")]
)
def test_the_called_module_is_found_in_others(wrap):
    module = Module(wrap).train()
    with probe(module) as check:
        module.training_step(batch()).backward()
    (finding,) = check.report.findings
    assert "first in layers.1 (Block) (layer 2 of 3)" in finding.detail


@pytest.mark.filterwarnings("ignore")
def test_a_model_that_was_compiled_in_place():
    """Hooks are not compiled into it, and it stays compiled."""
    model = Decoder(leaky=[1]).train()
    for layer in model.layers:
        layer.compile(backend="eager")
    with probe(model) as check:
        model(**batch()).loss.backward()
    assert "first in layers.1 " in check.report.findings[0].detail
    assert all(layer._compiled_call_impl is not None for layer in model.layers)


def test_a_batch_in_one_argument():
    class Nested(Decoder):
        def forward(self, batch):
            labels = batch.pop("labels")  # a forward may take it apart
            return loss_of(super().forward(**batch).logits, labels)

    model = Nested(leaky=[1]).train()
    one = batch()
    with probe(model) as check:
        model(one)
    assert "first in layers.1 " in check.report.findings[0].detail


def test_sums_of_losses_are_compared():
    """A fused loss gives no logits: samples alone must have the sum that they have in their rows."""

    class Fused(Body):
        def __init__(self, shift):
            super().__init__()
            self.shift = shift

        def forward(self, input_ids, position_ids, labels):
            place = torch.arange(32).expand_as(position_ids) if self.shift else position_ids
            document = (position_ids == 0).cumsum(1)
            logits = self.head(self.hidden(self.embedded(input_ids, place), document))
            return SimpleNamespace(loss=loss_of(logits, labels))

    right, wrong = job(Fused(False)), job(Fused(True))
    checks = [Probe(made.model) for made in (right, wrong)]
    for made, check in zip((right, wrong), checks, strict=True):
        made.run(check)
    assert checks[0].report.ok
    assert texts(checks[0].report, "positions")[0].startswith("sums of losses of samples alone differ by")
    (finding,) = checks[1].report.findings
    assert finding.topic == "positions"
    assert finding.detail.startswith("sums of losses of samples differ by")


def test_hidden_states_are_compared_without_a_loss():
    class Backbone(Body):
        def forward(self, input_ids, position_ids):
            return self.hidden(self.embedded(input_ids, position_ids), (position_ids == 0).cumsum(1))

    model = Backbone().train()
    with probe(model) as check:
        one = batch()
        model(one["input_ids"], one["position_ids"]).sum().backward()
    assert texts(check.report, "positions") == ["hidden states of samples alone differ by 0.0e+00"]
    assert texts(check.report, "isolation") == ["other tokens in one sample: the others do not move (3 layers)"]
    assert texts(check.report, "attention") == ["Attention"]


def test_positions_that_run_on():
    class RunsOn(Body):
        def forward(self, input_ids, labels, cu_seqlens):
            place = torch.arange(input_ids.shape[1]).expand_as(input_ids)
            logits = self.head(self.hidden(self.embedded(input_ids, place), documents(LENGTHS[:1])))
            return {"loss": loss_of(logits, labels), "logits": logits}

    one = batch(LENGTHS[:1], cu_seqlens=boundaries(LENGTHS[:1]))
    del one["position_ids"]
    model = RunsOn().train()
    with probe(model) as check:
        model(**one)
    (finding,) = check.report.findings
    assert (finding.topic, finding.problem, finding.judgment.value) == ("positions", "positions_run_on", "wrong")


def test_a_model_that_does_not_look_shows_nothing():
    class Blind(Decoder):
        def embedded(self, ids, place):
            return super().embedded(torch.zeros_like(ids), place)

    model = Blind().train()
    with probe(model) as check:
        model(**batch())
    assert check.report.isolation.value == "unknown"
    assert "do not even move" in texts(check.report, "isolation")[0]


def test_statistics_of_the_batch_are_no_leak():
    class Normed(Decoder):
        def embedded(self, ids, place):
            x = super().embedded(ids, place)
            return (x - x.mean((0, 1))) / x.std((0, 1))

    model = Normed().train()
    with probe(model) as check:
        model(**batch())
    (finding,) = check.report.findings
    assert finding.judgment.value == "suspect"
    assert "other tokens in one row move tokens of other rows" in finding.detail


def test_package_and_function_have_one_name():
    """Whichever is imported first."""
    code = "import brimful.doctor.probing.ranks; from brimful.doctor import probe; print(callable(probe))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "True\n"


def test_a_model_in_evaluation_mode_inside_of_a_training_module_is_probed():
    """``from_pretrained`` returns it so, and Lightning leaves it so."""

    class Wrapper(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = tiny_model("qwen2").eval()

    wrapper = Wrapper()
    wrapper.train().model.eval()
    ids, place = torch.arange(3, 27)[None], torch.arange(24)[None] % 8
    with probe(wrapper) as check:
        wrapper.model(input_ids=ids, position_ids=place, labels=ids, use_cache=False).loss.backward()
    assert check.report.isolation is Evidence.SHOWN
    implementation = wrapper.model.config._attn_implementation
    assert texts(check.report, "attention") == [f"{implementation} in Qwen2Attention"]


@pytest.mark.parametrize("kind", ["mask", "places", "number"])
def test_logits_of_some_tokens(kind):
    """A trainer that keeps the logits of targets shortens the labels as well, as ms-swift does."""
    model = tiny_model("qwen2").train()
    ids, place = torch.arange(3, 27)[None], torch.arange(24)[None] % 8
    is_target = (place > 4) & (place[0].cumsum(0) > 40)
    keep: torch.Tensor | int
    if kind == "number":
        keep = 25 - int(is_target[0].int().argmax())
        labels = torch.where(is_target, ids, -100)[:, -keep:]
    else:
        mask = torch.cat([is_target[0, 1:], torch.tensor([True])])
        keep = mask if kind == "mask" else mask.nonzero()[:, 0]
        labels = torch.nn.functional.pad(ids[is_target], (1, 0), value=-100)[None]
    with probe(model) as check:
        loss = model(input_ids=ids, position_ids=place, labels=labels, logits_to_keep=keep, use_cache=False).loss
    assert check.report.ok, str(check.report)
    assert texts(check.report, "divisor") == [f"sum of losses ÷ {is_target.sum()} targets of each micro-batch"]
    whole = torch.where(is_target, ids, -100)
    assert torch.allclose(loss, model(input_ids=ids, position_ids=place, labels=whole, use_cache=False).loss)


@pytest.mark.parametrize("padding", [0, 12])
def test_samples_that_nothing_tells_apart_are_not_shown_to_be_apart(padding):
    """A row cut out of a stream of text holds samples that see each other, and looks like one sample."""
    ids = batch(((32,), (32,)))["input_ids"]
    real = torch.arange(32) < torch.tensor([[32], [32 - padding]])
    model = tiny_model("qwen2").train()
    with probe(model) as check:
        model(ids, attention_mask=real.long(), labels=ids.masked_fill(~real, -100), use_cache=False)
    report = check.report
    assert report.verdict.startswith(
        "NOT SHOWN: how samples are kept apart is unknown: compare them by brimful doctor --batch"
    )
    assert texts(report, "packing") == ["2 rows of 32 tokens, and nothing tells two samples of one row apart"]
    assert not texts(report, "positions")
    assert ("other tokens in the padding: the samples do not move" in texts(report, "isolation")[0]) == bool(padding)


class Expanding(Body):
    """Gives each image four places, wherever in its row it is."""

    def forward(self, input_ids, position_ids):
        sizes = torch.where(input_ids == 63, 4, 1)
        x, document = (
            torch.stack([row.repeat_interleave(size, dim=0) for row, size in zip(tensor, sizes, strict=True)])
            for tensor in (self.embedded(input_ids, position_ids), (position_ids == 0).cumsum(1))
        )
        return self.head(self.hidden(x, document))


@pytest.mark.parametrize("places", [([2, 10], [2, 10]), ([2, 3], [28, 30]), ([28, 30], [2, 3])])
def test_media_may_be_elsewhere_in_each_row(places):
    """The second row has more samples, one of which is exchanged: its columns are not the ones of the first."""
    ids, place = (batch(((20, 12), LENGTHS[0]))[name] for name in ("input_ids", "position_ids"))
    model = Expanding().train()
    model.config.image_token_id = 63
    ids[ids == 63] = 5
    for row, columns in enumerate(places):
        ids[row, columns] = 63
    with probe(model) as check:
        model(ids, place).sum().backward()
    assert check.report.isolation is Evidence.SHOWN
    assert check.report.ok, str(check.report)


class MovingMean(Decoder):
    """Adds a mean that each forward in training moves."""

    def __init__(self):
        super().__init__()
        self.mean: torch.Tensor
        self.register_buffer("mean", torch.zeros(self.width))

    def embedded(self, ids, place):
        x = super().embedded(ids, place) + 0.01 * self.mean
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean((0, 1))
        return x


def test_each_forward_begins_with_the_statistics_of_the_job():
    """Without it a mean that moves from forward to forward looks like samples that see each other."""
    made = job(MovingMean())
    check = probe(made.model)
    made.run(check)
    assert check.report.ok, str(check.report)
    assert check.report.isolation is Evidence.SHOWN


@pytest.mark.parametrize("is_guilty", [True, False])
def test_a_cache_is_accused_if_samples_are_apart_without_it(is_guilty):
    """Models of Transformers keep one by default, and then look for no packed samples."""

    class Caching(Decoder):
        def forward(self, input_ids, position_ids, labels=None, use_cache=True):
            self.leaky = (1,) if use_cache or not is_guilty else ()
            return super().forward(input_ids, position_ids, labels)

    model = Caching().train()
    model.config.use_cache = True
    with probe(model) as check:
        model(**batch())
    (finding,) = check.report.findings
    assert finding.topic == "isolation"
    assert ("use_cache=False" in finding.change) is is_guilty


@pytest.mark.parametrize(("leaky", "number"), [([], 3), ([0], 5)])
def test_a_right_run_takes_three_forwards(leaky, number):
    """Two more tell evaluation from packing where samples alone differ."""
    model = Decoder(leaky=leaky)
    calls = []
    model.head.register_forward_hook(lambda *_: calls.append(torch.is_grad_enabled()))
    made = job(model)
    made.run(probe(model))
    assert calls.count(False) == number
    assert calls.count(True) == len(made.batches)


def sum_of_losses(logits, labels):
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="sum")


class Noisy(Decoder):
    """Dropout whose rate is in no attribute."""

    def forward(self, *args, **words):
        handle = self.layers[0].register_forward_hook(lambda _, args, x: nn.functional.dropout(x, 0.2, self.training))
        try:
            return super().forward(*args, **words)
        finally:
            handle.remove()


def test_dropout_whose_rate_has_no_name_is_not_accused():
    torch.manual_seed(0)
    model = Noisy().train()
    with probe(model) as check:
        trained(model)
    assert check.report.isolation is Evidence.SHOWN, str(check.report)
    assert check.report.ok, str(check.report)


@pytest.mark.parametrize(
    ("watched", "part", "problems"),
    [
        *((True, 1.0, []), (True, 57 / 7, ["divisor"]), (True, 57 / 64, ["divisor"])),
        *((True, float("nan"), ["divisor"]), (True, 0.4, []), (True, 57 / 142, []), (True, 1e-40, [])),
        (False, 57 / 64, []),
    ],
)
def test_a_told_loss_is_compared_with_labels_that_were_seen(watched, part, problems):
    """The loop has the labels: 57 targets of 7 samples in 64 places. A sum ÷ samples or places is
    found, and no number. A loss of unknown targets is not judged, nor a loss of another kind.
    """
    model, one = Decoder().train(), batch()
    with probe(model) as check:
        for item in check.watch([one]) if watched else [one]:
            logits = model(item["input_ids"], item["position_ids"]).logits
            loss = part * sum_of_losses(logits, item["labels"]) / 57
            check.tell_loss(loss)
            loss.backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert [finding.problem for finding in check.report.findings] == problems, str(check.report)


def test_a_loss_of_pairs_is_not_taken_for_a_mean_over_targets():
    """Near ln 2 at first, whatever the targets: DPO in a loop that says nothing about it."""
    torch.manual_seed(0)
    model, one = Decoder().train(), batch()
    with probe(model) as check:
        for item in check.watch([one]):
            logits = model(item["input_ids"], item["position_ids"]).logits
            loss = -torch.nn.functional.logsigmoid(0.1 * (logits[:, 3] - logits[:, 9]).sum())
            check.tell_loss(loss)
            loss.backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert check.report.ok, str(check.report)


def test_a_step_that_is_divided_by_all_its_targets_is_right():
    """Accumulation of 57 and 10 targets, as ``scale_for_ddp`` divides."""
    model, batches = Decoder().train(), [batch(), batch(((6, 6),))]
    with probe(model) as check:
        for item in check.watch(batches):
            logits = model(item["input_ids"], item["position_ids"]).logits
            loss = sum_of_losses(logits, item["labels"]) / 67
            check.tell_loss(loss)
            loss.backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert check.report.ok, str(check.report)
