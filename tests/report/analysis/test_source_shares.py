"""Shares of the sources, before packing and after."""

import re

import numpy as np
import pytest

from brimful import plan_packs
from brimful.errors import SettingsError
from brimful.measure import LengthTable
from brimful.report.analysis.facts import gather_facts
from brimful.report.analysis.source_shares import source_shares
from brimful.report.analysis.training_run import TrainingRun


def test_shares_before_and_after():
    """A long source loses a sample to dropping, and its share with it."""
    table = LengthTable({"tokens": np.array([2, 3, 9, 4, -1], dtype=np.int32)})
    sources = np.array([0, 0, 1, 1, 1])
    dropped = source_shares(sources, ["chats", "books"], table, plan_packs(table, capacity=5, overflow="drop"))
    assert [(s.samples, s.tokens, s.samples_packed, s.tokens_packed) for s in dropped] == [(2, 5, 2, 5), (2, 13, 1, 4)]
    split = source_shares(sources, ["chats", "books"], table, plan_packs(table, capacity=5, overflow="split"))
    assert [(s.samples_packed, s.tokens_packed) for s in split] == [(2, 5), (2, 13)]
    assert [s.tokens_packed for s in source_shares(sources, ["a", "b"], table, None)] == [0, 0]


def test_a_table_that_knows_its_parts_needs_no_array():
    table = LengthTable(
        {"tokens": np.array([2, 3, 9], dtype=np.int32)}, provenance={"parts": [["a.jsonl", 2], ["b.jsonl", 1]]}
    )
    facts = gather_facts("parts", table=table, plan=None, run=TrainingRun())
    assert [(share.name, share.tokens) for share in facts.shares] == [("a.jsonl", 5), ("b.jsonl", 9)]


@pytest.mark.parametrize(
    ("sources", "named"),
    [
        (np.array([0, 1]), "one whole number for each of the 3 samples"),
        (np.array([0.0, 1.0, 1.0]), "float64"),
        (np.array([0, 1, 2]), "names source 2, and only 2 have a name"),
        (np.array([0, 1, -1]), "names source -1"),
    ],
)
def test_sources_that_do_not_fit_are_refused(sources, named):
    with pytest.raises(SettingsError, match=re.escape(named)):
        source_shares(sources, ["a", "b"], LengthTable.from_lengths([1, 2, 3]), None)
