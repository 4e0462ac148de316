"""What a release says about itself in several places is said once: versions, Pythons, commands, targets."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

import brimful
from brimful.cli.program import _brimful
from tests import release

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


def _read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def _steps(workflow: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(workflow.read_text(encoding="utf-8"))["jobs"]
    return [step for job in jobs.values() for step in job["steps"]]


def test_the_changes_have_a_section_of_this_version():
    """The page of a release shows it."""
    assert len(release.notes_of(brimful.__version__).splitlines()) > 10
    with pytest.raises(SystemExit, match=r"CHANGELOG.md has no section '## 9.9.9'"):
        release.notes_of("9.9.9")


def test_the_citation_names_this_version():
    """A citation of another one cannot be repeated."""
    assert str(yaml.safe_load(_read("CITATION.cff"))["version"]) == brimful.__version__


def test_every_python_that_is_promised_is_tested():
    """Classifiers, the least version and the workflow of the tests."""
    project = _read("pyproject.toml")
    promised = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', project)
    assert f'requires-python = ">={promised[0]}"' in project
    jobs = yaml.safe_load(_read(".github/workflows/tests.yml"))["jobs"]
    assert jobs["tests"]["strategy"]["matrix"]["python"] == promised
    systems = {
        jobs["windows"]["runs-on"],
        "ubuntu-latest",
        *(job["os"] for job in jobs["tests"]["strategy"]["matrix"]["include"]),
    }
    assert {system.partition("-")[0] for system in systems} == {"ubuntu", "macos", "windows"}


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_steps_of_workflows_are_pinned_and_their_targets_exist(workflow):
    """An action by a tag is whatever the tag points to on that day; a target that is gone fails unseen."""
    targets = set(re.findall(r"^([\w -]+):", _read("Makefile"), flags=re.MULTILINE))
    targets = {name for line in targets for name in line.split()}
    text = workflow.read_text(encoding="utf-8")
    assert {name for names in re.findall(r"target: \[(.*)\]", text) for name in names.split(", ")} <= targets
    for step in _steps(workflow):
        if "uses" in step:
            assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", step["uses"]), step
        for name in re.findall(r"\bmake ([\w-]+)", step.get("run", "")):
            assert name in targets, name
    assert text.count("uses: ") == len(re.findall(r"uses: \S+ # v\d+\.\d+\.\d+$", text, flags=re.MULTILINE))


@pytest.mark.parametrize("form", FORMS, ids=lambda path: path.stem)
def test_commands_of_issue_forms_are_commands(form):
    """A form that asks for what cannot be run gets no answer."""
    context = click.Context(_brimful)
    lines = re.findall(r"`brimful ([^`]+)`", form.read_text(encoding="utf-8"))
    for line in lines:
        name, *words = shlex.split(line)
        command = _brimful.get_command(context, name)
        assert command is not None, line
        flags = {flag for option in command.params for flag in option.opts}
        assert {word for word in words if word.startswith("-")} <= flags, line
    assert lines or "wish" in form.stem


def test_the_blocks_of_the_readme_are_what_a_release_runs():
    """Without a block of each kind, the check of a release would try nothing."""
    blocks = release.blocks_of(release.README)
    assert {language for language, _ in blocks} == {"python", "bash"}
    assert release.packages_of("a\npip install -e '.[text,torch]' accelerate  # both\n") == [
        ".[text,torch]",
        "accelerate",
    ]
    assert release.packages_of(release.README)[0].startswith(".[")
    assert release.imports_of("import torch.nn as nn\nfrom brimful.rl import plan_step\n") == {"torch", "brimful"}


def test_a_python_that_is_not_here_is_said(capsys, tmp_path):
    """A release is still tried with the others."""
    assert release.try_wheel("2.99", tmp_path / "none.whl", tmp_path / "folder") is False
    assert capsys.readouterr().out == "python 2.99: not found, not tried\n"
