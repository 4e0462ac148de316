"""Packs of trees: what samples share is there once, and each sample comes back whole."""

import io
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.errors import CorruptFileError
from brimful.store.shards import PackRows, ShardReader, ShardWriter, version_of
from brimful.testing.toys import toy_pack, toy_tree
from brimful.trees.pack_tree import tree_of

SAMPLES = st.lists(
    st.lists(st.integers(0, 2), min_size=1, max_size=8).flatmap(
        lambda tokens: st.tuples(st.just(tokens), st.lists(st.booleans(), min_size=len(tokens), max_size=len(tokens)))
    ),
    min_size=1,
    max_size=12,
)
"""Samples with targets, of which many share and some are equal."""


@dataclass(frozen=True)
class Mark:
    """Stands for a picture of one token."""

    token: int
    start: int
    segment: int


@given(SAMPLES)
def test_each_sample_comes_back_from_its_path(samples):
    """Tokens once each, and targets of each sample, whatever other samples do with a shared token."""
    tokens, masks = zip(*samples, strict=True)
    pack = toy_tree(tokens, masks)
    assert len(pack) == len({tuple(sample[: end + 1]) for sample in tokens for end in range(len(sample))})
    owners = np.repeat(np.arange(pack.num_segments), np.diff(pack.cu_seqlens)).tolist()
    marks = [Mark(token, *place) for token, place in zip(pack.input_ids.tolist(), enumerate(owners), strict=True)]
    flat = replace(pack, attachments=marks).flat()
    assert pack.num_samples == flat.num_samples == len(samples)
    assert sorted(flat.sample_ids.tolist()) == list(range(len(samples)))
    for segment, sample in enumerate(flat.sample_ids.tolist()):
        where = slice(*flat.cu_seqlens[segment : segment + 2].tolist())
        assert flat.input_ids[where].tolist() == tokens[sample]
        assert flat.loss_mask[where].tolist() == [False, *masks[sample][1:]]
        attached = [(mark.start - where.start, mark.token) for mark in flat.attachments if mark.segment == segment]
        assert attached == list(enumerate(tokens[sample]))
    assert flat.flat() is flat


def _trunks(tree):
    """Each segment with all that it continues."""
    trunks = []
    for segment, parent in enumerate(tree.parents.tolist()):
        trunks.append({segment, *(trunks[parent] if parent >= 0 else ())})
    return trunks


@given(SAMPLES)
def test_segments_are_in_depth_first_order(samples):
    """Depths continue, subtrees are ranges, and a token is a target if any of its samples trains it."""
    tokens, masks = zip(*samples, strict=True)
    pack = toy_tree(tokens, masks)
    tree = tree_of(pack)
    lengths = np.diff(pack.cu_seqlens)
    stops = pack.starts + lengths
    ends = tree.subtree_ends()
    for segment, parent in enumerate(tree.parents.tolist()):
        assert parent < segment
        assert pack.starts[segment] == (stops[parent] if parent >= 0 else 0)
        while parent >= 0:
            assert parent < segment < ends[parent]
            parent = int(tree.parents[parent])
        own = {other for other, path in enumerate(_trunks(tree)) if segment in path}
        assert own == set(range(segment, ends[segment]))
    places = tree.positions(pack.cu_seqlens)
    trained = set(tree.target_positions(places).values.tolist())
    assert trained == set(np.flatnonzero(pack.loss_mask).tolist())


@given(SAMPLES)
def test_targets_are_ranges_of_the_row(samples):
    """A token of a trunk trains with the weights of the samples that train it, however many ranges that takes."""
    tokens, masks = zip(*samples, strict=True)
    pack = toy_tree(tokens, masks)
    tree = tree_of(pack)
    targets = tree.target_positions(tree.positions(pack.cu_seqlens))
    of_samples = [targets.row(sample).tolist() for sample in range(tree.num_samples)]
    assert tree.num_targets == sum(map(len, of_samples))
    ranges = tree.target_ranges(pack.cu_seqlens)
    found = [[] for _ in of_samples]
    for sample, begin, end in zip(*ranges, strict=True):
        found[sample] += range(begin, end)
    assert found == of_samples
    weights = np.arange(1, tree.num_samples + 1)
    expected = [sum(int(weights[n]) for n, own in enumerate(of_samples) if token in own) for token in range(len(pack))]
    assert ranges.sums(weights, len(pack)).tolist() == expected


