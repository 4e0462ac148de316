"""``brimful doctor`` on the command line: a configuration, batches of a loader, or both."""

import json
import sys

import pytest

from tests.cli.tools import outcome, refused, shown

torch = pytest.importorskip("torch")

SAMPLES = [[1, 5, 6, 7, 2], [1, 8, 9, 2], [1, 3, 2]]
IGNORE = -100


def collate(samples=SAMPLES):
    """One row without padding."""
    return {
        "input_ids": torch.tensor([[token for sample in samples for token in sample]]),
        "labels": torch.tensor([[label for sample in samples for label in [IGNORE, *sample[1:]]]]),
        "position_ids": torch.tensor([[place for sample in samples for place in range(len(sample))]]),
    }


def padded():
    """A row for each sample."""
    width = max(map(len, SAMPLES))
    ids = torch.zeros(len(SAMPLES), width, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, sample in enumerate(SAMPLES):
        ids[row, : len(sample)] = torch.tensor(sample)
        mask[row, : len(sample)] = 1
    return {"input_ids": ids, "labels": torch.where(mask == 1, ids, IGNORE), "attention_mask": mask}


def masked():
    return {**collate(), "attention_mask": torch.ones(1, sum(map(len, SAMPLES)), dtype=torch.int64)}


batch = collate()
batches = [collate(), collate()]
loader = torch.utils.data.DataLoader(SAMPLES * 4, batch_size=3, collate_fn=collate)
pair = torch.tensor([[1, 5, 6, 7, 2]]), torch.tensor([[5, 6, 7, 2, IGNORE]])
with_divisor = collate(), {"num_items": 9}
nothing: list = []
words = ["a", "b"]
no_ids = {"text": ["a"], "weights": torch.ones(2)}
no_tokens = {"input_ids": torch.zeros(1, 0, dtype=torch.int64)}


def single():
    yield from map(collate, [[sample] for sample in SAMPLES])


def two_of_three():
    yield from map(collate, ([SAMPLES[0]], [SAMPLES[2]]))


def endless():
    while True:
        yield collate()


def failing():
    raise RuntimeError("no such dataset\nin /data")


def failing_late():
    yield collate()
    raise ValueError("bad sample 3")


def program():
    """A script that reads its own command line does not know doctor's."""
    sys.exit(2)


def with_argument(samples):
    return samples


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(
        "packing: true\nattn_implementation: flash_attention_2\nassistant_only_loss: true\nmax_length: 64\n"
    )
    return path


def named(name):
    return "--batch", f"{__name__}:{name}"


def test_what_nothing_shows_has_a_code_of_its_own():
    """A row that may be one sample or several."""
    code, out, _ = outcome("doctor", *named("pair"))
    assert code == 3
    assert out.splitlines()[-1].startswith(
        "NOT SHOWN: how samples are kept apart is unknown: compare them by brimful doctor --batch"
    )
    assert "--samples" in out.splitlines()[-1]


@pytest.mark.parametrize("name", ["batch", "batches", "loader", "endless", "collate", "with_divisor"])
def test_batches_of_any_kind_are_read(name):
    lines = shown("doctor", *named(name), "--batches", 2)
    assert lines[-1].startswith("NOTHING FOUND"), lines


def test_batches_of_a_loader_are_counted():
    assert shown("doctor", *named("loader"))[0] == "1 batch of [1, 12]: input_ids, labels, position_ids"
    assert shown("doctor", *named("loader"), "--batches", 3)[0].startswith("3 batches of [1, 12]")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("failing", "RuntimeError: in /data"),
        ("failing_late", "ValueError: bad sample 3"),
        ("program", "SystemExit: 2"),
        ("with_argument", "TypeError: with_argument() missing 1 required positional argument: 'samples'"),
        ("absent", f"module '{__name__}' has no attribute 'absent'"),
        ("nothing", "has no batches"),
        ("words", "a batch must be a mapping with input_ids and is a list of 2"),
        ("__doc__", "a batch must be a mapping with input_ids"),
        ("no_ids", "no token ids in the batch: none of its text, weights"),
        ("no_tokens", "no token ids in the batch: none of its input_ids"),
    ],
)
def test_what_is_no_batch_is_one_line(name, text, capfd):
    """A traceback ends with exit code 1, which a script takes for a finding."""
    assert text in refused("doctor", *named(name), "--batches", 2)


def test_findings_exit_with_1():
    code, out, err = outcome("doctor", *named("masked"))
    assert (code, err) == (1, "")
    assert out.splitlines()[-1] == "SUSPECT: samples apart"


def test_samples_are_looked_for():
    code, out, _ = outcome("doctor", *named("batch"), "--samples", f"{__name__}:SAMPLES")
    assert code == 0, out
    code, out, _ = outcome("doctor", *named("pair"), "--samples", f"{__name__}:SAMPLES")
    assert code == 1
    assert "2 samples of 3 are not in the batches: 1, 2" in out


