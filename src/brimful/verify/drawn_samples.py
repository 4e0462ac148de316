"""Small samples to verify with: random ones, or the first segments of packs."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import islice, pairwise, zip_longest
from typing import Any, NamedTuple

import numpy as np

from brimful.base.rng import generator
from brimful.base.typing import IGNORE_INDEX, Int64Array
from brimful.base.wording import setting
from brimful.collate.extras import PackExtras
from brimful.errors import SettingsError
from brimful.media import MediaKind
from brimful.store.shards import Pack, assemble_pack
from brimful.trees.pack_tree import PackTree, tree_of
from brimful.trees.packs import assemble_tree

_LENGTHS = (7, 12, 1, 20, 5, 13)
"""Tokens of each random sample: odd and even, a single one, more than windows and convolutions of
tiny models span.
"""

_LONG_LENGTHS = (16_400, 3, 300)
"""Tokens of samples that are laid out and not run: more than 14-bit counters and blocks of loops
hold.
"""

_TREES = (
    (
        *((9, -1, 0), (5, 0, 0), (4, 1, 1), (3, 2, 1), (10, 2, 1), (7, 1, 2)),
        *((11, 0, 1), (1, 0, 0), (3, 7, 1), (2, 7, 1), (11, -1, 1)),
    ),
    ((1, -1, 1), (6, 0, 1), (13, 0, 1)),
)
"""Two packs of trees: tokens of each segment, its parent, and samples that end with it. Depths 0 to 3,
segments shorter and longer than the windows of tiny models, a trunk of one token, a sample that is
there twice.
"""

_LONG_TREES = (
    *((700, -1, 1), (150, 0, 0), (300, 1, 1), (5, 1, 1), (1, 0, 1), (600, 4, 1)),
    *((900, 0, 1), (405, -1, 1)),
)
"""Trees that are laid out and not run."""

_NUM_SPECIAL = 3
"""Token ids below the samples' own: padding, BOS and EOS of tiny models."""

_PACKS_WITH_MEDIA = 16
"""Packs whose segments are searched for short ones with media."""

_MAX_SAMPLES = 6
"""Maximum number of samples taken, with and without media."""


def random_samples(vocab: int, *, seed: int = 0) -> list[dict[str, Any]]:
    """Make six short samples of random tokens; about two of three tokens are targets.

    >>> [len(sample["input_ids"]) for sample in random_samples(128)]
    [7, 12, 1, 20, 5, 13]
    """
    stream = generator(seed=seed, epoch=0, purpose="samples to verify with")
    lowest = min(_NUM_SPECIAL, vocab - 1)  # below lie padding, BOS and EOS of most vocabularies
    samples = []
    for length in _LENGTHS:
        ids = stream.integers(length, below=max(1, vocab - lowest)) + lowest
        labels = np.where(stream.integers(length, below=3) > 0, ids, IGNORE_INDEX)
        samples.append({"input_ids": ids.tolist(), "labels": labels.tolist()})
    return samples


def random_trees(vocab: int, *, seed: int = 0) -> list[Pack]:
    """Make two packs of trees of random tokens, up to three branches below another; about two of
    three tokens are targets.

    A sample ends where others go on, one is there twice, one shares nothing, and one token is a
    trunk of its own.

    >>> [(len(pack), pack.num_samples, len(pack.flat())) for pack in random_trees(128)]
    [(66, 9, 165), (20, 3, 22)]
    """
    stream = generator(seed=seed, epoch=0, purpose="trees to verify with")
    lowest = min(_NUM_SPECIAL, vocab - 1)
    return [
        _pack_of_trees(
            trees,
            lambda count: stream.integers(count, below=max(1, vocab - lowest)) + lowest,
            first,
        )
        for trees, first in zip(_TREES, (0, 100), strict=True)
    ]


def long_trees(tokens: Sequence[int]) -> list[Pack]:
    """Make a pack of trees of these tokens, with trunks and branches longer than blocks of
    attention.

    >>> len(long_trees([5, 6, 7])[0])
    3061
    """
    row = np.resize(np.asarray(tokens, dtype=np.int64), 4096)
    return [_pack_of_trees(_LONG_TREES, lambda count: row[:count], 0)]


def _pack_of_trees(
    segments: Sequence[tuple[int, int, int]], draw: Callable[[int], Int64Array], first_sample: int
) -> Pack:
    """Return a pack of trees; two of three tokens are targets, others in each sample.

    Args:
        segments: tokens, parent and number of samples of each, in depth-first order.
        draw: from a number to as many tokens.
        first_sample: id of the first sample.
    """
    paths: list[Int64Array] = []
    places: list[int] = []  # of each segment in the pack, where the second of equal samples has one
    lengths: list[int] = []
    parents: list[int] = []
    owners: list[int] = []
    ids: list[Int64Array] = []
    for length, parent, num_samples in segments:
        trunk = paths[parent] if parent >= 0 else np.zeros(0, dtype=np.int64)
        paths.append(np.concatenate([trunk, draw(length)]))
        places.append(len(lengths))
        lengths += [length] + [0] * (num_samples - 1)
        parents += [places[parent] if parent >= 0 else -1] + places[-1:] * (num_samples - 1)
        # A segment belongs to the first sample that ends in its subtree.
        owners += range(len(ids), len(ids) + max(1, num_samples))
        ids += paths[-1:] * num_samples
    masks = [(np.arange(len(path)) + number) % 3 != 1 for number, path in enumerate(ids)]
    return assemble_tree(
        [ids[owner].astype(np.int32) for owner in owners],
        [masks[owner] for owner in owners],
        np.array(owners) + first_sample,
        lengths,
        parents,
    )