@given(SAMPLES, st.sets(st.integers(0, 11)))
def test_samples_through_segments(samples, chosen):
    """All samples of a subtree, and no other: their targets can go, and the others keep theirs."""
    tokens, masks = zip(*samples, strict=True)
    pack = toy_tree(tokens, masks)
    tree = tree_of(pack)
    paths = [set(tree.paths().row(sample).tolist()) for sample in range(tree.num_samples)]
    segments = sorted(chosen & set(range(pack.num_segments)))
    through = tree.samples_through(np.array(segments, dtype=np.int64))
    assert through.tolist() == [sample for sample, path in enumerate(paths) if path & set(segments)]
    without, places = tree.without_targets(through), tree.positions(pack.cu_seqlens)
    for sample in range(tree.num_samples):
        expected = [] if sample in through else tree.target_positions(places).row(sample).tolist()
        assert without.target_positions(places).row(sample).tolist() == expected


def test_a_sample_that_others_continue_ends_in_their_trunk():
    """And a copy of it is a segment without tokens."""
    pack = toy_tree([[1, 2], [1, 2, 3], [1, 2]], [[True] * 2, [True] * 3, [False] * 2])
    assert pack.input_ids.tolist() == [1, 2, 3]
    tree = tree_of(pack)
    assert (pack.sample_ids.tolist(), tree.parents.tolist()) == ([0, 2, 1], [-1, 0, 0])
    assert np.diff(pack.cu_seqlens).tolist() == [2, 0, 1]
    assert tree.ends.tolist() == [0, 1, 2]
    assert (tree.spans.tolist(), tree.span_sizes.tolist()) == ([1, 2, 1, 3], [1, 0, 1])


def shard_of(path, packs):
    sink = io.BytesIO()
    writer = ShardWriter(sink, version=version_of(has_attachments=False, sharing=packs[0].sharing))
    writer.add_packs(packs)
    path.write_bytes(sink.getvalue())
    return ShardReader(str(path), size=len(sink.getvalue()))


def test_a_shard_gives_trees_back(tmp_path):
    packs = [toy_tree([[seed, 1, 2], [seed, 1, 3], [seed], [4, 5]]) for seed in range(130)]
    reader = shard_of(tmp_path / "s.arrow", packs)
    assert [reader.pack(row) for row in range(130)] == packs
    assert reader.pack(0) != toy_tree([[0, 1, 2], [0, 1, 3], [0], [4, 5]], [[False] * 3] * 2 + [[False]] * 2)


@pytest.mark.parametrize("column", ["parents", "spans", "span_sizes"])
def test_a_flipped_bit_in_a_tree_is_seen(tmp_path, column):
    """Without it two samples would see each other in silence."""
    path = tmp_path / "s.arrow"
    masks = [[False, True, False, True, False, True], [False, True, True, True, False], [True]]
    pack = toy_tree([[7, 1, 2, 2, 2, 2], [7, 1, 3, 3, 3], [7]], masks)
    shard_of(path, [pack])
    data = bytearray(path.read_bytes())
    bytes_of_column = getattr(pack.sharing, column).tobytes()
    assert data.count(bytes_of_column) == 1
    data[data.index(bytes_of_column)] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(CorruptFileError):
        ShardReader(str(path), size=len(data)).pack(0)


def test_a_filler_keeps_its_tree_and_no_sample():
    filler = toy_tree([[7, 1, 2], [7, 1, 3]]).without_loss()
    tree = tree_of(filler)
    assert (filler.num_loss_tokens, filler.sample_ids.tolist()) == (0, [-1, -1, -1])
    assert (tree.parents.tolist(), tree.spans.tolist()) == ([-1, 0, 0], [])
    assert filler.flat().input_ids.tolist() == [7, 1, 2, 7, 1, 3]


def test_rows_are_trees_or_none():
    """A file of both would take segments of a tree for samples."""
    with pytest.raises(AssertionError):
        PackRows.of_packs([toy_tree([[7, 1], [7, 2]]), toy_pack([3])])