def test_samples_of_batches_that_were_not_read_are_not_missed():
    """A loader that was read in part says nothing about the rest."""
    given = ("doctor", *named("single"), "--samples", f"{__name__}:SAMPLES")
    for number, text in ((1, "2 samples of 3 are not in the batches: 1, 2"), (2, "1 sample of 3 are not in the")):
        code, out, _ = outcome(*given, "--batches", number)
        assert code == 0, out
        assert f"unknown  {text}" in out
        assert "--batches" in out
    for number in (3, 4):
        assert "not judged" not in "\n".join(shown(*given, "--batches", number))


@pytest.mark.parametrize("number", [2, 3])
def test_samples_of_a_loader_that_was_read_to_its_end_are_missed(number):
    code, out, _ = outcome("doctor", *named("two_of_three"), "--samples", f"{__name__}:SAMPLES", "--batches", number)
    assert code == 1
    assert "WRONG: samples (seen)\n    1 sample of 3 are not in the batches: 1" in out


def test_a_configuration_is_known_and_a_batch_is_seen(config):
    report = json.loads("".join(shown("doctor", config, "--version", "1.16.0", *named("batch"), "--json")))
    evidence = {line["topic"]: line["evidence"] for line in report["lines"]}
    assert (evidence["isolation"], evidence["long"]) == ("seen", "known")
    assert report["subject"].endswith("; 1 batch of [1, 12]: input_ids, labels, position_ids")


def test_a_command_line_follows_two_dashes():
    arguments = ("--version", "1.16.0", "--", "trl", "sft", "--packing", "true", "--packing_strategy", "bfd")
    assert shown("doctor", *arguments)[0].startswith("TRL 1.16.0 (as named), ")


def test_packing_is_on_and_the_batch_is_padded(config):
    """What the configuration says alone is right, and so is the batch alone."""
    assert outcome("doctor", config, "--version", "1.16.0")[0] == 0
    assert outcome("doctor", *named("padded"))[0] == 0
    code, out, _ = outcome("doctor", config, "--version", "1.16.0", *named("padded"), "--json")
    report = json.loads(out)
    assert code == 1
    assert [finding["problem"] for finding in report["findings"]] == ["packing_off"]


def test_packing_is_off_and_the_batch_is_padded(tmp_path):
    config = tmp_path / "run.yaml"
    config.write_text("packing: false\nassistant_only_loss: true\n")
    report = json.loads(outcome("doctor", config, "--version", "1.16.0", *named("padded"), "--json")[1])
    assert "packing_off" not in {finding["problem"] for finding in report["findings"]}


def test_attention_of_the_configuration_judges_the_mask(tmp_path):
    """Flash attention drops a mask of ones, and SDPA believes it."""
    config = tmp_path / "run.yaml"
    config.write_text("packing: true\nattn_implementation: sdpa\nassistant_only_loss: true\n")
    report = json.loads(outcome("doctor", config, "--version", "1.16.0", *named("masked"), "--json")[1])
    judgments = {finding["judgment"] for finding in report["findings"] if finding["problem"] == "mask_hides_packs"}
    assert judgments == {"wrong"}


def test_a_batch_that_the_trainer_packs_later_is_not_accused(tmp_path):
    """verl takes the padding out in the model: its loader pads."""
    config = tmp_path / "run.yaml"
    config.write_text("model:\n  use_remove_padding: true\n")
    arguments = ("doctor", config, "--trainer", "verl_sft", "--version", "0.7.0", *named("padded"), "--json")
    report = json.loads(outcome(*arguments)[1])
    assert "packing_off" not in {finding["problem"] for finding in report["findings"]}


def test_texts_are_shown_and_redacted(tokenizer, tmp_path):
    page = tmp_path / "page.html"
    lines = outcome("doctor", *named("batch"), "--tokenizer", tokenizer, "-o", page)[1].splitlines()
    (first, *_) = (line for line in lines if line.startswith("segment 0 (row 0, 0 to 5): "))
    assert first.count("«") == first.count("»") == 1
    assert "segment 0" in page.read_text()
    lines = outcome("doctor", *named("batch"), "--tokenizer", tokenizer, "-o", page, "--redact")[1].splitlines()
    assert not any(line.startswith("segment") for line in lines)
    assert "segment 0" not in page.read_text()


def test_paths_are_redacted(config):
    assert str(config.parent) in shown("doctor", config, "--version", "1.16.0")[0]
    assert str(config.parent) not in "\n".join(shown("doctor", config, "--version", "1.16.0", "--redact"))


def test_nothing_to_read_is_one_line(tmp_path):
    assert "give a configuration, or a batch" in refused("doctor")
    assert "no such file; a command line follows --" in refused("doctor", tmp_path / "run.yaml")


def test_a_script_of_ones_own_is_told_the_flags(tmp_path):
    script = tmp_path / "my_loop.py"
    script.write_text("import torch\nloader = torch.utils.data.DataLoader([1])\n")
    for given in ((script,), ("--", "torchrun", script)):
        text = refused("doctor", *given)
        assert "a loop of your own needs none: --batch my_loop:loader looks at a batch" in text
