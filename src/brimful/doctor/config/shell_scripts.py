"""Shell scripts: the command lines in them, with known variables and arrays written out. Nothing is
executed.

No condition is looked at: what a branch, a loop or a function sets is unknown, and so is what a
command prints. A training that stands in one of them is read.

::

    ARGS=(--packing true)                       ARGS is two words
    if [ -d data ]; then ARGS+=(--lr 1); fi     and --lr, whose value is unknown
    torchrun train.py "${ARGS[@]}" \\            one command of seven words:
        --epochs ${EPOCHS:-3} --name $x         --packing true --lr=… --epochs 3 --name …
"""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os.path import commonprefix
from pathlib import Path
from typing import Any

from brimful.doctor.config.command_lines import Word, existing
from brimful.doctor.config.documents import text_of
from brimful.doctor.config.literals import literal
from brimful.doctor.config.settings import veiled
from brimful.errors import SettingsError

_Value = str | list[Word] | None
"""A variable: text, the words of an array, or None if it is not set here. What is unknown is text
that is veiled.
"""

_QUOTED = r""" '[^']*' | "(?:[^"\\]|\\.)*" """
# Brackets in brackets, four deep; deeper ones are an error in a line.
_BRACKETS = rf"\( (?: [^()\"'\\] | \\. | {_QUOTED} | " * 4 + "(?!)" + " )* \\)" * 4
_BRACES = r"\{ (?: [^{}\\] | \\. | \{ (?: [^{}\\] | \\. | \{[^{}]*\} )* \} )* \}"
_VARIABLE = rf"\${_BRACKETS} | \${_BRACES} | \$(?![({{]) | `[^`]*`"
_WORD = rf"""(?: [^\s\\'"`$;&|()<>] | \\.? | '[^']*' | "(?:[^"\\$`]|\\.|{_VARIABLE})*"
    | \$'(?:[^'\\]|\\.)*' | {_VARIABLE} )+"""

_LEXEME = re.compile(
    rf"""(?xs)
      (?:[ \t\r\f\v]|\\\n)+ | \#[^\n]*
    | (?P<function> (?:function\s+[\w:-]+(?:\s*\(\s*\))?|[\w:-]+\s*\(\s*\))\s*\{{(?=\s) )
    | <<-?[ \t]*\\?['"]?[\w.]+['"]?
    | (?:\d|&)?(?:<<<|>>|>\||<>|[<>](?!&[\d-]))[ \t]*(?:{_BRACKETS}|{_WORD})?
    | \d?[<>]&[\d-]+
    | (?P<array> [A-Za-z_]\w*\+?= )\(
    | (?P<end> \n|;+&?|&&|\|\|?|&|[()] )
    | (?P<word> {_WORD} )"""
)
_VALUES = rf"""| \\\n?(?P<escaped> (?<!\n).| ) | (?P<Output> `[^`]*` ) | \$(?P<Command> {_BRACKETS} )
    | \$\{{(?P<Braces> {_BRACES[2:-2]} )\}} | \$(?P<Name> \d|[A-Za-z_]\w*|[@*#?$!-] )
    | (?P<dollar> \$ )"""
"""Pieces of a word whose value is to be found have names with a capital."""

_PIECE = re.compile(
    rf"""(?xs) (?P<plain> [^\\'"`$]+ ) | '(?P<single> [^']* )'
    | "(?P<double> (?:[^"\\$`]|\\.|{_VARIABLE})* )" | (?P<Text> \$'(?:[^'\\]|\\.)*' ) {_VALUES}"""
)
_PIECE_IN_QUOTES = re.compile(rf"(?xs) (?P<plain> (?:[^\\`$]|\\(?![\"\\$`\n]))+ ) {_VALUES}")

_HERE = re.compile(
    r"""(?x) ( (?<!<)<<-?[ \t]*\\?['"]?([\w.]+)['"]?[^\n]* ) ( (?:\n[^\n]*){0,1000}?\n[ \t]* ) \2 (?=\n|$)"""
)
"""A here-document, whose lines become blank."""

