"""A run with a probe is the run without one, to the last bit: losses, weights, buffers, attributes, random numbers."""

import random
import time

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from brimful.doctor.probing.probe import Probe
from brimful.doctor.probing.unchanged import unchanged
from tests.doctor.faults.jobs import Attention, Decoder, batch


class Restless(Decoder):
    """A model whose forward writes everywhere that a forward can write."""

    average: torch.Tensor

    def __init__(self):
        super().__init__()
        self.dropout, self.statistics = torch.nn.Dropout(0.3), torch.nn.BatchNorm1d(self.width)
        self.generator = torch.Generator().manual_seed(3)
        self.calls, self.balance, self.sums, self.counts = 0, [], {}, np.zeros(2)
        self.register_buffer("average", torch.zeros(self.width))
        self.total = torch.zeros(1)

    def embedded(self, ids, place):
        x = self.dropout(super().embedded(ids, place))
        x = self.statistics(x.transpose(1, 2)).transpose(1, 2)
        self.calls += 1
        self.balance.append(self.calls)
        self.sums[self.calls] = float(x.detach().sum())
        self.counts += 1
        self.total += 1
        self.average = 0.9 * self.average + 0.1 * x.detach().mean((0, 1))
        self.late = self.calls
        self.config.calls = self.calls
        noise = random.random() + np.random.random() + float(torch.rand(1, generator=self.generator))
        return x * (1 + noise * 0.01) + 0.01 * torch.randn_like(x)


def train(*, is_probed, autocast=False, scaler=False, accumulation=2, steps=3):
    """Losses, weights and state after some steps; random numbers of all kinds are used."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    model = Restless().train()
    torch.manual_seed(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scale = torch.amp.GradScaler("cpu", enabled=scaler)
    losses = []
    # Gradients that a resumed step has already must stay.
    model.head.bias.grad = torch.ones_like(model.head.bias)
    check = Probe(model)
    if is_probed:
        check.attach()
    for _ in range(steps):
        for number in range(accumulation):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                loss = model(**batch(seed=number)).loss
            scale.scale(loss).backward()
            losses.append(loss.item())
        scale.step(optimizer)
        scale.update()
        optimizer.zero_grad()
    state = {
        "attributes": [model.calls, model.balance, model.sums, model.counts.tolist(), model.late, model.config.calls],
        "tensors": [*model.state_dict().values(), model.total, model.generator.get_state()],
        "random": [random.random(), float(np.random.random()), float(torch.rand(1)), scale.get_scale()],
    }
    return losses, state, check


@pytest.mark.parametrize("options", [{}, {"autocast": True}, {"scaler": True}, {"accumulation": 1}])
def test_a_run_is_its_own(options):
    losses, state, _ = train(is_probed=False, **options)
    probed_losses, probed_state, check = train(is_probed=True, **options)
    assert probed_losses == losses
    for name in ("attributes", "random"):
        assert probed_state[name] == state[name], name
    for own, other in zip(state["tensors"], probed_state["tensors"], strict=True):
        assert torch.equal(own, other)
    assert check.complete
    assert check.report.lines[0].topic == "packing", "the probe has looked"


def test_what_is_not_put_back_would_be_seen():
    """Each of these is left changed by a forward alone."""
    model = Restless().train()
    one = batch()
    tensors = [tensor.clone() for tensor in (*model.buffers(), model.total, model.generator.get_state())]
    numbers = random.getstate(), torch.get_rng_state()
    model(**one)
    after = [*model.buffers(), model.total, model.generator.get_state()]
    assert [torch.equal(*pair) for pair in zip(tensors, after, strict=True)].count(True) == 0
    assert random.getstate() != numbers[0]
    assert not torch.equal(torch.get_rng_state(), numbers[1])
    assert model.calls == 1
    with unchanged(model):
        model(**one)
        assert model.calls == 2
    assert (model.calls, model.balance) == (1, [1])


def test_hooks_of_a_first_forward_come_once():
    """Models of Transformers register hooks when they run first, and remember that they did."""

    class Hooking(Decoder):
        def embedded(self, ids, place):
            if not hasattr(self, "is_hooked"):
                self.is_hooked = True
                self.head.register_forward_hook(lambda *_: None)
            return super().embedded(ids, place)

    model = Hooking().train()
    with Probe(model):
        model(**batch()).loss.backward()
    assert len(model.head._forward_hooks) == 1


def test_an_exception_leaves_everything_as_it_was():
    model = Restless().train()
    before = [tensor.clone() for tensor in model.buffers()]
    with pytest.raises(TypeError), unchanged(model):
        model(**batch(), more=model(**batch()))
    assert all(torch.equal(*pair) for pair in zip(before, model.buffers(), strict=True))
    assert model.training
    assert model.dropout.p == 0.3
    assert not hasattr(model, "late")


def test_random_numbers_go_on_as_they_were():
    model = torch.nn.Linear(2, 2)
    state = torch.get_rng_state()
    with unchanged(model):
        torch.rand(3)
    assert torch.equal(torch.get_rng_state(), state)


def test_wrapped_weights_are_not_copied():
    """A wrapper may give the memory of a weight back, and keep a view of it as an attribute."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    storage = torch.zeros(8)
    model[0].shadow = storage[:4]
    storage.untyped_storage().resize_(0)
    with unchanged(model):
        pass


def test_the_probe_costs_at_most_four_steps():
    """Forwards without gradients; the time of the first step is the least of several runs."""
    model = Decoder([Attention] * 6).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    lengths = ((96, 160, 128, 128),) * 4

    def step(check=None):
        start = time.perf_counter()
        if check is not None:
            check.attach()
        model(**one).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return time.perf_counter() - start

    model.place = torch.nn.Embedding(512, model.width)
    one = batch(lengths)
    step()
    plain = min(step() for _ in range(5))
    probed = min(step(Probe(model)) for _ in range(5))
    assert probed - plain < 4 * plain, f"{probed:.3f} s and {plain:.3f} s"
