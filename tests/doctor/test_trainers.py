"""Facts about trainers: each file is whole, each of its cases is judged as it says, and its sources still say it."""

import ast
import importlib.metadata
import re
import shlex
from pathlib import Path

import pytest

from brimful.doctor.config.examine import (
    examine,
    facts_that_hold,
    given_settings,
    told_trainer,
)
from brimful.doctor.config.facts import facts_of_trainer, in_range, trainer_ids, version_from
from brimful.doctor.config.run_settings import RunSettings
from brimful.doctor.fact_files import read_toml, toml_values
from tests.doctor.faults.batches import FAULTS

HERE = Path(__file__).parent
SUFFIXES = {"yaml": ".yaml", "python": ".py", "json": ".json", "toml": ".toml", "shell": ".sh"}


def cases():
    for path in sorted((HERE / "configs").glob("*.toml")):
        for case in toml_values(path.read_text(encoding="utf-8"), str(path))["case"]:
            yield pytest.param(path.stem, case, id=f"{path.stem}-{case['name']}".replace(" ", "_"))


CASES = list(cases())


def config_of(case, folder):
    if case["form"] == "command":
        return shlex.split(case["config"])
    path = folder / f"run{SUFFIXES[case['form']]}"
    path.write_text(case["config"], encoding="utf-8")
    return path


@pytest.mark.parametrize(("trainer", "case"), CASES)
def test_a_configuration_is_judged(trainer, case, tmp_path):
    """What the lines say, which problems are named, and which of the known faults are found: no other."""
    config = config_of(case, tmp_path)
    report = examine(config, trainer=trainer, version=case["version"])
    texts = {line.topic: line.text for line in report.lines}
    assert {topic: texts[topic] for topic, part in case.get("lines", {}).items() if part not in texts[topic]} == {}
    assert {item.problem for item in report.findings} == set(case["problems"]), str(report)
    run = RunSettings(given_settings(config), facts_of_trainer(trainer), version_from(case["version"]))
    faults = {fact.fault for fact in facts_that_hold(run) if fact.judgment and fact.fault}
    assert faults == set(case.get("faults", []))


@pytest.mark.parametrize(("trainer", "case"), CASES)
def test_a_trainer_is_told_by_its_own_words(trainer, case, tmp_path):
    """A file that another trainer's facts would judge says nothing true."""
    if not case.get("told", True):
        pytest.skip("the case has no key of its own")
    assert told_trainer(given_settings(config_of(case, tmp_path))) == trainer


@pytest.mark.parametrize("trainer", trainer_ids())
def test_every_fact_is_whole(trainer):
    """A problem if it judges, a source, and code to look for; words are checked as it is read."""
    facts = facts_of_trainer(trainer)
    assert facts.facts
    assert version_from(facts.newest) or not facts.newest
    known = {"ranks", "version", *facts.roles, *facts.defaults}
    for fact in facts.facts:
        where = f"{trainer}: {fact.says}"
        assert fact.problem or not fact.judgment, where
        assert fact.source, where
        assert fact.quote or fact.source.startswith("https://"), where
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", fact.read), where
        for name in re.findall(r"\{([\w.]+)\}", fact.says + fact.change):
            assert name in known, where


@pytest.mark.parametrize("trainer", trainer_ids())
def test_no_condition_is_written_twice(trainer):
    """A line before a judged fact of the same condition would speak in its place."""
    facts = facts_of_trainer(trainer).facts
    for number, judged in enumerate(facts):
        for line in facts[:number]:
            if judged.judgment and not line.judgment and (line.topic, line.when) == (judged.topic, judged.when):
                texts = re.findall(r"\d[\d.]*", f"0 {line.versions} {judged.versions}")
                both = [
                    in_range(line.versions, one) and in_range(judged.versions, one) for one in map(version_from, texts)
                ]
                assert not any(both), judged.says


MAX_FACTS = 750
"""Each ages with its trainer: what neither judges a run nor answers what people ask is left out."""