_MAIN = re.compile(
    r"""(?mx) ^(?:function[ ]+)?([\w:-]+)(?:[ ]*\(\s*\))?\s*\{(?=\s) ((?:.*\n(?!\})){0,1000}.*\n)
    \}\s*\1[ ]+"\$@"\s*\Z"""
)
"""A function that is the last one, and is called once, at the end, with the words of the script: its
lines are read as if they stood alone.
"""

_ASSIGNMENT = re.compile(
    r"([A-Za-z_]\w*)(?:(\+?)=(.*)|\[[^]]*\]\+?=.*|\+\+|--|[-*/%|&]=.*)", re.DOTALL
)
"""An assignment; the value of those in brackets, and of sums, is not looked at."""

_ASSIGNED = re.compile(
    r"""(?x) (?<![\w.-])([A-Za-z_]\w*) (?: (?:\[[^]\s]*\])? (\+?)= | \+\+ | -- )
    | \b(?:for|let|read|unset|mapfile|readarray|getopts|printf)\b (?:[ ]+[-"']\S*)* [ ]+([A-Za-z_]\w*)"""
)
"""A place that sets a name, or adds to it."""

_PARAMETER = re.compile(r"(\w+|[@*])(\[[@*]\])?(?:(:?[-=])(.*))?", re.DOTALL)
_KEY = re.compile(r"--?[A-Za-z][^\s=]*|\+{0,2}[A-Za-z_][\w./@-]*(?==)")
"""The key of a word that is an option, or an override of Hydra."""

_OWN_FOLDER = re.compile(
    r"""(?x) \(\s* (?: cd\s+(?:--\s+)? | realpath\s+ | readlink\s+-f\s+ )? "? (?: \$\(\s* )?
    dirname\s+(?:--\s+)? "?\$\{?(?:0|BASH_SOURCE)[^)\s]*\s*\)?"? ((?:/\.\.)*) "?\s*
    (?: (?:>\s*/dev/null\s*(?:2>&1\s*)?)? &&\s*pwd(?:\s+-P)?\s* )? \)"""
)
"""``dirname "$0"``, alone or in ``cd "$(dirname "$0")/.." && pwd``."""

_CLOSERS = {"if": "fi", "case": "esac", "{": "}", "for": "done", "while": "done", "until": "done"}
"""First and last words of statements."""

_MAX_COMMANDS = 20_000
"""Maximum commands of a script and all that it starts."""

_MAX_SIZE = 100_000
"""Maximum letters or words of a variable: one that doubles in each line is unknown from there on.
"""

_BREAK, _EMPTY, _NOTHING, _PLACE = "\0\1\2\3"
"""Letters of a word whose variables are written out: between two words, in place of an empty text
and of an empty array, and around the place of a word.
"""


