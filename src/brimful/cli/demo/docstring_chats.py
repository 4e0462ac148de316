"""Chats from the docstrings of Python's standard library: real text that every machine has.

Source files are read with ``ast``; no module is imported, so no code of the library runs. The
lengths have the heavy tail of real data: most answers are a line, a few are whole manuals.
"""

import ast
import json
import re
import sysconfig
import warnings
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import TypeAlias, TypeGuard

from brimful.base.typing import AnyPath
from brimful.errors import SourceNotFoundError

Chat: TypeAlias = dict[str, list[dict[str, str]]]
"""``{"messages": [{"role": "user", "content": …}, {"role": "assistant", "content": …}, …]}``."""

_Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef

_SKIPPED_FOLDERS = frozenset(
    {
        "site-packages",
        "dist-packages",
        "test",
        "tests",
        "idle_test",
        "idlelib",
        "lib2to3",
        "ensurepip",
        "lib-dynload",
    }
)
"""Folders of an installation that hold third-party packages, tests, or no useful text."""

_SURROGATE = re.compile("[\ud800-\udfff]")
"""Half of a surrogate pair, which UTF-8 cannot encode; a docstring may show one."""

_MIN_CHATS = 500
"""Minimum number of chats that a standard library with its sources gives."""


def make_chats(directory: AnyPath | None = None, *, limit: int | None = None) -> list[Chat]:
    """Make questions about the standard library, answered by its docstrings.

    ==============================  ===========================================================================
    a module                        what it is for
    a function                      what it does: its signature and docstring
    a class                         what it is for, then one more turn for each of its documented methods
    a method                        how to call it: its signature and the first line of its docstring
    ==============================  ===========================================================================

    Ordered by module and then as in the file: the same Python gives the same chats.

    Args:
        directory: of Python sources; the standard library of this Python if None.
        limit: largest number of chats, taken evenly from all; None for all of them.

    Returns:
        Rows of the format ``messages``; several thousand for a whole standard library.

    Raises:
        SourceNotFoundError: too few sources, as in installations that keep compiled files only.
    """
    root = Path(directory if directory is not None else sysconfig.get_path("stdlib"))
    chats = [
        chat
        for name, path in _modules(root)
        for chat in _module_chats(name, path)
        if not _SURROGATE.search(json.dumps(chat, ensure_ascii=False))
    ]
    minimum = _MIN_CHATS if directory is None else 1
    if len(chats) < minimum:
        raise SourceNotFoundError(
            f"{root}: only {len(chats):,} docstrings can be read there, and at least {minimum:,} "
            "are needed. This Python seems to be installed without its sources; use another "
            "Python, or pack data of your own"
        )
    if limit is None or limit >= len(chats):
        return chats
    return [chats[index * len(chats) // limit] for index in range(limit)]


def _modules(root: Path) -> list[tuple[str, Path]]:
    """Return dotted names and files of the public modules, in order."""
    modules = []
    for path in root.rglob("*.py"):
        names = path.relative_to(root).with_suffix("").parts
        if names[-1] == "__init__":
            names = names[:-1]
        is_public = all(name.isidentifier() and not name.startswith("_") for name in names)
        if names and is_public and _SKIPPED_FOLDERS.isdisjoint(names):
            modules.append((".".join(names), path))
    return sorted(modules)  # file systems list in any order


def _module_chats(name: str, path: Path) -> Iterator[Chat]:
    """Yield the chats about a module, its classes and its functions."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old escapes in docstrings do not matter here
            tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return  # a template or a broken link among the sources
    text = ast.get_docstring(tree)
    if text:
        yield make_chat((f"What is the module {name} for?", text))
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from _class_chats(f"{name}.{node.name}", node)
        elif _is_documented(node):
            function = f"{name}.{node.name}"
            yield make_chat(
                (
                    f"What does {function} do?",
                    f"{_signature(function, node)}\n\n{ast.get_docstring(node)}",
                )
            )


def _class_chats(name: str, node: ast.ClassDef) -> Iterator[Chat]:
    """Yield one chat about a class with a turn for each of its methods, then one about each
    method.
    """
    # A class without any docstring is skipped; a class with documented methods is described by
    # their names.
    methods = [member for member in node.body if _is_documented(member)]
    text = (ast.get_docstring(node) or "").strip()
    if not text and not methods:
        return
    description = (
        text or f"Its documented methods are {', '.join(method.name for method in methods)}."
    )
    turns = [(f"What is the class {name} for?", f"{_constructor(name, node)}\n\n{description}")]
    turns += [
        (
            f"And what does its method {method.name} do?",
            f"{_signature(method.name, method, bound=True)}\n\n{ast.get_docstring(method)}",
        )
        for method in methods
    ]
    yield make_chat(*turns)
    for method in methods:
        call = _signature(f"{node.name}.{method.name}", method, bound=True)
        summary = (ast.get_docstring(method) or "").strip().splitlines()[0]
        yield make_chat((f"How do I call {name}.{method.name}?", f"{call}\n\n{summary}"))


def _is_documented(node: ast.stmt) -> TypeGuard[_Function]:
    """Return true for a public function with a docstring."""
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) or node.name.startswith("_"):
        return False
    return bool((ast.get_docstring(node) or "").strip())


def _constructor(name: str, node: ast.ClassDef) -> str:
    """Return the call that makes an object, as written in the source."""
    functions = (member for member in node.body if isinstance(member, ast.FunctionDef))
    signatures = (
        _signature(name, function, bound=True)
        for function in functions
        if function.name == "__init__"
    )
    return next(signatures, f"class {name}")


def _signature(name: str, node: _Function, *, bound: bool = False) -> str:
    """Return ``name(arguments) -> result`` as written in the source, without ``self`` if the call
    has none.
    """
    arguments = deepcopy(node.args)
    decorators = {ast.unparse(decorator) for decorator in node.decorator_list}
    if bound and "staticmethod" not in decorators:
        del (arguments.posonlyargs or arguments.args)[:1]
    result = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    return f"{name}({ast.unparse(arguments)}){result}"


def make_chat(*turns: tuple[str, str]) -> Chat:
    """Make a chat of turns, each a question and its answer."""
    messages = []
    for question, answer in turns:
        messages += [
            {"role": "user", "content": question},
            {"role": "assistant", "content": answer},
        ]
    return {"messages": messages}
