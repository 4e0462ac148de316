"""Sources of a table, and counts of what was consumed."""

import numpy as np
import pytest

from brimful import LengthTable
from brimful.errors import PlanMismatchError, SettingsError
from brimful.plan import Mixture
from brimful.plan.policies.mixture.members import as_uses, count_uses, members_of

MIXTURE = Mixture(weights={"a": 1, "b": 1})


def test_files_that_were_measured_are_the_sources_by_default():
    """Without it each user counts the rows of the files again."""
    table = LengthTable({"tokens": np.array([1, 2, 3], np.int32)}, provenance={"parts": [["a", 1], ["b", 2]]})
    assert members_of(table, MIXTURE, None)[1].tolist() == [0, 1, 3]


@pytest.mark.parametrize(
    ("sources", "error", "message"),
    [
        (None, SettingsError, "do not say which sample is of which source"),
        ({"a": 3}, SettingsError, "a weight for b, and the sources are a"),
        ({"a": 1, "b": 1, "c": 1}, SettingsError, "no weight for source c"),
        ({"a": 1, "b": 1}, PlanMismatchError, "2 samples and the lengths 3"),
        ({"a": 3, "b": 0}, SettingsError, "samples of b must be a whole number of at least 1"),
    ],
)
def test_sources_that_do_not_fit_are_refused(sources, error, message):
    """Without it samples are counted for another source."""
    with pytest.raises(error, match=message):
        members_of(LengthTable.from_lengths([1, 2, 3]), MIXTURE, sources)


def test_a_split_sample_is_consumed_with_any_of_its_parts():
    """Without it half a sample comes again."""
    assert count_uses(np.array([1]), np.array([4]), 2, before=np.array([5, 0])).tolist() == [5, 1]
    with pytest.raises(SettingsError, match="each of the 2 samples was consumed"):
        as_uses(np.array([1, 2, 3]), 2)
