"""Forks: each branch repeats the last token of its trunk, and all the rest stays for any sample."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given

from brimful.base.typing import IGNORE_INDEX
from brimful.collate.torch import PackCollator
from brimful.errors import CollateError
from brimful.media import MediaKind, Medium, PlacedMedium
from brimful.testing.toys import toy_tree
from brimful.trees.collate.fork import fork_of, forked
from brimful.trees.pack_tree import ends_of
from tests.trees.collate.reading import trained, trained_in
from tests.trees.test_pack_tree import SAMPLES


def branches_of(pack):
    """Branches after the first of each trunk, counted segment by segment."""
    lengths = np.diff(pack.cu_seqlens)
    branches = [parent for parent, length in zip(pack.sharing.parents.tolist(), lengths, strict=True) if length]
    return sum(branches.count(trunk) - 1 for trunk in set(branches) - {-1})


@given(SAMPLES)
@example([([0], [True]), ([0, 1], [True] * 2), ([0, 1, 0], [True] * 3), ([0, 1, 1], [True] * 3), ([0, 2], [True] * 2)])
def test_every_sample_stays_whole(samples):
    """In the same order, with the same targets; one token more for each branch after the first of its trunk."""
    tokens, masks = zip(*samples, strict=True)
    pack = toy_tree(tokens, masks)
    fork = fork_of(pack)
    assert fork.pack.flat() == pack.flat()
    assert len(fork.pack) == len(pack) + branches_of(pack)
    assert fork.pack.input_ids.tolist() == pack.input_ids[fork.positions].tolist()


@given(SAMPLES)
def test_a_fork_is_in_depth_first_order(samples):
    """Depths continue, the ids say which segments end samples, and no trunk but by its copies has several next tokens."""
    tokens, masks = zip(*samples, strict=True)
    pack = forked(toy_tree(tokens, masks))
    lengths = np.diff(pack.cu_seqlens)
    parents = pack.sharing.parents
    assert pack.sharing.ends.tolist() == ends_of(parents, pack.sample_ids, lengths).tolist()
    ends = pack.sharing.subtree_ends()
    next_tokens = {}
    for segment, parent in enumerate(parents.tolist()):
        assert parent < segment
        assert pack.starts[segment] == (pack.starts[parent] + lengths[parent] if parent >= 0 else 0)
        assert parent < 0 or segment < ends[parent]
        if parent >= 0 and lengths[segment]:
            next_tokens.setdefault(parent, set()).add(int(pack.segment(segment)[0]))
    assert all(len(following) == 1 for following in next_tokens.values())


@pytest.mark.parametrize("modulus", [3, 2, 1])
@given(SAMPLES)
def test_both_forms_train_what_the_samples_train(modulus, samples):
    """Also where branches begin alike, as those below the least shared length do."""
    tokens, masks = zip(*samples, strict=True)
    packs = [replace(pack, input_ids=pack.input_ids % modulus) for pack in [toy_tree(tokens, masks), toy_tree(tokens)]]
    alike = [([token % modulus for token in sample], mask) for sample, mask in samples]
    truth = trained(alike) + trained([(sample, [True] * len(sample)) for sample, _ in alike])
    (fork,) = PackCollator(dialect="dense_mask").rows(packs)
    is_target = fork.labels != IGNORE_INDEX
    predictions = [
        (int(place) - 1, int(fork.labels[place]), float(fork.loss_weights[place]))
        for place in np.flatnonzero(is_target)
    ]
    assert trained_in(fork, predictions) == truth
    assert not fork.loss_weights[~is_target].any()
    (index,) = PackCollator(dialect="dense_mask", branch="index").rows(packs)
    terms = index.loss_terms
    assert (
        trained_in(index, zip(terms.index.tolist(), terms.targets.tolist(), terms.weights.tolist(), strict=True))
        == truth
    )
    assert fork.num_loss_tokens == index.num_loss_tokens == sum(truth.values())


@pytest.mark.parametrize("root", [0, 1])
def test_a_picture_that_ends_with_its_trunk_cannot_be_repeated(root):
    """Every other place in a trunk of four tokens stays its place; the second of two trees has other numbers."""
    pack = toy_tree([[*[5 + tree] * 4, branch] for tree in (0, 1) for branch in (7, 8)])
    segment = 3 * root
    begin = int(pack.cu_seqlens[segment])
    for start in range(4):
        for length in range(1, 5 - start):
            medium = Medium(MediaKind.IMAGE, "a.png")
            image = PlacedMedium(medium, start=begin + start, length=length, num_tokens=length, segment=segment)
            placed = replace(pack, attachments=(image,))
            if start + length == 4:
                with pytest.raises(
                    CollateError, match=rf"sample {2 * root}: image 'a\.png' ends where its samples part"
                ):
                    forked(placed)
            else:
                (moved,) = forked(placed).attachments
                assert (moved.start, moved.segment) == (root * (3 + 2 + 2) + start, segment)
