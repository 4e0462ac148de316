"""YAML, JSON and TOML files as flat settings, each with its line."""

import codecs
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from brimful.base.wording import counted
from brimful.doctor.config.settings import Given, Unknown, flat, heads, unveiled
from brimful.doctor.fact_files import toml_values
from brimful.errors import SettingsError, SourceNotFoundError

MAX_BYTES = 1 << 20
"""Maximum bytes of a configuration: a larger file is data, named by mistake."""

_MAX_NODES = 100_000
"""Maximum values of a YAML file with its aliases written out, which may multiply."""

_INTEGER = re.compile(r"[-+]?\d[\d_]*")
_FLOAT = re.compile(r"[-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")


def text_of(path: str | Path, max_bytes: int = MAX_BYTES) -> str:
    """Return the text of a file with the line ends of Unix.

    Raises:
        SourceNotFoundError: no such file.
        SettingsError: it cannot be read, is too large, binary, or not in UTF-8.
    """
    try:
        with open(path, "rb") as file:
            content = file.read(max_bytes + 1)
    except FileNotFoundError as error:
        raise SourceNotFoundError(f"{path}: no such file") from error
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from error
    if len(content) > max_bytes:
        raise SettingsError(
            f"{path} has more than {max_bytes:,} bytes: it is data, not a configuration"
        )
    # Windows PowerShell writes UTF-16 with a mark.
    is_wide = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    if b"\0" in content and not is_wide:
        raise SettingsError(
            f"{path} is binary: name the configuration itself, in YAML, JSON, TOML, shell or Python"
        )
    try:
        text = content.decode("utf-16" if is_wide else "utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise SettingsError(f"{path}:{line}: not UTF-8: save the file in UTF-8") from error
    if not text.strip():
        raise SettingsError(f"{path} is empty")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def scalar(text: str) -> Any:
    """Return the value of a word of a command line.

    >>> [scalar(text) for text in ("true", "8", "1e-5", "no", "null", "[1, a]")]
    [True, 8, 1e-05, 'no', None, [1, 'a']]
    >>> scalar("'8'"), scalar("'8!")
    ('8', "'8!")
    """
    if (plain := unveiled(text)) != text:
        value = Unknown(" ".join(plain.split()))
        value.known = "".join(letter for letter in text if letter in plain)
        return value
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if text in ("null", "None"):
        return None
    if text[:1] in ("{", "["):
        return _flow_value(text)
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":  # as in hydra's key='"text"'
        return text[1:-1]
    return _number(text)


def _number(text: str) -> Any:
    """Return the number that a text is, or the text itself."""
    for pattern, kind in ((_INTEGER, int), (_FLOAT, float)):
        if pattern.fullmatch(text):
            try:
                return kind(text)
            except ValueError:  # such as 1__0, or more digits than Python reads
                return text
    return text


def _flow_value(text: str) -> Any:
    """Return the list or mapping of a word in JSON or in YAML's flow style; the word itself
    otherwise.
    """
    try:
        return _YamlReader("command line").plain(yaml.compose(text, Loader=_loader()))
    except (yaml.YAMLError, SettingsError, RecursionError):
        return text


def file_settings(path: Path) -> dict[str, Given]:
    """Return the settings of a YAML, JSON or TOML file, by the end of its name.

    Raises:
        SourceNotFoundError: no such file.
        SettingsError: another format; the message says the line.
    """
    return document_settings(str(path), text_of(path), path.suffix.lower())


def document_settings(path: str, text: str, suffix: str) -> dict[str, Given]:
    """Return the settings of a text in YAML, JSON or TOML.

    Args:
        path: what places and messages call it.
        text: all of it.
        suffix: one of ``SUFFIXES``.

    Raises:
        SettingsError: another format, or no settings; the message says the line.
    """
    try:
        values = _READERS[suffix](path, text)
    except RecursionError as error:
        raise SettingsError(f"{path}: its blocks are nested too deep") from error
    if not values:
        raise SettingsError(f"{path} has no settings")
    return values


def _loader() -> Any:
    """Return PyYAML's safe loader, in C if that is built: ten times as fast."""
    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _yaml_settings(path: str, text: str) -> dict[str, Given]:
    roots = []
    try:
        # Of several documents the first with keys counts: others are notes, or empty.
        for root in yaml.compose_all(text, Loader=_loader()):
            if isinstance(root, yaml.MappingNode) and root.value:
                return dict(_YamlReader(path).settings(root))
            roots.append(root)
    except yaml.YAMLError as error:
        raise _yaml_error(path, text, error) from error
    if isinstance(roots[0] if roots else None, yaml.MappingNode | None):
        return {}
    raise _no_mapping(path, _YamlReader(path).plain(roots[0]))


def _yaml_error(path: str, text: str, error: Any) -> SettingsError:
    """Return PyYAML's error in one line."""
    mark = getattr(error, "problem_mark", None)
    position = getattr(error, "position", 0)
    line = mark.line if mark is not None else text.count("\n", 0, position)
    lines = text.split("\n")
    if "\t" in lines[min(line, len(lines) - 1)]:
        return SettingsError(f"{path}:{line + 1}: not YAML: the line has a tab: write spaces")
    reason = getattr(error, "problem", None) or getattr(error, "reason", "it is not text")
    return SettingsError(f"{path}:{line + 1}: not YAML: {reason}")


def _no_mapping(path: str, value: Any) -> SettingsError:
    """Return the error for a file whose top is a list or a text."""
    kind = f"a list of {counted(len(value), 'item')}" if isinstance(value, list) else "one text"
    return SettingsError(
        f"{path} is {kind}: a configuration has names with values, such as `packing: true`"
    )


class _YamlReader:
    """Plain values of YAML nodes. A tag never creates an object."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.constructor = yaml.constructor.SafeConstructor()
        self.num_nodes = 0
        self.repeats: dict[int, str] = {}
        """Remark on the line of a repeated key, by the identity of its node."""

    def settings(self, node: Any, block: str = "") -> Iterator[tuple[str, Given]]:
        """Yield the settings of a mapping; inner mappings have dotted keys."""
        for name, value in self._entries(node):
            key = f"{block}.{name.value}" if block else name.value
            if value.id == "mapping" and value.value:
                yield from self.settings(value, key)
            else:
                place = f"{self.path}:{name.start_mark.line + 1}{self.repeats.get(id(name), '')}"
                yield key, Given(self.plain(value), place)

    def plain(self, node: Any) -> Any:
        """Return a value as Python's booleans, numbers, texts, lists and mappings."""
        self._count(node)
        if node.id == "sequence":
            return [self.plain(item) for item in node.value]
        if node.id == "mapping":
            return {name.value: self.plain(value) for name, value in self._entries(node)}
        kind = node.tag.rpartition(":")[2]
        if kind in ("bool", "int", "float", "null"):
            try:
                return self.constructor.construct_object(node)
            except ValueError:
                return node.value
        # YAML 1.1 takes 1e-5, without a point or a sign, for a text. Quoted texts stay texts.
        is_quoted = node.style in ("'", '"', "|", ">")
        return node.value if is_quoted or kind != "str" else _number(node.value)

    def _entries(self, node: Any) -> list[tuple[Any, Any]]:
        """Return the pairs of a mapping: a repeated key counts once, with its last value, and own
        keys take the place of merged ones.
        """
        entries: dict[str, tuple[Any, Any]] = {}
        names: set[str] = set()
        for name, value in sorted(node.value, key=lambda pair: not pair[0].tag.endswith(":merge")):
            self._count(name)
            if name.tag.endswith(":merge"):
                # Of a list of mappings, earlier ones win.
                for inner in reversed(value.value) if value.id == "sequence" else (value,):
                    if inner.id != "mapping":
                        raise self._error(name, "<<: takes a mapping")
                    entries.update({key.value: (key, item) for key, item in self._entries(inner)})
            elif name.id != "scalar":
                raise self._error(name, "a key must be a name")
            else:
                if name.value in names:
                    line = entries[name.value][0].start_mark.line + 1
                    self.repeats[id(name)] = f" (and not line {line})"
                names.add(name.value)
                entries[name.value] = (name, value)
        return list(entries.values())

    def _count(self, node: Any) -> None:
        self.num_nodes += 1
        if self.num_nodes > _MAX_NODES:
            raise self._error(node, f"more than {_MAX_NODES:,} values: aliases multiply")

    def _error(self, node: Any, reason: str) -> SettingsError:
        return SettingsError(f"{self.path}:{node.start_mark.line + 1}: {reason}")


class _Pairs(list[tuple[str, Any]]):
    """A mapping of a JSON file, in the order in which it is written."""


def _json_settings(path: str, text: str) -> dict[str, Given]:
    try:
        root = json.loads(text, object_pairs_hook=_Pairs)
    except json.JSONDecodeError as error:
        raise SettingsError(f"{path}:{error.lineno}: not JSON: {error.msg}") from error
    if not isinstance(root, _Pairs):
        raise _no_mapping(path, root)
    lines = _lines_of_keys(text)
    return {
        key: Given(value, f"{path}:{line}") for key, value, line in _json_leaves(root, "", lines)
    }


def _lines_of_keys(text: str) -> Iterator[int]:
    """Yield the line of each key of a JSON text, in order."""
    line, start = 1, 0
    for match in re.finditer(r'"(?:[^"\\]|\\.)*"(\s*:)?', text):
        line, start = line + text.count("\n", start, match.start()), match.start()
        if match[1]:
            yield line


def _json_leaves(pairs: _Pairs, block: str, lines: Iterator[int]) -> Iterator[tuple[str, Any, int]]:
    """Yield dotted key, value and line of each setting, with a line consumed for each key."""
    for name, value in pairs:
        key, line = f"{block}.{name}" if block else name, next(lines)
        if isinstance(value, _Pairs) and value:
            yield from _json_leaves(value, key, lines)
        else:
            yield key, _without_pairs(value, lines), line


def _without_pairs(value: Any, lines: Iterator[int]) -> Any:
    """Return a value with its mappings as dictionaries."""
    if isinstance(value, _Pairs):
        result = {}
        for name, item in value:
            next(lines)
            result[name] = _without_pairs(item, lines)
        return result
    return [_without_pairs(item, lines) for item in value] if isinstance(value, list) else value


_TOML_TABLE = re.compile(r"\s*\[\[?\s*([^\[\]]+?)\s*\]")
_TOML_KEY = re.compile(r"""\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"))*)\s*=""")


def _toml_settings(path: str, text: str) -> dict[str, Given]:
    # Dates become texts.
    root = json.loads(json.dumps(toml_values(text, path), default=str))
    lines: dict[str, int] = {}
    table = ""
    for number, content in enumerate(text.split("\n"), 1):
        if match := _TOML_TABLE.match(content):
            table = _toml_name(match[1])
            lines[table] = number
        elif match := _TOML_KEY.match(content):
            lines.setdefault(".".join(filter(None, (table, _toml_name(match[1])))), number)
    return {
        # The line of a key, or of the inline table around it.
        key: Given(setting.value, f"{path}:{next(filter(None, map(lines.get, heads(key))), 1)}")
        for key, setting in flat("", root, path)
        if key
    }


def _toml_name(text: str) -> str:
    return re.sub(r"\s*\.\s*", ".", text).replace('"', "").replace("'", "")


_READERS: Mapping[str, Callable[[str, str], dict[str, Given]]] = {
    ".yaml": _yaml_settings,
    ".yml": _yaml_settings,
    ".json": _json_settings,
    ".toml": _toml_settings,
}

SUFFIXES = tuple(_READERS)
"""Ends of the names of files that ``file_settings`` reads."""
