"""The words of the project: sixteen marks of a private English, counted in source, pages and docstrings of tests.

Each mark stands where the field says something shorter: *after* for "behind", *not a* for "is no". CONTRIBUTING.md, section
"Words", has the rewrites.
"""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

from tests.library import modules

REPOSITORY = Path(__file__).parents[1]

MARKS = {
    "behind": r"\bbehind\b",
    "beside": r"\bbeside\b|\bin front of\b",
    "those of": r"\bthat of\b|\bthose (?:of|that|which|who|in|with|on)\b",
    "as of ``X``": r"\bas of ``",
    "whoever": r"\b(?:whoever|nobody|somebody)\b",
    "there is": r"\bthere (?:is|are)\b",
    "where it": r"\bwhere (?:it|none)\b",
    "anew": r"\banew\b",
    "by itself": r"\bby itself\b",
    "so many": r"\bso many\b",
    "else": r"\belse\b",
    "goes before": r"\bgoes? before\b",
    "most": r"(?<!at )\bmost\b",
    "by name": r"\bby name\b",
    "people": r"\bpeople\b",
    "is no": r"\bis no (?!longer|more)\w",
}
MOST_MARKS = 15
"""Marks in ten thousand words; TRL has 4, grain 7."""


def texts_of(module):
    """Comments, and strings of more than two words: docstrings, messages and help."""
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in module.nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value.split()) > 2:
            yield node.lineno, node.value


def pages():
    """Every page of documentation but the list of changes, which tells history."""
    yield REPOSITORY / "README.md"
    yield REPOSITORY / "CONTRIBUTING.md"
    yield from sorted((REPOSITORY / "docs").rglob("*.md"))


def count(texts):
    """Marks per ten thousand words, and the place of each."""
    num_words, places = 0, []
    for place, text in texts:
        num_words += len(re.findall(r"[A-Za-z][A-Za-z'’-]*", text))
        for mark, pattern in MARKS.items():
            for match in re.finditer(pattern, text, re.IGNORECASE):
                places.append(f"{place}: {mark}: …{text[max(0, match.start() - 30) : match.end() + 30]!r}…")
    return 10_000 * len(places) / num_words, places


def of_source():
    return [(f"{module.file}:{line}", text) for module in modules() for line, text in texts_of(module)]


def of_pages():
    return [
        (
            page.relative_to(REPOSITORY).as_posix(),
            re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S),
        )
        for page in pages()
    ]


def of_tests():
    """Docstrings of tests and of their helpers; other strings of tests quote messages and data."""
    return [
        (f"{path.relative_to(REPOSITORY).as_posix()}:{node.body[0].lineno}", text)
        for path in sorted((REPOSITORY / "tests").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        for text in [ast.get_docstring(node)]
        if text
    ]


@pytest.mark.parametrize("texts", [of_source, of_pages, of_tests])
def test_few_marks_of_a_private_english(texts):
    density, places = count(texts())
    assert density <= MOST_MARKS, f"{density:.1f} marks in ten thousand words\n" + "\n".join(places)


def test_a_sentence_of_marks_is_counted():
    """Without this, a pattern that matches nothing would pass."""
    sentence = "There is nobody behind those of ``X``, and where it goes before, so many are read anew by itself."
    density, places = count([("here", sentence)])
    assert len(places) == 9, places
    assert density > 1000