@dataclass
class Script:
    """A script that is read command by command, with its variables.

    Attributes:
        place: of all its words, if it is a part of a line.
        variables: set so far; ``@`` are the words of the command that starts the script.
        exports: names of variables that commands see.
        blocks: words that close the statements around the next command.
        operator: text before the next command, such as ``&&``.
        budget: commands that may follow.
        folders: in which relative paths of the script may begin.
        lasts: position at which each variable is assigned, or added to, for the last time.
    """

    text: str
    path: str
    place: str = ""
    variables: dict[str, _Value] = field(default_factory=lambda: {"@": []})
    exports: set[str] = field(default_factory=set)
    blocks: list[str] = field(default_factory=list)
    operator: str = ""
    budget: list[int] = field(default_factory=lambda: [_MAX_COMMANDS])
    position: int = field(default=0, init=False)
    line: int = field(default=1, init=False)

    @property
    def where(self) -> str:
        """The place of the next word."""
        return self.place or f"line {self.line} of {self.path}"

    def __post_init__(self) -> None:
        text = _HERE.sub(lambda here: here[1] + "\n" * here[3].count("\n"), self.text)
        self.text = _MAIN.sub(r"\2", text)
        self.folders = (Path(), *Path(self.path).parents)
        self.lasts = {one.groups(): one.start() for one in _ASSIGNED.finditer(self.text)}

    @property
    def environment(self) -> dict[str, Word]:
        """Variables that commands see."""
        return {
            name: Word(str(self.variables[name]), self.where)
            for name in sorted(self.exports)
            if isinstance(self.variables.get(name), str)
        }

    def opened(self, words: Sequence[Word]) -> "Script | None":
        """Return the script that the first of some words names, if it is here."""
        path = existing(words[0].text, self.folders) if words else None
        return replace(self, text=text_of(path), path=str(path), place="") if path else None

    def started(self, environment: Mapping[str, Word], words: Sequence[Word]) -> "Script":
        """Return this part as a script of its own, with what its starter hands over."""
        variables: dict[str, _Value] = {name: word.text for name, word in environment.items()}
        variables["@"] = list(words)
        return replace(self, variables=variables, exports=set(environment), blocks=[])

    def commands(self) -> Iterator[list[Word]]:
        """Yield the words of each command but assignments and keywords."""
        words: list[Word] = []
        array = place = ""
        while self.position < len(self.text) and self.budget[0] >= 0:
            match = _LEXEME.match(self.text, start := self.position)
            if match is None:
                part = "bracket" if self.text[start] == "$" else "quote"
                raise SettingsError(f"{self.where}: a {part} is not closed")
            kind, self.position = match.lastgroup, match.end()
            text = match[kind or 0]
            if kind == "word":
                words += self._words(text, not _ASSIGNMENT.match(text))
            elif array:
                if text == ")":
                    self._set(array.rstrip("+="), words, place, "+" in array)
                    words, array = [], ""
            elif kind:
                # Keywords before an array, such as `then`, come first.
                yield from self._ended(words, text if kind == "end" else "")
                words = []
                if kind == "array":
                    array, place = text, self.where
                elif kind == "function":
                    self._open("}", self.where)
            self.line += self.text.count("\n", start, self.position)
        yield from self._ended(words, "\n")

    def _ended(self, words: list[Word], end: str) -> Iterator[list[Word]]:
        """Yield a command, or take note of what it assigns, opens or closes.

        Args:
            words: of the command.
            end: text after it.
        """
        is_empty = not words and end in ("", "\n")
        while words:
            name, place = words[0]
            if name in _CLOSERS:
                self._open(_CLOSERS[name], place)
                if name in ("for", "case"):
                    self._set((words[1:2] or words)[0].text, None, place)
                    words = []
            elif name in _CLOSERS.values():
                self._close(name)
            elif name not in ("then", "do", "else", "elif", "!"):
                break
            words = words[1:]
        if end == ")" and ")" not in self.blocks[-1:]:
            words, end = [], ""  # a pattern of `case`
        if words:
            texts = [word.text for word in words]
            if re.fullmatch("read|unset|mapfile|readarray|getopts|let|printf", name):
                for text in texts:
                    self._set(re.split(r"\W", text)[0], None, place)
            elif re.match("shift|set --", " ".join(texts)):
                self._set("@", None, place)
            elif re.fullmatch("export|declare|local|readonly|typeset", name) or all(
                map(_ASSIGNMENT.fullmatch, texts)
            ):
                for text, place in words:
                    if name == "export":
                        self.exports.add(re.split(r"\W", text)[0])
                    if match := _ASSIGNMENT.fullmatch(text):
                        self._set(match[1], match[3], place, match[2])
            else:
                yield words
        if not is_empty:
            self.operator = end
        if end == "(":
            self.blocks.append(")")
        else:
            self._close(end)

    def _open(self, closer: str, place: str) -> None:
        """Open a block; what is set later in the script is unknown in one that runs again."""
        self.blocks.append(closer)
        for (name, plus, setter), last in self.lasts.items() if closer in ("done", "}") else ():
            if last >= self.position:
                name = name or setter
                former: Any = self.variables.get(name)
                mark = _mark(name, f"{place} or later")
                self.variables[name] = (
                    [*former, Word(mark, place)] if plus and isinstance(former, list) else mark
                )
        self.budget[0] -= 1

    def _close(self, closer: str) -> None:
        """Close a block, and those in it that nothing has closed."""
        while closer in self.blocks and self.blocks.pop() != closer:
            pass

    def _set(self, name: str, value: Any, place: str, is_more: object = False) -> None:
        """Set a variable, or add to it; None is unknown, and so is what a block sets."""
        former: Any = self.variables.get(name)
        if is_more and former is not None and value is not None:
            value = former + value if type(former) is type(value) else None
        if value is None or len(value) > _MAX_SIZE:
            value = _mark(name, place)
        if "}" in self.blocks:
            self.variables[f"{name}()"] = ""  # a function that may be called later
        is_open = self.blocks or self.operator in ("&&", "||") or f"{name}()" in self.variables
        self.variables[name] = _either(name, former, value, place) if is_open else value

    def _words(self, text: str, is_split: bool = False) -> list[Word]:
        """Return the words that a word becomes."""
        text = _PIECE.sub(lambda match: self._piece(match, is_split), text)
        words = []
        for part in text.replace(_NOTHING, "").split(_BREAK):
            *places, last = part.replace(_EMPTY, "").split(_PLACE)
            if part:
                text = "".join(places[::2]) + last
                words.append(Word(text, places[1] if part[0] == _PLACE else self.where))
        return words

    def _piece(self, match: re.Match[str], is_split: bool = False) -> str:
        """Return what a piece of a word becomes; ``is_split`` parts the words of a variable."""
        kind = str(match.lastgroup)
        text = match[kind]
        if kind == "double":
            text = _PIECE_IN_QUOTES.sub(self._piece, text)
        if kind.islower():
            return text or _EMPTY
        value = self._value(text)
        if isinstance(value, list):
            return (
                _BREAK.join(f"{_PLACE}{place}{_PLACE}{text}" for text, place in value) or _NOTHING
            )
        if value is None:
            return f"${veiled(match[0].removeprefix('$'))}"
        return re.sub(r"\s+", _BREAK, value) if is_split else value

    def _value(self, text: str) -> _Value:
        """Return the value of ``NAME``, ``NAME[@]``, ``NAME:-default`` or ``((NAME + 1))``; None if
        it is unknown.
        """
        if text.startswith(("((", "(expr ")):
            text = text.replace("(expr ", "(").replace("\\", "").replace("/", "//")
            text = re.sub(
                r"\$?\{?([A-Za-z_]\w*)\}?",
                lambda name: f"({self.variables.get(name[1]) or '?'})",
                text,
            )
            try:
                return str(literal(ast.parse(text, mode="eval").body, {}))
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                return None
        if folder := _OWN_FOLDER.fullmatch(text):
            return str(Path(self.path).parent) + folder[1]
        match = _PARAMETER.fullmatch(text)
        if match is None:
            return None
        name, all_items, operator, default = match.groups()
        is_all = name in "@*"
        if name in "@*0123456789" and ("}" in self.blocks or (not is_all and self.variables["@"])):
            return None
        value = self.variables.get(name.replace("*", "@"))
        if all_items and value is None:
            return []  # an array that nothing fills adds no words
        if isinstance(value, list) and not (all_items or is_all):
            return None
        if operator and not value and (value is None or operator[0] == ":"):
            value = " ".join(word.text for word in self._words(default))
            if operator[-1] == "=":
                self._set(name, value, self.where)
        return value


def _mark(name: str, place: str) -> str:
    """Return the text of a variable that is unknown."""
    return f"${veiled(f'{name} (set on {place})')}"


def _either(name: str, former: _Value, value: _Value, place: str) -> _Value:
    """Return what is certain of a variable that has one of two values.

    Of words, those with which both begin are; the options after them have unknown values.
    """
    if former == value:
        return value
    lists = [
        one if isinstance(one, list) else [Word(text, place) for text in (one or "").split()]
        for one in (former, value)
    ]
    size = len(commonprefix(lists))  # noqa: RUF071, of lists
    mark = _mark(name, place)
    words: list[Word] = []
    for tail in (one[size:] for one in lists):
        for number, (text, origin) in enumerate(tail):
            key = _KEY.match(text)
            if key:
                words.append(Word(f"{key[0]}={mark}", origin))
            if number == 0 and not (key and (size or isinstance(value, list))):
                words.insert(0, Word(mark, place))  # a value of the option before, or any word
    words = [*lists[0][:size], *dict.fromkeys(words)]
    return words if isinstance(value, list) else " ".join(word.text for word in words)
