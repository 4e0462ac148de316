"""Options of plans: impossible ones, and ones that contradict each other."""

import re

import numpy as np
import pytest

from brimful import Plan, plan_packs
from brimful.errors import (
    SettingsError,
)


def test_numbers_of_numpy_are_numbers(tmp_path):
    """Settings come from configurations and arrays; a plan made with them must be saved all the same."""
    plan = plan_packs([3, 4], capacity=np.int64(5), seed=np.int64(2), epoch=np.int32(3), min_fill=np.float32(0.5))
    plan.save(tmp_path / "plan.arrow")
    opened = Plan.open(tmp_path / "plan.arrow")
    assert (opened.settings, opened.outcome, opened.record) == (plan.settings, plan.outcome, plan.record)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budgets": {"samples": 2}, "algorithm": "next_fit"}, 'algorithm="next_fit" knows only tokens'),
        ({"budgets": {"tokens": 2}}, "the capacity in tokens is capacity"),
        ({"budgets": {"samples": 0}}, "budgets['samples'] must be from 1"),
        ({"min_fill": 0.5, "algorithm": "next_fit"}, 'would break the order that algorithm="next_fit" keeps'),
        ({"algorithm": "concat_split", "alignment": 4}, "leaves no room"),
        ({"algorithm": "concat_split", "groups": [0, 0]}, "groups stay whole"),
        ({"phases": "finish"}, 'phases is for algorithm="phased", and the algorithm is auto'),
        ({"algorithm": "phased", "phases": "begin"}, "begin"),
        ({"alignment": 16}, "no row fits"),
        ({"alignment": 0}, "must be a whole number of at least 1"),
        ({"min_fill": 1.5}, "min_fill must be a number from 0 to 1, a share of the capacity, and is 1.5"),
        ({"min_fill": "half"}, "min_fill must be a number from 0 to 1, a share of the capacity, and is 'half'"),
        ({"min_fill": -0.1}, "min_fill must be a number from 0 to 1"),
        ({"time_limit": -1}, "time_limit must be a number of at least 0, in seconds, and is -1"),
        ({"epoch": -1}, "epoch must be at least 0"),
        ({"max_path": 0}, "max_path must be at least 1 and is 0"),
        ({"num_packs": 0, "algorithm": "spread"}, "num_packs must be at least 1 and is 0"),
        ({"num_packs": 1}, 'num_packs=1 is for algorithm="spread", and the algorithm is auto'),
        ({"groups": [0]}, "one id for each of 2 samples"),
        ({"groups": [0, 0], "overflow": "split"}, "groups stay whole"),
    ],
)
def test_options_that_contradict_each_other_name_both(options, message):
    """One line that says which two, and what to do."""
    with pytest.raises(ValueError, match=re.escape(message)):
        plan_packs([3, 4], capacity=8, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"capacity": 1, "min_fill": 0, "max_path": 1, "epoch": 0, "alignment": 1},
        {"capacity": 2**31 - 1, "min_fill": 1, "time_limit": 0, "budgets": {"samples": 1, "squares": 2**52}},
        {"num_packs": 1, "algorithm": "spread", "capacity": 2, "seed": -1},
    ],
)
def test_the_limits_of_each_option_are_options(options):
    """The value that a message names as the least or most is refused with the same message."""
    assert plan_packs([1], **options).num_packs == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"capacity": 0}, "capacity must be from 1"),
        ({"capacity": -5}, "capacity must be from 1"),
        ({"capacity": 2**31}, "capacity must be from 1 to 2,147,483,647"),
        ({"capacity": 7.5}, "whole number"),
        ({"capacity": True}, "whole number"),
        ({"capacity": 8, "algorithm": "magic"}, 'algorithm="magic" is unknown: use one of'),
        ({"capacity": 8, "overflow": "explode"}, "overflow 'explode' is unknown: use one of error, drop"),
        ({"capacity": 8, "seed": "x"}, "seed must be a whole number"),
    ],
)
def test_impossible_options(options, message):
    """Each names the flag and what it takes."""
    with pytest.raises(SettingsError, match=message):
        plan_packs([1, 2], **options)
