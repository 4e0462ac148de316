"""Whatever a user calls the configuration of a run, as flat settings: a file, a folder, or the
words of a command line. Nothing in it is executed.
"""

from collections.abc import Sequence
from pathlib import Path

from brimful.doctor.config.command_lines import CommandLine, Word, command_settings
from brimful.doctor.config.documents import SUFFIXES, file_settings
from brimful.doctor.config.settings import GivenSettings
from brimful.errors import SettingsError

__all__ = ["read_command", "read_settings"]


def read_settings(path: str | Path) -> GivenSettings:
    """Return the settings of a file."""
    file = Path(path).expanduser()
    if file.suffix.lower() in SUFFIXES:
        return GivenSettings(str(path), file_settings(file))
    raise SettingsError(f"{path}: unknown")


def read_command(words: Sequence[str]) -> GivenSettings:
    """Return the settings of a command line, and of the file that it names."""
    line = CommandLine.of([Word(word, "command line") for word in words])
    return command_settings(line, " ".join(line.program))
