"""Options of a command from a file: the file alone is enough, a flag overrides it, and a wrong line is named."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from brimful.cli.config import _ALIASES, _SWITCHES, _options
from brimful.cli.jobs import pack
from brimful.serve import open_packs
from tests.cli.tools import refused, run


@pytest.fixture
def job(chats: Path, tokenizer: Path, tmp_path: Path) -> Path:
    """The file of a whole job, in words of ms-swift and ours."""
    path = tmp_path / "pack.yaml"
    path.write_text(
        f"# a comment\npacking: true\npacking_length: 7_0\ndataset: [{chats}]\ntokenizer: {tokenizer}\n"
        f"truncation_strategy: delete\noutput: {tmp_path / 'packs'}\nseed: 3\nquiet: yes\nbudget: {{samples: 2}}\n"
        "min-fill: 1e-1\nchat_template: ~\n"
    )
    return path


def test_a_file_alone_is_a_job(job: Path, tmp_path: Path) -> None:
    """Without it a recipe that is kept with a model cannot be run again as it is."""
    run("pack", "--config", job)
    packs = open_packs(tmp_path / "packs")
    settings = packs.identity["settings"]
    assert packs.capacity == 70
    assert (settings["seed"], settings["overflow"], settings["budgets"]) == (3, "drop", {"samples": 2})


def test_a_flag_goes_before_the_file(job: Path, chats: Path, tmp_path: Path) -> None:
    """Without it a run with another seed needs another file, or has the old seed in silence."""
    run("pack", "--config", job, "--seed", 5, "--packing-length", 80, "-o", tmp_path / "b", "--budget", "samples=1")
    packs = open_packs(tmp_path / "b")
    assert (packs.capacity, packs.identity["settings"]["seed"]) == (80, 5)
    assert packs.identity["settings"]["budgets"] == {"samples": 1}
    assert "such file" in refused("pack", tmp_path / "other.jsonl", "--config", job)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "packing: false",
            "1: packing is false, and brimful only packs: leave the line out, or train on the",
        ),
        ("\nmax_lenght: 5", "2: pack has no option 'max_lenght': did you mean max_length?"),
        ("max_length: abc", "1: max_length: 'abc' is not a valid integer"),
        ("custom:\n  packing: false", "2: packing is false, and brimful only packs"),
        ("custom:\n  max_length: 8\ntraining:\n  seq_length: 9", "4: seq_length repeats max_length in"),
        ("max_length: 8k", "1: max_length: '8k' is not a valid integer"),
        ("max_length: [1]", "1: max_length must be one integer and is a list"),
        ("max_length: true", "1: max_length: 'true' is not a valid integer"),
        ("time_limit: 1:30", "1: time_limit: '1:30' is not a valid float"),
        ("seed: 1.5", "1: seed: '1.5' is not a valid integer"),
        ("num_proc: 0", "1: num_proc: 0 is not in the range x>=1"),
        ("overflow: dropp", "1: overflow: 'dropp' is not one of"),
        ("bos: 3", "1: bos: '3' is not a valid boolean"),
        ("field: {messages: [a]}", "1: field must be a text, a list of texts, or a mapping of texts and is a block"),
        ("max_length: 1\ncutoff_len: 3", "2: cutoff_len repeats max_length in"),
        ("seed: 1\nseed: 2", "2: seed is repeated: keep one"),
        ("run:\n  packing: true", "1: pack has no option 'run'"),
        ("x: !!python/object/apply:os.system [ls]", "1: pack has no option 'x'"),
        ("system: !!python/object/apply:os.system [ls]", "1: system must be one text and is a list"),
        ("a: b: c", "1: not YAML: mapping values are not allowed here"),
        ("- a", ": a file of settings has lines such as `max_length: 8192`"),
        ("", ": a file of settings has lines such as `max_length: 8192`"),
        ("{" * 1100, ": no"),
        ("a: 1\n---\nb: 2", "2: not YAML: but found another document"),
    ],
)
def test_a_wrong_line_is_named(text: str, message: str, tmp_path: Path) -> None:
    """Without it a misspelt option is ignored, and the packs are made with its default."""
    path = tmp_path / "a.yaml"
    path.write_text(text)
    line = refused("pack", "--config", path)
    assert line.startswith(f"{path}:")
    assert message in line


def test_a_file_belongs_to_one_command(job: Path) -> None:
    """Without it `measure` would write its table where the packs belong."""
    assert "measure has no option" in refused("measure", "--config", job)


def test_words_of_others_stand_for_options() -> None:
    """Without it a word leads to an option that is not there, or hides one of ours."""
    names = _options(pack)
    assert set(_ALIASES.values()) <= {*names, "source"}
    assert not {*_ALIASES, *_SWITCHES} & names.keys()
    assert all(isinstance(option, click.Option) for option in names.values())


def test_blocks_of_a_trainer_are_read(job: Path, tmp_path: Path) -> None:
    """A word that means something here is read, null leaves the length to the next word, and what is left out is named."""
    lines = job.read_text().replace("packing: true\npacking_length: 7_0\n", "").splitlines()
    blocks = [
        *("custom:", "  packing: true", "  packing_length: null  # or null to use max_length"),
        *("template:", "  padding_free: true", "max_length: 70"),
        *("training:", "  output_dir: checkpoints", "  attn_impl: flash_attn"),
    ]
    job.write_text("\n".join([*lines, *blocks]))
    _, err = run("pack", "--config", job)
    left_out = "template.padding_free, training.output_dir, training.attn_impl"
    assert err[0] == f"{job}: {left_out}: not options of pack, left out"
    assert open_packs(tmp_path / "packs").capacity == 70


AIAK = "# s1_config\nmax_len: 70\nmin_pixels: 3136\nmax_pixels: 4014080\npack_frac: 0.95\n"


def test_a_file_of_aiak(chats: Path, tokenizer: Path, tmp_path: Path) -> None:
    """Each key of its configuration is read, or answered in its own words; without that `did you mean …` is all."""
    path, options = tmp_path / "aiak.yaml", ("--tokenizer", tokenizer, "--quiet")
    path.write_text(AIAK.replace("max_len", "seq_len").replace("min_pixels: 3136\nmax_pixels: 4014080\n", ""))
    run("pack", chats, "--config", path, *options, "-o", tmp_path / "packs")
    packs = open_packs(tmp_path / "packs")
    assert (packs.capacity, packs.identity["settings"]["min_fill"]) == (70, 0.95)
    path.write_text(AIAK)
    assert "--min-pixels is for images" in refused("pack", chats, "--config", path, *options, "-o", tmp_path / "b")
    for line, answer in (
        ("task_type: pretrain", "rows are recognized by their keys: leave it out, or name one of them by format"),
        ("max_aspect_ratio: 200", "models of Qwen-VL take images of up to 200 to 1, here too: leave it out"),
        ("sample_weight:\n  captions: 1.0\n  qa: 2.0", "weights belong to sources: give each its path and weight in"),
    ):
        path.write_text(f"seed: 1\n{line}\n")
        message = refused("pack", chats, "--config", path, *options, "-o", tmp_path / "b")
        assert f"aiak.yaml:2: pack has no option {line.partition(':')[0]!r}: {answer}" in message


def test_a_word_of_an_option_that_a_command_does_not_have(chats: Path, tmp_path: Path) -> None:
    """Without it: measure has no option 'cutoff_len': did you mean cutoff_len?"""
    path = tmp_path / "a.yaml"
    for word, hint in (
        ("cutoff_len", "`brimful measure --help` lists the options"),
        ("datset", "did you mean dataset?"),
    ):
        path.write_text(f"{word}: 5\n")
        assert refused("measure", chats, "--config", path).endswith(f"no option {word!r}: {hint}")
