"""Domains of packs, held against a plain count."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful import LengthTable, PlanSettings
from brimful.base.progress import Progress
from brimful.clusters import shared_plan
from brimful.clusters.source_plans import PackMetadata, group_of_packs
from brimful.errors import SettingsError
from brimful.plan import plan_packs
from tests.trees.plans import plan_of_trees


@given(st.lists(st.tuples(st.integers(1, 9), st.sampled_from("abc")), min_size=1, max_size=30))
def test_the_group_of_a_pack_is_the_domain_with_most_tokens(samples):
    lengths, names = zip(*samples, strict=True)
    plan = plan_packs(np.array(lengths), capacity=12)
    expected = []
    for pack in plan:
        tokens = Counter()
        for segment in pack:
            tokens[names[segment.sample_id]] += segment.length
        expected.append(min(tokens, key=lambda name: (-tokens[name], name)))
    codes = np.array(["abc".index(name) for name in names])
    assert ["abc"[number] for number in group_of_packs(plan, codes)] == expected


def test_samples_of_trees_count_with_all_of_their_tokens():
    """The trunk belongs to the samples of both domains, not to the first leaf."""
    plan = plan_of_trees([[5, 6, 7, 8], [5, 6, 7, 9], [1, 1, 1, 1, 1]], [[0, 1, 2]])
    assert group_of_packs(plan, np.array([0, 0, 1])).tolist() == [0]
    assert group_of_packs(plan, np.array([0, 1, 2])).tolist() == [2]
    facts = PackMetadata(plan, np.zeros(1, dtype=np.int32), ("a",))
    assert sorted(facts.indices.row(0).tolist()) == [0, 1, 2]


def of_lengths(directory, domains, **options):
    return shared_plan(
        None,
        None,
        PlanSettings(capacity=4),
        lengths=LengthTable.from_lengths([1, 2, 3]),
        domains=domains,
        directory=directory,
        **{"progress": Progress(), "ahead": False, **options},
    )


@pytest.mark.parametrize("count", [2, 4])
def test_a_name_for_each_sample(tmp_path, count):
    with pytest.raises(SettingsError, match=f"domains has {count} names for 3 samples"):
        of_lengths(tmp_path, list("abcd"[:count]))


def test_domains_that_are_gone_are_counted_again_and_a_plan_is_one_of_one(tmp_path):
    """An existing plan is used; without its domains the other ranks would find none."""
    found = []
    for _ in range(2):
        progress = Progress()
        with of_lengths(tmp_path, ["b", "a", "a"], progress=progress) as shared:
            found.append((shared.metadata.group.tolist(), shared.metadata.group_domains))
        (stage,) = progress.stages
        assert (stage.total, stage.done) == (1, 1)
        (path,) = (tmp_path / "plans").glob("*.domains.arrow")
        path.unlink()
    assert found[0] == found[1]
    assert found[0][1] == ("a", "b")
