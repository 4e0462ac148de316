"""Each dialect at its ends: one sample, one token, two packs, and packs without loss, read as its trainer reads them."""

import importlib
import inspect
from itertools import pairwise
from pathlib import Path

import pytest

from brimful import PackCollator
from brimful.collate import Padding
from brimful.collate.dialects import DIALECTS
from brimful.errors import SettingsError
from brimful.testing.contracts import DialectContract
from brimful.testing.toys import toy_pack


def _readers():
    """The reader of each dialect, from the module of its tests; one that cannot be imported skips there."""
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        if path == Path(__file__):
            continue
        try:
            module = importlib.import_module(f"{__package__}.{path.stem}")
        except pytest.skip.Exception:
            continue
        for _, kind in inspect.getmembers(module, inspect.isclass):
            if issubclass(kind, DialectContract) and kind.__module__ == module.__name__:
                yield kind()


READERS = {reader.dialect: reader for reader in _readers()}

ENDS = {
    "one token": [toy_pack([1])],
    "one sample": [toy_pack([4])],
    "samples of one token": [toy_pack([1, 1, 1])],
    "two packs of one sample": [toy_pack([2]), toy_pack([3], first_sample=1, seed=1)],
    "a long and a short pack": [toy_pack([5, 4]), toy_pack([1], first_sample=2, seed=1)],
    "a pack without loss": [toy_pack([3, 2]).without_loss()],
    "a pack, and one without loss": [toy_pack([3, 2]), toy_pack([4], first_sample=2, seed=1).without_loss()],
}


@pytest.mark.parametrize("padding", [None, Padding(to=24)], ids=["as long as it is", "padded"])
@pytest.mark.parametrize("packs", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_tokens_and_targets_at_the_ends(reader, packs, padding):
    """Without it the last batch of an epoch, or a rank that only fills a step, is the first to meet them."""
    batch = reader.collate(packs, padding)
    samples = [pack.segment(place).tolist() for pack in packs for place in range(pack.num_segments)]
    assert [segment for segment in reader.segments(batch) if any(segment)] == samples
    pairs = [
        pair
        for pack in packs
        if pack.num_loss_tokens
        for place in range(pack.num_segments)
        for pair in pairwise(pack.segment(place).tolist())
    ]
    assert reader.targets(batch) == pairs
    assert reader.loss_tokens(batch) == len(pairs)


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_positions_begin_elsewhere_only_where_they_are_no_boundaries(reader):
    """Models such as RoBERTa count from 2: right where the trainer has other boundaries, otherwise refused."""
    packs = [toy_pack([3, 2]), toy_pack([4], first_sample=2, seed=1)]
    samples = [pack.segment(place).tolist() for pack in packs for place in range(pack.num_segments)]

    if DIALECTS[reader.dialect].any_start:
        batch = PackCollator(dialect=reader.dialect, position_start=2)(packs)
        assert [segment for segment in reader.segments(batch) if any(segment)] == samples
        return
    assert not DIALECTS[reader.dialect].takes_sharing, "positions of trees are depths, and no boundaries"
    with pytest.raises(SettingsError, match="whose trainer takes position 0 for the beginning of a segment"):
        PackCollator(dialect=reader.dialect, position_start=2)


def test_each_dialect_has_a_reader():
    """A dialect without one is at no end."""
    pytest.importorskip("torch")
    assert set(DIALECTS) == set(READERS)
