"""Shell scripts: the command lines in them, with known variables and arrays written out. Nothing is
executed.

::

    ARGS=(--packing true)                       ARGS is two words
    torchrun train.py "${ARGS[@]}" \\            one command of six words, with x kept as it is:
        --epochs ${EPOCHS:-3} --name $x         --packing true --epochs 3 --name $x
"""

import ast
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from brimful.doctor.config.command_lines import Word
from brimful.doctor.config.documents import text_of
from brimful.doctor.config.literals import literal
from brimful.doctor.config.shell_branches import Branches, Truth
from brimful.errors import SettingsError

_Value: TypeAlias = str | list[Word] | None
"""A variable: text, the words of an array, or None where branches of the script differ."""

_GAP = re.compile(r"(?:[ \t]|\\\n)+|#[^\n]*")
_END = re.compile(r"\n|;+|&&|\|\|?|&(?!>)|[()]")
_HERE = re.compile(r"<<(-?)[ \t]*\\?(['\"]?)([\w.]+)\2")
_REDIRECTION = re.compile(r"(?:\d|&)?(?:<<<|>>|>\||<>|<|>)(?:&\d?-?)?")
_ARRAY = re.compile(r"([A-Za-z_]\w*)(\+?)=\(")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_ASSIGNED = re.compile(r"[A-Za-z_]\w*\+?=")
_PLAIN = re.compile(r"[^ \t\n\\'\"`$;&|()<>]+")
_PLAIN_IN_QUOTES = re.compile(r'[^"\\$]+')
_PARAMETER = re.compile(r"(\w+|[@*])(\[[@*]\])?(?:(:?[-=?+])(.*))?", re.DOTALL)

_ESCAPE = re.compile(r"\\.", re.DOTALL)
_QUOTES = re.compile(r"""\\.|"(?:[^"\\]|\\.)*"|'[^']*'""", re.DOTALL)
_CAT = re.compile(r"cat\s*<<-?\s*\\?(['\"]?)(\w+)\1[^\n]*\n(.*)\n[ \t]*\2", re.DOTALL)
"""``cat <<'EOF'`` with its lines."""

_ECHO = re.compile(r"echo ((?:\"[^\"]*\"|[^|;&<>`\"'])*)(?:\|\s*(?:tr|sed)\b.*)?", re.DOTALL)
"""``echo "$OVERRIDES" | tr '\\n' ' '``, which keeps the words."""

_OWN_FOLDER = re.compile(
    r"dirname\s+(?:--\s+)?\"?\$\{?(?:0|BASH_SOURCE)[^)\s]*\s*\)?\"?((?:/\.\.)*)"
)
"""``dirname "$0"``, alone or in ``cd "$(dirname "$0")/.." && pwd``."""

_NO_PROGRAMS = {"[", "[[", "test", "true", "false", "function", "echo", "printf"}
_DECLARATIONS = {"export", "declare", "local", "readonly", "typeset"}

_MAX_COMMANDS = 20_000
"""Maximum commands of a script and all that it starts."""

_MAX_SIZE = 100_000
"""Maximum letters or words of a variable: one that doubles in each line is unknown from there on.
"""


class _Fields:
    """Words that grow: an unquoted variable may begin the next one."""

    def __init__(self) -> None:
        self.words: list[Word] = []
        self.is_open = False

    def add(self, text: str, place: str) -> None:
        """Add text to the word that is open, or begin one."""
        if self.is_open:
            text, place = self.words[-1].text + text, self.words.pop().where
        self.words.append(Word(text, place))
        self.is_open = True

    def add_words(self, words: Sequence[Word]) -> None:
        """Add words, of which the first goes on with the open one."""
        for position, word in enumerate(words):
            self.is_open = self.is_open and position == 0
            self.add(*word)

    def add_split(self, text: str, place: str) -> None:
        """Add the words of an unquoted variable."""
        self.is_open = self.is_open and not text[:1].isspace()
        self.add_words([Word(piece, place) for piece in text.split()])
        self.is_open = self.is_open and not text[-1:].isspace()


