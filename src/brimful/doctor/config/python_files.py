"""Python files and notebooks: what their source says of a training, read as syntax and never run.

::

    rows = 4096                                        rows is 4096 from here on
    args = SFTConfig(packing=True, max_length=rows)    packing, SFTConfig.packing, max_length, …
    args.model_init_kwargs = {"dtype": "bfloat16"}     model_init_kwargs.dtype
    train_on_responses_only(trainer)                   calls.train_on_responses_only
"""

import ast
import json
import re
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from brimful.doctor.config.command_lines import CommandLine, command_settings
from brimful.doctor.config.documents import SUFFIXES, document_settings
from brimful.doctor.config.literals import literal
from brimful.doctor.config.settings import Given, GivenSettings
from brimful.doctor.config.started_trainings import chosen_line
from brimful.errors import SettingsError

_MAX_DEPTH = 12
"""Maximum blocks in blocks that are followed through names."""


_MAX_VALUE = 10_000
"""Maximum letters of the value of a name: lists of lists of names multiply."""

_MAX_SETTINGS = 100_000
"""Maximum settings, with blocks that names repeat written out."""


class _Candidate(NamedTuple):
    """One value of a key; of several, the lowest rank counts."""

    rank: int
    setting: Given


_ASSIGNMENT, _CONFIG, _TRAINER, _BLOCK, _DEFAULT = range(5)
"""Ranks: an assignment overrides the constructor, which overrides the default of a class."""


def program_settings(path: str, text: str) -> GivenSettings:
    """Return what a Python file sets.

    Raises:
        SettingsError: it is not Python, or sets nothing.
    """
    tree = _parsed(path, text)
    return _Program(tree, lambda line: f"{path}:{line}").settings(path)


def notebook_settings(path: str, text: str) -> GivenSettings:
    """Return what the code cells of a notebook set; a training that they start with ``!`` overrides
    the rest.

    Raises:
        SettingsError: it is not a notebook, or sets nothing.
    """
    cells = _code_cells(path, text)
    body: list[ast.stmt] = []
    starts: list[tuple[int, int]] = []
    files: list[Mapping[str, Given]] = []
    scripts: list[tuple[str, str]] = []
    num_lines = 0
    for number, source in cells:
        place = f"cell {number} of {path}"
        if match := re.match(r"%%writefile\s+(?:-a\s+)?(\S+)\n", source):
            suffix = Path(match[1]).suffix.lower()
            if suffix in SUFFIXES:
                try:
                    content = document_settings(match[1], source[match.end() :], suffix)
                except SettingsError:
                    continue  # data
                files.append({key: Given(setting.value, place) for key, setting in content.items()})
            continue
        if re.match(r"%%(?:bash|sh|shell|script)\b", source):
            scripts.append((source.partition("\n")[2], place))
            continue
        code, shell = _without_magic(source)
        scripts.append((shell, place))
        try:
            tree = _parsed(place, code)
        except SettingsError:
            continue  # not Python: such a cell fails and sets nothing
        starts.append((num_lines, number))
        body += [ast.increment_lineno(node, num_lines) for node in tree.body]
        num_lines += code.count("\n") + 1

    def where(line: int) -> str:
        start, number = max(pair for pair in starts if pair[0] < line)
        return f"line {line - start} in cell {number} of {path}"

    program = _Program(ast.Module(body, []), where)
    for values in files:
        for key, setting in values.items():
            program.candidates[key].append(_Candidate(_CONFIG, setting))
    return program.settings(path, chosen_line(scripts))


def _code_cells(path: str, text: str) -> list[tuple[int, str]]:
    """Return number and source of each code cell."""
    try:
        cells = json.loads(text)["cells"]
        pairs = [
            (number, "".join(cell["source"]))
            for number, cell in enumerate(cells, 1)
            if cell["cell_type"] == "code"
        ]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise SettingsError(f"{path} is not a notebook: it has no cells") from error
    return pairs


