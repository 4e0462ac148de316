"""Each judgment that the machinery of facts makes, by its text, and the nearest settings that are not judged."""

from typing import Any

import pytest

from brimful.doctor.config.examine import given_settings, judge
from brimful.doctor.config.facts import facts_from, version_from
from brimful.doctor.config.run_settings import RunSettings
from brimful.doctor.config.settings import Unknown

ROLES = {"packing": "pack", "attention": ["model.attn", "attn"], "context_parallel": "cp", "max_length": "length"}


def judged(settings, *, version="1.2", ranks=None, newest="2.0", **fact):
    """The findings and notes of one fact about a trainer of four settings."""
    fact = {"topic": "isolation", "says": "neighbors meet", "judgment": "wrong", **fact}
    fact = {key: value for key, value in fact.items() if value}
    toy = facts_from("toy", {"name": "Toy", "newest": newest, "roles": ROLES, "defaults": {"cp": 1}, "fact": [fact]})
    report = judge(RunSettings(given_settings(settings), toy, version_from(version), ranks), "toy")
    return [finding.detail for finding in report.findings] + list(report.notes)


CASES: dict[str, Any] = {
    "value": ({"packing": True}, {"pack": "yes"}, {"pack": "no"}, "pack: yes (dict)"),
    "value that is not set": ({"packing": True}, {"pack": 1}, {}, "pack: 1 (dict)"),
    "text": ({"attention": "flash*att*"}, {"attn": "flash-attention-2"}, {"attn": "flex"}, "attn: flash-attention-2 (dict)"),
    "first key that is given": (
        {"attention": "sdpa"},
        {"attn": "eager", "model": {"attn": "SDPA"}},
        {"attn": "sdpa", "model": {"attn": "eager"}},
        "model.attn: SDPA (dict)",
    ),
    "one of several": ({"attention": ["sdpa", "eager"]}, {"attn": "eager"}, {"attn": "flex"}, "attn: eager (dict)"),
    "none of several": ({"attention": {"not": ["sdpa", "eager"]}}, {"attn": "flex"}, {"attn": "eager"}, "attn: flex (dict)"),
    "set": ({"attention": {"set": True}}, {"attn": "flex"}, {}, "attn: flex (dict)"),
    "not set": ({"attention": {"set": False}}, {}, {"attn": "flex"}, ""),
    "default is set and not given": ({"cp": {"set": True, "given": False}}, {}, {"cp": 1}, "cp: 1 (default)"),
    "given": ({"context_parallel": {"given": True}}, {"cp": 1}, {}, "cp: 1 (dict)"),
    "above a limit": ({"cp": {"above": 2}}, {"cp": 3}, {"cp": 2}, "cp: 3 (dict)"),
    "above the limit of a default": ({"cp": {"above": 0}}, {}, {"cp": 0}, "cp: 1 (default)"),
    "below a limit": ({"cp": {"below": 2}}, {"cp": 1}, {"cp": 2}, "cp: 1 (dict)"),
    "between two": ({"cp": {"above": 1, "below": 4}}, {"cp": 3}, {"cp": 4}, "cp: 3 (dict)"),
    "text that is not a number": ({"length": {"above": 1}}, {"length": 2}, {"length": "2k"}, "length: 2 (dict)"),
    "true that is not a number": ({"cp": 1}, {"cp": 1}, {"cp": True}, "cp: 1 (dict)"),
    "false that is not left out": ({"length": False}, {"length": False}, {}, "length: false (dict)"),
    "multiple": ({"length": {"multiple_of": [2, "cp"]}}, {"length": 12, "cp": 3}, {"length": 10, "cp": 3}, "length: 12 (dict)"),
    "not a multiple": (
        {"length": {"not_multiple_of": [2, "cp"]}},
        {"length": 10, "cp": 3},
        {"length": 12, "cp": 3},
        "length: 10 (dict)",
    ),
    "all of a condition": (
        {"packing": True, "context_parallel": {"above": 1}},
        {"pack": True, "cp": 2},
        {"pack": True, "cp": 1},
        "pack: true (dict), cp: 2 (dict)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_condition_judges_and_its_neighbor_is_not_judged(name):
    when, faulty, right, places = CASES[name]
    assert judged(faulty, when=when) == ["neighbors meet" + (f": {places}" if places else "")]
    assert judged(right, when=when) == []


@pytest.mark.parametrize(
    "name",
    sorted(
        set(CASES)
        - {
            "given",
            "first key that is given",
            "not set",
            "default is set and not given",
            "above the limit of a default",
        }
    ),
)
def test_what_only_the_run_knows_is_not_judged_and_is_said(name):
    """A value that a branch gives is neither faulty nor right: silence would read as the default."""
    when, faulty, _, _ = CASES[name]
    key, unknown = next(iter(faulty)), Unknown("$X")
    settings = {**faulty, key: {"attn": unknown} if key == "model" else unknown}
    text = f"{'model.attn' if key == 'model' else key}: $X (dict)"
    assert judged(settings, when=when) == [f"unknown before the run: {text}"]
    toy = facts_from(
        "toy", {"name": "Toy", "roles": ROLES, "fact": [{"topic": "isolation", "says": "off", "when": when}]}
    )
    report = judge(RunSettings(given_settings(settings), toy, None), "toy")
    (line,) = [line for line in report.lines if line.topic == "isolation"]
    assert (line.evidence.value, line.text) == ("unknown", f"unknown before the run: {text}")


def test_a_condition_that_fails_elsewhere_needs_no_unknown_value():
    settings = {"pack": Unknown("$X"), "cp": 1}
    assert judged(settings, when={"packing": True, "context_parallel": {"above": 1}}) == []
    assert judged(settings, when={"packing": {"given": True}}) == ["neighbors meet: pack: $X (dict)"]
    assert judged({"length": 10, "cp": Unknown("$X")}, when={"length": {"multiple_of": [2, "cp"]}}) == []


def test_the_certain_part_of_the_name_of_a_model_judges():
    """Scripts name ``$ROOT/Qwen3-Next``: the folder is unknown, and the model is not."""
    name = Unknown("$NEXT/Qwen3-Next-80B")
    name.known = "$/Qwen3-Next-80B"
    assert judged({"model": name}, when={"model": ["*gemma*", "*qwen3-next*"]}) == [
        "neighbors meet: model: $NEXT/Qwen3-Next-80B (dict)"
    ]
    assert judged({"model": name}, when={"model": "*gemma*"}) == [
        "unknown before the run: model: $NEXT/Qwen3-Next-80B (dict)"
    ]


def test_batches_are_not_compared_with_what_only_the_run_knows():
    facts = facts_from("toy", {"name": "Toy", "has_final_batches": True, "roles": ROLES, "fact": []})
    settings = {"pack": Unknown("$X"), "attn": Unknown("$Y"), "length": Unknown("$Z")}
    known = RunSettings(given_settings(settings), facts, None).for_batches()
    assert "packing" not in known
    assert (known["attn_implementation"], known.get("max_length")) == (None, None)


@pytest.mark.parametrize(("versions", "faulty", "right"), [("<1.3", "1.2.9", "1.3"), (">=1.3", "1.3.0", "1.2.9")])
def test_a_version_judges_and_its_neighbor_is_not_judged(versions, faulty, right):
    settings = {"pack": True}
    assert judged(settings, when={"packing": True}, versions=versions, version=faulty) == [
        "neighbors meet: pack: true (dict)"
    ]
    assert judged(settings, when={"packing": True}, versions=versions, version=right) == []


def test_a_fault_of_old_versions_is_a_note_if_the_version_is_unknown_and_the_settings_have_it():
    text = "wrong if Toy is <1.3: neighbors meet (name your version)"
    assert judged({"pack": True}, when={"packing": True}, versions="<1.3", version="main") == [text]
    assert judged({"pack": False}, when={"packing": True}, versions="<1.3", version="main") == []
    assert judged({"pack": True}, when={"packing": True}, versions="<1.3", version="1.3") == []


def test_a_range_judges_no_version_that_is_unknown_where_no_newest_one_is_known():
    """Facts that a user brings may leave out both."""
    given = {"when": {"packing": True}, "version": "main", "newest": ""}
    assert judged({"pack": True}, versions="<1.3", **given) == [
        "wrong if Toy is <1.3: neighbors meet (name your version)"
    ]
    assert judged({"pack": True}, **given) == ["neighbors meet: pack: true (dict)"]


def test_ranks_judge_from_two_on():
    fact = {"when": {"ranks": {"above": 1}}, "says": "each of {ranks} ranks divides alone"}
    assert judged({}, ranks=2, **fact) == ["each of 2 ranks divides alone"]
    assert judged({}, ranks=1, **fact) == []
    assert judged({}, **fact) == []


@pytest.mark.parametrize(
    ("settings", "multiple", "change"),
    [
        ({"cp": 2, "length": 4100}, 12, "length: 4092"),
        ({"cp": 2, "length": 4104}, 12, ""),
        ({"cp": 8, "length": 4096}, 48, "length: 4080"),  # of the segment's 16, and not of the row's 3
        ({"cp": 4, "length": 4119}, 24, "length: 4104"),  # of the row's 3 alone
        ({"cp": 1, "length": 4100}, 0, ""),
        ({"cp": 2}, 0, ""),
        ({"cp": 2, "length": True}, 0, ""),
    ],
)
def test_a_length_is_a_multiple_of_what_segment_and_row_are(settings, multiple, change):
    fact: dict[str, Any] = {"topic": "alignment", "when": {"cp": {"not": 1}}, "says": "rings"}
    fact |= {"segment_multiple": [2, "context_parallel"], "row_multiple": [3]}
    toy = facts_from("toy", {"name": "Toy", "roles": ROLES, "defaults": {"cp": 1}, "fact": [fact]})
    report = judge(RunSettings(given_settings(settings), toy, None), "toy")
    text = f"length: {settings.get('length')} (dict) is not a multiple of {multiple}"
    found = [(finding.detail, finding.problem, finding.change) for finding in report.findings]
    assert found == ([(text, "alignment", change)] if change else [])
    lines = {line.topic: line.text for line in report.lines}
    if settings["cp"] == 4:
        assert lines["alignment"] == "rings; each sample to a multiple of 8, the row to a multiple of 3"


def test_a_fact_without_a_judgment_accuses_no_one():
    assert judged({"pack": True}, when={"packing": True}, judgment="") == []
