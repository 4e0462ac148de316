"""The former place of ``brimful.integrations.trainers``, for one release."""

import warnings
from typing import Any

from brimful.integrations import trainers

__path__ = [*__path__, *trainers.__path__]
warnings.warn(
    "brimful.trainers is brimful.integrations.trainers now: import names and modules from there",
    DeprecationWarning,
    stacklevel=2,
)


def __getattr__(name: str) -> Any:
    return getattr(trainers, name)