class Script:
    """A script that is read command by command, with its variables.

    Attributes:
        variables: known so far.
        exports: names of variables that commands see.
        parameters: words of the command that starts the script.
        place: of all its words, if it is a part of a line.
    """

    def __init__(
        self, text: str, path: str, parameters: Sequence[Word] = (), place: str = ""
    ) -> None:
        self.text, self.path, self.parameters, self.place = text, path, list(parameters), place
        self.position = 0
        self.ends = [match.start() for match in re.finditer("\n", text)]
        self.variables: dict[str, _Value] = {}
        self.exports: set[str] = set()
        self.heres: list[tuple[str, str]] = []
        self.branches = Branches()
        self.budget = [_MAX_COMMANDS]
        self.reads_into = ""

    @property
    def where(self) -> str:
        """The place of the next letter."""
        return self.place or f"line {bisect_left(self.ends, self.position) + 1} of {self.path}"

    @property
    def folders(self) -> tuple[Path, ...]:
        """Folders in which relative paths of the script may begin."""
        return (Path(), *Path(self.path).parents) if self.path else (Path(),)

    @property
    def environment(self) -> dict[str, Word]:
        """Variables that commands see."""
        values = {name: self.variables.get(name) for name in sorted(self.exports)}
        return {
            name: Word(value, self.where)
            for name, value in values.items()
            if isinstance(value, str)
        }

    def opened(self, name: str, parameters: Sequence[Word]) -> "Script | None":
        """Return another script, if it is here."""
        for folder in self.folders:
            path = folder / name
            if path.is_file():
                script = Script(text_of(path), str(path), parameters)
                script.budget = self.budget
                return script
        return None

    def inner(self, text: str, parameters: Sequence[Word], place: str) -> "Script":
        """Return a part of a line, such as the text of ``eval``, as a script."""
        script = Script(text, self.path, parameters, place)
        script.budget = self.budget
        return script

    def with_environment(self, environment: Mapping[str, Word]) -> "Script":
        """Return this script with the variables that its starter hands over."""
        self.variables = {name: word.text for name, word in environment.items()}
        self.exports = set(self.variables)
        return self

    def commands(self) -> Iterator[list[Word]]:
        """Yield the words of each command but assignments and keywords."""
        words: list[Word] = []
        operator = ""
        while self.position < len(self.text):
            if match := _GAP.match(self.text, self.position):
                self.position = match.end()
            elif match := _HERE.match(self.text, self.position):
                self.position = match.end()
                self.heres.append((match[3], "\t" if match[1] else ""))
            elif match := _REDIRECTION.match(self.text, self.position):
                self._skip_target(match)
            elif match := _END.match(self.text, self.position):
                self.position = match.end()
                yield from self._ended(words, operator, match[0])
                # A line after && goes on with the same condition.
                operator = match[0] if words or match[0] != "\n" else operator
                words = []
                if match[0] == "\n":
                    self._skip_here_documents()
            elif match := _ARRAY.match(self.text, self.position):
                # Keywords before it, such as `then`, come first.
                yield from self._ended(words, operator, "")
                words, self.position = [], match.end()
                runs = self.branches.runs([Word(":", "")], operator)
                self._assign(match[1], self._array(), match[2], runs)
            else:
                words += self._word(is_split=not _is_assigned(words, self.text, self.position))
        yield from self._ended(words, operator, "\n")

    def _skip_target(self, match: re.Match[str]) -> None:
        """Go on after a redirection and its file."""
        self.position = match.end()
        if match[0][-1] in "<>|&":
            if gap := _GAP.match(self.text, self.position):
                self.position = gap.end()
            if self.text.startswith("(", self.position):  # <(command)
                self.position = self._closing(self.position) + 1
            else:
                self._word()

    def _skip_here_documents(self) -> None:
        for tag, indent in self.heres:
            start = self.position
            while self.position < len(self.text):
                end = self.text.find("\n", self.position)
                line = self.text[self.position : end if end >= 0 else None]
                self.position += len(line) + 1
                if line.lstrip(indent or "\n") == tag:
                    break
            if self.reads_into:
                text = self.text[start : self.position].rstrip().removesuffix(tag)
                self._assign(self.reads_into, text, "", self.branches.taken)
                self.reads_into = ""
        self.heres.clear()

    def _ended(self, words: list[Word], operator: str, end: str) -> Iterator[list[Word]]:
        """Yield a command that runs, or may, or take note of what it assigns.

        Args:
            words: of the command.
            operator: text before it.
            end: text after it.
        """
        words = self.branches.without_keywords(words, end)
        if words and (runs := self.branches.runs(words, operator)) is not False:
            name = words[0].text
            if name in ("for", "select"):
                items = words[3:]
                if len(words) > 1:
                    self.variables[words[1].text] = items[0].text if len(items) == 1 else None
            elif name == "read" and self.heres:
                self.reads_into = words[-1].text
            elif not self._assigned(words, runs) and name not in _NO_PROGRAMS:
                yield words[1:] if name == "!" and len(words) > 1 else words
        self.branches.after(end)

    def _assigned(self, words: list[Word], runs: Truth) -> bool:
        """Return true for a command that only assigns variables, and do so."""
        name = words[0].text
        if name in _DECLARATIONS:
            words = [word for word in words[1:] if not word.text.startswith("-")]
            if name == "export":
                self.exports |= {word.text.partition("=")[0].rstrip("+") for word in words}
            words = [word for word in words if "=" in word.text]
        matches = [_ASSIGNMENT.fullmatch(word.text) for word in words]
        for match in matches if all(matches) else ():
            assert match is not None
            self._assign(match[1], match[3], match[2], runs)
        return all(matches)

    def _assign(self, name: str, value: str | list[Word], plus: str, runs: Truth) -> None:
        """Set a variable; one that a branch may change is unknown from there on."""
        is_known, former = name in self.variables, self.variables.get(name)
        if runs is False:
            return
        if plus:
            if is_known and runs is None:
                return  # what a branch adds is uncertain, and what was there stays
            if isinstance(value, list):
                value = [*(former if isinstance(former, list) else []), *value]
            else:
                value = (former if isinstance(former, str) else "") + value
        is_certain = runs or not is_known or former == value
        self.variables[name] = value if is_certain and len(value) < _MAX_SIZE else None

    def _array(self) -> list[Word]:
        """Return the words of an array, up to its bracket."""
        words: list[Word] = []
        while self.position < len(self.text) and self.text[self.position] != ")":
            gap = _GAP.match(self.text, self.position)
            if gap or self.text[self.position] in "\n;&|(<>":
                self.position = gap.end() if gap else self.position + 1
            else:
                words += self._word()
        self.position += 1
        return words

    def _word(self, is_split: bool = True) -> list[Word]:
        """Return the next word, as the words that its variables make of it."""
        fields = _Fields()
        while self.position < len(self.text):
            start, place = self.position, self.where
            letter = self.text[start]
            if match := _PLAIN.match(self.text, start):
                self.position = match.end()
                fields.add(match[0], place)
            elif letter == "\\":
                self.position += 2
                if self.text[start + 1 : start + 2] != "\n":
                    fields.add(self.text[start + 1 : start + 2], place)
            elif letter == "'":
                self.position = self._find("'", start + 1) + 1
                fields.add(self.text[start + 1 : self.position - 1], place)
            elif letter == '"':
                fields.add_words(self._quoted())
            elif letter == "`":
                self.position = self._find("`", start + 1) + 1
                fields.add(self.text[start : self.position], place)
            elif letter == "$":
                value = self._variable()
                if value is None:
                    fields.add(self.text[start : self.position], place)
                elif isinstance(value, list):
                    fields.add_words(value)
                elif is_split:
                    fields.add_split(value, place)
                else:
                    fields.add(value, place)
            else:
                break
        return fields.words

    def _quoted(self) -> list[Word]:
        """Return the text in double quotes: one word, or the words of an array in it."""
        fields = _Fields()
        place, has_array = self.where, False
        self.position += 1
        while (letter := self.text[self.position : self.position + 1]) != '"':
            start = self.position
            if not letter:
                raise SettingsError(f"{place}: a quote is not closed")
            if letter == "\\":
                escape = self.text[start + 1 : start + 2]
                self.position += 2
                # Only these lose their backslash in double quotes.
                fields.add(
                    {"\n": ""}.get(escape, escape) if escape in '\n"\\$`' else f"\\{escape}",
                    place,
                )
            elif letter == "$":
                value = self._variable()
                if isinstance(value, list):
                    has_array = True
                    fields.add_words(value)
                else:
                    fields.add(self.text[start : self.position] if value is None else value, place)
            else:
                match = _PLAIN_IN_QUOTES.match(self.text, start)
                assert match is not None
                self.position = match.end()
                fields.add(match[0], place)
        self.position += 1
        return fields.words or ([] if has_array else [Word("", place)])

    def _variable(self) -> _Value:
        """Return the value of the variable that begins here, and go on after it; None if it is
        unknown.
        """
        start = self.position
        letter = self.text[start + 1 : start + 2]
        if self.text.startswith("$((", start):
            self.position = self._closing(start + 1) + 1
            return self._sum(self.text[start + 3 : self.position - 2])
        if letter == "(":
            self.position = self._closing(start + 1) + 1
            command = self.text[start + 2 : self.position - 1].strip()
            if command.startswith("expr "):
                return self._sum(command[5:].replace("\\*", "*"))
            if match := _CAT.fullmatch(command):
                return match[3]
            if match := _ECHO.fullmatch(command):
                return " ".join(self._expanded(match[1].replace('"', "")).split())
            return self._folder(command)
        if letter == "{":
            self.position = self._closing(start + 1) + 1
            return self._parameter(self.text[start + 2 : self.position - 1])
        match = re.compile(r"\$(\d|\w+|[@*#?$!-])").match(self.text, start)
        self.position = match.end() if match else start + 1
        return self._parameter(match[1]) if match else "$"

    def _parameter(self, body: str) -> _Value:
        """Return the value of ``NAME``, ``NAME:-default``, ``NAME[@]`` and the like."""
        match = _PARAMETER.fullmatch(body)
        if match is None:
            return None
        name, all_items, operator, default = match.groups()
        value = self._value(name, bool(all_items))
        if not operator:
            return value
        is_unset = name not in self.variables and value is None
        is_empty = operator[0] == ":" and value == ""
        if operator[-1] == "+":
            return "" if is_unset or is_empty else self._expanded(default)
        if is_unset or is_empty:
            value = self._expanded(default) if operator[-1] in "-=" else None
            if operator[-1] == "=" and isinstance(value, str):
                self.variables[name] = value
        return value

    def _value(self, name: str, has_all: bool) -> _Value:
        """Return the value of a variable; of an array the first item, or all."""
        if name in "@*":
            return self.parameters
        if name.isdigit():
            number = int(name)
            is_given = 0 < number <= len(self.parameters)
            return self.parameters[number - 1].text if is_given else None
        value = self.variables.get(name)
        if has_all:
            # An array that nothing fills adds no words.
            return [Word(value, self.where)] if isinstance(value, str) else value or []
        if isinstance(value, list):
            return value[0].text if value else ""
        return value

    def _expanded(self, text: str) -> str:
        """Return a default with its own variables written out."""
        if text[:1] == text[-1:] and text[:1] in ("'", '"'):
            text = text[1:-1]
        inner = Script(
            '"' + re.sub(r'(?<!\\)"', r'\\"', text) + '"', self.path, self.parameters, self.where
        )
        inner.variables = self.variables
        return " ".join(word.text for word in inner._quoted())

    def _sum(self, text: str) -> str | None:
        """Return the result of ``$((...))``; None if a variable is unknown."""
        names = {
            name: int(value)
            for name, value in self.variables.items()
            if isinstance(value, str) and value.isdigit()
        }
        expression = re.sub(r"\$\{?(\w+)\}?", r"\1", text).replace("/", "//").strip()
        try:
            return str(literal(ast.parse(expression, mode="eval").body, names))
        except (SyntaxError, ValueError, RecursionError):
            return None

    def _folder(self, command: str) -> str | None:
        """Return the folder of the script, or one above, if a command asks for it; None for other
        commands.
        """
        match = _OWN_FOLDER.search(command)
        if match is None or command.count("dirname") > 1:
            return None
        return str(Path(self.path).parent) + match[1]

    def _closing(self, start: int) -> int:
        """Return the position of the bracket that closes the one at ``start``."""
        begin = self.text[start]
        end = {"(": ")", "{": "}"}[begin]
        depth = 0
        pattern = _QUOTES if begin == "(" else _ESCAPE
        position = start
        while position < len(self.text):
            if match := pattern.match(self.text, position):
                position = match.end()
                continue
            depth += (self.text[position] == begin) - (self.text[position] == end)
            if depth == 0:
                return position
            position += 1
        raise SettingsError(f"{self.where}: a bracket is not closed")

    def _find(self, quote: str, start: int) -> int:
        position = self.text.find(quote, start)
        if position < 0:
            raise SettingsError(f"{self.where}: a quote is not closed")
        return position


def _is_assigned(words: Sequence[Word], text: str, position: int) -> bool:
    """Return true if the next word assigns a variable, whose value is not split."""
    is_first = all(word.text in _DECLARATIONS or _ASSIGNMENT.fullmatch(word.text) for word in words)
    return is_first and _ASSIGNED.match(text, position) is not None
