"""Small samples to verify with."""

import numpy as np
import pytest

pytest.importorskip("torch")

from brimful.errors import SettingsError
from brimful.media import MediaKind, Medium, PlacedMedium
from brimful.store.shards import assemble_pack
from brimful.testing.toys import toy_pack, toy_tree
from brimful.trees.pack_tree import tree_of
from brimful.verify.drawn_samples import (
    few_of,
    few_with_media,
    long_samples,
    long_trees,
    random_samples,
    random_trees,
    renumbered,
)


def test_few_of_packs_cuts_long_segments_so_that_others_fit():
    chosen = few_of([toy_pack([100, 3, 50]), toy_pack([2])], vocab=64, max_tokens=64)
    assert [pack.cu_seqlens.tolist() for pack in chosen] == [[0, 16, 19, 32], [0, 2]]
    assert max(pack.input_ids.max() for pack in chosen) < 64


def test_media_of_a_cut_sample_are_taken_along():
    """A part that begins at token 5 of its sample has its picture at token 6 of that sample."""
    picture = PlacedMedium(Medium(MediaKind.IMAGE, "a"), start=6, length=2, num_tokens=2)
    pack = assemble_pack(
        [np.arange(4, dtype=np.int32), np.arange(3, dtype=np.int32)],
        [np.ones(4, bool), np.ones(3, bool)],
        [7, 8],
        [5, 0],
        [[picture], []],
    )
    small = few_with_media([pack], max_tokens=100)
    assert [(len(item.attachments), item.sample_ids.tolist()) for item in small] == [(1, [7]), (0, [8])]


def shape(pack):
    tree = tree_of(pack)
    return np.diff(pack.cu_seqlens).tolist(), tree.parents.tolist(), pack.sample_ids[tree.ends].tolist()


def rows_of(pack):
    flat = pack.flat()
    return [(ids.tolist(), mask.tolist()) for ids, mask in zip(*(
        np.split(values, flat.cu_seqlens[1:-1]) for values in (flat.input_ids, flat.loss_mask)
    ), strict=True)]  # fmt: skip


def test_random_trees_have_each_shape_that_goes_wrong():
    """Depths 0 to 3, a sample that ends where others go on, one that is there twice, a trunk of one token, two trees in a pack."""
    one, two = random_trees(128)
    assert shape(one) == (
        [9, 5, 4, 3, 10, 7, 0, 11, 1, 3, 2, 11], [-1, 0, 1, 2, 2, 1, 5, 0, 0, 8, 8, -1], [0, 1, 2, 3, 4, 5, 6, 7, 8],
    )  # fmt: skip
    assert shape(two) == ([1, 6, 13], [-1, 0, 0], [100, 101, 102])
    (long,) = long_trees([5, 6, 7])
    assert shape(long) == ([700, 150, 300, 5, 1, 600, 900, 405], [-1, 0, 1, 1, 0, 4, 0, -1], [0, 1, 2, 3, 4, 5, 6])
    for pack in (one, two, long):
        for number, (_, mask) in enumerate(rows_of(pack)):
            wanted = [(place + number) % 3 != 1 for place in range(len(mask))]
            assert mask[1:] == wanted[1:], number
    assert not np.array_equal(random_trees(128, seed=1)[0].input_ids, one.input_ids)


@pytest.mark.parametrize(("vocab", "ids"), [(1, {0}), (3, {2}), (4, {3}), (5, {3, 4})])
def test_random_tokens_are_none_of_the_special_ones(vocab, ids):
    """Padding, BOS and EOS lie at the beginning of most vocabularies, and would change more than content."""
    assert {token for sample in random_samples(vocab) for token in sample["input_ids"]} == ids
    assert {token for pack in random_trees(vocab) for token in pack.input_ids.tolist()} == ids


def test_two_of_three_random_tokens_are_targets():
    """Some are not, or a collator that trains on prompts would pass."""
    counts = [sum(label != -100 for label in sample["labels"]) for sample in random_samples(128)]
    assert counts == [4, 5, 0, 13, 4, 9]
    assert all(
        label in (-100, token) for sample in random_samples(128) for token, label in zip(*sample.values(), strict=True)
    )
    for as_packs in (False, True):
        rows = long_samples([5, 6, 7], as_packs=as_packs)
        short = rows[1].labels.tolist() if as_packs else rows[1]["labels"]
        assert short[1:] == [-100, 7]
        labels = np.asarray(rows[2].labels if as_packs else rows[2]["labels"])
        assert np.flatnonzero(labels[1:] == -100)[:3].tolist() == [0, 3, 6]
        assert (rows[2].sample_ids.tolist() == [2]) if as_packs else True


def test_few_of_packs_takes_two_packs_and_at_least_two_samples():
    """One sample alone shows no isolation."""
    packs = [toy_pack([3, 4]), toy_pack([2], first_sample=2), toy_pack([2], first_sample=3)]
    assert [pack.sample_ids.tolist() for pack in few_of(packs, vocab=99, max_tokens=64)] == [[0, 1], [2]]
    assert [pack.cu_seqlens.tolist() for pack in few_of([toy_pack([9, 9, 9, 9])], vocab=99, max_tokens=16)] == [
        [0, 4, 8]
    ]
    assert [pack.cu_seqlens.tolist() for pack in few_of([toy_pack([9, 9])], vocab=99, max_tokens=6)] == [[0, 2, 3]]
    (pack,) = few_of(packs[:1], vocab=5, max_tokens=64)
    assert pack.input_ids.tolist() == (packs[0].input_ids % 5).tolist()
    assert pack.loss_mask.tolist() == packs[0].loss_mask.tolist()
    with pytest.raises(SettingsError, match="at least two"):
        few_of(packs[1:2], vocab=99, max_tokens=64)
    with pytest.raises(SettingsError, match="at least two"):
        few_with_media(packs[1:2], max_tokens=64)


