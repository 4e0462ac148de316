"""The probe in a loop of one's own: what it shows, and that training goes on as if nothing had been."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from brimful.doctor import probe
from brimful.doctor.report import Evidence
from brimful.errors import BrimfulError, SettingsError
from brimful.verify.models import tiny_model
from tests.doctor.faults.jobs import Attention, Decoder, Job, batch, documents, job, loss_of


class Counting(Decoder):
    """Keeps all that a forward may leave behind: dropout, a running mean, a number, other random numbers."""

    def __init__(self):
        super().__init__([Attention] * 2)
        self.dropout = nn.Dropout(0.1)
        self.mean: Any
        self.register_buffer("mean", torch.zeros(self.width))
        self.calls = 0

    def forward(self, input_ids, position_ids, labels):
        self.calls += 1
        random.random(), np.random.random()
        x = self.dropout(self.embedded(input_ids, position_ids)) + 0.01 * self.mean
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean((0, 1))
        logits = self.head(self.hidden(x, (position_ids == 0).cumsum(1)))
        return {"loss": loss_of(logits, labels), "logits": logits}


def trained(watched):
    """Losses, weights and all else after five steps, with and without a probe."""
    torch.manual_seed(0), random.seed(0), np.random.seed(0)
    model = Counting()
    made = Job(model, [batch(seed=seed) for seed in range(5)], lambda model, one: model(**one)["loss"])
    check = probe(model)
    if not watched:
        check.attach = lambda: check
    losses = made.run(check)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    return losses, state, model.calls, torch.rand(1).item(), random.random(), np.random.random(), check.report


def test_the_run_is_the_run_without_a_probe():
    """To the bit: losses, weights, statistics, attributes, and the next random numbers of all three libraries."""
    with_probe, without = trained(True), trained(False)
    assert with_probe[0] == without[0]
    assert all(torch.equal(value, without[1][name]) for name, value in with_probe[1].items())
    assert with_probe[2:6] == without[2:6]
    assert with_probe[6].isolation is Evidence.SHOWN
    assert without[6].isolation is Evidence.UNKNOWN


@pytest.mark.parametrize("layer", range(3))
def test_a_leak_is_found_in_its_layer(layer):
    made = job(Decoder([Attention] * 3, [layer]))
    check = probe(made.model)
    made.run(check)
    (finding,) = check.report.findings
    assert f"layers.{layer}" in finding.detail


def test_a_fault_ends_the_run_if_that_is_asked_for():
    made = job(Decoder([Attention] * 2, [0]))
    with pytest.raises(BrimfulError, match="WRONG"):
        made.run(probe(made.model, on_fault="raise"))


def test_a_batch_that_cannot_be_read_is_said_and_training_goes_on():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe(model) as check:
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    assert check.report.isolation is Evidence.UNKNOWN
    assert "not shown" in str(check.report)


def test_a_forward_that_fails_is_said_and_training_goes_on():
    class Refusing(Decoder):
        def forward(self, input_ids, position_ids, labels):
            if not torch.is_grad_enabled():
                raise RuntimeError("only with gradients")
            return super().forward(input_ids, position_ids, labels)

    made = job(Refusing())
    check = probe(made.model)
    assert len(made.run(check)) == 2
    assert "only with gradients" in str(check.report)


def test_nothing_that_was_not_run_is_called_shown():
    check = probe(tiny_model("qwen2"))
    with check:
        pass
    assert check.report.isolation is Evidence.UNKNOWN


def test_rows_of_one_sample_have_no_neighbors_to_move():
    made = job(Decoder(), lengths=((32,), (32,)))
    check = probe(made.model)
    made.run(check)
    assert check.report.ok
    assert check.report.isolation is not Evidence.SHOWN


@pytest.mark.parametrize("options", [{"on_fault": "stop"}, {"timeout": 0}])
def test_wrong_arguments_are_refused(options):
    with pytest.raises(SettingsError):
        probe(tiny_model("qwen2"), **options)


def test_documents_of_the_toys_are_their_samples():
    assert documents().max().item() == 3


FAMILIES = (
    *(
        "llama",
        "mistral",
        "qwen2",
        "qwen3",
        "gemma",
        "gemma2",
        "gemma3_text",
        "phi",
        "phi3",
        "olmo",
        "olmo2",
        "starcoder2",
    ),
    *("stablelm", "granite", "cohere", "glm", "gpt_neox", "smollm3", "qwen2_moe", "qwen3_moe"),
)
WAYS = ("positions", "dense mask", "flex attention")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "family",
    [
        name if name in ("llama", "gemma2", "qwen3_moe") else pytest.param(name, marks=pytest.mark.long)
        for name in FAMILIES
    ],
)
def test_no_right_run_is_accused(family, way):
    """Twenty families, three ways of keeping samples apart."""
    from brimful.verify.modes import NotSupported, using

    assert len(FAMILIES) == 20
    model = tiny_model(family)
    words: dict[str, Any] = {"use_cache": False}
    if way == "dense mask":
        document = documents()
        same = (document[:, :, None] == document[:, None]).tril()
        words["attention_mask"] = torch.where(same, 0.0, torch.finfo(torch.float32).min)[:, None]
    made = job(model, words)
    check = probe(model)
    try:
        with using(model, "flex_attention" if way == "flex attention" else "sdpa"):
            made.run(check)
    except NotSupported as error:
        pytest.skip(str(error))
    assert check.report.ok, str(check.report)
    assert check.report.isolation is Evidence.SHOWN, str(check.report)
