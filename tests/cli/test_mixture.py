"""``--mixture mix.yaml``: sources with weights in one file, and every mistake named with its line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from brimful.cli.mixture import MixtureFile
from brimful.errors import SettingsError
from brimful.measure import LengthTable
from brimful.plan import Plan
from brimful.serve import open_packs
from tests.cli.tools import refused, run, value


@pytest.fixture
def mix(tmp_path: Path) -> Path:
    """Six long and twelve short samples of tokens, half of the tokens each."""
    for name, length, count in (("long", 8, 6), ("short", 2, 12)):
        rows = (json.dumps({"input_ids": [index + 1] * length}) for index in range(count))
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{row}\n" for row in rows))
    path = tmp_path / "mix.yaml"
    path.write_text(
        f"unit: tokens\nstop: first_exhausted\nsources:\n  long: {{path: {tmp_path}/long.jsonl, weight: 1}}\n"
        f"  short:\n    path: [{tmp_path}/short.jsonl]\n    ratio: 1\n"
    )
    return path


def pack(mix: Path, *arguments: object) -> list[str]:
    return run("pack", "--mixture", mix, "--max-length", 16, "-o", mix.parent / "packs", "--quiet", *arguments)[0]


def test_a_file_of_sources_is_a_job(mix: Path) -> None:
    """The packs, the summary, and one line for each source of the plan; the same command finds all done."""
    lines = pack(mix)
    assert value(lines, "mixture").startswith("2 sources, mix then pack, shares of tokens within 7.14 % of the request")
    store = open_packs(mix.parent / "packs")
    plan = Plan.open(mix.parent / "packs" / "plan.arrow")
    assert store.num_tokens == plan.ledger.tokens_packed == 4 * 8 + 12 * 2
    assert [source["draws"] for source in plan.outcome.drawn["sources"]] == [4, 12]
    assert "nothing to do" in value(pack(mix), "time")
    shown, _ = run("inspect", mix.parent / "packs" / "plan.arrow")
    assert any(line.startswith("source         long: 50.00 % asked for, 57.14 % packed") for line in shown)
    page = mix.parent / "page.html"
    run("report", mix.parent / "packs", "-o", page)
    assert 'id="mixture"' in page.read_text()


def test_repeats_are_written_as_often_as_they_were_drawn(mix: Path) -> None:
    """Without it a store holds a sample once that its plan has twice."""
    mix.write_text(mix.read_text().replace("first_exhausted", "all_exhausted"))
    pack(mix)
    store = open_packs(mix.parent / "packs")
    ids = [int(sample_id) for pack in store for sample_id in pack.sample_ids]
    plan = Plan.open(mix.parent / "packs" / "plan.arrow")
    assert len(ids) - len(set(ids)) == plan.ledger.draws_repeated > 0
    assert all(pack.input_ids[0] == pack.sample_ids[0] % 6 + 1 or pack.sample_ids[0] >= 6 for pack in store)


def test_another_mix_is_another_plan_of_the_same_lengths(mix: Path) -> None:
    """Without it a change of the mix measures everything again."""
    pack(mix)
    other = mix.parent / "other.yaml"
    other.write_text(mix.read_text().replace("ratio: 1", "ratio: 3"))
    run("plan", mix.parent / "packs", "--mixture", other, "--max-length", 16, "-o", mix.parent / "p.arrow")
    plan = Plan.open(mix.parent / "p.arrow")
    assert [(source["source"], source["draws"]) for source in plan.outcome.drawn["sources"]] == [
        ("long", 2),
        ("short", 12),
    ]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("unit:", "units:", "mix.yaml:1: a mixture has no 'units': did you mean unit?"),
        ("ratio: 1", "wieght: 1", "mix.yaml:7: source short has no 'wieght': did you mean weight?"),
        ("ratio: 1", "ratio: much", "mix.yaml: --mixture: the weight of short must be a number"),
        ("ratio: 1", "ratio: -1", "the weight of short must be a number of at least 0"),
        ("ratio: 1", "text_unit: line", "mix.yaml:5: source short has no weight"),
        ("tokens", "bytes", "mixture 'bytes' is unknown: use one of samples, tokens for unit"),
        ("sources:", "source:", "mix.yaml:3: a mixture has no 'source': did you mean sources?"),
        ("short.jsonl", "gone.jsonl", "mix.yaml:5: source short:"),
        ("unit: tokens", "unit: !!python/name:os.system x", "mix.yaml:1: unit has a value that cannot be read"),
    ],
)
def test_a_wrong_line_is_named(mix: Path, old: str, new: str, message: str) -> None:
    """Without it a typo trains on another mix."""
    mix.write_text(mix.read_text().replace(old, new, 1))
    assert message in refused("pack", "--mixture", mix, "--max-length", 16, "-o", mix.parent / "packs")


def test_data_come_from_one_place(mix: Path) -> None:
    """Without it half of the data is left out in silence."""
    message = refused("pack", mix.parent / "long.jsonl", "--mixture", mix, "--max-length", 16, "-o", mix.parent / "p")
    assert "names the data of each source: leave one out" in message
    assert "no such file" in refused("pack", "--mixture", mix.parent / "no.yaml", "--max-length", 16)


def test_files_of_two_thousand_sources_are_looked_up(mix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By path or by directory. Each was compared with each source: four million comparisons, ten seconds."""
    lines = [f"  s{number}: {{path: d/{number}, weight: 1}}\n" for number in range(2_000)]
    mix.write_text("sources:\n" + "".join(lines))
    parts = [[f"d/{number}/a/b.jsonl" if number % 2 else f"d/{number}", 3] for number in range(2_000)]
    table = LengthTable({"tokens": np.ones(6_000, np.int32)}, provenance={"parts": parts})
    monkeypatch.setattr("brimful.cli.mixture.fnmatch", None)  # by which a file is compared with a pattern
    assert MixtureFile.read(str(mix)).counts_in(table) == {f"s{number}": 3 for number in range(2_000)}


def test_files_of_a_pattern_belong_to_its_source(mix: Path) -> None:
    """Settings that belong to no source are named."""
    mix.write_text("sources:\n  a: {path: 'x/*.jsonl', weight: 1}\n  b: {path: [y/, z.jsonl], weight: 1}\n")
    file = MixtureFile.read(str(mix))
    parts = [["x/1.jsonl", 1], ["x/2.jsonl", 2], ["z.jsonl", 3], ["y/1/2.txt", 4]]
    table = LengthTable({"tokens": np.ones(10, np.int32)}, provenance={"parts": parts})
    assert file.counts_in(table) == {"a": 3, "b": 7}
    table = LengthTable({"tokens": np.ones(10, np.int32)}, provenance={"parts": [*parts, ["yes.jsonl", 0]]})
    with pytest.raises(SettingsError, match=r"the lengths include yes\.jsonl, and no source has it"):
        file.counts_in(table)
