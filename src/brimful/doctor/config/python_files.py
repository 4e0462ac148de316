"""Python files and notebooks: what their source says of a training, read as syntax and never run.

What is computed, and what a branch assigns, is unknown.

::

    rows = 4096                                        rows is 4096 from here on
    args = SFTConfig(packing=True, max_length=rows)    packing, SFTConfig.packing, max_length, …
    args.model_init_kwargs = {"dtype": "bfloat16"}     model_init_kwargs.dtype
    train_on_responses_only(trainer)                   calls.train_on_responses_only
"""

import ast
import contextlib
import json
import re
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from brimful.doctor.config.documents import document_settings
from brimful.doctor.config.literals import literal
from brimful.doctor.config.settings import Given, GivenSettings, Unknown, alternatives
from brimful.doctor.config.started_trainings import notebook_run
from brimful.errors import SettingsError

_MAX_DEPTH = 12
"""Maximum blocks in blocks that are followed through names."""


_MAX_VALUE = 10_000
"""Maximum letters of the value of a name: lists of lists of names multiply."""

_MAX_SETTINGS = 100_000
"""Maximum settings, with blocks that names repeat written out."""

_ASSIGNMENT, _CONFIG, _BLOCK = 0, 1, 3
"""Ranks: an assignment overrides the constructor of a configuration, which overrides the one of a
trainer, and that all others.
"""

_MAGIC = re.compile(
    r"""(?mx) \A%%(?:bash|sh|shell|script)\b.*\n([\s\S]*) | \A%%writefile[\s\S]*
    | ^[ \t]*(?: !((?:.*\\\n)*.*) | %env\s+(\w+)[ =](.*) | [%?].* )"""
)
"""Lines of a cell that are not Python: a script, a file, a command, a variable, or other magic."""

_CHANGES = "append|clear|extend|insert|pop|remove|setdefault|update"
"""Methods that change what a name has."""

_KIND = re.compile("(?:(Config|Arguments|Args)|(Trainer))$")


def program_settings(path: str, text: str) -> GivenSettings:
    """Return what a Python file sets.

    Raises:
        SettingsError: it is not Python, or sets nothing.
    """
    return _Program(_parsed(path, text), lambda line: f"{path}:{line}").settings(path)


def notebook_settings(path: str, text: str) -> GivenSettings:
    """Return what the code cells of a notebook set; a training that they start with ``!`` overrides
    the rest.

    Raises:
        SettingsError: it is not a notebook, or sets nothing.
    """
    try:
        cells = [
            (f"cell {number} of {path}", "".join(cell["source"]))
            for number, cell in enumerate(json.loads(text)["cells"], 1)
            if cell["cell_type"] == "code"
        ]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise SettingsError(f"{path} is not a notebook: it has no cells") from error
    places = [""]
    scripts: list[tuple[str, str]] = []
    program = _Program(ast.Module([], []), places.__getitem__)
    for place, source in cells:
        shell = [
            match[1] or match[2] or f"export {match[3]}='{match[4]}'"
            for match in _MAGIC.finditer(source)
            if match.lastindex
        ]
        scripts.append(("\n".join(shell), place))
        code = _MAGIC.sub(lambda match: "\n" * match[0].count("\n"), source)
        with contextlib.suppress(SettingsError, KeyError):  # such a cell fails, and sets nothing
            if file := re.match(r"%%writefile\s.*?(\S+)\n", source):
                suffix = Path(file[1]).suffix.lower()
                content = document_settings(file[1], source[file.end() :], suffix)
                program.add(_CONFIG, {key: Given(one.value, place) for key, one in content.items()})
            for node in _parsed(place, code).body:
                program.tree.body.append(ast.increment_lineno(node, len(places) - 1))
            places += [f"line {line + 1} in {place}" for line in range(code.count("\n") + 1)]
    return program.settings(path, notebook_run(scripts, path))


