"""Prefixes that samples share: exact, the same in both forms, and kept with the table of lengths."""

from __future__ import annotations

from itertools import takewhile
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.base.compiling import compiled_forms
from brimful.base.ragged import offsets_of
from brimful.base.tables import open_table
from brimful.errors import InvalidLengthsError, SettingsError
from brimful.lengths import LengthTable
from brimful.trees.prefix_order import _find_by_bytes, _find_by_merging
from brimful.trees.prefixes import Prefixes, SharedTotals, find_prefixes, prefixes_of, sharing_of

_SAMPLES = st.lists(
    st.lists(st.sampled_from([-1, 0, 1, 70_000]), max_size=5).map(tuple)
    # Equal for more tokens than are compared at once, and again after one that differs.
    | st.tuples(st.integers(28, 70), st.integers(-1, 1)).map(lambda case: (7,) * case[0] + (case[1],) + (7,) * 40),
    max_size=12,
)


def _find(samples: list[Any], dtype: Any = np.int32, *, compiled: bool = False, **options: Any) -> Prefixes:
    keys = np.array([token for sample in samples for token in sample], dtype)
    with compiled_forms(compiled):
        return find_prefixes(keys, offsets_of([len(sample) for sample in samples]), **options)


def _forest(prefixes: Prefixes, samples: list[Any]) -> list[Any]:
    """Return the trees by their samples' tokens, in any order of trees."""
    trees: list[Any] = []
    for sample, shared in zip(prefixes.order.tolist(), prefixes.shared.tolist(), strict=True):
        trees += [] if shared else [[]]
        trees[-1].append((shared, samples[sample]))
    return sorted(trees)


@pytest.mark.parametrize("compiled", [False, True])
@given(samples=_SAMPLES, least=st.integers(1, 40), data=st.data())
def test_prefixes_are_the_ones_of_a_trie(compiled, samples, least, data):
    """Without it a trunk would be computed twice, or samples be read as if they began alike."""
    groups = data.draw(st.none() | st.lists(st.integers(-1, 1), min_size=len(samples), max_size=len(samples)))
    found = _find(samples, compiled=compiled, least=least, groups=groups)
    # By definition: a tree has the samples of one group with the same first tokens.
    heads = [
        (group, sample[:least]) if len(sample) >= least and group >= 0 else index
        for index, (sample, group) in enumerate(zip(samples, groups or [0] * len(samples), strict=True))
    ]
    order = sorted(range(len(samples)), key=lambda index: (heads.index(heads[index]), samples[index], index))
    assert found.order.tolist() == order
    # A trie is the set of all beginnings.
    trie = {(head, sample[: n + 1]) for head, sample in zip(heads, samples, strict=True) for n in range(len(sample))}
    sharing = sharing_of(found, np.array([len(sample) for sample in samples], np.int32))
    assert (sharing.flat_tokens, sharing.tree_tokens) == (sum(map(len, samples)), len(trie))
    partners = [heads.count(head) > 1 for head in heads]
    assert (sharing.shares, sharing.too_short) == (sum(partners), sum(0 < len(s) < least for s in samples))
    assert sharing.num_trees == len({head for head in heads if heads.count(head) > 1})
    for before, after, shared in zip(order, order[1:], found.shared.tolist()[1:], strict=False):
        pairs = zip(samples[before], samples[after], strict=False)
        common = len([*takewhile(lambda pair: pair[0] == pair[1], pairs)])
        assert shared == (common if heads[before] == heads[after] else 0)


@given(samples=_SAMPLES, least=st.integers(1, 40), dtype=st.sampled_from([np.int32, np.int64]))
def test_compiled_and_numpy_find_the_same(samples, least, dtype):
    """Without it a plan would depend on whether numba is installed."""
    one, other = (_find(samples, dtype, compiled=compiled, least=least) for compiled in (False, True))
    assert (one.order.tolist(), one.shared.tolist()) == (other.order.tolist(), other.shared.tolist())
    assert (other.order.dtype, other.shared.dtype) == (one.order.dtype, one.shared.dtype) == (np.int64, np.int32)


@given(samples=_SAMPLES, least=st.integers(1, 40))
def test_the_compiled_form_stays_within_its_arrays(samples, least):
    """Compiled code writes to any index in silence; plain Python refuses it."""
    keys = np.array([token for sample in samples for token in sample], np.int64)
    arguments = keys, offsets_of([*map(len, samples)]), np.zeros(len(samples), np.int64), least
    with np.errstate(over="ignore"):
        found = _find_by_merging(*arguments)
    assert [array.tolist() for array in found] == [array.tolist() for array in _find_by_bytes(*arguments)]


@given(samples=_SAMPLES, data=st.data())
def test_the_order_of_samples_does_not_matter(samples, data):
    """Without it shuffled data would share less than sorted data."""
    shuffled = data.draw(st.permutations(samples))
    assert _forest(_find(samples, least=2), samples) == _forest(_find(shuffled, least=2), shuffled)


