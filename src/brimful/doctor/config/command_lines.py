"""Command lines of trainings as flat settings: launcher, program, arguments, and the file that they
name.

::

    NPROC_PER_NODE=8 srun torchrun --nnodes 2 train.py run.yaml --packing true model.path=qwen
    environment      wrapper launcher         program  file     arguments
"""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from brimful.doctor.config.documents import SUFFIXES, file_settings, scalar
from brimful.doctor.config.settings import (
    Given,
    GivenSettings,
    Unknown,
    overlaid,
    same_key,
    unveiled,
)
from brimful.errors import SourceNotFoundError


class Word(NamedTuple):
    """One word of a command line, and the place where it is written."""

    text: str
    where: str


_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_OVERRIDE = re.compile(r"(\+{0,2})([A-Za-z_][\w./@-]*)=(.*)", re.DOTALL)
_OPTION = re.compile(r"--?([A-Za-z][^\s=]*)(?:=(.*))?", re.DOTALL)
_SUBCOMMAND = re.compile(r"[A-Za-z][\w-]*")
_PYTHON = re.compile(r"python[\d.]*(?:\.exe)?")

_WRAPPERS = {
    *("env", "exec", "nohup", "time", "nice", "sudo", "stdbuf", "numactl", "timeout", "srun"),
    *("mpirun", "mpiexec", "uv", "poetry", "pdm", "pixi", "conda", "mamba", "ray", "nsys"),
    "coverage",
}
"""Programs that run the command after their own options."""

_LAUNCHERS = {
    "torchrun": "torchrun",
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate": "accelerate",
    "accelerate.commands.launch": "accelerate",
    "deepspeed": "deepspeed",
}
"""Programs and modules that start several processes of a Python program."""

_PROGRAMS = {
    *("python", "bash", "sh", "trl", "swift", "megatron", "axolotl", "llamafactory-cli", "lmf"),
    *("automodel", "nemo", "tune", "unsloth", "autotrain", "oumi", "composer", *_LAUNCHERS),
}
"""Words at which the command after a wrapper begins."""

_NAMING_OPTIONS = {"--with", "--extra", "--group", "--package", "--python", "-p", "-n", "--name"}
"""Options of wrappers whose value may have the name of a program."""

_OTHER_WORK = {
    *("infer", "inference", "eval", "evaluate", "export", "merge", "merge-lora", "deploy", "serve"),
    *("rollout", "preprocess", "chat", "api", "app", "webchat", "webui", "web-ui", "sample", "env"),
    *("estimate-memory", "config", "fetch", "version", "quantize", "vllm-serve", "merge-sharded"),
}
"""Subcommands that do not train."""

_FLAGS = {
    *("standalone", "no_python", "run_path", "multi_gpu", "cpu", "tpu", "use_deepspeed", "quiet"),
    *("use_fsdp", "use_megatron_lm", "use_xpu", "same_network", "debug", "no_local_rank", "q"),
    *("enable_cpu_affinity", "force", "no_ssh", "no_ssh_check", "u", "use_parallelism_config"),
}
"""Options of launchers without a value."""

_FILE_KEYS = {"config", "config_file", "config_yaml", "config_path", "cfg", "c", "yaml", "recipe"}
"""Options, or last parts of dotted ones, whose value is a file of settings if it ends like one."""


