"""Schedules in the way of Megatron: the stage and the layer are named, and the micro-batch is trained all the same."""

import sys
from types import ModuleType

import pytest

pytest.importorskip("torch")

import torch

from brimful.doctor.probing.megatron import ScheduleCall, probed
from brimful.doctor.report import DoctorReport
from brimful.errors import BrimfulError, SettingsError
from tests.doctor.faults.jobs import Decoder, batch
from tests.doctor.probing.processes import two_ranks

MODULE = "tests.doctor.probing.pipeline_run"
DETAIL = "first in stage 2 of 2, decoder.layers.0, layer_number 3 (Layer)"


@pytest.mark.parametrize(
    ("kind", "problem", "detail"),
    [
        ("second", "boundaries_lost", DETAIL),
        pytest.param("hybrid", "state_crosses", DETAIL, marks=pytest.mark.long),
        pytest.param(
            "both",
            "boundaries_ignored",
            "first in stage 1 of 2, decoder.layers.0, layer_number 1",
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_stage_without_boundaries_is_named(kind, problem, detail, tmp_path):
    """Fault 1: the batch of a later stage comes without them."""
    ranks = two_ranks(MODULE, kind, tmp_path)
    assert ranks[0]["report"] == ranks[1]["report"]
    (finding,) = DoctorReport.from_dict(ranks[0]["report"]).findings
    assert finding.problem == problem
    assert detail in finding.detail
    for rank in ranks:
        assert rank["losses"][0] == rank["losses"][1]


@pytest.mark.long
def test_a_right_pipeline_is_not_accused(tmp_path):
    ranks = two_ranks(MODULE, "right", tmp_path)
    report = DoctorReport.from_dict(ranks[0]["report"])
    assert report.ok, str(report)
    assert report.isolation.value == "shown"
    assert ranks[1]["losses"][0] == ranks[1]["losses"][1]


class Calls:
    """A schedule of one stage that remembers how it was called."""

    def __init__(self):
        self.calls, self.tokens = [], []

    def __call__(self, *, forward_step_func, data_iterator, model, num_microbatches, forward_only=False):
        self.calls.append((num_microbatches, forward_only, torch.is_grad_enabled()))
        iterator = data_iterator[0] if isinstance(data_iterator, list) else data_iterator
        results = []
        for _ in range(num_microbatches):
            output, loss_func = forward_step_func(iterator, model)
            loss, number, report = loss_func(output)
            loss /= number
            results.append(report)
            if not forward_only:
                loss.backward()
        return results

    def step(self, data_iterator, model):
        one = next(data_iterator)
        self.tokens.append(one["input_ids"].clone())
        output = model(**one)
        losses = torch.nn.functional.cross_entropy(
            output.logits[:, :-1].flatten(0, 1), one["labels"][:, 1:].flatten(), reduction="none"
        )
        losses = torch.nn.functional.pad(losses.view(2, -1), (0, 1))
        return losses, lambda tensor: (tensor.sum(), torch.tensor(57), {"lm loss": float(tensor.sum().detach())})


def run(model, *, as_list=False, forward_only=False, **options):
    calls = Calls()
    step = probed(calls, **options)
    source = iter([batch(seed=seed) for seed in range(4)])
    for _ in range(2):
        step(
            forward_step_func=calls.step,
            data_iterator=[source] if as_list else source,
            model=model.train(),
            num_microbatches=2,
            forward_only=forward_only,
        )
    return calls, step


@pytest.mark.parametrize("as_list", [False, True])
def test_every_micro_batch_is_trained_once_and_in_order(as_list):
    calls, step = run(Decoder(), as_list=as_list)
    assert calls.calls == [(1, True, False)] * 3 + [(2, False, True)] * 2
    expected = [batch(seed=seed)["input_ids"] for seed in range(4)]
    assert all(torch.equal(*pair) for pair in zip(calls.tokens[3:], expected, strict=True))
    assert torch.equal(calls.tokens[0], expected[0])
    assert not torch.equal(calls.tokens[1], expected[0])
    assert step.report.ok, str(step.report)


def test_ranks_with_parts_of_a_row(monkeypatch):
    """Under sequence parallelism each rank knows which tokens it has between layers."""
    state = ModuleType("parallel_state")
    state.__dict__.update(
        model_parallel_is_initialized=lambda: False,
        get_tensor_model_parallel_rank=lambda: 1,
        get_tensor_model_parallel_world_size=lambda: 2,
    )
    monkeypatch.setitem(sys.modules, "megatron.core.parallel_state", state)
    model = Decoder()
    keywords = {"model": model, "data_iterator": None, "num_microbatches": 1}
    assert (ScheduleCall(Calls(), keywords).part, ScheduleCall(Calls(), keywords).parts) == (0, 1)
    model.config.sequence_parallel = True
    assert (ScheduleCall(Calls(), keywords).part, ScheduleCall(Calls(), keywords).parts) == (1, 2)


def test_evaluation_is_not_probed():
    calls, step = run(Decoder(), forward_only=True)
    assert [call[0] for call in calls.calls] == [2, 2]
    assert step.report.isolation.value == "unknown"


def test_a_fault_ends_the_run_if_asked():
    with pytest.raises(BrimfulError, match=r"first in layers\.1 \(Block\)"):
        run(Decoder(leaky=[1]), on_fault="raise")


def test_settings():
    with pytest.raises(SettingsError):
        probed(Calls(), on_fault="stop")


def test_a_batch_that_cannot_be_read_is_trained():
    calls = Calls()
    step = probed(calls)
    source = iter([{"words": torch.ones(2)}])
    step(
        forward_step_func=lambda data, model: (
            next(data)["words"] * torch.ones(2, requires_grad=True),
            lambda tensor: (tensor.sum(), torch.tensor(1), {}),
        ),
        data_iterator=source,
        model=Decoder(),
        num_microbatches=1,
    )
    assert "no token ids" in step.report.lines[0].text
    assert calls.calls == [(1, False, True)]