@pytest.mark.parametrize("compiled", [False, True])
def test_large_trees(compiled):
    """A system prompt makes one tree of all samples: merged in many rounds, with equal ones among them."""
    generator = np.random.default_rng(0)
    samples = [(9,) * 64 + tuple(generator.integers(0, 3, generator.integers(0, 9)).tolist()) for _ in range(999)]
    found = _find(samples, compiled=compiled)
    assert found.order.tolist() == sorted(range(999), key=lambda index: (samples[index], index))
    trie = {sample[:n] for sample in samples for n in range(1, len(sample) + 1)}
    sharing = sharing_of(found, np.array([*map(len, samples)], np.int32))
    assert sharing == SharedTotals(sum(map(len, samples)), len(trie), num_trees=1, shares=999, too_short=0, alone=0)


@pytest.mark.parametrize("compiled", [False, True])
def test_equal_samples_of_many_groups(compiled):
    """Hashes only propose: groups meet in the table of hashes by the hundred, and share nothing."""
    groups = np.arange(2000) % 1000
    found = _find([(1, 2, 3)] * 2000, compiled=compiled, least=2, groups=groups)
    assert found.order.reshape(1000, 2).tolist() == [[group, group + 1000] for group in range(1000)]
    assert found.shared.reshape(1000, 2).tolist() == [[0, 3]] * 1000


def test_rejected_samples_share_nothing():
    """Without it a row that cannot be read would be counted as a sample of -1 tokens."""
    found = _find([(1, 2), (), (1, 2)], least=1)
    sharing = sharing_of(found, np.array([2, -1, 2], np.int32))
    assert sharing == SharedTotals(4, 2, num_trees=1, shares=2, too_short=0, alone=0)
    assert sharing.ratio == 2


def test_least_is_a_number_of_tokens():
    """Without it samples without one common token would be a tree."""
    with pytest.raises(SettingsError, match=r"^least_shared must be a whole number of at least 1 and is 0$"):
        _find([(1,)], least=0)


def _prefixes(**amounts: list[int]) -> Prefixes:
    found = find_prefixes(np.array([5, 6, 7, 8, 5, 6, 9], np.int32), np.array([0, 3, 4, 7]), least=2)
    return Prefixes(
        found.order, found.shared, found.least, {name: np.array(a, np.int32) for name, a in amounts.items()}
    )


def test_a_table_keeps_its_prefixes(tmp_path):
    """Without it a plan of a saved table would compute every trunk again for every sample."""
    tokens = {"tokens": np.array([3, 1, 3], np.int32), "patches": np.array([4, 0, 4], np.int32)}
    table = LengthTable(tokens, sharing=_prefixes(patches=[0, 4, 0]))
    table.save(tmp_path / "t.arrow")
    again = LengthTable.open(tmp_path / "t.arrow")
    prefixes = prefixes_of(again)
    assert (prefixes.order.dtype, prefixes.order.tolist()) == (np.int64, [0, 2, 1])
    assert (prefixes.shared.dtype, prefixes.shared.tolist()) == (np.int32, [0, 2, 0])
    assert prefixes.least == 2
    assert {name: a.tolist() for name, a in prefixes.amounts.items()} == {"patches": [0, 4, 0]}
    assert again.fingerprint == table.fingerprint


def test_prefixes_are_in_the_fingerprint_and_a_table_without_them_is_what_it_was(tmp_path):
    """Without it lengths of other trees would make one plan, or every old plan would be made again."""
    tokens = {"tokens": np.array([3, 1, 3], np.int32)}
    plain, found = LengthTable(tokens), _prefixes()
    assert plain.fingerprint == "45dc056583d41d1365736c89b834975b"
    others = [
        LengthTable(tokens, sharing=prefixes)
        for prefixes in (
            found,
            _prefixes(patches=[0, 4, 0]),
            Prefixes(found.order, found.shared, 1),
            Prefixes(found.order[::-1], found.shared, 2),
            Prefixes(found.order, found.shared * 0, 2),
        )
    ]
    assert len({table.fingerprint for table in [plain, *others]}) == 6
    plain.save(tmp_path / "t.arrow")
    saved = open_table(tmp_path / "t.arrow")
    assert saved.names == ["tokens"]
    assert sorted(saved.description) == ["budgets", "fingerprint", "kind", "provenance", "rejects", "version"]


def test_prefixes_of_other_samples_are_refused():
    """Without it the samples of a tree would be any."""
    with pytest.raises(InvalidLengthsError, match=r"^the prefixes are of 3 samples and the lengths of 2$"):
        LengthTable({"tokens": np.array([3, 1], np.int32)}, sharing=_prefixes())


def test_a_short_sample_that_another_continues_is_shared():
    """It costs no branch; two samples that part after as many tokens would need a trunk."""
    head = np.arange(20)
    samples = [head, np.append(head, 30), np.append(head, [40, 41]), head, head[:10]]
    keys, offsets = np.concatenate(samples), offsets_of([*map(len, samples)])
    found = find_prefixes(keys, offsets, least=64)
    assert (found.order.tolist(), found.shared.tolist()) == ([0, 3, 1, 2, 4], [0, 20, 20, 0, 0])
