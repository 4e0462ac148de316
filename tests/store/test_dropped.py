"""The list of dropped samples: each with its reason."""

import json

import numpy as np

from brimful import LengthTable, open_source, plan_packs
from brimful.base.tables import Ragged
from brimful.lengths.targets import Targets
from brimful.plan import Alignment
from brimful.store.dropped import why_dropped, write_dropped


def table_of(tokens, targets=None, *, group_size=1, **budgets):
    columns = {"tokens": np.array(tokens, dtype=np.int32), **{name: np.array(c) for name, c in budgets.items()}}
    return LengthTable(columns, provenance={"group_size": group_size}, targets=targets)


def reasons(table, **settings):
    plan = plan_packs(table, **settings)
    return {sample_id: why_dropped(plan, table, sample_id) for sample_id in plan.dropped_ids.tolist()}


def test_length_comes_before_all_else():
    """Of eight tokens with an alignment of four, seven are two blocks, and nine are longer than a pack."""
    table = table_of([4, 9, 8], Targets(np.array([3, 0, 7], dtype=np.int32), None))
    assert reasons(table, capacity=8, overflow="drop", no_target="drop") == {1: "longer than a pack (8 tokens)"}
    assert reasons(table_of([4, 9]), capacity=11, overflow="drop", alignment=Alignment(segment=4)) == {
        1: "longer than a pack (8 tokens)"
    }


def test_targets():
    """Of its own, or none left after truncation."""
    runs = Ragged(np.array([1, 4, 9, 12, 1, 3], dtype=np.int32), np.array([0, 2, 4, 4, 6]))
    table = table_of([4, 12, 3, 8], Targets.of_runs(runs))
    assert reasons(table, capacity=8, overflow="truncate", no_target="drop") == {
        1: "no target of the loss is left after truncation",
        2: "no target of the loss",
    }


def test_another_budget():
    table = table_of([4, 5, 3], patches=[1, 9, 2])
    assert reasons(table, capacity=8, overflow="drop", budgets={"patches": 8}) == {
        1: "with its group, or for another budget than tokens"
    }


def test_both_sides_of_a_preference():
    """A pair that is longer than a pack goes whole, and so does one whose other side was rejected."""
    table = table_of([4, 4, 4, 5, 3, -1, 9, 1], group_size=2)
    both = "chosen and rejected together are longer than a pack (8 tokens)"
    assert reasons(table, capacity=8, overflow="drop") == {
        2: both,
        3: both,
        4: "the other sample of the pair was rejected",
        6: both,
        7: both,
    }


def test_the_file_lists_them_in_the_order_of_their_ids(tmp_path):
    """And goes where an earlier job left one, even empty."""
    path = tmp_path / "dropped.jsonl"
    source = open_source([{"text": "a"}, {"text": "é"}, {"text": "c"}])
    table = table_of([9, 2, 10], Targets.of_all_tokens(np.array([9, 2, 10], dtype=np.int32)))
    write_dropped(path, plan_packs(table, capacity=8, overflow="drop", no_target="keep"), table, source)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert rows == [
        {
            "sample_id": sample_id,
            "where": f"memory[{sample_id}]",
            "tokens": tokens,
            "targets": tokens - 1,
            "reason": "longer than a pack (8 tokens)",
        }
        for sample_id, tokens in ((0, 9), (2, 10))
    ]
    plan = plan_packs(table, capacity=16, no_target="keep")
    write_dropped(path, plan, table, source)
    assert path.read_bytes() == b""
    path.unlink()
    write_dropped(path, plan, table, source)
    assert not path.exists()
