"""Files of facts that ship with brimful, in TOML."""

import sys
from importlib.resources import files
from typing import Any

__all__ = ["read_toml", "toml_values"]

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def read_toml(name: str) -> dict[str, Any]:
    """Return the contents of a file in the folder of ``doctor``, such as ``trainers/trl.toml``."""
    text = files("brimful.doctor").joinpath(name).read_text(encoding="utf-8")
    return toml_values(text)


def toml_values(text: str) -> dict[str, Any]:
    """Return the contents of a TOML text."""
    return tomllib.loads(text)
