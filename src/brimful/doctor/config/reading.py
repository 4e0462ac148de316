"""The configuration of a run as flat settings, in each form that users have: a file, a folder, or
the words of a command line. Nothing in it is executed.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from brimful.base.wording import counted
from brimful.doctor.config.documents import MAX_BYTES, SUFFIXES, document_settings, text_of
from brimful.doctor.config.python_files import notebook_settings, program_settings
from brimful.doctor.config.settings import GivenSettings
from brimful.doctor.config.started_trainings import script_settings, words_settings
from brimful.errors import SettingsError, SourceNotFoundError

_MAX_NOTEBOOK_BYTES = 20 << 20
"""Maximum bytes of a notebook, which holds pictures too."""

_READERS: Mapping[str, Callable[[str, str], GivenSettings]] = {
    **dict.fromkeys((".sh", ".bash", ".slurm", ".sbatch"), script_settings),
    ".py": program_settings,
    ".ipynb": notebook_settings,
}
"""Readers of path and text, by the end of the name; ``documents`` reads YAML, JSON and TOML.
"""

_NO_CONFIGURATIONS = {
    *("pyproject.toml", "setup.py", "package.json", "config.json", "generation_config.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "trainer_state.json"),
}
"""Files of a model, a checkpoint or a package that lie in the same folder."""

_MAX_NAMES = 8
"""Maximum files of a folder that an error names."""


def read_settings(path: str | Path) -> GivenSettings:
    """Return the settings of a file, or of the only configuration in a folder.

    Args:
        path: of YAML, JSON, TOML, a shell script, a Python file or a notebook. The end of the name
            tells which; without a known one, the contents do.

    Raises:
        SourceNotFoundError: no such file, or no configuration in the folder.
        SettingsError: the file has another format, or several in the folder may be meant.
    """
    file = Path(path).expanduser()
    if file.is_dir():
        file = _only_configuration(file)
    suffix = file.suffix.lower()
    text = text_of(file, _MAX_NOTEBOOK_BYTES if suffix == ".ipynb" else MAX_BYTES)
    if suffix not in SUFFIXES and suffix not in _READERS:
        suffix = _suffix_of(text)
    if suffix in SUFFIXES:
        return GivenSettings(str(file), document_settings(str(file), text, suffix))
    return _READERS[suffix](str(file), text)


def read_command(words: Sequence[str]) -> GivenSettings:
    """Return the settings of a command line, and of the file or script that it names.

    Raises:
        SettingsError: it has no program, or the file is not a configuration.
        SourceNotFoundError: no such file.

    >>> run = read_command(["torchrun", "--nproc_per_node=8", "train.py", "--packing", "true"])
    >>> run.get("packing"), run.command, run.ranks
    (Given(value=True, where='command line'), 'python train.py', 8)
    """
    return words_settings(words)


def _suffix_of(text: str) -> str:
    """Return the end that a name should have, from the first lines of its text."""
    first = next(line.strip() for line in text.split("\n") if line.strip())
    if first.startswith("#!"):
        return ".py" if "python" in first else ".sh"
    if first.startswith("{"):
        return ".json"
    lines = [line for line in text.split("\n") if line.strip() and not line.startswith("#")]
    for suffix, pattern in (
        (".toml", r"\[[\w.\"-]+\]\s*(?:#.*)?$"),
        (".yaml", r"[\w\"'./-]+\s*:(?:\s|$)|---|- "),
        (".toml", r"[\w.-]+ = "),
        (".py", r"(?:import|from) \w|@\w|(?:class|def) \w"),
    ):
        if any(re.match(pattern, line) for line in lines[:1]):
            return suffix
    return ".sh"


def _only_configuration(folder: Path) -> Path:
    """Return the one file of a folder that can be a configuration.

    Raises:
        SourceNotFoundError: it has none.
        SettingsError: it has several; the message names them.
    """
    paths = [
        path
        for path in sorted(folder.iterdir())
        if path.is_file() and path.name not in _NO_CONFIGURATIONS and path.name[0] != "."
    ]
    for suffixes in ((".yaml", ".yml", ".toml"), tuple(_READERS), (".json",)):
        names = [path.name for path in paths if path.suffix.lower() in suffixes]
        if len(names) == 1:
            return folder / names[0]
        if names:
            num_unnamed = len(names) - _MAX_NAMES
            text = ", ".join(names[:_MAX_NAMES]) + (
                f" and {num_unnamed} more" if num_unnamed > 0 else ""
            )
            raise SettingsError(
                f"{folder} is a folder with {counted(len(names), 'configuration')}: {text}: "
                "name one"
            )
    raise SourceNotFoundError(f"{folder} is a folder without a configuration")
