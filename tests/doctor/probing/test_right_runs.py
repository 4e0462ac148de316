"""Right runs of twenty families, samples kept apart in three ways: none is accused."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from brimful.doctor.probing.probe import Probe
from brimful.doctor.report import Evidence
from brimful.verify.implementations import using
from brimful.verify.models import tiny_model
from tests.doctor.faults.jobs import batch, documents, pairs

pytestmark = pytest.mark.filterwarnings("ignore")

DENSE = ["cohere2", "ernie4_5", "gemma", "gemma3_text", "glm4", "granite", "helium", "llama", "mistral", "nemotron"]
OTHERS = ["olmo2", "olmo3", "phi3", "qwen2", "qwen3", "smollm3", "starcoder2"]
EXPERTS = ["deepseek_v3", "mixtral", "qwen3_moe"]
FAMILIES = [*DENSE, *OTHERS, *EXPERTS]
FEW = {("qwen2", "positions"), ("gemma3_text", "mask"), ("qwen3_moe", "positions"), ("llama", "flex_attention")}
"""Runs of every test run; all others are long."""


def report_of(model, batches):
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Probe(model) as check:
        for one in batches:
            model(**one, use_cache=False).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return check.report


@pytest.mark.parametrize(
    ("kind", "way"),
    [
        pytest.param(kind, way, marks=() if (kind, way) in FEW else pytest.mark.long)
        for kind in FAMILIES
        for way in ("positions", "mask", "flex_attention")
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_right_run_is_not_accused(kind, way, dtype):
    model = tiny_model(kind, dtype=dtype)
    words = {"attention_mask": pairs(documents())[:, None]} if way == "mask" else {}
    with using(model, "flex_attention" if way == "flex_attention" else "sdpa"):
        report = report_of(model, [batch(**words)])
    assert report.isolation is Evidence.SHOWN, str(report)
    assert report.ok, str(report)
    assert {"packing", "positions", "divisor", "step"} <= {line.topic for line in report.lines}, str(report)


def test_twenty_families():
    assert len(set(FAMILIES)) == 20