@pytest.mark.parametrize("room", [8, 20, 40, 200])
def test_samples_of_a_cut_tree_are_beginnings_of_its_own(room):
    """With the targets that they had; what does not fit is cut off, and the tree stays one."""
    (whole, _) = random_trees(64)
    (small,) = few_of([whole], vocab=64, max_tokens=2 * room)
    limit = max(2, 2 * room // 16)
    assert len(small) <= max(room, limit)
    lengths = np.diff(small.cu_seqlens)
    count = len(lengths)
    assert lengths.tolist() == np.minimum(np.diff(whole.cu_seqlens), limit)[:count].tolist()
    assert tree_of(small).parents.tolist() == tree_of(whole).parents[:count].tolist()
    if count < whole.num_segments:
        assert len(small) + min(limit, int(np.diff(whole.cu_seqlens)[count])) > room
    own = dict(zip(whole.flat().sample_ids.tolist(), rows_of(whole), strict=True))
    for name, (ids, mask) in zip(small.flat().sample_ids.tolist(), rows_of(small), strict=True):
        path = cut_path(whole, name, limit)[: len(ids)]
        assert ids == [own[name][0][place] for place in path]
        assert mask[1:] == [own[name][1][place] for place in path][1:]


def cut_path(pack, sample, limit):
    """The places of a sample that are left when each of its segments has at most a number of tokens."""
    number = pack.flat().sample_ids.tolist().index(sample)
    places, begin = [], 0
    for segment in tree_of(pack).paths().row(number).tolist():
        length = int(np.diff(pack.cu_seqlens)[segment])
        places += range(begin, begin + min(length, limit))
        begin += length
    return places


def with_pictures(lengths, pictures, first=0):
    """A pack whose segments of these numbers have a picture of two tokens."""
    ids = [np.arange(length, dtype=np.int32) + 3 for length in lengths]
    media = [
        [PlacedMedium(Medium(MediaKind.IMAGE, f"{first + number}"), start=0, length=2, num_tokens=2)]
        if number in pictures
        else []
        for number in range(len(lengths))
    ]
    return assemble_pack(
        ids, [np.ones(length, bool) for length in lengths], np.arange(len(lengths)) + first, None, media
    )


@pytest.mark.parametrize(
    ("packs", "room", "chosen"),
    [
        ([with_pictures([9, 5, 4, 3], {0, 1})], 100, [[1], [0, 3, 2]]),
        ([with_pictures([9, 5, 4, 3], {0, 1})], 17, [[1], [0, 3]]),
        ([with_pictures([9, 5, 4, 3], {0, 1})], 16, [[1], [0]]),
        ([with_pictures([9, 5, 4, 3], {0})], 15, [[0], [3]]),
        ([with_pictures([9, 5, 4, 3], {0})], 16, [[0], [3, 2]]),
        ([with_pictures([9, 5], {0}), with_pictures([4, 6], {0}, 2)], 100, [[2, 3], [0, 1]]),
        ([with_pictures([3] * 9, set(range(9)))], 100, [[0], [1, 2, 3, 4, 5]]),
        ([with_pictures([9], {}, number) for number in range(16)] + [with_pictures([2, 2], {0}, 16)], 18, [[0], [1]]),
    ],
)
def test_the_shortest_samples_with_media_are_taken_and_the_shortest_without(packs, room, chosen):
    """Media are not cut: two of them at any length, others while they fit, six in all, as two packs at least."""
    small = few_with_media(packs, max_tokens=room)
    assert [pack.sample_ids.tolist() for pack in small] == chosen


def test_of_trees_with_media_whole_trees_are_taken():
    """A cut trunk would lose a picture of all its branches; one tree is taken at any length."""
    tree = toy_tree([[5, 6, 7], [5, 6, 8], [9, 3], [9, 4], [2]])
    flat = rows_of(tree)
    for room, count in ((0, 1), (3, 1), (9, 1), (10, 3), (15, 3), (16, 5)):
        small = few_with_media([tree, tree, tree], max_tokens=room)
        assert [rows_of(pack) for pack in small] == [flat[:count]] * 2, room


def test_tokens_are_renumbered_alike_in_all_packs():
    """A vocabulary of a real model takes most of a tiny one's time; tokens of media keep their kind."""
    packs = [with_pictures([3, 2], {0}), toy_pack([3], first_sample=5)]
    small = renumbered(packs)
    pairs = {
        (int(a), int(b))
        for old, new in zip(packs, small.packs, strict=True)
        for a, b in zip(old.input_ids, new.input_ids, strict=True)
    }
    assert len({old for old, _ in pairs}) == len({new for _, new in pairs}) == len(pairs)
    assert min(new for _, new in pairs) == 3
    assert max(new for _, new in pairs) == 2 + len(pairs)
    assert small.token_ids == {MediaKind.IMAGE: dict(pairs)[int(packs[0].input_ids[0])]}
    assert small.vocab == 64
    assert renumbered([toy_pack([30, 30])]).vocab % 64 == 0
    assert renumbered([toy_pack([30, 30])]).vocab >= 3 + 60 + len(np.unique(toy_pack([30, 30]).input_ids))
