"""The engine of facts, on a trainer of three settings: matching, versions, multiples, steps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.doctor.config.examine import examine, given_settings, judge, told_trainer
from brimful.doctor.config.facts import facts_from, in_range, product, version_from
from brimful.doctor.config.run_settings import RunSettings
from brimful.doctor.config.settings import Unknown
from brimful.doctor.report import Evidence, Judgment
from brimful.errors import SettingsError

DATA = {
    "name": "Toy",
    "package": "toy-trainer",
    "read": "2026-11-26",
    "newest": "2.0",
    "roles": {
        "packing": "pack",
        "attention": ["model.attn", "attn"],
        "batch_size": "micro",
        "accumulation": "accumulate",
        "tensor_parallel": "tp",
        "context_parallel": "cp",
        "max_length": "length",
        "model": "model.name",
    },
    "defaults": {"pack": False, "micro": 2, "accumulate": 4, "length": 4096, "tp": 1, "cp": 1},
    "default": [{"key": "pack", "value": True, "versions": "<1.0"}],
    "fact": [
        {"topic": "packing", "when": {"packing": True}, "says": "on, rows of {max_length}", "source": "toy.py"},
        {"topic": "packing", "says": "off", "source": "toy.py"},
        {
            "topic": "isolation",
            "when": {"packing": True, "attention": ["sdpa", "eager"]},
            "source": "toy.py",
            "says": "{attention} sees neighbors",
            "judgment": "wrong",
            "problem": "neighbors_seen",
            "versions": "<1.5",
            "change": "attn: flash_attention_2",
        },
        {
            "topic": "alignment",
            "when": {"cp": {"above": 1}},
            "says": "rings",
            "source": "toy.py",
            "segment_multiple": [2, "context_parallel"],
            "row_multiple": [16, "context_parallel"],
        },
    ],
}
TOY = facts_from("toy", DATA)


def report_of(settings, version="1.2", ranks=None):
    return judge(RunSettings(given_settings(settings), TOY, version_from(version), ranks), "toy")


def texts(report):
    return {line.topic: line.text for line in report.lines}


def test_the_first_fact_that_matches_speaks_for_its_topic():
    assert texts(report_of({"pack": True}))["packing"] == "on, rows of 4096"
    assert texts(report_of({}))["packing"] == "off"


@pytest.mark.parametrize("judgment", ["wrong", "suspect"])
def test_a_judged_fact_is_written_once(judgment):
    """It shows its line too; one that comes after another line of its topic judges alone."""
    line = {"topic": "isolation", "when": {"packing": True}, "says": "apart"}
    judged = {"topic": "isolation", "when": {"packing": True, "cp": {"above": 1}}, "says": "together"}
    judged |= {"judgment": judgment, "problem": "neighbors_seen"}
    for facts, said in (([judged, line], "together"), ([line, judged], "apart"), ([judged], "together")):
        toy = facts_from("toy", {**DATA, "fact": facts})
        report = judge(RunSettings(given_settings({"pack": True, "cp": 2}), toy, None), "toy")
        assert texts(report)["isolation"] == said
        assert [finding.detail.partition(":")[0] for finding in report.findings] == ["together"]


def test_a_topic_without_a_fact_is_unknown_where_people_ask():
    """Silence must not read as consent."""
    lines = {line.topic: line.evidence for line in report_of({}).lines}
    assert lines["positions"] is Evidence.UNKNOWN
    assert not {"attention", "tokens", "tail", "steps", "alignment"} & set(lines)


def test_a_finding_names_the_settings_and_where_they_were_given():
    (finding,) = report_of({"pack": True, "model": {"attn": "SDPA"}}).findings
    assert finding.judgment is Judgment.WRONG
    assert finding.detail == "SDPA sees neighbors: pack: true (dict), model.attn: SDPA (dict)"
    assert finding.change == "attn: flash_attention_2"


def test_defaults_are_the_versions_own():
    assert texts(report_of({}, version="0.9"))["packing"].startswith("on")


def test_a_step_of_unknown_size_is_not_computed():
    """A factor that a script leaves open is not one."""
    for key in ("micro", "accumulate"):
        text = texts(report_of({"micro": 3, key: Unknown("$X")}, ranks=2))["step"]
        assert text == f"unknown before the run: {key}: $X (dict)"


@pytest.mark.parametrize("value", [-1, 0, 1, 2, 3, 4, 2.5, True, None])
def test_numbers_are_compared_and_nothing_else_is(value):
    """``true`` is not 1, and no length is a multiple of nothing."""
    for tp in (0, 1, 2):
        run = RunSettings(given_settings({"x": value, "tp": tp}), TOY, None)
        number = value if value is not None and value is not True else None
        assert run.meets({"x": {"above": 2}}) is (number is not None and number > 2)
        assert run.meets({"x": {"below": 2}}) is (number is not None and number < 2)
        is_multiple = tp > 0 and number is not None and number % (2 * tp) == 0
        is_other = tp > 0 and number is not None and not is_multiple
        assert run.meets({"x": {"multiple_of": [2, "tp"]}}) is is_multiple
        assert run.meets({"x": {"not_multiple_of": [2, "tp"]}}) is is_other


@given(st.lists(st.integers(0, 30), min_size=1, max_size=3), st.lists(st.integers(0, 30), min_size=1, max_size=3))
def test_versions_are_ordered(left, right):
    """Exactly one of <, == and > holds, and 1.2 equals 1.2.0."""
    text = ".".join(map(str, right))
    held = [in_range(f"{operator}{text}", tuple(left)) for operator in ("<", "==", ">")]
    assert held.count(True) == 1
    assert in_range(f"=={text}.0", tuple(right))
    assert in_range(f">={text}", tuple(left)) is (held[1] or held[2])


def test_products_need_numbers():
    assert product([2, "cp"], {"cp": None}) is None
    assert product([2, "cp"], {"cp": True}) is None


def test_a_model_is_told_by_its_own_configuration(tmp_path):
    """A folder has any name; its type is in its ``config.json``, if that has one."""
    run = RunSettings(given_settings({"model": {"name": str(tmp_path)}}), TOY, None)
    for text in (None, "{", "[]", "{}", '{"model_type": "mamba", "architectures": 3}'):
        if text is not None:
            (tmp_path / "config.json").write_text(text)
        assert RunSettings(run.given, TOY, None).meets({"model": f"*{tmp_path.name}"}), text
        assert not RunSettings(run.given, TOY, None).meets({"model": "*qwen3-next*"})
    (tmp_path / "config.json").write_text('{"model_type": "qwen3_next", "architectures": ["Qwen3NextForCausalLM"]}')
    assert run.meets({"model": "*qwen3-next*"})
    assert run.meets({"model": "qwen3nextfor*"})
    assert not run.meets({"model": "*mamba*"})


NO_TRAINER = "no trainer is known by its keys; name it with trainer: one of art, "
SEVERAL = r"it may be one of .*llama_factory.*; name it with trainer: one of (?!art)"


@pytest.mark.parametrize(
    ("settings", "options", "message"),
    [
        ({"nothing": 1}, {}, NO_TRAINER),
        ({"packing": True}, {}, SEVERAL),
        ({}, {"trainer": "keras"}, "no facts about 'keras'.*; facts brings a file of your own"),
        ({}, {"trainer": "trl", "version": "newest"}, "must be a number"),
    ],
)
def test_a_trainer_that_is_not_told_is_asked_for(settings, options, message):
    with pytest.raises(SettingsError, match=message):
        examine(settings, **options)


@pytest.mark.parametrize("settings", ["", "packing = True\n"])
@pytest.mark.parametrize("command", [[], ["torchrun", "--nproc-per-node=2"], ["python", "-m"]])
def test_a_loop_of_ones_own_is_told_what_helps_it(settings, command, tmp_path):
    """Names of trainers are no answer to a script that has none."""
    path = tmp_path / "my_loop.py"
    path.write_text(f"import torch\n{settings}loader = torch.utils.data.DataLoader([1], batch_size=2)\n")
    run = [*command, "my_loop" if "-m" in command else str(path), "--epochs", "2"] if command else path
    text = refusal(run)
    assert "diagnose(batch) looks at a batch of its loader, and `with probe(model):`" in text
    assert "axolotl" not in text


def test_a_loop_of_ones_own_that_shares_keys_is_told_which_trainers_have_them():
    text = refusal(["torchrun", "my_loop.py", "--packing", "true"])
    assert "it may be one of llama_factory" in text
    assert "with probe(model):" in text


def refusal(config):
    with pytest.raises(SettingsError) as error:
        examine(config)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_short_file_is_told_by_the_keys_that_it_shares():
    """The first configuration that a user of TRL tries has no key that only TRL has."""
    run = {"model_name_or_path": "m", "dataset_name": "d", "max_length": 4096, "packing": True}
    assert told_trainer(given_settings({**run, "per_device_train_batch_size": 4})) == "trl"
    assert told_trainer(given_settings({"cutoff_len": 4096, "packing": True})) == "llama_factory"


@pytest.mark.parametrize(
    ("settings", "ranks", "text"),
    [
        ({}, None, "2 rows × 4 micro-batches × data-parallel ranks, whose number is unknown"),
        (
            {"micro": 1, "accumulate": 1},
            None,
            "1 rows × 1 micro-batches × data-parallel ranks, whose number is unknown",
        ),
        ({"micro": 3, "accumulate": 0}, 2, "3 rows × 2 data-parallel ranks = 6 rows a step, at most 24,576 tokens"),
        ({"micro": 3, "accumulate": True}, 2, "3 rows × 2 data-parallel ranks = 6 rows a step, at most 24,576 tokens"),
        (
            {"tp": 2},
            16,
            "2 rows × 4 micro-batches × 8 data-parallel ranks = 64 rows a step, at most 262,144 tokens",
        ),
        (
            {"tp": 2, "cp": 2},
            8,
            "2 rows × 4 micro-batches × 2 data-parallel ranks = 16 rows a step, at most 65,536 tokens",
        ),
        ({"tp": 0, "length": 0}, 2, "2 rows × 4 micro-batches × 2 data-parallel ranks = 16 rows a step"),
        ({"tp": 4}, 2, "2 rows × 4 micro-batches × data-parallel ranks, whose number is unknown"),
        ({"micro": 0}, 2, "no fact says it; a batch may show it"),
    ],
)
def test_rows_a_step(settings, ranks, text):
    """0 means that the trainer decides, as it often does: a product with it would be a step of no rows."""
    assert texts(report_of(settings, ranks=ranks))["step"] == text
