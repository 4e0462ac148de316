"""The page of ``doctor`` shows what it prints."""

import contextlib
import io
import re
import shlex
import sys
from pathlib import Path

import pytest

from brimful.cli import main
from brimful.doctor.config.facts import trainer_ids
from brimful.doctor.fact_files import read_toml

PAGE = Path(__file__).parents[2] / "docs/doctor.md"
FILES = re.compile(r"^```(?:yaml|python|toml)\n(# ([\w.]+)\n.*?)^```$", re.MULTILINE | re.DOTALL)
COMMANDS = re.compile(r"^```console\n\$ (brimful .*)\n((?:(?!```).*\n)*)```$", re.MULTILINE)


def printed(line):
    out = io.StringIO()
    with contextlib.redirect_stdout(out), pytest.raises(SystemExit):
        main(shlex.split(line)[1:])
    return out.getvalue()


def test_commands_print_what_the_page_shows(tmp_path, monkeypatch):
    """A reader holds the first output against it. ``python -m tests.doctor.test_page`` writes the outputs."""
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    text = PAGE.read_text(encoding="utf-8")
    write_files(text)
    pairs = COMMANDS.findall(text)
    assert len(pairs) == 2
    for command, output in pairs:
        assert printed(command) == output, command


@pytest.mark.parametrize("name", ["", "probe.py", "facts.py"])
def test_code_prints_what_its_comment_says(name, tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text(encoding="utf-8")
    write_files(text)
    codes = re.findall(r"^```python\n(?:# ([\w.]+)\n)?(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (code,) = [code for title, code in codes if "print(" in code and title == name]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "block", "exec"), {})
    assert out.getvalue().splitlines() == re.findall(r"^print\(.*\)  # (.*)$", code, re.MULTILINE)


def test_every_page_of_a_trainer_ends_with_its_line():
    pages = PAGE.parent / "trainers"
    for page in sorted(set(pages.glob("*.md")) - {pages / "README.md"}):
        assert (
            page.read_text(encoding="utf-8")
            .rstrip()
            .splitlines()[-1]
            .startswith("**Is packing right in the run that you have?** [Doctor](../doctor.md): ")
        ), page.name
    for trainer in trainer_ids():
        name = read_toml(f"trainers/{trainer}.toml").get("page", "")
        assert not name or (PAGE.parent / name).is_file(), trainer


def write_files(text):
    for content, name in FILES.findall(text):
        Path(name).write_text(content, encoding="utf-8")


if __name__ == "__main__":
    import tempfile

    text = PAGE.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        sys.path.insert(0, folder)
        write_files(text)
        text = COMMANDS.sub(lambda match: f"```console\n$ {match.group(1)}\n{printed(match.group(1))}```", text)
    PAGE.write_text(text, encoding="utf-8")