def _without_magic(source: str) -> tuple[str, str]:
    """Return the Python of a cell, with empty lines for what is not, and its shell commands."""
    code: list[str] = []
    shell: list[str] = []
    is_shell = False
    for line in source.split("\n"):
        text = line.strip()
        is_next = is_shell and shell[-1].endswith("\\")
        is_shell = is_next or text.startswith("!")
        if is_shell:
            shell.append(text if is_next else text[1:])
        elif match := re.match(r"%env\s+(\w+)[ =](.*)", text):
            shell.append(f"export {match[1]}='{match[2]}'")
        is_magic = is_shell or text.startswith(("%", "?"))
        code.append("" if is_magic else line)
    return "\n".join(code), "\n".join(shell)


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
    """The syntax of a program, with the values of names that are bound once.

    Attributes:
        where: from a line to its place.
    """

    def __init__(self, tree: ast.Module, where: Callable[[int], str]) -> None:
        self.where = where
        self.num_settings = 0
        self.candidates: defaultdict[str, list[_Candidate]] = defaultdict(list)
        self.nodes = sorted(ast.walk(tree), key=lambda node: getattr(node, "lineno", 0))
        self.packages: dict[str, None] = {}
        self.imports: set[str] = set()
        self._note_imports()
        self.bindings = self._bindings()
        self.values: dict[str, Any] = {}
        for name, node in self.bindings.items():
            try:
                value = literal(node, self.values)
            except (ValueError, RecursionError):
                continue
            if len(repr(value)) <= _MAX_VALUE:
                self.values[name] = value

    def settings(self, title: str, line: CommandLine | None = None) -> GivenSettings:
        """Return all settings; a command line that the program starts overrides them."""
        try:
            self._read()
        except RecursionError as error:
            raise SettingsError(f"{title}: its expressions are nested too deep") from error
        values = {}
        for key, candidates in self.candidates.items():
            rank = min(item.rank for item in candidates)
            best = [item.setting for item in candidates if item.rank == rank]
            # A key with two values, in two objects, has none of its own.
            if all(setting.value == best[0].value for setting in best):
                values[key] = best[0]
        command = f"import {' '.join(self.packages)}" if self.packages else ""
        ranks = None
        if line is not None:
            run = command_settings(line, title)
            values, command, ranks = {**values, **run.values}, run.command, run.ranks
        if not values:
            raise SettingsError(f"{title} sets nothing: name the file or command with the settings")
        return GivenSettings(title, values, command, ranks)

    def _note_imports(self) -> None:
        """Note which packages are imported, and under which names."""
        for node in self.nodes:
            if isinstance(node, ast.Import | ast.ImportFrom):
                module = getattr(node, "module", None)
                for alias in node.names:
                    top = (module or alias.name).partition(".")[0]
                    self.imports.add(alias.asname or alias.name.partition(".")[0])
                    if top not in sys.stdlib_module_names and not getattr(node, "level", 0):
                        self.packages[top] = None

    def _bindings(self) -> dict[str, ast.expr]:
        """Return the expression of each name that is bound once."""
        # Fields of a class are no names of the program.
        fields = {
            id(target)
            for node in self.nodes
            if isinstance(node, ast.ClassDef)
            for statement in node.body
            for target in _targets(statement)
        }
        times = Counter(
            node.id if isinstance(node, ast.Name) else node.arg
            for node in self.nodes
            if (
                isinstance(node, ast.Name)
                and not isinstance(node.ctx, ast.Load)
                and id(node) not in fields
            )
            or isinstance(node, ast.arg)
        )
        return {
            target.id: node.value
            for node in self.nodes
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
            for target in _targets(node)
            if isinstance(target, ast.Name) and times[target.id] == 1 and id(target) not in fields
        }

    def _read(self) -> None:
        for node in self.nodes:
            if isinstance(node, ast.Call):
                self._read_call(node)
            elif isinstance(node, ast.ClassDef):
                self._read_fields(node)
            elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                for target in _targets(node):
                    self._read_assignment(target, node.value)

    def _add(self, rank: int, key: str, node: ast.expr | ast.keyword, block: str = "") -> None:
        """Add the settings of an expression under its key, and in its block."""
        value = node.value if isinstance(node, ast.keyword) else node
        for name, setting in self._flat(key, value, node.lineno):
            self.candidates[name].append(_Candidate(rank, setting))
            if block:
                full = f"{block}.{name}"
                self.candidates[full].append(_Candidate(rank, setting))

    def _read_call(self, node: ast.Call) -> None:
        """Add a call, and its keywords: of a class as settings, of a function below ``calls``."""
        name = _called_name(node)
        if not name or name == "dict":
            return
        call = Given(True, self.where(node.lineno))
        self.candidates[f"calls.{name}"].append(_Candidate(_CONFIG, call))
        if name == "add_argument":
            self._read_argument(node)
        elif name[0].isupper():
            self._add(_rank_of_class(name), "", node, name)
        else:
            for key, setting in self._flat("", _as_dict(node), node.lineno):
                full = f"calls.{name}.{key}"
                self.candidates[full].append(_Candidate(_CONFIG, setting))

    def _read_argument(self, node: ast.Call) -> None:
        """Add the default of an argument of ``argparse``."""
        flag = next((arg.value for arg in node.args if isinstance(arg, ast.Constant)), "")
        keywords = {keyword.arg: keyword.value for keyword in node.keywords}
        action = keywords.get("action")
        default = keywords.get("default")
        if default is None and isinstance(action, ast.Constant) and action.value == "store_true":
            default = ast.copy_location(ast.Constant(False), action)
        if isinstance(flag, str) and flag.startswith("--") and default is not None:
            self._add(_DEFAULT, flag.lstrip("-").replace("-", "_"), default)

    def _read_fields(self, node: ast.ClassDef) -> None:
        """Add the defaults of a class, such as a dataclass."""
        for statement in node.body:
            value = getattr(statement, "value", None)
            if isinstance(value, ast.Call) and _called_name(value) == "field":
                value = next((word.value for word in value.keywords if word.arg == "default"), None)
            for target in _targets(statement):
                if isinstance(target, ast.Name) and isinstance(value, ast.expr):
                    self._add(_DEFAULT, target.id, value, node.name)

    def _read_assignment(self, target: ast.expr, value: ast.expr) -> None:
        """Add ``cfg.model.size = 2`` as ``model.size``, and a mapping by the keys in it."""
        is_mapping = isinstance(value, ast.Dict) or (
            isinstance(value, ast.Call) and _called_name(value) == "dict"
        )
        if isinstance(target, ast.Name):
            if is_mapping:
                self._add(_BLOCK, "", value, target.id)
        elif (path := _path(target)) and path[0] != "self" and len(path) > 1:
            self._add(_ASSIGNMENT, ".".join(path[1:]), value)

    def _flat(
        self, key: str, node: ast.expr, line: int, depth: int = 0
    ) -> Iterator[tuple[str, Given]]:
        """Yield the settings of an expression: of a mapping, or of the keywords of a class, each by
        its dotted key.
        """
        self.num_settings += 1
        if self.num_settings > _MAX_SETTINGS:
            raise SettingsError(f"{self.where(line)}: more than {_MAX_SETTINGS:,} settings")
        if depth > _MAX_DEPTH:
            return
        if isinstance(node, ast.Name) and isinstance(
            self.bindings.get(node.id), ast.Dict | ast.Call
        ):
            node = self.bindings[node.id]
        if isinstance(node, ast.Call):
            name = _called_name(node)
            if name != "dict" and not name[:1].isupper():
                return
            node = _as_dict(node)
        if isinstance(node, ast.Dict) and node.keys:
            for part, value in zip(node.keys, node.values, strict=True):
                if part is None:  # **other
                    yield from self._flat(key, value, value.lineno, depth + 1)
                elif isinstance(part, ast.Constant) and isinstance(part.value, str):
                    inner = f"{key}.{part.value}" if key else part.value
                    yield from self._flat(inner, value, part.lineno, depth + 1)
            return
        if key:
            try:
                yield key, Given(self._value(node), self.where(line))
            except (ValueError, RecursionError):
                return

    def _value(self, node: ast.expr) -> Any:
        """Return a literal, or the text of a name in an imported package, such as
        ``torch.bfloat16``.
        """
        path = _path(node) if isinstance(node, ast.Attribute) else []
        return ".".join(path) if path and path[0] in self.imports else literal(node, self.values)


