"""What users import, and what they read about it."""

import doctest
import importlib
import inspect
import pkgutil

import pytest

import brimful
from brimful.errors import MissingExtraError

NAMES = [
    "open_source", "Source", "Sample", "ChatEncoder", "TextEncoder", "CompletionEncoder", "TokenEncoder",
    "encoder_for", "EncodedSample", "Encoder", "TrainOn",
    "measure_lengths", "LengthTable", "plan_packs", "Plan", "Overflow", "CostModel", "schedule_packs",
    "Lookahead", "write_packs", "pack_dataset", "PackSummary", "check_store", "open_packs", "Pack", "PackStore",
    "PackedDataset", "PackLoader", "TokenBudgetBatches", "TokenBudget", "SampleCount", "Warmup", "PackedBatch",
    "Padding", "PackCollator", "Normaliser", "per_sample_loss", "collator_for", "choose_attention",
    "evaluate_samples", "one_by_one", "verify_packing", "VerifyReport", "BrimfulError", "__version__",
]  # fmt: skip


def test_public_names_are_these():
    """Adding or losing a name is a decision, not an accident."""
    assert brimful.__all__ == NAMES
    assert sorted(dir(brimful)) == sorted(NAMES)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "__version__"])
def test_every_public_name_exists_and_explains_itself(name):
    """A lazy name that cannot be resolved fails only at a user's desk."""
    documented = inspect.getdoc(getattr(brimful, name))
    assert documented
    assert len(documented) > 20


def test_an_unknown_name_is_an_attribute_error():
    """``hasattr`` must work on the lazy module."""
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        brimful.nonsense  # noqa: B018


def modules():
    for info in pkgutil.walk_packages(brimful.__path__, "brimful."):
        if info.name.endswith("__main__"):
            continue
        try:
            importlib.import_module(info.name)
        except MissingExtraError:
            continue  # a trainer that is not installed
        yield info.name


@pytest.mark.parametrize("name", sorted(modules()))
def test_examples_in_docstrings(name):
    """Examples are the first thing people copy; each runs."""
    module = importlib.import_module(name)
    result = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0


def test_doctests_are_found():
    """The test above would pass on a package without examples."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    found = [test for name in modules() for test in finder.find(importlib.import_module(name)) if test.examples]
    assert len(found) > 120


@pytest.mark.parametrize("name", sorted(modules()))
def test_every_module_says_what_it_is_for(name):
    """The one-line map of the package."""
    assert importlib.import_module(name).__doc__