def test_the_facts_answer_what_people_ask_and_no_more():
    """What is cut, and how many samples are in a step; no trainer but three leaves one of them open."""
    trainers = [facts_of_trainer(trainer) for trainer in trainer_ids()]
    assert sum(len(facts.facts) for facts in trainers) <= MAX_FACTS
    lines = {facts.id: {fact.topic for fact in facts.facts if not fact.judgment} for facts in trainers}
    step = {facts.id for facts in trainers if {"batch_size", "global_batch"} & set(facts.roles)}
    assert {trainer for trainer, topics in lines.items() if "long" not in topics} == {"lightning"}
    assert {trainer for trainer, topics in lines.items() if "step" not in topics} - step == {"art", "maxtext"}
    assert not {"attention", "tokens", "steps"} & set().union(*lines.values())


@pytest.mark.parametrize("trainer", trainer_ids())
def test_sources_still_say_it(trainer):
    """A fact whose code is gone from the installed trainer has gone stale."""
    facts = facts_of_trainer(trainer)
    try:
        distribution = importlib.metadata.distribution(facts.package or "none")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{facts.package or facts.name} is not installed")
    version = version_from(distribution.version)
    stale = []
    for fact in facts.facts:
        path = Path(str(distribution.locate_file(fact.source)))
        # A fact without a range was read in the newest version, and may be worded otherwise in an older one.
        versions = fact.versions or f">={facts.newest}"
        if fact.quote and in_range(versions, version):
            text = path.read_text(encoding="utf-8") if path.is_file() else ""
            if fact.quote not in text:
                stale.append(f"{fact.source}: {fact.quote!r}: {fact.says}")
    assert not stale, "\n".join(stale)


@pytest.mark.parametrize("trainer", trainer_ids())
def test_defaults_are_the_trainers(trainer):
    """Read from the dataclass that holds them, where the trainer is installed."""
    facts = facts_of_trainer(trainer)
    try:
        distribution = importlib.metadata.distribution(facts.package or "none")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{facts.package or facts.name} is not installed")
    if trainer == "trl":
        pytest.importorskip("trl", minversion="1.16")  # defaults are of the newest release
    found = {}
    for entry in read_toml(f"trainers/{trainer}.toml").get("default_source", ()):
        path = Path(str(distribution.locate_file(entry["source"])))
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.name == entry.get("class"):
                for statement in node.body:
                    if isinstance(statement, ast.AnnAssign) and statement.value is not None:
                        found.setdefault(statement.target.id, default_of(statement.value))
    own = RunSettings(given_settings({}), facts, version_from(distribution.version)).defaults
    wrong = {
        key: (value, found[key])
        for key, value in own.items()
        if key in found and found[key] is not ... and found[key] != value
    }
    assert wrong == {}, "ours, the trainer's"


def test_the_trainer_of_trl_has_no_argument_of_its_configuration():
    """No line of code can be quoted for an argument that is not there."""
    try:
        path = importlib.metadata.distribution("trl").locate_file("trl/trainer/sft_trainer.py")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("trl is not installed")
    tree = ast.parse(Path(str(path)).read_text(encoding="utf-8"))
    (trainer,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "SFTTrainer")
    (init,) = (node for node in trainer.body if isinstance(node, ast.FunctionDef) and node.name == "__init__")
    names = {argument.arg for argument in init.args.args + init.args.kwonlyargs}
    assert {"args", "formatting_func"} <= names
    assert not {"packing", "eval_packing", "max_seq_length"} & names
    assert init.args.kwarg is None


def default_of(node):
    """The literal default of a field; ``...`` if it is computed."""
    if isinstance(node, ast.Call):
        for keyword in node.keywords:
            if keyword.arg == "default":
                return default_of(keyword.value)
        return ...
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ...


def test_what_can_be_suspected_without_a_probe_is():
    """Of the 41 faults of the table the probe alone sees four; a case or a batch of the gallery has each of the others."""
    in_cases = {fault for param in CASES for fault in param.values[1].get("faults", [])}
    assert in_cases | set(FAULTS) >= set(range(1, 42)) - {17, 19, 21, 23}
