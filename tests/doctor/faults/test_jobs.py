"""Faults of running jobs are named with the layer in which a neighbor moved first; their mended twins stay clean."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from brimful.doctor.probing.probe import Probe
from brimful.doctor.report import Evidence, Judgment
from tests.doctor.faults.jobs import JOBS

pytestmark = pytest.mark.filterwarnings("ignore")

SUSPECT = {10, 17}
"""Faults that may have another reason."""

ALSO_SEEN = {23: ["positions_run_on"]}
"""Faults that the batch of a call shows as well."""

PADDED = {14}
"""Faults of rows with one sample each: their twins show nothing about two samples of one row."""


def report_of(job):
    check = Probe(job.model)
    job.run(check)
    return check.report


@pytest.mark.parametrize("number", JOBS)
def test_a_fault_is_named_with_its_layer(number):
    case = JOBS[number]
    report = report_of(case.wrong())
    assert case.problem in [item.problem for item in report.findings], str(report)
    finding, *others = sorted(report.findings, key=lambda item: item.evidence is not Evidence.SHOWN)
    assert [item.problem for item in others] == ALSO_SEEN.get(number, []), str(report)
    assert finding.evidence is Evidence.SHOWN
    assert finding.judgment is (Judgment.SUSPECT if number in SUSPECT else Judgment.WRONG)
    assert finding.change
    if case.layer:
        assert f"first in {case.layer} " in finding.detail


@pytest.mark.parametrize("number", JOBS)
def test_the_mended_twin_is_clean(number):
    report = report_of(JOBS[number].right())
    assert report.ok, str(report)
    assert report.isolation is (Evidence.UNKNOWN if number in PADDED else Evidence.SHOWN), str(report)


@pytest.mark.parametrize("number", JOBS)
def test_losses_of_the_run_are_its_own(number):
    """As if no probe had been there."""
    job = JOBS[number].right
    alone, probed = job(), job()
    losses = alone.run(Silent(alone.model))
    assert probed.run(Probe(probed.model)) == losses
    for own, other in zip(alone.model.state_dict().values(), probed.model.state_dict().values(), strict=True):
        assert torch.equal(own, other)


class Silent(Probe):
    """A probe that never looks."""

    def attach(self):
        return self
