"""Each fault of the table that a probe shows is found, at the layer where it lies, and its mended twin is not accused."""

import pytest
import torch

from brimful.doctor.probing.probe import probe
from brimful.doctor.report import Evidence
from tests.doctor.faults.jobs import JOBS

IN_THE_TABLE = {1, 2, 3, 4, 5, 8, 9, 10, 11, 12, 13, 14, 15, 18, 19, 21, 22, 26, 29, 34, 40}
"""Numbers of the faults that the table says a probe shows. What 23, 27 and 38 do is what 21 does."""


def report_of(make):
    torch.manual_seed(0)
    made = make()
    check = probe(made.model)
    made.run(check)
    return check.report


def test_the_gallery_has_each_fault_of_the_table():
    assert JOBS.keys() >= IN_THE_TABLE


@pytest.mark.parametrize("number", JOBS)
def test_the_fault_is_found_where_it_lies(number):
    case = JOBS[number]
    report = report_of(case.wrong)
    assert case.problem in {finding.problem for finding in report.findings}, str(report)
    if case.layer:
        leak = next(finding for finding in report.findings if finding.problem == case.problem)
        assert case.layer in leak.detail, leak.detail


@pytest.mark.parametrize("number", JOBS)
def test_the_mended_twin_is_not_accused(number):
    report = report_of(JOBS[number].right)
    assert report.ok, str(report)
    shown = {line.topic for line in report.lines if line.evidence is Evidence.SHOWN}
    assert shown & {"isolation", "divisor"}, str(report)
