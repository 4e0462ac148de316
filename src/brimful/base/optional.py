"""Libraries that may be absent, their versions, and public names that are imported at their first
use.
"""

import contextlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any

from brimful.errors import MissingExtraError, missing_extra

_ASKED = re.compile(
    r"requires (?:the )?(?:\W* )?([\w-]+)(?:.*?pip\s+install (?:-U )?([\w.\[\]-]+))?", re.DOTALL
)
"""A library and its distribution in an error of Transformers: its sentences are all like that."""


@contextlib.contextmanager
def optional(package: str, extra: str, purpose: str) -> Iterator[None]:
    """Turn the ImportError of an optional library, imported in this block, into a ``pip install``
    line.

    Transformers imports libraries of its own when a class is used: such a use in the block has the
    line too.

    Raises:
        MissingExtraError: the package, or a library that Transformers asks for, is not installed.

    >>> with optional("brim_of_nothing", "torch", "PackCollator"):
    ...     import brim_of_nothing
    Traceback (most recent call last):
        ...
    brimful.errors.MissingExtraError: PackCollator needs brim_of_nothing, which is not installed: pip install 'brimful[torch]'
    """
    try:
        yield
    except ImportError as error:
        if (error.name or "").split(".")[0] == package:
            raise missing_extra(package, extra, purpose) from error
        match = _ASKED.search(str(error))
        # Any other missing module is a broken installation, which no extra of brimful repairs.
        if error.name or match is None:
            raise
        library, distribution = match.groups()
        distribution = distribution or library.lower().replace("pytorch", "torch")
        raise MissingExtraError(
            f"{purpose} needs {library}, which is not installed: pip install {distribution}"
        ) from error


@cache
def fast_json_library() -> Any:
    """Return ``orjson``; None if it is not installed."""
    try:
        import orjson
    except ImportError:
        return None
    return orjson


def public_name(package: str, module: str | None, name: str) -> Any:
    """Import a public name of a package at its first use, for the package's ``__getattr__``.

    Args:
        package: ``__name__`` of the package.
        module: the module that has the name; None if the package has no such name.
        name: the name.

    Raises:
        AttributeError: the package has no such name.
        MissingExtraError: it needs torch, which is not installed.
    """
    if module is None:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    with optional("torch", "torch", name):
        value = getattr(import_module(module), name)
    # Set as an attribute, so that the next use of the name skips this function.
    setattr(sys.modules[package], name, value)
    return value


@cache
def version_of(library: str) -> str:
    """Return the installed version of a library; cached, as each lookup reads a file.

    Raises:
        importlib.metadata.PackageNotFoundError: it is not installed.

    >>> version_of("numpy").count(".")
    2
    """
    import importlib.metadata

    return importlib.metadata.version(library)


def at_first_use(package: str, names_of: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package that imports names at their first use, since their
    modules need torch.

    Args:
        package: ``__name__`` of the package.
        names_of: public names by module, of the package or with its full name.
    """
    modules = {
        name: module if module.startswith("brimful.") else f"{package}.{module}"
        for module, names in names_of.items()
        for name in names
    }
    return lambda name: public_name(package, modules.get(name), name)
