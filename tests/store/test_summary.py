"""The summary of a job: each line of it, from lengths and counts alone."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from brimful import LengthTable, open_source, plan_packs
from brimful.base.tables import Ragged
from brimful.encode.completions import BORROWED_REASON
from brimful.lengths.targets import Targets
from brimful.plan import Alignment
from brimful.store.summary import PackSummary, why_dropped, write_dropped
from tests.trees.plans import plan_of_trees, table_with_prefixes


def table_of(tokens, targets=None, *, group_size=1, encoded_by=(), **account):
    lengths = np.array(tokens, dtype=np.int32)
    counts = Targets(np.array(np.maximum(lengths, 0) if targets is None else targets, dtype=np.int32), None)
    provenance = {"group_size": group_size, "encoded_by": list(encoded_by), "account": account}
    return LengthTable({"tokens": lengths}, provenance=provenance, targets=counts)


def summary_of(table, *, seconds=None, **settings):
    table.targets = table.targets or Targets(np.maximum(table.tokens, 0), None)
    plan = plan_packs(table, **settings)
    return PackSummary(
        source="chats.jsonl",
        format="messages",
        directory="packs",
        capacity=plan.capacity,
        plan=plan,
        table=table,
        shards=1,
        seconds={} if seconds is None else seconds,
    )


def values_of(summary):
    """The values of the lines by their names; several warnings are one text."""
    values = {}
    for line in summary.lines():
        name, value = line[:15].rstrip(), line[15:]
        values[name] = f"{values[name]} | {value}" if name in values else value
    return values


def test_every_line_of_a_job_with_losses():
    """Two samples of 1,500 tokens are packed, one is dropped with its targets, one was rejected."""
    table = table_of(
        [1500, 1500, 6000, -1],
        [1400, 0, 5999, 0],
        encoded_by=["tokenizers 0.21", "jinja2"],
        no_target={"an empty answer": 1},
        unread={"id": 4, "score": 1},
    )
    summary = summary_of(
        table, capacity=3000, overflow="drop", no_target="keep", seconds={"measure": 1.26, "plan": 0.04}
    )
    assert summary.lines() == [
        "samples        4 in chats.jsonl (format messages)",
        "tokens         9,000, 3,000 a sample",
        "encoded by     tokenizers 0.21",
        "encoded by     jinja2",
        "targets        7,399 (82.2 % of the tokens); 5,999 lost with what was dropped; without any: 1 sample: "
        "an empty answer",
        "packs          1 of 3,000 tokens in 1 shard",
        "fill           100.00 %",
        "lower bound    1 pack: at what any plan needs (auto: best_fit_decreasing meets the bound)",
        "samples/pack   2.0 on average, median 2, most 2",
        "dropped        1 sample (25.00 %), 6,000 tokens (66.67 %): longer than a pack, listed in packs/dropped.jsonl",
        "cut            0 truncated, 0 tokens (0 %) lost; 0 split into segments",
        "rejected       1 row, listed in packs/rejects.jsonl",
        "not read       columns id (100 %), score (25.00 %) of the rows",
        "time           measure 1.3 s, plan 0.0 s",
        "warning        66.67 % of the tokens are in no pack: see dropped and cut; a larger pack loses fewer",
        "warning        1 sample in the packs have no target and teach nothing",
    ]
    assert str(summary) == "\n".join(summary.lines())
    assert repr(summary) == f"PackSummary('packs', {summary.plan!r})"


def test_a_job_without_a_loss_says_so():
    values = values_of(summary_of(table_of([5, 3, 4], [4, 2, 3]), capacity=10))
    assert values["targets"] == "9 (75.0 % of the tokens); every sample has one"
    assert values_of(summary_of(table_of([5, 3, 3]), capacity=10))["tokens"] == "11, 4 a sample"
    assert values["dropped"] == "0 samples (0.00 %), 0 tokens (0 %): longer than a pack"
    assert values["rejected"] == "0 rows"
    assert values["time"] == "nothing to do: all was there"
    assert values["samples/pack"] == "1.5 on average, median 1, most 2"
    assert not {"warning", "not read", "mixture", "encoded by"} & set(values)


def test_packs_above_the_bound_are_a_share_of_it():
    """Four samples of more than half a pack are four packs; next fit takes five of these, where four would do."""
    values = values_of(summary_of(table_of([4, 7, 4, 7, 2, 8]), capacity=10, algorithm="next_fit"))
    assert values["lower bound"] == "4 packs: 25.000 % above what any plan needs (next_fit)"
    assert values["targets"] == "32 (100.0 % of the tokens); every sample has one"
    # 5 of 3: no other way to divide or to take one from the other gives the same.
    summary = summary_of(table_of([10] * 8), capacity=10)
    values = values_of(replace(summary, plan=replace(summary.plan, bound=3)))
    assert values["lower bound"].startswith("3 packs: 166.667 % above")


def test_rows_of_two_samples_are_counted_as_rows():
    values = values_of(summary_of(table_of([5, 3, 4, 2], group_size=2), capacity=10))
    assert values["samples"] == "4 of 2 rows in chats.jsonl (format messages)"
    joined = LengthTable({"tokens": np.array([5, 3], dtype=np.int32)}, provenance={"num_rows": 9})
    assert values_of(summary_of(joined, capacity=10))["samples"].startswith("2 of 9 rows in ")


def test_cut_samples_are_counted():
    values = values_of(summary_of(table_of([12, 3], [11, 2]), capacity=10, overflow="truncate"))
    assert values["cut"] == "1 truncated, 2 tokens (13.33 %) lost; 0 split into segments"
    assert values["targets"] == "13 (86.7 % of the tokens); 2 lost with what was cut; every sample has one"
    values = values_of(summary_of(table_of([12, 3], [11, 2]), capacity=10, overflow="split"))
    assert values["cut"] == "0 truncated, 0 tokens (0 %) lost; 1 split into segments"
    # Nothing precedes it in its segment, so nothing predicts it: no token is lost, and one target is.
    lost = "13 (86.7 % of the tokens); 1 lost as first tokens of later segments; every sample has one"
    assert values["targets"] == lost
    table = table_of([12, 3, 9], [11, 2, 8])
    values = values_of(summary_of(table, capacity=10, algorithm="concat_split", overflow="drop"))
    assert values["targets"].startswith(
        "21 (87.5 % of the tokens); 11 lost with what was dropped; 1 lost as first tokens of later segments; every"
    )


def test_several_budgets_name_their_reasons_with_counts():
    table = LengthTable.from_lengths([4, 12, 3, 2, 5], patches=[0, 0, 9, 9, 1])
    values = values_of(summary_of(table, capacity=10, budgets={"patches": 8}, overflow="drop"))
    assert values["dropped"].startswith("3 samples (60.00 %), 17 tokens (65.38 %): 1 longer than a pack; 2 for patches")


def test_a_few_columns_are_named_and_the_rest_is_counted():
    table = table_of([5], unread={f"c{number}": 1 for number in range(19)})
    assert values_of(summary_of(table, capacity=10))["not read"] == (
        f"columns {', '.join(f'c{number} (100 %)' for number in range(8))} and 11 more of the rows"
    )
    table = table_of([5], unread={f"c{number}": 1 for number in range(8)})
    assert " more" not in values_of(summary_of(table, capacity=10))["not read"]


@pytest.mark.parametrize(
    ("count", "text"),
    [(9994, "c (99.94 %)"), (9995, "c (100 %)"), (9996, "c (100 %)"), (1, "c (0.01 %)")],
    ids=["most", "nearly all", "all", "few"],
)
def test_a_share_is_shown_with_two_decimals_or_none(count, text):
    table = table_of([1] * 10_000, unread={"c": count})
    assert values_of(summary_of(table, capacity=100))["not read"] == f"columns {text} of the rows"


@pytest.mark.parametrize(
    ("tokens", "targets", "warnings"),
    [
        # 5 % of the tokens are much, 4.95 % are not.
        ([105, 95, *[100] * 19], None, "5.00 % of the tokens are in no pack: see dropped and cut; a larger pack loses fewer"),
        ([104, 96, *[100] * 19], None, None),
        # A loss that falls on targets above all: at least 5 % of them, and 1.5 times the 4.04 % of the tokens.
        ([101, *[100] * 24], [61, 939, *[0] * 23], "6.10 % of the targets are in no pack"),
        ([101, *[100] * 24], [60, 940, *[0] * 23], None),
        ([101, *[100] * 99], [50, 950, *[0] * 98], "5.00 % of the targets are in no pack"),
        ([101, *[100] * 99], [49, 951, *[0] * 98], None),
    ],
    ids=["tokens", "few tokens", "targets", "targets beside tokens", "many targets", "few targets"],
)  # fmt: skip
def test_large_losses_are_warned_of(tokens, targets, warnings):
    summary = summary_of(table_of(tokens, targets), capacity=100, overflow="drop", no_target="keep")
    warned = [line.removeprefix("warning        ") for line in summary.warnings() if "teach nothing" not in line]
    assert warned == ([] if warnings is None else [warnings])


def test_mismatches_of_kto_are_no_samples_that_teach_nothing():
    table = table_of([5, 3, 4], [4, 0, 0], no_target={BORROWED_REASON: 2})
    summary = summary_of(table, capacity=10, no_target="keep")
    assert summary.warnings() == []
    table = table_of([5, 3, 4, 2, 1, 1], [4, 0, 0, 0, 0, 0], no_target={BORROWED_REASON: 2, "an empty answer": 3})
    assert summary_of(table, capacity=10, no_target="keep").warnings() == [
        "warning        3 samples in the packs have no target and teach nothing"
    ]
    table = table_of([5, 300, 400, *[100] * 90], [4, 0, 0, *[99] * 90], no_target={BORROWED_REASON: 2})
    summary = summary_of(table, capacity=350, overflow="drop", no_target="keep")
    assert summary.plan.ledger.samples_without_target == 1  # the other was dropped
    assert summary.warnings() == []


def test_what_only_some_jobs_have_is_said_once_it_is_there():
    table = LengthTable({"tokens": np.array([5, 3])}, targets=Targets(np.array([4, 2], dtype=np.int32), None))
    plan = plan_packs(table, capacity=10)
    fields: dict[str, Any] = {
        "source": "a.txt",
        "format": "text",
        "directory": "p",
        "capacity": 10,
        "plan": plan,
        "table": table,
    }
    plain = PackSummary(**fields, shards=1)
    rich = PackSummary(**fields, shards=2, unit="lines", first_rejected="a.txt:3: no text", seconds={"plan": 1.0})
    assert "(format text)" in plain.lines()[0]
    assert "(format text, lines)" in rich.lines()[0]
    assert "packs          1 of 10 tokens in 2 shards" in rich.lines()
    assert "rejected       0 rows" in rich.lines()  # no file lists none
    assert plain.as_dict() == {
        "source": "a.txt",
        "format": "text",
        "directory": "p",
        "capacity": 10,
        "num_packs": 1,
        "lower_bound": 1,
        "fill_ratio": 0.8,
        "shards": 1,
        "plan_fingerprint": plan.fingerprint,
        "settings": plan.record,
        "account": {"kinds": {}, "unread": {}, "no_target": {}},
        "seconds": {},
        **plan.ledger.as_dict(),
    }
    assert rich.as_dict() == {**plain.as_dict(), "shards": 2, "unit": "lines", "seconds": {"plan": 1.0}}
    assert plain.census is None


def lengths_of(tokens, targets=None, *, group_size=1, **budgets):
    columns = {"tokens": np.array(tokens, dtype=np.int32), **{name: np.array(c) for name, c in budgets.items()}}
    return LengthTable(columns, provenance={"group_size": group_size}, targets=targets)


def reasons(table, **settings):
    plan = plan_packs(table, **settings)
    return {sample_id: why_dropped(plan, table, sample_id) for sample_id in plan.dropped_ids.tolist()}


def test_length_comes_before_all_else():
    """Of eight tokens with an alignment of four, seven are two blocks, and nine are longer than a pack."""
    table = lengths_of([4, 9, 8], Targets(np.array([3, 0, 7], dtype=np.int32), None))
    assert reasons(table, capacity=8, overflow="drop", no_target="drop") == {1: "longer than a pack (8 tokens)"}
    assert reasons(lengths_of([4, 9]), capacity=11, overflow="drop", alignment=Alignment(segment=4)) == {
        1: "longer than a pack (8 tokens)"
    }


def test_targets():
    """Of its own, or none left after truncation."""
    runs = Ragged(np.array([1, 4, 9, 12, 1, 3], dtype=np.int32), np.array([0, 2, 4, 4, 6]))
    table = lengths_of([4, 12, 3, 8], Targets.of_runs(runs))
    assert reasons(table, capacity=8, overflow="truncate", no_target="drop") == {
        1: "no target of the loss is left after truncation",
        2: "no target of the loss",
    }


def test_another_budget():
    table = lengths_of([4, 5, 3, 8], patches=[1, 9, 2, 9])
    reason = "with its group, or for another budget than tokens"
    assert reasons(table, capacity=8, overflow="drop", budgets={"patches": 8}) == {1: reason, 3: reason}


def test_pairs_that_are_not_too_long():
    """One that fills its pack to the last token, and is dropped for its patches or its targets."""
    table = lengths_of([4, 4, 3, 2], group_size=2, patches=[5, 5, 1, 1])
    assert reasons(table, capacity=8, overflow="drop", budgets={"patches": 8}) == dict.fromkeys(
        (0, 1), "with its group, or for another budget than tokens"
    )
    table = lengths_of([4, 4, 3, 2], Targets(np.array([3, 3, 0, 0], dtype=np.int32), None), group_size=2)
    assert reasons(table, capacity=8, overflow="drop", no_target="drop") == dict.fromkeys(
        (2, 3), "no target of the loss"
    )


def test_both_sides_of_a_preference():
    """A pair that is longer than a pack goes whole, and so does one whose other side was rejected."""
    table = lengths_of([4, 4, 4, 5, 3, -1, 9, 1], group_size=2)
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
    table = lengths_of([9, 2, 10], Targets.of_all_tokens(np.array([9, 2, 10], dtype=np.int32)))
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


def test_a_path_may_be_shorter_than_a_pack():
    """Without it a user makes packs larger, and the same samples are dropped again."""
    table = table_of([3, 9, 12])
    summary = summary_of(table, capacity=20, overflow="drop", max_path=10)
    assert why_dropped(summary.plan, table, 2) == "longer than max_path (10 tokens)"
    assert values_of(summary)["dropped"].startswith("1 sample (33.33 %), 12 tokens (50.00 %): longer than max_path,")
    assert why_dropped(plan_packs(table, capacity=10, overflow="drop"), table, 2) == "longer than a pack (10 tokens)"


def test_a_job_of_trees_says_what_is_shared():
    """Samples are counted, not segments, and what is shared stands next to the fill."""
    samples = [[5, 6, 7, 8], [5, 6, 7, 9, 9], [5, 6, 7, 1], [1, 2]]
    table = table_with_prefixes(samples, least=2)
    table.targets = Targets(table.tokens, None)
    plan = plan_of_trees(samples, [[0, 1, 2, 3]], capacity=16)
    plan.ledger = replace(plan.ledger, targets_in=15, targets_packed=15)
    summary = PackSummary("a.jsonl", "messages", "packs", 16, plan, table, shards=1)
    values = values_of(summary)
    assert values["fill"] == "56.25 %, and 12.50 % are room for forks"
    assert values["samples/pack"] == "4.0 on average, median 4, most 4"
    assert values["shared"].startswith("15 tokens of samples are 9 in the packs, 1.67 times fewer; 3 of 4 samples")
    assert values["not shared"] == "1 sample whose beginning no other has"
    assert values["speed-up"].startswith("1.67 times in layers by their tokens, 1.42 times in attention")
    shared = summary.as_dict()["shared"]
    assert (shared["flat_tokens"], shared["tree_tokens"], shared["not_shared"]["alone"]) == (15, 9, 1)
