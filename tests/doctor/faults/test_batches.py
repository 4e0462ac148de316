"""Each fault of the table that one batch shows is found, and its mended twin is not accused."""

import pytest

from brimful.doctor.batch.diagnose import diagnose
from tests.doctor.faults.batches import FAULTS, OTHER_FAULTS

IN_THE_TABLE = {5, 6, 7, 8, 12, 13, 14, 15, 16, 20, 22, 24, 25, 26, 28, 30, 31, 32, 33, 35, 36, 37, 38, 39}
"""Numbers of the faults that the table says one batch shows."""

ALL = {**FAULTS, **OTHER_FAULTS}


def test_the_gallery_has_each_fault_of_the_table():
    assert FAULTS.keys() == IN_THE_TABLE


@pytest.mark.parametrize("key", ALL)
def test_the_fault_is_found(key):
    fault = ALL[key]
    report = diagnose(fault.faulty, **fault.known)
    assert fault.problem in {finding.problem for finding in report.findings}, str(report)
    for finding in report.findings:
        assert finding.detail
        assert finding.known_problem is not None


@pytest.mark.parametrize("key", ALL)
def test_the_mended_twin_is_not_accused(key):
    fault = ALL[key]
    report = diagnose(fault.mended, **fault.known)
    assert report.ok, str(report)