@dataclass
class CommandLine:
    """The parts of a command line.

    Attributes:
        environment: variables set for the command.
        launcher: a value of ``_LAUNCHERS``; empty without one.
        launch_options: options of the launcher.
        program: its words, such as ``trl sft`` or ``python -m verl.trainer.main``.
        words: all words after the program.
        options: settings by key, mappings whole; ``_`` for each ``-``.
        removals: keys that ``~key`` removes.
        positions: words that belong to no option.
        folders: where a relative path may begin.
        is_file_needed: false if the file of settings may be missing here.
        cut: place of the words at which bash ends the command too early; empty if it does not.
        is_branch: one of several that a script may start.
    """

    environment: dict[str, Word] = field(default_factory=dict)
    launcher: str = ""
    launch_options: dict[str, Given] = field(default_factory=dict)
    program: list[str] = field(default_factory=list)
    words: list[Word] = field(default_factory=list)
    options: dict[str, Given] = field(default_factory=dict)
    removals: set[str] = field(default_factory=set)
    positions: list[Word] = field(default_factory=list)
    folders: tuple[Path, ...] = (Path(),)
    is_file_needed: bool = True
    cut: str = ""
    is_branch: bool = False

    @classmethod
    def of(
        cls, words: Sequence[Word], environment: Mapping[str, Word] | None = None
    ) -> "CommandLine":
        """Return the parts of a command line.

        Args:
            words: of the command line, without quotes.
            environment: variables that earlier commands of a script have exported.
        """
        line = cls(dict(environment or {}))
        remainder = line._unwrapped(list(words))
        if remainder:
            line._read_program(remainder)
            line._read_arguments(line.words)
        return line

    def _unwrapped(self, words: list[Word]) -> list[Word]:
        """Return the words from the launcher or program on; note variables on the way."""
        while words:
            # A variable ahead of the command, or the start of another command.
            is_variable = _ASSIGNMENT.fullmatch(words[0].text) is not None
            start = 1 if is_variable else _start(words)
            if start == 0:
                break
            for word in words[:start]:
                if match := _ASSIGNMENT.fullmatch(word.text):
                    self.environment[match[1]] = word._replace(text=match[2])
            words = words[start:]
        return words

    def _read_program(self, words: list[Word]) -> None:
        """Split launcher, program and arguments."""
        name = _name(words[0])
        if name == "python":
            words = [words[0], *_without_flags_of_python(words[1:])]
            if len(words) > 2 and words[1].text == "-m" and words[2].text in _LAUNCHERS:
                name, words = words[2].text, words[2:]
        if name in _LAUNCHERS:
            self.launcher = _LAUNCHERS[name]
            remainder = words[2:] if [word.text for word in words[1:2]] == ["launch"] else words[1:]
            words = self._read_launch_options(remainder)
        if not words:
            return
        if words[0].text == "-m":  # of a launcher
            words = [Word("python", ""), *words]
        name, remainder = _name(words[0]), words[1:]
        self.program = [name]
        if name in ("bash", "sh"):
            self.words = remainder
            return
        if name.endswith(".py"):  # ./train.py
            name, remainder = "python", words
            self.program = [name]
        if name == "python":
            size = 2 if remainder and remainder[0].text == "-m" else 1
            self.program += [word.text for word in remainder[:size]]
            remainder = remainder[size:]
        # Subcommands, such as `sft` of `trl sft`, are words without a point.
        while remainder and _SUBCOMMAND.fullmatch(remainder[0].text):
            self.program.append(remainder[0].text)
            remainder = remainder[1:]
        self.words = remainder

    def _read_launch_options(self, words: list[Word]) -> list[Word]:
        """Note the options of a launcher, and return the words after them."""
        while words and words[0].text != "-m":
            if words[0].text.startswith("$") and any(_is_script(word) for word in words):
                words = words[1:]  # options of unknown value
                continue
            match = _OPTION.fullmatch(words[0].text)
            if match is None:
                break
            name, place = same_key(match[1]), words[0].where
            words = words[1:]
            if name == "module":
                return [Word("-m", place), *words]
            if match[2] is not None:
                value = match[2]
            elif name in _FLAGS or not words or _is_option(words[0].text):
                value = "true"
            else:
                value, words = words[0].text, words[1:]
            self.launch_options[name] = Given(scalar(value), place)
        return words

    def _read_arguments(self, words: list[Word]) -> None:
        """Note the settings of a program's arguments."""
        position = 0
        while position < len(words):
            text, place = words[position]
            position += 1
            if text.startswith("~"):
                key = same_key(text[1:].partition("=")[0])
                self.options.pop(key, None)
                self.removals.add(key)
            elif _is_option(text):
                match = _OPTION.fullmatch(text)
                if match is None:
                    continue
                values = [] if match[2] is None else [match[2]]
                if match[2] is None:
                    while position < len(words) and _is_value(words[position].text, values):
                        values.append(words[position].text)
                        position += 1
                self._set(same_key(match[1]), values, place)
            elif match := _OVERRIDE.fullmatch(text):
                self._set(same_key(match[2]), [match[3]], place)
            else:
                self.positions.append(words[position - 1])
                if text.startswith("$") and isinstance(value := scalar(text), Unknown):
                    self.options[str(value)] = Given(value, place)

    def _set(self, key: str, texts: list[str], place: str) -> None:
        """Note one option; one without a value is true, or false if its name begins with ``no``."""
        block, point, name = key.rpartition(".")
        values = [scalar(text) for text in texts] or [True]
        is_unknown = any(isinstance(item, Unknown) for item in values)
        if name.startswith("no_") and (is_unknown or not texts):
            key, values = f"{block}{point}{name[3:]}", values if is_unknown else [False]
        value = values if len(values) > 1 else values[0]
        if is_unknown and len(values) > 1:
            value = Unknown(" ".join(map(str, values)))
        self.options[key] = Given(value, place)

    @property
    def is_known(self) -> bool:
        """True if the program is Python, or a trainer's own."""
        return bool(self.launcher) or self.program[0] in _PROGRAMS

    @property
    def is_training(self) -> bool:
        """True unless a subcommand says that it does other work."""
        return _OTHER_WORK.isdisjoint(self.program)

    @property
    def ranks(self) -> int | None:
        """Processes that the launcher or the environment starts; None if that is not a number.

        ``command_settings`` knows those of Accelerate, whose file may say it.
        """
        option = self.launch_options.get
        if self.launcher == "torchrun":
            return _product(option("nproc_per_node"), option("nnodes"))
        if self.launcher == "deepspeed":
            if include := option("include"):  # worker-0:0,1@worker-1:2,3
                devices = re.findall(r"[:,](?=\d)", str(include.value))
                return len(devices) or None
            num_gpus = option("num_gpus")
            return _product(num_gpus, option("num_nodes")) if num_gpus else None
        variable = self.environment.get
        if number := variable("NPROC_PER_NODE"):
            return _product(_given(number), _given(variable("NNODES")))
        return _count(_given(variable("WORLD_SIZE")))


