"""Options that are missing, misspelt or impossible, and outputs that are in the way: the flag is named."""

from pathlib import Path

import pytest

from tests.cli.bad_input.tools import one_line, refused, temporary_files
from tests.cli.tools import outcome as run


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--format", "nonsense"], "--format nonsense is unknown: use one of tokens, sharegpt_preference, "),
        (["--format", "messages", "--field", "answer=x"], "--field 'answer' is not a field of format messages"),
        (["--field", "messages"], "--field 'messages' must be NAME=KEY"),
        (["--field", "=dialogue"], "--field '=dialogue' must be NAME=KEY"),
        (["--mode", "nonsense"], "--mode"),
        (["--train-on", "nonsense"], "--train-on"),
        (["--on-bad-sample", "ignore"], "--on-bad-sample"),
        (["--num-proc", "0"], "--num-proc"),
        (["--num-proc", "many"], "--num-proc"),
        (["--budget", "patches"], "--budget patches cannot be measured here: use tokens, loss_tokens"),
        (["--chat-template", "/nowhere/template.jinja"], "--chat-template /nowhere/template.jinja"),
        (["--nonsense"], "--nonsense"),
    ],
)
def test_a_wrong_option_of_measure_is_named(options: list[str], expected: str, chats: Path, tokenizer: Path) -> None:
    """Without it a typing error is answered by a traceback, or by silence and a default."""
    assert expected in refused("measure", chats, "--tokenizer", tokenizer, "--quiet", *options)


def test_a_renamed_field_that_no_row_has_is_named(chats: Path, tokenizer: Path) -> None:
    """Without it --field messages=dialog for data with `dialogue` gives no hint at the rows."""
    line = refused(
        "measure", chats, "--tokenizer", tokenizer, "--quiet", "--format", "messages", "--field", "messages=dialog"
    )
    assert f"{chats}:1 (sample 0): field 'dialog' is missing (found ['messages'])" in line


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], "--max-length is missing"),
        (["--max-length", "0"], "--max-length must be from 1 to 2,147,483,647 and is 0"),
        (["--max-length", "-5"], "--max-length must be from 1 to 2,147,483,647 and is -5"),
        (["--max-length", "9999999999"], "--max-length must be from 1 to 2,147,483,647 and is 9,999,999,999"),
        (["--max-length", "8k"], "--max-length"),
        (["--max-length", "64", "--algorithm", "magic"], "--algorithm magic is unknown: use one of best_fit_decrea"),
        (["--max-length", "64", "--overflow", "magic"], "--overflow"),
        (["--max-length", "64", "--budget", "patches"], "--budget 'patches' must be NAME=MOST"),
        (["--max-length", "64", "--budget", "samples=2", "--budget", "samples=3"], "--budget samples is given twice"),
        (
            ["--max-length", "64", "--budget", "frames=3"],
            "--budget frames is unknown: packing can measure loss_tokens, samples, squares",
        ),
        (["--max-length", "64", "--align", "4", "--cp", "2"], "--align and --cp both say what to align to"),
        (
            ["--max-length", "64", "--align-for", "keras"],
            "--align-for keras is unknown: use one of kernels, megatron_swift",
        ),
        (["--max-length", "64", "--fp8", "magic"], "--fp8 'magic' is unknown"),
        (["--max-length", "64", "--cp", "64"], "no row fits"),
        (["--max-length", "64", "--min-fill", "2"], "--min-fill must be a number from 0 to 1"),
        (["--max-length", "64", "--phases", "finish"], "--phases is for --algorithm phased"),
        (["--max-length", "64", "--algorithm", "phased", "--phases", "magic"], "magic"),
        (["--max-length", "64", "--epoch", "-1"], "--epoch must be at least 0"),
        (["--max-length", "64", "--seed", "x"], "--seed"),
    ],
)
def test_a_wrong_option_of_pack_is_named(
    options: list[str], expected: str, chats: Path, tokenizer: Path, tmp_path: Path
) -> None:
    """Without it an impossible capacity or a misspelt name ends in a traceback, or in a plan that was not asked for."""
    packs = tmp_path / "packs"
    assert expected in refused("pack", chats, "-o", packs, "--tokenizer", tokenizer, "--quiet", *options)
    assert not (packs / "stream.json").exists()


def test_a_missing_output_is_said(chats: Path, tokenizer: Path, tmp_path: Path) -> None:
    """Without it a forgotten -o writes into the working directory, or nowhere."""
    assert "-o is missing" in refused("pack", chats, "--tokenizer", tokenizer, "--max-length", 64, "--quiet")
    assert "-o is missing" in refused("write", tmp_path / "plan", chats, "--tokenizer", tokenizer, "--quiet")


@pytest.mark.parametrize(
    ("command", "where"),
    [
        ("measure", "directory"),
        ("plan", "directory"),
        ("measure", "file"),
        ("pack", "file"),
        ("measure", "file/below"),
        ("plan", "file/below"),
        ("pack", "file/below"),
    ],
)
def test_an_output_that_is_in_the_way_is_named(
    where: str, command: str, chats: Path, tokenizer: Path, tmp_path: Path
) -> None:
    """Without it -o at a directory, or at or below a foreign file, destroys it or fails without naming it."""
    (tmp_path / "directory").mkdir()
    (tmp_path / "file").write_text("in the way")
    options = [] if command == "measure" else ["--max-length", 64]
    line = refused(command, chats, "-o", tmp_path / where, "--tokenizer", tokenizer, "--quiet", *options)
    assert str(tmp_path / where.partition("/")[0]) in line
    assert (tmp_path / "file").read_text() == "in the way"
    assert temporary_files(tmp_path) == []


@pytest.mark.parametrize("command", ["measure", "plan", "pack"])
def test_an_output_that_is_the_input_is_refused(command: str, chats: Path, tokenizer: Path) -> None:
    """Without it one wrong -o replaces the data set by its plan."""
    before = chats.read_bytes()
    options = [] if command == "measure" else ["--max-length", 64]
    outcome = run(command, chats, "-o", chats, "--tokenizer", tokenizer, "--quiet", *options)
    assert chats.read_bytes() == before
    assert str(chats) in one_line(outcome.code, outcome.err)


def test_unknown_commands_and_options_are_named(chats: Path) -> None:
    """Without it a typing error is answered by usage texts of thirty lines."""
    assert "'nonsense'" in refused("nonsense")
    assert "--nonsense" in refused("--nonsense")
    assert "--nonsense" in refused("pack", chats, "--nonsense")
    assert "--quite" in refused("pack", chats, "--quite")
    for command in ("pack", "measure", "plan", "write", "inspect", "report"):
        assert "Missing argument" in refused(command)


def test_no_command_at_all_shows_the_help() -> None:
    """Without it the first thing that a new user types is answered by the help squeezed into an error line."""
    outcome = run()
    assert "error: " not in outcome.err
    shown = (outcome.out or outcome.err).splitlines()
    assert any(line.strip().startswith("pack ") for line in shown)
