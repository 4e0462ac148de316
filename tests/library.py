"""The modules of the library as syntax, read once for all tests that look at its code."""

from __future__ import annotations

import ast
import functools
import gc
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import brimful

ROOT = Path(brimful.__file__).parent


@dataclass(frozen=True)
class Import:
    """One statement of import.

    Attributes:
        module: that is imported, or from which names are.
        names: imported from it; none for ``import module``.
        is_for_types: true under ``if TYPE_CHECKING``, which never runs.
        is_at_top: true if importing the module that holds it runs it.
    """

    module: str
    names: tuple[str, ...]
    is_for_types: bool
    is_at_top: bool


@dataclass(frozen=True)
class Module:
    """A module of the library."""

    path: Path

    @functools.cached_property
    def file(self) -> str:
        """Path inside the library, as ``plan/planner.py``."""
        return self.path.relative_to(ROOT).as_posix()

    @functools.cached_property
    def name(self) -> str:
        """Name as in a statement of import."""
        return ".".join(("brimful", *self.path.relative_to(ROOT).with_suffix("").parts))

    @functools.cached_property
    def text(self) -> str:
        """Source text."""
        return self.path.read_text(encoding="utf-8")

    @functools.cached_property
    def tree(self) -> ast.Module:
        """Parsed text."""
        return ast.parse(self.text)

    @functools.cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes of the tree, as ``ast.walk`` orders them, which takes twice the time."""
        nodes: list[ast.AST] = [self.tree]
        for node in nodes:  # the children of each are put behind all that are there
            for name in node._fields:
                value = getattr(node, name, None)
                if isinstance(value, ast.AST):
                    nodes.append(value)
                elif isinstance(value, list):
                    nodes += [item for item in value if isinstance(item, ast.AST)]
        return nodes

    @functools.cached_property
    def imports(self) -> list[Import]:
        """Every import, in functions too."""
        return list(_imports(self.tree.body, is_for_types=False, is_at_top=True))


@functools.cache
def modules() -> list[Module]:
    """Return every module, in the order of the files."""
    return [Module(path) for path in sorted(ROOT.rglob("*.py"))]


def _imports(body: list[ast.stmt], *, is_for_types: bool, is_at_top: bool) -> Iterator[Import]:
    # Imports are statements, and only statements hold statements: expressions need not be looked through.
    for node in body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, (), is_for_types, is_at_top and not is_for_types)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = tuple(alias.name for alias in node.names)
            yield Import(node.module, names, is_for_types, is_at_top and not is_for_types)
        in_types = is_for_types or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test))
        at_top = is_at_top and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for field in ("body", "orelse", "finalbody"):
            yield from _imports(getattr(node, field, []), is_for_types=in_types, is_at_top=at_top)
        for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
            yield from _imports(part.body, is_for_types=in_types, is_at_top=at_top)


def work_of(call: Callable[[], Any], package: str, *compiled: str) -> int:
    """Return how many bytecodes a call runs in a package: work that does not depend on the machine, as a time does.

    Args:
        package: begins the names of the modules that count, such as ``brimful.doctor``.
        compiled: modules in it whose loops are compiled where they can be, and do not count.
    """
    count = 0

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal count
        module = frame.f_globals.get("__name__", "")
        if not module.startswith(package) or module in compiled:
            return None
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def is_freed_with_its_user(make: Callable[[], Any]) -> bool:
    """Return true if what a call makes is freed when nothing refers to it, and not at a collection."""
    gc.disable()
    try:
        return weakref.ref(make())() is None
    finally:
        gc.enable()
