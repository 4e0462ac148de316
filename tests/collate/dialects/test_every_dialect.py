"""No dialect without a reader, and no key without a line in the docs."""

import importlib
import re
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from brimful import PackCollator  # noqa: E402
from brimful.collate import DIALECTS, PackExtras, dialect_of  # noqa: E402
from brimful.errors import BrimfulError  # noqa: E402
from brimful.testing.contracts import DialectContract  # noqa: E402
from brimful.testing.toys import toy_pack  # noqa: E402

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


def _plain(value):
    """A batch as lists and numbers, to be compared."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items() if key != "block_mask"}
    if isinstance(value, torch.Tensor):
        return [row.tolist() for row in value.unbind()] if value.is_nested else value.tolist()
    return value


def _batch(name, extras, **options):
    """The batch of a pack with something more than tokens; None if it is refused."""
    try:
        return _plain(PackCollator(dialect=name, **options)([(toy_pack([4, 2]), extras)]))
    except BrimfulError:
        return None


@pytest.mark.parametrize("name", DIALECTS)
def test_every_dialect_has_a_row_in_the_table(name):
    """The table is where a dialect is chosen."""
    rows = re.findall(r"^\| `(\w+)` \|(?:[^|\n]+\|){5}$", DOCS.read_text(), flags=re.MULTILINE)
    assert name in rows, f"the table in docs/dialects.md has no row `{name}`"


@pytest.mark.parametrize("name", DIALECTS)
def test_the_table_of_dialects_says_whether_labels_are_shifted(name):
    """``compute_metrics`` and losses shift by it: a wrong flag shifts twice, or not at all."""
    pack = toy_pack([3])
    batch = PackCollator(dialect=name)([pack])
    if "labels" in batch:
        is_shifted = int(batch["labels"].flatten()[0]) == int(pack.input_ids[1])
        assert dialect_of(name).labels_shifted == is_shifted


@pytest.mark.parametrize("name", DIALECTS)
def test_positions_and_weights_reach_the_batch_or_are_refused(name):
    """Left out without a word, pictures get the positions of text, and weights are 1."""
    rope = np.tile(np.arange(6), (3, 1))
    one = _batch(name, PackExtras(rope_positions=rope))
    assert one is None or one != _batch(name, PackExtras(rope_positions=rope[:, ::-1].copy()))
    weighted = _batch(name, None, loss_weights="sample")
    assert weighted is None or weighted != _batch(name, None)
