"""Plans of trees of older versions open, hold what they held, and are made again."""

import json
from pathlib import Path

import pytest

from brimful import LengthTable, Plan
from tests.golden import make_trees

DIRECTORIES = sorted(Path(__file__).parent.glob("trees_*"))


@pytest.mark.parametrize("name", make_trees.PLANS)
@pytest.mark.parametrize("directory", DIRECTORIES, ids=lambda path: path.name)
def test_a_plan_of_trees_opens_and_is_made_again(directory, name):
    """Its version is the version of the file: the third, which has parents."""
    expected = json.loads((directory / "expected.json").read_text())[name]
    lengths = LengthTable.open(directory / "lengths.arrow")
    plan = Plan.open(directory / f"{name}.plan")
    plan.check_fingerprint()
    plan.validate(lengths, groups=make_trees.PLANS[name].get("groups"))
    assert json.loads(json.dumps(make_trees.contents(plan))) == expected
    assert make_trees.plan_named(name, lengths).fingerprint == plan.fingerprint


def test_there_are_golden_plans_of_trees():
    """An empty folder would pass the test above."""
    assert [path.name for path in DIRECTORIES] == ["trees_3"]
