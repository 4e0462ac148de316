"""Trainings that shell scripts, command lines and cells of notebooks start: of their command lines,
the one with the most settings.
"""

import contextlib
import re
from collections.abc import Sequence
from dataclasses import replace

from brimful.doctor.config.command_lines import CommandLine, Word, command_settings
from brimful.doctor.config.settings import GivenSettings, alternatives
from brimful.doctor.config.shell_scripts import Script
from brimful.errors import BrimfulError, SettingsError

_MAX_DEPTH = 5
"""Maximum scripts that start each other."""


def script_settings(path: str, text: str) -> GivenSettings:
    """Return the settings of the training that a script starts: of its command lines, the one with
    the most settings.

    Raises:
        SettingsError: the script starts no training.
        SourceNotFoundError: the training names a file that is not there.
    """
    lines = _lines(Script(text, path), 0)
    if not lines:
        raise SettingsError(
            f"{path} starts no training: name the script whose command line has the settings"
        )
    return _chosen(lines, path)


def read_command(words: Sequence[str]) -> GivenSettings:
    """Return the settings of a command line, and of the file or script that it names.

    Raises:
        SettingsError: it has no program, or the file is not a configuration.
        SourceNotFoundError: the command names a file that is not there.

    >>> run = read_command(["torchrun", "--nproc_per_node=8", "train.py", "--packing", "true"])
    >>> run.get("packing"), run.command, run.ranks
    (Given(value=True, where='command line'), 'python train.py', 8)
    """
    place = "command line"
    setting = [Word(word, place) for word in words]
    lines = _lines_of(Script("", "", place), setting, 0) or [CommandLine.of(setting)]
    line = max(lines, key=_weight)
    if not line.program:
        raise SettingsError("the command line has no program, such as `trl sft --packing true`")
    # train.sh of VeOmni hands its arguments on.
    if line.program[0] in ("bash", "sh") and ".py" not in " ".join(words):
        raise SettingsError(f"{' '.join(words[:2])} starts no training that can be read from here")
    return _chosen(lines, " ".join(line.program))


def notebook_run(scripts: Sequence[tuple[str, str]], title: str) -> GivenSettings | None:
    """Return the training with the most settings in the commands of a notebook; None without one.

    Args:
        scripts: pairs of commands and their place.
        title: of the notebook.
    """
    notebook = Script("", "")
    lines: list[CommandLine] = []
    for text, place in scripts:
        with contextlib.suppress(SettingsError):  # a quote that is not closed spoils one cell
            lines += _lines(replace(notebook, text=text, place=place), 0)
    trainings = [line for line in lines if line.is_training and line.words]
    for line in trainings:
        line.is_file_needed = False
    return _chosen(trainings, title) if trainings else None


def _chosen(lines: Sequence[CommandLine], title: str) -> GivenSettings:
    """Return the settings of the training with the most of them, or what all trainings share of
    which a branch starts one.
    """
    line = max(lines, key=_weight)
    runs = [command_settings(line, title)]
    for rival in lines if line.is_branch else ():
        if rival.is_training and rival.is_branch and rival is not line:
            rival.is_file_needed = False
            runs.append(command_settings(rival, title))
    values = alternatives([run.values for run in runs])
    ranks = {run.ranks for run in runs}
    return replace(runs[0], values=values, ranks=ranks.pop() if len(ranks) == 1 else None)


def _weight(line: CommandLine) -> tuple[bool, int]:
    """Return a key by which the command line of a training is the largest: a launcher counts as
    several settings.
    """
    try:
        num_settings = len(command_settings(line, "").values)
    except BrimfulError:  # a file that is not there is told if this line is chosen
        num_settings = len(line.options)
    return line.is_training, num_settings + 5 * bool(line.launcher)


def _lines(script: Script, depth: int) -> list[CommandLine]:
    """Return the command lines of Python programs in a script."""
    lines: list[CommandLine] = []
    latest: list[CommandLine] = []
    for words in script.commands():
        if words[0].text.startswith("--") and latest:
            # A comment, or a backslash that is missing or has a blank after it.
            latest[-1].cut = words[0].where
        latest = _lines_of(script, words, depth)
        for line in latest:
            line.is_branch |= not {"fi", "esac", "}"}.isdisjoint(script.blocks)
        lines += latest
    return lines


def _lines_of(script: Script, words: list[Word], depth: int) -> list[CommandLine]:
    """Return the command line of one command, or all of the script that it runs."""
    script.budget[0] -= 1
    if depth > _MAX_DEPTH or script.budget[0] < 0 or not words:
        return []
    name, place = words[0]
    if name in ("eval", "source", "."):
        text = " ".join(word.text for word in words[1:])
        part = (
            replace(script, text=text, place=place) if name == "eval" else script.opened(words[1:])
        )
        return _lines(part, depth + 1) if part else []
    line = CommandLine.of(words, script.environment)
    line.folders = script.folders
    program, words = "".join(line.program[:1]), line.words
    options = ""
    if program.endswith(".sh"):
        words = [Word(program, ""), *words]
    elif program in ("bash", "sh"):
        while words and words[0].text.startswith(("-", "+")):
            options, words = options + words[0].text, words[1:]
    else:
        # A program in a variable of the environment, such as $COMMAND of verl, with settings.
        is_of_user = line.options and program.startswith("$")
        return [line] if program and (is_of_user or line.is_known) else []
    part = script.opened(words)
    if words and re.search(r"(^|\w)-\w*c", options):
        part, words = replace(script, text=words[0].text, place=words[0].where), words[1:]
    if part:
        return _lines(part.started(line.environment, words[1:]), depth + 1)
    return [line] if program.endswith(".sh") else []
