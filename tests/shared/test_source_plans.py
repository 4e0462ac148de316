"""Domains of packs, held against a plain count."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.errors import SettingsError
from brimful.plan import plan_packs
from brimful.shared import source_plans as module
from brimful.shared.source_plans import Domains, group_of_packs


@given(st.lists(st.tuples(st.integers(1, 9), st.sampled_from("abc")), min_size=1, max_size=30), st.integers(1, 40))
def test_the_group_of_a_pack_is_the_domain_with_most_tokens(samples, cells):
    lengths, names = zip(*samples, strict=True)
    plan = plan_packs(np.array(lengths), capacity=12)
    domains = Domains.of(names, len(names))
    expected = []
    for pack in plan:
        tokens = Counter()
        for segment in pack:
            tokens[names[segment.sample_id]] += segment.length
        expected.append(min(tokens, key=lambda name: (-tokens[name], name)))
    before, module._CELLS = module._CELLS, cells
    try:
        assert [domains.names[number] for number in group_of_packs(plan, domains)] == expected
    finally:
        module._CELLS = before


def test_a_name_for_each_sample(tmp_path):
    with pytest.raises(SettingsError, match="2 names for 3 samples"):
        Domains.of(["a", "b"], 3)
