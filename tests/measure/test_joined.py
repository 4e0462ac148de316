"""Tables of parts as one: the table of one call, and refusals with names."""

import json

import numpy as np
import pytest

from brimful import LengthTable, measure_lengths, plan_packs
from brimful.errors import CacheMismatchError, SettingsError
from brimful.measure import join_tables
from brimful.testing.toys import toy_chat_encoder

LENGTHS = [3, 5, 4, 2, 6, 3, 7]


@pytest.fixture
def parts(tmp_path):
    """Seven texts in three files; a rejected row in the second."""
    paths = []
    for name, part in zip("abc", (LENGTHS[:3], LENGTHS[3:5], LENGTHS[5:]), strict=True):
        rows = [{"text": "x" * length} for length in part]
        if name == "b":
            rows.append({"text": "refuse me"})
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        paths.append(str(tmp_path / f"{name}.jsonl"))
    return paths


def measured(data, tmp_path, name, **options):
    options = {"on_bad_sample": "skip", **options}
    path = tmp_path / f"{name}.arrow"
    measure_lengths(data, toy_chat_encoder(), path=path, cache_dir=tmp_path / "cache", **options)
    return LengthTable.open(path)


def test_joined_is_the_table_of_one_call(parts, tmp_path):
    """Lengths, targets, rejected rows and their places, account and files; and so the plan."""
    together = measured(parts, tmp_path, "all")
    joined = join_tables([measured(part, tmp_path, str(number)) for number, part in enumerate(parts)])
    assert joined.tokens.tolist() == [3, 5, 4, 2, 6, -1, 3, 7] == together.tokens.tolist()
    assert joined.fingerprint == together.fingerprint
    assert joined.rejects == together.rejects != []
    assert np.array_equal(joined.targets.counts, together.targets.counts)
    assert joined.account == together.account
    changed = {"source_fingerprint", "source"}
    assert {name for name in together.provenance if joined.provenance[name] != together.provenance[name]} == changed
    assert joined.provenance["source"] == f"{parts[0]} … {parts[2]}"
    alone = join_tables([joined])
    assert alone.provenance["source"] == joined.provenance["source"]
    assert (alone.fingerprint, alone.rejects) == (joined.fingerprint, joined.rejects)
    plans = [plan_packs(table, capacity=8) for table in (joined, together)]
    assert plans[0].fingerprint == plans[1].fingerprint
    joined.save(tmp_path / "joined.arrow")
    assert LengthTable.open(tmp_path / "joined.arrow").tokens.tolist() == together.tokens.tolist()


def test_what_cannot_be_joined_is_refused_with_the_command(parts, tmp_path):
    first, second = (measured(part, tmp_path, str(number)) for number, part in enumerate(parts[:2]))
    untargeted = measured(parts[1], tmp_path, "untargeted", targets=False)
    no_labels = r"untargeted.arrow and .*0.arrow cannot be planned together; these parts differ: .*targets \(.* and not measured\)"
    with pytest.raises(CacheMismatchError, match=no_labels):
        join_tables([first, untargeted])
    with pytest.raises(CacheMismatchError, match=r"`brimful measure .*b.jsonl -o .*untargeted.arrow`"):
        join_tables([first, untargeted])
    with pytest.raises(
        CacheMismatchError, match=r"1.arrow holds the same samples as .*1.arrow, and they would be packed twice"
    ):
        join_tables([first, second, second])
    longer = measured([parts[1], parts[2]], tmp_path, "longer")
    with pytest.raises(CacheMismatchError, match=r"longer.arrow holds samples of .*b.jsonl, as does .*1.arrow"):
        join_tables([second, longer])
    with pytest.raises(SettingsError, match="no length tables to join"):
        join_tables([])


def test_rows_of_several_samples_and_further_budgets():
    """Preferences keep their pairs; a table of another kind is named."""
    pairs = LengthTable({"tokens": np.array([3, 4], dtype=np.int32)}, provenance={"group_size": 2})
    assert join_tables([pairs, pairs]).groups.tolist() == [0, 0, 1, 1]
    with pytest.raises(CacheMismatchError, match=r"samples of a row \(2 and 1\)"):
        join_tables([pairs, LengthTable.from_lengths([3])])
    with pytest.raises(CacheMismatchError, match=r"budgets \(tokens, patches and tokens\)"):
        join_tables([LengthTable.from_lengths([3], patches=[1]), LengthTable.from_lengths([3])])
