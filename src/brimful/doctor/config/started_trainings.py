"""Trainings that shell scripts, command lines and cells of notebooks start: of their command lines,
the one with the most settings.
"""

import contextlib
import re
from collections.abc import Iterable, Sequence

from brimful.doctor.config.command_lines import CommandLine, Word, command_settings
from brimful.doctor.config.settings import GivenSettings
from brimful.doctor.config.shell_scripts import Script
from brimful.errors import BrimfulError, SettingsError

_PROGRAM_OF_USER = re.compile(r"\$\{?\w+\}?")

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
    return command_settings(max(lines, key=_weight), path)


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
    lines = _lines_of(Script("", "", place=place), setting, 0)
    line = max(lines, key=_weight) if lines else CommandLine.of(setting)
    if not line.program:
        raise SettingsError("the command line has no program, such as `trl sft --packing true`")
    is_handed_on = any(word.text.endswith(".py") for word in line.words)  # train.sh of VeOmni
    if line.program[0] in ("bash", "sh") and not is_handed_on:
        raise SettingsError(f"{' '.join(words[:2])} starts no training that can be read from here")
    return command_settings(line, " ".join(line.program))


def chosen_line(scripts: Iterable[tuple[str, str]]) -> CommandLine | None:
    """Return the training with the most settings in the commands of a notebook; None without one.

    Args:
        scripts: pairs of commands and their place.
    """
    notebook = Script("", "")
    lines: list[CommandLine] = []
    for text, place in scripts:
        cell = Script(text, "", place=place)
        cell.variables, cell.exports = notebook.variables, notebook.exports
        with contextlib.suppress(SettingsError):  # a quote that is not closed spoils one cell
            lines += _lines(cell, 0)
    trainings = [line for line in lines if line.is_training and line.words]
    for line in trainings:
        line.is_file_needed = False
    return max(trainings, key=_weight, default=None)


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
        lines += latest
    return lines


def _lines_of(script: Script, words: list[Word], depth: int) -> list[CommandLine]:
    """Return the command line of one command, or all of the script that it runs."""
    script.budget[0] -= 1
    if depth > _MAX_DEPTH or script.budget[0] < 0:
        return []
    name = words[0].text if words else ""
    if name == "eval":
        inner = script.inner(" ".join(word.text for word in words[1:]), (), words[0].where)
        inner.variables, inner.exports = script.variables, script.exports
        return _lines(inner, depth + 1)
    if name in ("source", ".") and len(words) > 1:
        if library := script.opened(words[1].text, words[2:]):
            library.variables, library.exports = script.variables, script.exports
            return _lines(library, depth + 1)
        return []
    line = CommandLine.of(words, script.environment)
    line.folders = script.folders
    if not line.program:
        return []
    if line.program[0] in ("bash", "sh"):
        remainder = line.words
        while remainder and _is_flag(remainder[0].text):
            option, remainder = remainder[0].text, remainder[1:]
            if "c" in option and not option.startswith("--") and remainder:
                inner = script.inner(remainder[0].text, remainder[2:], remainder[0].where)
                return _lines(inner.with_environment(line.environment), depth + 1)
        words = remainder
    elif line.program[0].endswith(".sh"):
        words = [Word(line.program[0], ""), *line.words]
    else:
        # A program in a variable of the environment, such as $COMMAND of verl, with settings.
        is_of_user = line.options and _PROGRAM_OF_USER.fullmatch(line.program[0])
        return [line] if line.is_known or is_of_user else []
    if words and (file := script.opened(words[0].text, words[1:])):
        return _lines(file.with_environment(line.environment), depth + 1)
    return [line] if line.program[0].endswith(".sh") else []


def _is_flag(text: str) -> bool:
    return text[:1] in ("-", "+") and len(text) > 1
