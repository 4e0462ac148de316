"""No dialect without a reader, and no key without a line in the docs."""

import importlib
import re
from pathlib import Path

import pytest

pytest.importorskip("torch")

from brimful.collate import DIALECTS
from brimful.testing.contracts import DialectContract

DOCS = Path(__file__).parents[3] / "docs" / "dialects.md"


def reader_of(name):
    """The class that reads a dialect as its trainer does."""
    path = Path(__file__).parent / f"test_{name}.py"
    readers = []
    if path.exists():
        values = vars(importlib.import_module(f"tests.collate.dialects.{path.stem}")).values()
        readers = [value for value in values if getattr(value, "dialect", None) == name]
    assert readers, (
        f"dialect {name!r} has no reader: add tests/collate/dialects/test_{name}.py with a class TestX(DialectContract), "
        f"dialect = {name!r}, whose segments, targets and loss_tokens read a batch as the trainer does"
    )
    return readers[0]


@pytest.mark.parametrize("name", DIALECTS)
def test_every_dialect_has_a_reader(name):
    """A dialect that nobody reads may say anything; its file must be named for it to be found."""
    assert issubclass(reader_of(name), DialectContract)


@pytest.mark.parametrize("name", DIALECTS)
def test_every_key_is_in_the_docs(name):
    """Documentation that lacks a key is where a trainer's page goes wrong."""
    sections = dict(re.findall(r"^## `(\w+)`\n(.*?)(?=^## |\Z)", DOCS.read_text(), flags=re.MULTILINE | re.DOTALL))
    assert name in sections, f"docs/dialects.md has no section `{name}`"
    missing = [key for key in reader_of(name).shapes if f"`{key}`" not in sections[name]]
    assert not missing, f"docs/dialects.md, section `{name}`, lacks {missing}"


def test_the_docs_name_no_other_dialect():
    """A section that outlives its dialect promises what nobody can choose."""
    assert set(re.findall(r"^## `(\w+)`\n", DOCS.read_text(), flags=re.MULTILINE)) == set(DIALECTS)