def long_samples(tokens: Sequence[int], *, as_packs: bool) -> list[Pack | dict[str, Any]]:
    """Make three samples of these tokens, one of them longer than a model is run on; every third is
    not a target.

    >>> [len(sample["input_ids"]) for sample in long_samples([5, 6, 7], as_packs=False)]
    [16400, 3, 300]
    """
    samples: list[Pack | dict[str, Any]] = []
    for number, length in enumerate(_LONG_LENGTHS):
        ids = np.resize(np.asarray(tokens, dtype=np.int32), length)
        mask = np.arange(length) % 3 != 1
        if as_packs:
            samples.append(assemble_pack([ids], [mask], [number]))
        else:
            samples.append(
                {"input_ids": ids.tolist(), "labels": np.where(mask, ids, IGNORE_INDEX).tolist()}
            )
    return samples


def few_of(packs: Iterable[Pack], *, vocab: int, max_tokens: int) -> list[Pack]:
    """Take the first segments of the first two packs, within a number of tokens; ids modulo the
    vocabulary.

    Each pack gives up to half of the tokens. A segment longer than a fourth of them is cut, to
    leave room for others; of trees, longer than a sixteenth.

    Raises:
        SettingsError: no packs, or fewer than two segments in all.
    """
    small_packs = []
    for pack in islice(packs, 2):
        room = max_tokens // 2
        if pack.sharing is not None:
            small_packs.append(_cut_tree(pack, room, max(2, max_tokens // 16), vocab))
            continue
        ids, masks = [], []
        for start, stop in pairwise(pack.cu_seqlens.tolist()):
            length = min(stop - start, room, max(2, max_tokens // 4))
            if length < 1:
                break
            ids.append(pack.input_ids[start : start + length] % vocab)
            masks.append(pack.loss_mask[start : start + length])
            room -= length
        if ids:
            small_packs.append(assemble_pack(ids, masks, pack.sample_ids[: len(ids)]))
    return _at_least_two(small_packs)


def _cut_tree(pack: Pack, max_tokens: int, max_length: int, vocab: int) -> Pack:
    """Return the first segments of a pack of trees, each cut; tokens modulo the vocabulary.

    Samples whose segments are not all among them are cut off there.
    """
    tree = tree_of(pack)
    lengths = np.minimum(np.diff(pack.cu_seqlens), max_length)
    count = max(1, int(np.searchsorted(np.cumsum(lengths), max_tokens, side="right")))
    lengths, parents = lengths[:count], tree.parents[:count]
    is_target = np.zeros((tree.num_samples, len(pack)), dtype=bool)
    places = tree.positions(pack.cu_seqlens)
    targets = tree.target_positions(places)
    for sample in range(tree.num_samples):
        is_target[sample, targets.row(sample)] = True
    # A segment belongs to the sample that ends in its subtree first.
    samples = np.searchsorted(tree.ends, np.arange(count))
    paths: list[Int64Array] = []
    for segment, parent in enumerate(parents.tolist()):
        begin = int(pack.cu_seqlens[segment])
        own_places = np.arange(begin, begin + lengths[segment])
        paths.append(np.concatenate([paths[parent], own_places]) if parent >= 0 else own_places)
    return assemble_tree(
        [pack.input_ids[path] % vocab for path in paths],
        [is_target[sample, path] for sample, path in zip(samples, paths, strict=True)],
        pack.sample_ids[tree.ends[samples]],
        lengths,
        parents,
    )


def _whole_trees(pack: Pack, max_tokens: int) -> Pack:
    """Return the trees at the beginning of a pack that have at most this many tokens, but at least
    one.
    """
    tree = tree_of(pack)
    ends = tree.subtree_ends()[tree.parents < 0]
    num_trees = int(np.searchsorted(pack.cu_seqlens[ends], max_tokens, side="right"))
    end = int(ends[max(num_trees, 1) - 1])
    num_samples = int(np.searchsorted(tree.ends, end))
    num_spans = int(tree.span_sizes[:num_samples].sum())
    tokens = slice(0, int(pack.cu_seqlens[end]))
    return Pack(
        pack.input_ids[tokens],
        pack.loss_mask[tokens],
        pack.cu_seqlens[: end + 1],
        pack.sample_ids[:end],
        pack.starts[:end],
        tuple(item for item in pack.attachments if item.segment < end),
        PackTree(
            tree.parents[:end],
            tree.ends[:num_samples],
            tree.spans[: 2 * num_spans],
            tree.span_sizes[:num_samples],
        ),
    )


def few_with_media(packs: Iterable[Pack], *, max_tokens: int) -> list[Pack]:
    """Take whole segments of the first packs, the shortest with media and the shortest without, as
    at least two packs.

    Media are not cut, so two samples are taken at any length; others while they fit. Of packs of
    trees, whole trees of the first two are taken.

    Raises:
        SettingsError: no packs, or fewer than two segments in all.
    """
    first_packs = list(islice(packs, _PACKS_WITH_MEDIA))
    if any(pack.sharing is not None for pack in first_packs):
        return _at_least_two([_whole_trees(pack, max_tokens // 2) for pack in first_packs[:2]])
    segments = [
        (length, number, segment)
        for number, pack in enumerate(first_packs)
        for segment, length in enumerate(np.diff(pack.cu_seqlens).tolist())
    ]
    places_with_media = {
        (number, item.segment)
        for number, pack in enumerate(first_packs)
        for item in pack.attachments
    }
    with_media = sorted(item for item in segments if item[1:] in places_with_media)
    without_media = sorted(item for item in segments if item[1:] not in places_with_media)
    # Alternately one with media and one without, starting with media, which are under test.
    candidates = [item for pair in zip_longest(with_media, without_media) for item in pair if item]
    choice = with_media[:2] if len(with_media) > 1 else candidates[:2]
    room = max_tokens - sum(length for length, _, _ in choice)
    for item in candidates:
        if item not in choice and item[0] <= room and len(choice) < _MAX_SAMPLES:
            choice.append(item)
            room -= item[0]
    segments_of_packs: dict[int, list[int]] = {}
    for _, number, segment in choice:
        segments_of_packs.setdefault(number, []).append(segment)
    small_packs = _at_least_two(
        [first_packs[number].take(segments_of_packs[number]) for number in segments_of_packs]
    )
    if len(small_packs) > 1:
        return small_packs
    # Two packs, for two micro-batches.
    return [small_packs[0].take([0]), small_packs[0].take(range(1, small_packs[0].num_segments))]


def _at_least_two(packs: list[Pack]) -> list[Pack]:
    if sum(pack.num_samples for pack in packs) < 2:
        raise SettingsError(
            "isolation needs at least two samples, and the packs have fewer: give other "
            f"{setting('packs')}"
        )
    return packs


class SmallPacks(NamedTuple):
    """Packs whose tokens are renumbered, for a tiny model: a vocabulary of its own takes most of
    its time.

    Attributes:
        packs: with tokens from 3 on; padding, BOS and EOS lie below.
        vocab: tokens of the vocabulary, with some for the markers of ``verify_packing``.
        token_ids: token that stands for each kind of media.
    """

    packs: list[Pack]
    vocab: int
    token_ids: dict[MediaKind, int]


def renumbered(packs: Sequence[Pack]) -> SmallPacks:
    """Renumber the tokens of packs, equal ones alike.

    >>> from brimful.store.shards import assemble_pack
    >>> pack = assemble_pack([np.array([900, 7, 900])], [np.ones(3, bool)], [0])
    >>> renumbered([pack]).packs[0].input_ids.tolist()
    [4, 3, 4]
    """
    present_ids = np.unique(np.concatenate([pack.input_ids for pack in packs]))
    num_tokens = sum(len(pack) for pack in packs)
    small = [
        replace(
            pack,
            input_ids=(np.searchsorted(present_ids, pack.input_ids) + _NUM_SPECIAL).astype(
                np.int32
            ),
        )
        for pack in packs
    ]
    token_ids = {
        item.medium.kind: int(pack.input_ids[item.start + item.runs[0]])
        for pack in small
        for item in pack.attachments
    }
    vocab = _NUM_SPECIAL + len(present_ids) + num_tokens + len(MediaKind)
    return SmallPacks(small, -(-vocab // 64) * 64, token_ids)


def remembered(maker: Callable[[Pack], PackExtras]) -> Callable[[Pack], PackExtras]:
    """Return a maker of features that keeps them, for a few small packs; training would fill its
    memory with it.

    Args:
        maker: such as ``MediaFeatures``: its features depend on the media and the lengths of
            segments alone.

    >>> from brimful.testing.toys import toy_pack
    >>> calls = []
    >>> features = remembered(lambda pack: calls.append(pack) or PackExtras())
    >>> [features(toy_pack([2, 1])) == PackExtras() for _ in range(3)], len(calls)
    ([True, True, True], 1)
    """
    extras: dict[Any, PackExtras] = {}

    def features(pack: Pack) -> PackExtras:
        key = (pack.attachments, tuple(pack.cu_seqlens.tolist()))
        if key not in extras:
            extras[key] = maker(pack)
        return extras[key]

    return features
