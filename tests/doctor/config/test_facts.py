"""Files of facts that a user brings: what they may say, and what is said of their errors."""

import pytest

from brimful.doctor import examine
from brimful.doctor.config.facts import facts_of_file
from brimful.errors import SettingsError, SourceNotFoundError
from tests.cli.tools import outcome, refused

OWN = """\
name = "Own"
newest = "0.6"
read = 2026-11-28

[roles]
packing = "pack"
max_length = ["seq_len", "length"]
context_parallel = "cp"

[defaults]
pack = true
model.attn = "sdpa"

[[default]]
key = "cp"
value = 2
versions = "<0.2"

[[fact]]
topic = "packing"
when = { packing = true }
says = "on, rows of {max_length} ({model.attn})"

[[fact]]
topic = "isolation"
when = { packing = true, context_parallel = { above = 1 }, "model.attn" = ["sdpa", { not = "flash*" }] }
says = "a rank of {context_parallel} begins its boundaries at 0"
judgment = "wrong"
versions = "<0.6"
change = "cp: 1"
problem = "boundaries_short"
"""


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text(OWN, encoding="utf-8")
    return path


def test_a_file_of_facts_judges_a_run(own):
    report = examine({"pack": True, "seq_len": 64, "cp": 2}, facts=own, version="0.5")
    assert report.subject == "Own 0.5 (as named), dict"
    (packing,) = (line for line in report.lines if line.topic == "packing")
    assert packing.text == "on, rows of 64 (sdpa)"
    assert packing.source == f"{own}, read 2026-11-28"
    (finding,) = report.findings
    assert finding.detail.startswith("a rank of 2 begins its boundaries at 0: pack: true (dict), cp: 2 (dict)")
    assert finding.change == "cp: 1"


@pytest.mark.parametrize(
    ("settings", "version"), [({"cp": 1}, "0.5"), ({"cp": 2}, "0.6"), ({"cp": 2, "model": {"attn": "flash_2"}}, "0.5")]
)
def test_its_neighbors_are_right(own, settings, version):
    assert examine({"pack": True, **settings}, facts=str(own), version=version).ok


def test_defaults_of_a_version_are_its_own(own):
    assert not examine({}, facts=own, version="0.1").ok
    assert examine({}, facts=own, version="0.2").ok


def test_a_command_takes_a_file_of_facts(own, tmp_path):
    """Without the facts the trainer of this file is not known."""
    run = tmp_path / "run.yaml"
    run.write_text("pack: true\ncp: 2\n", encoding="utf-8")
    assert "no trainer is known by its keys" in refused("doctor", run)
    code, out, _ = outcome("doctor", run, "--facts", own, "--version", "0.5")
    assert code == 1
    assert out.startswith("Own 0.5 (as named), ")


KNOWN = "topic, says, when, versions, source, quote, read, judgment, problem"
ERRORS = [
    ('name = "Own"', "", "{path}: name is missing"),
    ('name = "Own"', 'name = "Own', "{path}:1: not TOML: "),
    ('name = "Own"', "name = 3", "{path}: name must be a text, and is 3"),
    ("[roles]", "[rolles]", "{path}: 'rolles' is not known: name, package, newest, page, commands, keys"),
    ('packing = "pack"', "packing = 5", "{path}: roles: packing must be a key or a list of keys"),
    ('["seq_len", "length"]', '["seq_len", 5]', "{path}: roles: max_length must be a key or a list of keys"),
    ('key = "cp"', "", "{path}: default 1: key is missing"),
    ('versions = "<0.2"', 'versions = "0.2"', "{path}: default 1: versions '0.2' must be a range such as >=0.22,<1.2"),
    ('topic = "packing"', "", "{path}:19: fact 1: topic is missing"),
    (
        'topic = "packing"',
        'topic = "pack"',
        "{path}:19: fact 1: topic 'pack' is not known: packing, samples, isolation",
    ),
    ('judgment = "wrong"', 'judgement = "wrong"', f"{{path}}:24: fact 2: 'judgement' is not known: {KNOWN}"),
    ('judgment = "wrong"', 'judgment = "bad"', "{path}:24: fact 2: judgment 'bad' is not known: wrong, suspect"),
    ('"boundaries_short"', '"short"', "{path}:24: fact 2: problem 'short' is not known: neighbors_seen, "),
    ('versions = "<0.6"', 'versions = "<0.6,x"', "{path}:24: fact 2: versions '<0.6,x' must be a range such as"),
    ('versions = "<0.6"', "versions = 0.6", "{path}:24: fact 2: versions must be a text, and is 0.6"),
    ("when = { packing = true }", "when = true", "{path}:19: fact 1: when must be a table, and is True"),
    (
        "{ above = 1 }",
        '{ match = "1" }',
        "{path}:24: fact 2: when: context_parallel: 'match' is not known: "
        "not, set, given, above, below, multiple_of, not_multiple_of",
    ),
    (
        "{ above = 1 }",
        '{ above = "1" }',
        "{path}:24: fact 2: when: context_parallel: above must be a number, and is '1'",
    ),
    ("{ above = 1 }", "{ set = 1 }", "{path}:24: fact 2: when: context_parallel: set must be true or false, and is 1"),
    ("{ above = 1 }", "{ multiple_of = 2 }", "context_parallel: multiple_of must be a list, and is 2"),
    ('{ not = "flash*" }', "{ not = { is = 1 } }", "{path}:24: fact 2: when: model.attn: 'is' is not known: not, set"),
]


@pytest.mark.parametrize(("line", "wrong", "message"), ERRORS, ids=[message for *_, message in ERRORS])
def test_an_error_is_one_line_with_place_and_what_is_known(own, line, wrong, message):
    assert OWN.count(line) == 1
    own.write_text(OWN.replace(line, wrong), encoding="utf-8")
    with pytest.raises(SettingsError) as error:
        facts_of_file(own)
    text = str(error.value)
    assert message.format(path=own) in text
    assert "\n" not in text


@pytest.mark.parametrize("content", ['name = "Own"\nfact = [3]\n', 'name = "Own"\ndefault = ["cp"]\n'])
def test_an_entry_that_is_not_a_table_is_refused(own, content):
    own.write_text(content, encoding="utf-8")
    with pytest.raises(SettingsError, match=r"(fact|default) 1 must be a table, and is"):
        facts_of_file(own)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(SourceNotFoundError, match=r"own\.toml: no such file"):
        examine({}, facts=tmp_path / "own.toml")
    assert "own.toml: no such file" in refused("doctor", "--facts", tmp_path / "own.toml", "--", "own", "--pack")
