"""Versions of installed libraries."""

import importlib.metadata
from functools import cache


@cache
def version_of(library: str) -> str:
    """Return the installed version of a library; cached, as each lookup reads a file.

    Raises:
        importlib.metadata.PackageNotFoundError: it is not installed.

    >>> version_of("numpy").count(".")
    2
    """
    return importlib.metadata.version(library)