def command_settings(line: CommandLine, title: str) -> GivenSettings:
    """Return the settings of a command line, and of the file that it names.

    Args:
        line: its parts.
        title: what the report is called.

    Raises:
        SourceNotFoundError: the command names a file that is not there.
        SettingsError: the file is not a configuration.
    """
    path = _file_of(line)
    values = overlaid(file_settings(path) if path else {}, line.options, line.removals)
    for name, word in line.environment.items():
        values[f"environ.{name}"] = Given(scalar(word.text), word.where)
    ranks = line.ranks
    if line.launcher == "accelerate":
        settings = _accelerate_settings(line)
        values |= {f"accelerate.{key}": setting for key, setting in settings.items()}
        ranks = _count(settings.get("num_processes"))
    if line.cut:
        title = f"{title}, whose command ends before {line.cut}: bash passes nothing from there on"
    return GivenSettings(title, values, unveiled(" ".join(line.program)), ranks)


def _accelerate_settings(line: CommandLine) -> dict[str, Given]:
    """Return the options of ``accelerate launch`` and of its file, if that is here."""
    option = line.launch_options.get("config_file")
    path = existing(str(option.value), line.folders) if option else None
    return overlaid(file_settings(path) if path else {}, line.launch_options)


def _file_of(line: CommandLine) -> Path | None:
    """Return the file of settings that the arguments name; None without one."""
    # Hydra: a folder and a name. Its folder may be in an installed package, out of sight.
    option = line.options.get
    folder, name = option("config_path") or option("cp"), option("config_name") or option("cn")
    if name:
        suffix = "" if str(name.value).endswith(SUFFIXES) else ".yaml"
        folder_path = str(folder.value) if folder else "."
        return existing(f"{folder_path}/{name.value}{suffix}", line.folders)
    words = [
        Word(setting.value, setting.where)
        for key, setting in line.options.items()
        if key.rpartition(".")[2] in _FILE_KEYS and isinstance(setting.value, str)
    ]
    words += line.positions[:1]
    if "CONFIG_FILE" in line.environment:  # of torchtitan's run_train.sh
        words.append(line.environment["CONFIG_FILE"])
    for word in words:
        if word.text.lower().endswith(SUFFIXES):
            path = existing(word.text, line.folders)
            if path is None and line.is_file_needed and "$" not in word.text:
                raise SourceNotFoundError(f"{word.where}: {word.text}: no such file")
            return path
    return None


