"""Settings in messages and flags of commands: each mention can be said in both languages, and none is said in one."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import click
import pytest

from brimful.base.wording import in_python, setting
from brimful.cli.program import _brimful, command_named, flag_of, in_flags
from brimful.plan.plan_settings import PlanSettings
from tests.library import Module, modules

SPEAKS_FLAGS = (
    "cli/",
    "clusters/length_cache.py",
    "measure/pending.py",
    "doctor/config/",  # the command lines of trainers
    "doctor/report.py",  # the next command
    "doctor/batch/diagnose.py",
    "integrations/trainers/ms_swift",
    "integrations/export/packed_messages.py",  # of Megatron-LM
)
"""The command line, what shows a command to run, and the plugins whose users set ms-swift's own flags."""

LITERAL_FLAG = re.compile(r"(?<![\w-])(--[a-z{]|-o\b)")


PYTHON_ONLY = frozenset(
    {
        *(
            "assign",
            "attn_implementation",
            "barrier",
            "beyond",
            "cache_bytes",
            "cost",
            "count",
            "dialect",
            "fit",
            "group",
            "groups_share",
            "layout",
        ),
        *("arrive_seconds", "beta", "branch", "domains", "job", "mean", "place", "plan", "rank"),
        *("label_smoothing", "loss_type", "loss_weights", "shared_targets", "parts", "segment_multiple_of"),
        *("media_maker", "multiple_of", "normaliser", "on_bad_medium", "on_corrupt", "pad_to", "position_start"),
        *("by_source", "on_fault", "tail", "timeout", "uses"),
    }
)
"""Settings that no command has: messages mention them as arguments of Python."""


def flags() -> set[str]:
    """Every flag that some command has."""
    context = click.Context(_brimful)
    commands = [_brimful.get_command(context, name) for name in _brimful.list_commands(context)]
    return {
        flag
        for command in commands
        if command is not None
        for parameter in command.params
        for flag in (*parameter.opts, *parameter.secondary_opts)
    }


def strings(module: Module) -> Iterator[ast.Constant]:
    """Texts of a module that are not docstrings, and not the help or the flags of a setting."""
    loose = {id(node.value) for node in module.nodes if isinstance(node, ast.Expr)}
    helps = [node for node in module.nodes if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "option"]
    loose |= {id(node) for call in helps for node in ast.walk(call)}
    for node in module.nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in loose:
            yield node


def mentions(module: Module) -> Iterator[str]:
    """Names that are mentioned by ``setting`` or ``choice_of``."""
    for node in module.nodes:
        if not isinstance(node, ast.Call):
            continue
        called = getattr(node.func, "id", getattr(node.func, "attr", ""))
        named = node.args[:1] if called == "setting" else []
        named += [word.value for word in node.keywords if called == "choice_of" and word.arg == "argument"]
        yield from (name.value for name in named if isinstance(name, ast.Constant) and isinstance(name.value, str))


def test_no_source_of_the_library_holds_a_flag() -> None:
    """Without it a Python user is told to set --overflow."""
    found = []
    for module in modules():
        if not module.file.startswith(SPEAKS_FLAGS):
            found += [
                f"{module.file}:{text.lineno} {text.value!r}"
                for text in strings(module)
                if LITERAL_FLAG.search(text.value)  # type: ignore[arg-type]
            ]
    assert not found, "mention settings by brimful.base.wording.setting:\n" + "\n".join(found)


def test_every_setting_that_is_mentioned_has_a_flag_or_is_of_python_alone() -> None:
    """Without it the command line names a flag that no command knows."""
    names = {name for module in modules() for name in mentions(module)}
    assert {"capacity", "overflow", "fp8", "tail"} <= names, "the test does not see what is mentioned"
    assert {name for name in names if not flag_of(name)} == names & PYTHON_ONLY
    assert {flag_of(name) for name in names - PYTHON_ONLY} <= flags()


def test_every_setting_of_plans_has_a_flag() -> None:
    """Without it messages about settings named in a loop, which the test above does not see, name no real flag."""
    assert {
        option.name for option in fields(PlanSettings) if option.init and flag_of(option.name) not in flags()
    } == set()


@pytest.mark.parametrize("name", ["bos", "eos", "gradients"])
def test_switches_can_be_switched_off(name: str) -> None:
    """Without it a message asks for a --no- flag that is not there."""
    assert in_flags(setting(name, False)) in flags()


def test_a_setting_of_python_alone_is_said_as_in_python() -> None:
    """Without it the command line would make up a flag."""
    assert in_flags(setting("tail", "pad")) == in_python(setting("tail", "pad")) == 'tail="pad"'


def _printed_commands() -> Iterator[tuple[str, str]]:
    """Commands in backticks: of messages and docstrings, with ``x`` for what is filled in, of facts and of pages."""
    for module in modules():
        for node in ast.walk(ast.parse(module.path.read_text(encoding="utf-8"))):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "x" for part in parts)
            yield from ((str(module.path), command) for command in IN_BACKTICKS.findall(text))
    root = Path(__file__).parents[2]
    for page in [*root.glob("docs/**/*.md"), root / "README.md", *root.glob("src/brimful/**/*.toml")]:
        yield from ((str(page), command) for command in IN_BACKTICKS.findall(page.read_text(encoding="utf-8")))


IN_BACKTICKS = re.compile(r"`brimful ([a-z]+ [^`]*)`")


def test_what_is_printed_as_a_command_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command and flag exists, and choices and numbers of messages are possible; what is missing the user adds.
    Without it a page named `brimful report --model`, which no command takes."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.yaml").write_text("targets: true\n")
    seen, faults = set(), []
    for place, command in _printed_commands():
        name, *arguments = shlex.split(command.replace("…", "x").replace("|", "_"))
        if name == "x":
            continue
        seen.add(name)
        is_page = place.endswith(".md")  # which may speak of `-o`, or of N packs
        try:
            command_named(name).make_context(name, arguments)
        except click.MissingParameter:
            continue
        except (click.UsageError, ImportError) as error:
            if not (is_page and isinstance(error, (click.BadParameter, click.BadOptionUsage))):
                faults.append(f"{place}: `brimful {command}`: {error}")
    assert not faults
    assert {"measure", "pack", "plan", "write", "produce", "report"} <= seen
