"""Functions of a library whose files are installed, but not all that it imports."""

import ast
import copy
import enum
import heapq
import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Optional

import pytest


def definitions_of(package, path, names, **others):
    """The named functions and classes of one file of a package, with ``others`` that they use; the test skips without
    the package."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"{package} is not installed")
    file = next(
        (Path(place) / path for place in spec.submodule_search_locations if (Path(place) / path).exists()), None
    )
    if file is None:
        pytest.skip(f"this {package} has no {path}")
    tree = ast.parse(file.read_text())
    tree.body = [node for node in tree.body if getattr(node, "name", None) in names]
    given = (copy, enum, heapq)
    namespace: dict[str, Any] = {module.__name__: module for module in given}
    namespace |= {"ABC": ABC, "abstractmethod": abstractmethod, "Any": Any, "Callable": Callable}
    namespace |= {"dataclass": dataclass, "Iterable": Iterable, "Sequence": Sequence, **others}
    namespace |= {"List": list, "Optional": Optional, "Tuple": tuple, "__name__": __name__}
    exec(compile("from __future__ import annotations", "", "exec"), namespace)
    exec(compile(tree, str(file), "exec", flags=__import__("__future__").annotations.compiler_flag), namespace)
    return SimpleNamespace(**{name: namespace[name] for name in names})
