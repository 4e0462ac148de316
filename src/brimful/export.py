"""The former place of ``brimful.integrations.export``, for one release."""

import warnings
from typing import Any

from brimful.integrations import export
from brimful.integrations.export import __path__ as __path__

warnings.warn(
    "brimful.export is brimful.integrations.export now: import names and modules from there",
    DeprecationWarning,
    stacklevel=2,
)


def __getattr__(name: str) -> Any:
    return getattr(export, name)
