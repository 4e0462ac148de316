"""Which packs hold a sample, where it came from, and why none holds it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.errors import SettingsError
from brimful.measure import LengthTable, measure_lengths
from brimful.plan import plan_packs
from brimful.report.analysis.sample_fate import find_sample
from brimful.sources import open_source
from brimful.testing.toys import toy_chat_encoder
from tests.trees.plans import plan_of_trees

TABLE = LengthTable.from_lengths([3, 9, 4, 2])


def places(sample_id: int, **options: object) -> tuple[str, list[tuple[int, int, int, int]]]:
    fate = find_sample(sample_id, plan=plan_packs(TABLE, capacity=8, seed=None, **options), table=TABLE)  # type: ignore[arg-type]
    return fate.status, [(place.pack, place.first, place.tokens, place.start) for place in fate.places]


def test_a_whole_sample_and_its_place() -> None:
    """Next fit at 8 drops 9 and packs 3 4 | 2: without it the place in the pack is its first sample's."""
    assert places(0, algorithm="next_fit", overflow="drop") == ("packed", [(0, 0, 3, 0)])
    assert places(2, algorithm="next_fit", overflow="drop") == ("packed", [(0, 3, 4, 0)])
    assert places(3, algorithm="next_fit", overflow="drop") == ("packed", [(1, 0, 2, 0)])


def test_a_sample_in_two_packs() -> None:
    """Without it one of the packs that hold a split sample is forgotten."""
    status, found = places(1, algorithm="next_fit", overflow="split")
    assert status == "split"
    assert [(tokens, start) for _, _, tokens, start in found] == [(8, 0), (1, 8)]


@pytest.mark.parametrize(("policy", "start"), [("truncate", 0), ("truncate_left", 1)])
def test_a_truncated_sample_says_how_much_is_gone(policy: str, start: int) -> None:
    """Without it a cut sample looks whole."""
    plan = plan_packs(TABLE, capacity=8, overflow=policy, seed=None)
    fate = find_sample(1, plan=plan, table=TABLE)
    assert (fate.status, [place.start for place in fate.places]) == ("truncated", [start])
    assert fate.describe()[-2:] == [
        f"packed         pack {fate.places[0].pack}, tokens 0 … 7: its tokens {start} … {start + 7}",
        "truncated      1 of its 9 tokens are in no pack",
    ]


def test_a_dropped_sample_says_why() -> None:
    """Without it users do not know whether a sample was dropped or never read."""
    plan = plan_packs(TABLE, capacity=8, overflow="drop", seed=None)
    assert find_sample(1, plan=plan, table=TABLE).describe() == [
        "sample         1",
        "tokens         9",
        "dropped        longer than a pack (8 tokens)",
    ]
    alone = find_sample(1, plan=plan, table=None)
    assert (alone.status, alone.tokens, alone.places) == ("dropped", None, ())
    assert "lengths.arrow is not next to the plan" in alone.reason


def test_file_and_line_of_packed_dropped_and_rejected_rows(tmp_path: Path) -> None:
    """Lines are counted with blank ones: without it the line named is another sample's."""
    rows = [json.dumps({"prompt": "q", "completion": "a" * n}) for n in (3, 40, 5)]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join([rows[0], "", rows[1], "no json", rows[2]]) + "\n")
    table = measure_lengths(
        open_source(path), toy_chat_encoder(), on_bad_sample="skip", path=tmp_path / "lengths.arrow"
    )
    plan = plan_packs(table, capacity=40, overflow="drop")
    fates = [find_sample(sample_id, plan=plan, table=table) for sample_id in range(4)]
    assert [fate.where for fate in fates] == [f"{path}:{line}" for line in (1, 3, 4, 5)]
    assert [fate.status for fate in fates] == ["packed", "dropped", "rejected", "packed"]
    assert fates[2].reason.startswith("not JSON")
    assert (fates[0].targets, fates[2].tokens) == (table.targets.counts[0], None)
    path.write_text(rows[0] + "\n")
    assert find_sample(3, plan=plan, table=table).where == f"row 3 of {path} as it was when measured"
    path.unlink()
    assert find_sample(3, plan=plan, table=table).where == f"row 3 of {path}"


def test_a_sample_that_is_not_there() -> None:
    """Without it a number too large ends in an IndexError of NumPy."""
    for sample_id in (-1, 4):
        with pytest.raises(SettingsError, match=rf"sample={sample_id}: the samples are 0 … 3"):
            find_sample(sample_id, plan=None, table=TABLE)


@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=20),
    policy=st.sampled_from(["drop", "truncate", "truncate_left", "split"]),
    algorithm=st.sampled_from(["auto", "next_fit", "concat_split"]),
)
def test_places_are_those_of_the_packs(lengths: list[int], policy: str, algorithm: str) -> None:
    """A law: over all samples the places are exactly the segments of the plan, where the packs have them."""
    table = LengthTable.from_lengths(lengths)
    plan = plan_packs(table, capacity=8, overflow=policy, algorithm=algorithm)
    wanted = set()
    for number, pack in enumerate(plan):
        firsts = np.cumsum([0, *(segment.length for segment in pack)]).tolist()
        wanted |= {(s.sample_id, number, first, s.length, s.start) for s, first in zip(pack, firsts, strict=False)}
    found = {
        (sample_id, place.pack, place.first, place.tokens, place.start)
        for sample_id in range(len(table))
        for place in find_sample(sample_id, plan=plan, table=table).places
    }
    assert found == wanted


def test_a_sample_of_a_tree_has_a_path():
    """Sample 3 is equal to sample 2; both end where the trunk does, and only the first has its number there."""
    samples = [[1, 2, 3, 4], [1, 2, 5], [1, 2], [1, 2], [9]]
    plan = plan_of_trees(samples, [[4], [0, 1, 2, 3]])
    table = LengthTable.from_lengths([4, 3, 2, 2, 1])
    lines = [find_sample(number, plan, table).describe()[2:] for number in range(5)]
    trunk = "packed         pack 1, tokens 0 … 1: shared with 3 other samples"
    assert lines == [
        [trunk, "packed         pack 1, tokens 2 … 3"],
        [trunk, "packed         pack 1, tokens 4 … 4"],
        [trunk],
        [trunk, "packed         pack 1, ends where its trunk does"],
        ["packed         pack 0, tokens 0 … 0"],
    ]
    assert find_sample(0, plan, table).status == "packed"
    assert [place.sharing for place in find_sample(1, plan, table).places] == [3, 0]
