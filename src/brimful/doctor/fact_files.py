"""Files of facts that ship with brimful, in TOML."""

import sys
from importlib.resources import files
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def read_toml(name: str) -> dict[str, Any]:
    """Return the contents of a file in the folder of ``doctor``, such as ``trainers/trl.toml``."""
    text = files("brimful.doctor").joinpath(name).read_text(encoding="utf-8")
    return tomllib.loads(text)