def _parsed(path: str, text: str) -> ast.Module:
    """Return the syntax of Python source."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the user's escapes, not ours
            return ast.parse(text)
    except SyntaxError as error:
        raise SettingsError(f"{path}:{error.lineno or 1}: not Python: {error.msg}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise SettingsError(f"{path}: not Python: nested too deep") from error


class _Program:
    """The syntax of a program, with the expressions that names are bound to.

    Attributes:
        where: from a line to its place.
        candidates: settings by key, with their ranks.
        bindings: expressions of each name; None where it is bound in another way.
        values: of names that are bound once.
    """

    def __init__(self, tree: ast.Module, where: Callable[[int], str]) -> None:
        self.tree, self.where = tree, where
        self.num_settings = 0
        self.candidates: defaultdict[str, list[tuple[int, Given]]] = defaultdict(list)
        self.packages: list[str] = []
        self.bindings: defaultdict[str, list[ast.expr | None]] = defaultdict(list)
        self.values: dict[str, Any] = {}

    def settings(self, title: str, run: GivenSettings | None = None) -> GivenSettings:
        """Return all settings; a command line that the program starts overrides them."""
        try:
            self._read()
        except RecursionError as error:
            raise SettingsError(f"{title}: its expressions are nested too deep") from error
        values: dict[str, Given] = {}
        for key, candidates in self.candidates.items():
            best = min(rank for rank, _ in candidates)
            # A key with two values, in two objects, has none of its own.
            values |= alternatives([{key: one} for rank, one in candidates if rank == best])
        tops = dict.fromkeys(name.partition(".")[0] for name in self.packages)
        names = [name for name in tops if name not in sys.stdlib_module_names]
        run = run or GivenSettings(title, {}, f"import {' '.join(names)}" if names else "")
        values |= run.values
        if not values:
            raise SettingsError(f"{title} sets nothing: name the file or command with the settings")
        return replace(run, title=title, values=values)

    def add(self, rank: int, settings: Mapping[str, Given], block: str = "") -> None:
        """Add settings, and in their block."""
        for key, setting in settings.items():
            for name in {key, f"{block}.{key}".lstrip(".")}:
                self.candidates[name].append((rank, setting))

    def _read(self) -> None:
        pairs: list[tuple[ast.AST, bool]] = [(self.tree, False)]
        for node, is_branch in pairs:  # and those that are added on the way
            children = [*ast.iter_child_nodes(node)]
            if isinstance(node, ast.If):
                test = ast.unparse(node.test)
                is_branch |= "__name__" not in test
                children = children if test != "False" else [*node.orelse]
            is_branch |= isinstance(node, ast.Match | ast.ExceptHandler)
            pairs += [(child, is_branch) for child in children]
        pairs.sort(key=lambda pair: getattr(pair[0], "lineno", 0))
        self._bind([node for node, _ in pairs])
        calls: defaultdict[str, list[dict[str, Given]]] = defaultdict(list)
        for node, is_branch in pairs:
            if isinstance(node, ast.Call) and (name := _called_name(node)) not in ("", "dict"):
                calls[name].append(self._flat("", node))
                call = Given(Unknown("called") if is_branch else True, self.where(node.lineno))
                self.add(_CONFIG if is_branch else _ASSIGNMENT, {f"calls.{name}": call})
            for target, expression in _assigned(node):
                path = _path(target)
                if len(path) > 1 and path[0] != "self":
                    settings = self._flat(".".join(path[1:]), expression)
                    self.add(_ASSIGNMENT, alternatives([settings, *[{}] * is_branch]))
                elif path and (
                    isinstance(expression, ast.Dict) or _called_name(expression) == "dict"
                ):
                    self.add(_BLOCK, self._flat("", expression), path[0])
        for name, runs in calls.items():
            settings = alternatives(runs)
            if name[0].isupper():
                kind = _KIND.search(name)
                self.add((kind and kind.lastindex) or _BLOCK, settings, name)
            else:
                self.add(_CONFIG, {f"calls.{name}.{key}": one for key, one in settings.items()})

    def _bind(self, nodes: Sequence[ast.AST]) -> None:
        """Note what is imported, and what each name is bound to."""
        targets = {id(target): value for node in nodes for target, value in _assigned(node)}
        for node in nodes:
            name = getattr(node, "asname", None) or getattr(node, "name", None)
            if isinstance(node, ast.ImportFrom) and not node.level:
                self.packages.append(node.module or "")
            elif isinstance(node, ast.Import):
                self.packages += [alias.name for alias in node.names]
            elif isinstance(node, ast.arg):
                name = node.arg
            elif (
                isinstance(node, ast.Name | ast.Subscript) and not isinstance(node.ctx, ast.Load)
            ) or re.fullmatch(_CHANGES, getattr(node, "attr", "")):
                name = "".join(_path(node)[:1])
            if name:
                self.bindings[name].append(targets.get(id(node)))
        for name, values in self.bindings.items():
            if len(values) == 1:
                with contextlib.suppress(ValueError, RecursionError):
                    value = literal(values[0], self.values)
                    if len(repr(value)) <= _MAX_VALUE:
                        self.values[name] = value

    def _flat(self, key: str, node: ast.expr, depth: int = 0) -> dict[str, Given]:
        """Return the settings of an expression: of a mapping, or of the keywords of a call, each by
        its dotted key.
        """
        place = self.where(node.lineno)
        self.num_settings += 1
        if self.num_settings > _MAX_SETTINGS:
            raise SettingsError(f"{place}: more than {_MAX_SETTINGS:,} settings")
        runs: list[dict[str, Given]] = []
        blocks = self.bindings[node.id] if isinstance(node, ast.Name) else [node]
        for block in blocks if depth < _MAX_DEPTH else ():
            pairs: list[tuple[Any, ast.expr]] = []  # of name and value, None for **other
            name = _called_name(block)
            if isinstance(block, ast.Dict):
                pairs = [
                    (one and getattr(one, "value", 0), value)
                    for one, value in zip(block.keys, block.values, strict=True)
                ]
            elif isinstance(block, ast.Call) and (
                re.match("dict$|[A-Z]", name) or not (key or depth)
            ):
                pairs = [(None, one) for one in block.args if isinstance(one, ast.Dict)]
                if name.endswith("from_pretrained"):
                    pairs = [("pretrained_model_name_or_path", one) for one in block.args[:1]]
                pairs += [(word.arg, word.value) for word in block.keywords]
            runs.append({})
            for part, value in pairs:
                if isinstance(part, str | None):
                    inner = f"{key}.{part or ''}".strip(".")
                    runs[-1] |= self._flat(inner, value, depth + 1)
        if runs and all(runs):
            return alternatives(runs)
        if not (key or depth):
            return {}
        setting = Given(Unknown("computed"), place)
        with contextlib.suppress(ValueError, RecursionError):
            setting = Given(literal(node, self.values), place)
        return {key or "**": setting}


def _assigned(node: ast.AST) -> list[tuple[ast.expr, ast.expr]]:
    """Return pairs of target and value of a statement."""
    if not isinstance(node, ast.Assign | ast.AnnAssign) or not node.value:
        return []
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [(target, node.value) for target in targets]


def _path(node: Any) -> list[str]:
    """Return the names of ``a.b["c"]``; none for other expressions."""
    if isinstance(node, ast.Name):
        return [node.id]
    part = getattr(node, "attr", None) or getattr(getattr(node, "slice", 0), "value", 0)
    path = _path(node.value) if isinstance(part, str) else []
    return [*path, str(part)] if path else []


def _called_name(node: ast.AST | None) -> str:
    """Return the name of a class with what follows it, or the last name of a function; empty for
    what is not a call.
    """
    function = getattr(node, "func", None)
    name = ".".join(_path(function)) or getattr(function, "attr", "")
    return str(re.findall(r"(?:(?<=\.)|^)[A-Z].*|[^.]*$", name)[0])
