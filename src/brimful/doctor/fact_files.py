"""Files in TOML: facts that ship with brimful, facts of users, and configurations."""

import re
import sys
from importlib.resources import files
from typing import Any

from brimful.errors import SettingsError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def read_toml(name: str) -> dict[str, Any]:
    """Return the contents of a file in the folder of ``doctor``, such as ``trainers/trl.toml``."""
    text = files("brimful.doctor").joinpath(name).read_text(encoding="utf-8")
    return toml_values(text, name)


def toml_values(text: str, path: str) -> dict[str, Any]:
    """Return the contents of a TOML text.

    Raises:
        SettingsError: another format; the message says the path and the line.
    """
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        reason, line = re.sub(r" \(at .*\)", "", str(error)), text.count("\n") + 1
        if match := re.search(r"line (\d+)", str(error)):
            line = int(match[1])
        raise SettingsError(f"{path}:{line}: not TOML: {reason}") from error