def existing(name: str, folders: Iterable[Path]) -> Path | None:
    """Return the file of this name in the first folder that has it."""
    paths = (folder / Path(name).expanduser() for folder in folders)
    return next((path for path in paths if os.path.isfile(path)), None)


def _name(word: Word) -> str:
    """Return the name of a program without its folder; ``python`` for any version."""
    name = re.split(r"[\\/]", word.text)[-1]
    return "python" if _PYTHON.fullmatch(name) else name.removesuffix(".exe")


def _is_script(word: Word) -> bool:
    return word.text.endswith((".py", ".sh"))


def _start(words: Sequence[Word]) -> int:
    """Return the position of the command that a wrapper starts; 0 if the first word is the program
    itself.
    """
    is_unknown = words[0].text.startswith("$")
    is_wrapper = is_unknown or _name(words[0]) in _WRAPPERS
    positions = [place + 1 for place, word in enumerate(words[:-1]) if word.text == "--"][:1]
    positions += range(1, len(words)) if is_wrapper else ()
    for position in positions:
        if words[position - 1].text in _NAMING_OPTIONS:
            continue
        if _is_script(words[position]) or _name(words[position]) in _PROGRAMS:
            return position
        if is_unknown and words[position].text == "-m":
            return position
    for position in positions if is_wrapper and not is_unknown else ():
        text = words[position].text
        if not _is_option(text) and not _ASSIGNMENT.fullmatch(text):
            return position
    return 0


def _without_flags_of_python(words: list[Word]) -> list[Word]:
    """Return the words from ``-m`` or the script on."""
    while words and words[0].text.startswith("-") and words[0].text not in ("-m", "-c"):
        words = words[2:] if words[0].text in ("-W", "-X") else words[1:]
    return words


def _is_option(text: str) -> bool:
    """Return true for ``--key`` and ``-k``, and false for a negative number."""
    return len(text) > 1 and text[0] == "-" and not (text[1].isdigit() or text[1] == ".")


def _is_value(text: str, values: Sequence[str]) -> bool:
    """Return true if a word is one more value of an option."""
    if _is_option(text) or text.startswith("~"):
        return False
    if match := _OVERRIDE.fullmatch(text):
        return not (values or match[1] or "." in match[2])
    # A variable of unknown value may hold anything: it is a value only where one must stand.
    return not (values and text.startswith("$"))


def _given(word: Word | None) -> Given | None:
    return None if word is None else Given(scalar(word.text), word.where)


def _count(setting: Given | None) -> int | None:
    value = None if setting is None else setting.value
    return value if type(value) is int and value > 0 else None


def _product(per_node: Given | None, nodes: Given | None) -> int | None:
    """Return processes of all nodes, of which one is the default; None if one is not a number."""
    first, second = (1 if setting is None else _count(setting) for setting in (per_node, nodes))
    return first and second and first * second