def _targets(statement: ast.AST) -> Sequence[ast.expr]:
    """Return what a statement assigns to."""
    if isinstance(statement, ast.Assign):
        return statement.targets
    return [statement.target] if isinstance(statement, ast.AnnAssign) else []


def _path(node: ast.expr) -> list[str]:
    """Return the names of ``a.b["c"]``; none for other expressions."""
    names: list[str] = []
    while isinstance(node, ast.Attribute | ast.Subscript):
        if isinstance(node, ast.Attribute):
            names.append(node.attr)
        elif isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
            names.append(node.slice.value)
        else:
            return []
        node = node.value
    return [node.id, *reversed(names)] if isinstance(node, ast.Name) else []


def _called_name(node: ast.Call) -> str:
    """Return the name of a class with what follows it, or the last name of a function."""
    path = _path(node.func) or [getattr(node.func, "attr", "")]
    position = next((place for place, name in enumerate(path) if name[:1].isupper()), -1)
    return ".".join(path[position:])


def _as_dict(node: ast.Call) -> ast.Dict:
    """Return the keywords of a call as a mapping, with the mappings that it takes."""
    keys: list[ast.expr | None] = []
    values: list[ast.expr] = []
    for position, argument in enumerate(node.args):
        if isinstance(argument, ast.Dict):
            keys.append(None)
            values.append(argument)
        elif position == 0 and _called_name(node).endswith("from_pretrained"):
            keys.append(ast.copy_location(ast.Constant("pretrained_model_name_or_path"), argument))
            values.append(argument)
    for word in node.keywords:
        name = None if word.arg is None else ast.copy_location(ast.Constant(word.arg), word)
        keys.append(name)
        values.append(word.value)
    return ast.copy_location(ast.Dict(keys, values), node)


def _rank_of_class(name: str) -> int:
    """Return the rank of the settings that a class is given."""
    if name.endswith(("Config", "Arguments", "Args")):
        return _CONFIG
    return _TRAINER if name.endswith("Trainer") else _BLOCK
