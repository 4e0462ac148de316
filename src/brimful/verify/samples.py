"""Small samples to verify with: random ones, or the first segments of packs."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice, zip_longest
from typing import Any, NamedTuple

import numpy as np

from brimful.errors import SettingsError
from brimful.media import MediaKind
from brimful.messages import setting
from brimful.rng import generator
from brimful.shards import Pack, assemble_pack
from brimful.typing import IGNORE_INDEX

_LENGTHS = (7, 12, 1, 20, 5, 13)
"""Tokens of each random sample: odd and even, a single one, more than windows and convolutions of tiny models span."""

_NUM_PACKS = 2
"""Number of packs that segments are taken from: two, for two micro-batches."""


_LONG_LENGTHS = (16_400, 3, 300)
"""Tokens of samples that are laid out and not run: more than 14-bit counters and blocks of loops hold."""


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
    lowest = min(3, vocab - 1)  # below lie padding, BOS and EOS of most vocabularies
    samples = []
    for length in _LENGTHS:
        ids = stream.integers(length, below=max(1, vocab - lowest)) + lowest
        labels = np.where(stream.integers(length, below=3) > 0, ids, IGNORE_INDEX)
        samples.append({"input_ids": ids.tolist(), "labels": labels.tolist()})
    return samples


def long_samples(tokens: Sequence[int], *, as_packs: bool) -> list[Pack | dict[str, Any]]:
    """Make three samples of these tokens, one of them longer than a model is run on; every third is not a target.

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
            samples.append({"input_ids": ids.tolist(), "labels": np.where(mask, ids, IGNORE_INDEX).tolist()})
    return samples


def few_of(packs: Iterable[Pack], *, vocab: int, max_tokens: int) -> list[Pack]:
    """Take the first segments of the first two packs, within a number of tokens; ids modulo the vocabulary.

    Each pack gives up to half of the tokens. A segment longer than a fourth of them is cut, to leave room for
    others.

    Raises:
        SettingsError: no packs, or fewer than two segments in all.
    """
    small_packs: list[Pack] = []
    for pack in islice(packs, _NUM_PACKS):
        ids: list[np.ndarray[Any, Any]] = []
        masks: list[np.ndarray[Any, Any]] = []
        room = max_tokens // _NUM_PACKS
        for index in range(pack.num_segments):
            start, stop = int(pack.cu_seqlens[index]), int(pack.cu_seqlens[index + 1])
            length = min(stop - start, room, max(2, max_tokens // 4))
            if length < 1:
                break
            ids.append((pack.input_ids[start : start + length] % vocab).astype(np.int32))
            masks.append(np.array(pack.loss_mask[start : start + length]))
            room -= length
        small_packs.append(assemble_pack(ids, masks, pack.sample_ids[: len(ids)], pack.starts[: len(ids)]))
    if sum(pack.num_segments for pack in small_packs) < 2:
        raise SettingsError(
            f"isolation needs at least two samples, and the packs have fewer: give other {setting('packs')}"
        )
    return small_packs


def few_with_media(packs: Iterable[Pack], *, max_tokens: int) -> list[Pack]:
    """Take whole segments of the first packs, the shortest with media and the shortest without, as two packs.

    Media are not cut, so two samples are taken at any length; others while they fit.

    Raises:
        SettingsError: no packs, or fewer than two segments in all.
    """
    rows: list[tuple[bool, int, Pack, int]] = []
    for pack in islice(packs, _PACKS_WITH_MEDIA):
        owners = {item.segment for item in pack.media}
        for segment in range(pack.num_segments):
            rows.append((segment in owners, len(pack.segment(segment)), pack, segment))
    if len(rows) < 2:
        raise SettingsError(
            f"isolation needs at least two samples, and the packs have fewer: give other {setting('packs')}"
        )
    by_length = sorted(rows, key=lambda row: row[1])
    with_media = [row for row in by_length if row[0]]
    without = [row for row in by_length if not row[0]]
    # Alternately one with media and one without, starting with media, which are under test.
    candidates = [row for pair in zip_longest(with_media, without) for row in pair if row is not None]
    first = with_media[:2] if len(with_media) > 1 else candidates[:2]
    choice, room = list(first), max_tokens - sum(row[1] for row in first)
    for row in candidates:
        if row not in first and row[1] <= room and len(choice) < _MAX_SAMPLES:
            choice.append(row)
            room -= row[1]
    return [_pack_of(part) for part in (choice[::_NUM_PACKS], choice[1::_NUM_PACKS])]


def _pack_of(rows: list[tuple[bool, int, Pack, int]]) -> Pack:
    """Return a pack of segments of other packs, with their media."""
    ids, masks, media = [], [], []
    for _, _, pack, segment in rows:
        start, stop = int(pack.cu_seqlens[segment]), int(pack.cu_seqlens[segment + 1])
        ids.append(np.array(pack.input_ids[start:stop]))
        masks.append(np.array(pack.loss_mask[start:stop]))
        segment_media = [item for item in pack.media if item.segment == segment]
        place = start - int(pack.starts[segment])  # of the sample's first token, which a part of it may lack
        media.append([replace(item, start=item.start - place, segment=0) for item in segment_media])
    sample_ids = [int(pack.sample_ids[segment]) for _, _, pack, segment in rows]
    starts = [int(pack.starts[segment]) for _, _, pack, segment in rows]
    return assemble_pack(ids, masks, sample_ids, starts, media)


class SmallPacks(NamedTuple):
    """Packs whose tokens are renumbered, for a tiny model: a vocabulary of its own takes most of its time.

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

    >>> from brimful.shards import assemble_pack
    >>> pack = assemble_pack([np.array([900, 7, 900])], [np.ones(3, bool)], [0])
    >>> renumbered([pack]).packs[0].input_ids.tolist()
    [4, 3, 4]
    """
    present_ids = np.unique(np.concatenate([pack.input_ids for pack in packs]))
    num_tokens = sum(len(pack) for pack in packs)
    small = [
        replace(pack, input_ids=(np.searchsorted(present_ids, pack.input_ids) + _NUM_SPECIAL).astype(np.int32))
        for pack in packs
    ]
    token_ids = {
        item.medium.kind: int(pack.input_ids[item.start + item.runs[0]]) for pack in small for item in pack.media
    }
    vocab = _NUM_SPECIAL + len(present_ids) + num_tokens + len(MediaKind)
    return SmallPacks(small, -(-vocab // 64) * 64, token_ids)
