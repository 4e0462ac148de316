"""Branches of a shell script, and which of them are taken as far as known values say it.

Everything is true, false, or None where it depends on the machine::

    if [ "$BACKEND" = fsdp ] && [ -d data ]; then     None for BACKEND=fsdp, else false
        ARGS=...                                      noted as uncertain, or left out
    fi
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TypeAlias

from brimful.doctor.config.command_lines import Word

Truth: TypeAlias = bool | None

_KEYWORDS = {
    *("if", "then", "elif", "else", "fi", "while", "until", "for", "select", "do", "done"),
    *("case", "esac", "{", "}"),
}

_COMPARISONS = {
    "-eq": int.__eq__,
    "-ne": int.__ne__,
    "-gt": int.__gt__,
    "-ge": int.__ge__,
    "-lt": int.__lt__,
    "-le": int.__le__,
}


@dataclass
class _Branch:
    """One branch of a statement that is open.

    Attributes:
        taken: this branch runs.
        former: an earlier branch of the statement has run.
        subject: word of ``case``; empty for other statements.
        is_pattern: the next words are a pattern of ``case``.
        hit: a pattern of this branch fits.
        is_for: the statement is ``for``.
    """

    taken: Truth = True
    former: Truth = False
    subject: str = ""
    is_pattern: bool = False
    hit: Truth = False
    is_for: bool = False


class Branches:
    """The statements around the next command of a script.

    Attributes:
        status: success of the latest command.
    """

    def __init__(self) -> None:
        self.stack: list[_Branch] = []
        self.status: Truth = True

    @property
    def taken(self) -> Truth:
        """True if the next command runs."""
        truths = [branch.taken for branch in self.stack]
        return False if False in truths else None if None in truths else True

    def without_keywords(self, words: list[Word], end: str) -> list[Word]:
        """Follow the keywords that begin a command, and return the words after them, or from
        ``for`` on.

        Args:
            words: of the command.
            end: text that ends it: a line, ``;``, ``)`` and the like.
        """
        while words:
            branch = self.stack[-1] if self.stack else _Branch()
            keyword = words[0].text
            if branch.is_pattern and keyword != "esac":
                self._follow_pattern(branch, words[-1].text, end)
                return []
            if keyword not in _KEYWORDS:
                break
            if keyword in ("for", "select"):
                self.stack.append(_Branch(is_for=keyword == "for"))
                break
            words = words[1:]
            if keyword in ("if", "while", "until"):
                self.stack.append(_Branch())
            elif keyword == "case":
                subject = words[0].text if words else "$"
                self.stack.append(_Branch(subject=subject or " ", is_pattern=True))
                words = words[2:]
            elif keyword == "then":
                branch.taken = _both(_negated(branch.former), self.status)
            elif keyword == "do":
                # The body of ``for`` is read as its first round.
                branch.taken = branch.taken if branch.is_for else None
            elif keyword in ("elif", "else"):
                branch.former = _either(branch.former, branch.taken)
                branch.taken = _negated(branch.former)
            elif keyword in ("fi", "done", "esac") and self.stack:
                self.stack.pop()
        return words

    def runs(self, words: Sequence[Word], operator: str) -> Truth:
        """Return true if a command runs, and note its success.

        Args:
            words: of the command, without keywords.
            operator: text between the command before and this one, such as ``&&``.
        """
        success = _success([word.text for word in words])
        guard: Truth = True
        if operator == "&&":
            guard, self.status = self.status, _both(self.status, success)
        elif operator == "||":
            guard, self.status = _negated(self.status), _either(self.status, success)
        else:
            self.status = success
        return _both(self.taken, guard)

    def after(self, end: str) -> None:
        """Go on after a command: ``;;`` ends a branch of ``case``."""
        if end.startswith(";;") and self.stack and self.stack[-1].subject:
            branch = self.stack[-1]
            branch.former = _either(branch.former, branch.taken)
            branch.is_pattern, branch.hit = True, False

    def _follow_pattern(self, branch: _Branch, pattern: str, end: str) -> None:
        """Note one pattern of ``case``, of which the last one ends with a bracket."""
        is_known = not _is_unknown(branch.subject) and not _is_unknown(pattern)
        fits = fnmatchcase(branch.subject, pattern) if is_known else None
        branch.hit = _either(branch.hit, True if pattern == "*" else fits)
        if end == ")":
            branch.taken = _both(_negated(branch.former), branch.hit)
            branch.is_pattern = False


def _success(texts: Sequence[str]) -> Truth:
    """Return the success of a test of known values; None for other commands."""
    name, *texts = texts
    if name == "!":
        return _negated(_success(texts)) if texts else None
    if name in ("true", "false"):
        return name == "true"
    if name not in ("[", "[[", "test"):
        return None
    texts = [text for text in texts if text not in ("]", "]]")]
    if any(_is_unknown(text) for text in texts):
        return None
    if len(texts) == 2 and texts[0] in ("-z", "-n"):
        return (texts[1] == "") == (texts[0] == "-z")
    if len(texts) < 2:  # `[ -z $EMPTY ]` without quotes has one word
        return bool("".join(texts))
    if len(texts) != 3:
        return None
    first, operator, second = texts
    if operator in ("=", "==", "!="):
        return fnmatchcase(first, second) == (operator != "!=")
    if operator in _COMPARISONS and first.isdigit() and second.isdigit():
        return bool(_COMPARISONS[operator](int(first), int(second)))
    return None


def _is_unknown(text: str) -> bool:
    """Return true if a word has a variable or a command in it."""
    return "$" in text or "`" in text


def _negated(truth: Truth) -> Truth:
    return None if truth is None else not truth


def _both(first: Truth, second: Truth) -> Truth:
    return False if False in (first, second) else None if None in (first, second) else True


def _either(first: Truth, second: Truth) -> Truth:
    return _negated(_both(_negated(first), _negated(second)))
