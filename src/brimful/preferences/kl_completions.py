"""Split of KTO packs in two: the answers with their labels, and the KL completions of the same rows."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from brimful.base.typing import BoolArray, Int64Array, LossMask
from brimful.errors import CollateError
from brimful.preferences.pairs import pair_segments
from brimful.store.shards import Pack


@dataclass(frozen=True)
class AnswersAndKlCompletions:
    """Two packs made from one pack; segment ``i`` of both belongs to the same row.

    Attributes:
        answers, kl_completions: the two packs, each with its targets.
        is_desirable: ``bool[num_rows]``, label of each row.
        is_row: ``bool[num_rows]``, false for a row without targets, which only completes a step.
    """

    answers: Pack
    kl_completions: Pack
    is_desirable: BoolArray
    is_row: BoolArray


def split_kl_completions(pack: Pack) -> AnswersAndKlCompletions:
    """Split a pack of KTO into answers and KL completions.

    Of samples ``2n`` and ``2n + 1`` one has targets: the answer of row ``n``, desirable if its number is even. The
    other has a completion of another row, for the KL term; it begins at the same token as the answer::

        sample    4          5             row 2 is desirable
        tokens    Q : 4      Q : 5 6
        targets       4                    of the KL completion: 5 6

    Raises:
        CollateError: a sample without its mate, a pair with targets on both, or a sample without its beginning.

    >>> from brimful.testing.toys import toy_pack
    >>> pack = toy_pack([4, 3])
    >>> pack.loss_mask[4:] = False
    >>> split_kl_completions(pack).is_desirable.tolist(), split_kl_completions(pack).kl_completions.loss_mask.tolist()
    ([True], [False, True, True])
    """
    answers, others, targets = _roles(pack)
    marked = _marked(pack, answers, others)
    return AnswersAndKlCompletions(
        _taken(pack, pack.loss_mask, answers),
        _taken(pack, marked, others),
        pack.sample_ids[answers] % 2 == 0,
        targets[answers] > 0,
    )


def with_kl_targets(pack: Pack) -> Pack:
    """Return a pack of KTO with the targets of its KL completions set."""
    answers, others, _ = _roles(pack)
    return replace(pack, loss_mask=_marked(pack, answers, others))


def _roles(pack: Pack) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Return the segments of the answers and of the KL completions, and the number of targets of all segments."""
    pairs = pair_segments(pack.sample_ids)
    targets = np.add.reduceat(pack.loss_mask.astype(np.int64), pack.cu_seqlens[:-1])
    both = (targets[pairs] > 0).all(axis=1)
    if both.any():
        raise CollateError(
            f"sample {int(pack.sample_ids[pairs[both][0, 0]])} and its mate both have targets, and a mismatch of KTO has none: "
            f"pack rows of a format of KTO, or use PreferenceCollator"
        )
    cut = np.flatnonzero(pack.starts)
    if len(cut):
        raise CollateError(
            f"sample {int(pack.sample_ids[cut[0]])} lost its beginning, so the answer of its mismatch begins at an "
            f"unknown token: pack rows of KTO with overflow drop or truncate"
        )
    rows = np.arange(len(pairs))
    slots = (targets[pairs[:, 1]] > 0).astype(np.int64)
    return pairs[rows, slots], pairs[rows, 1 - slots], targets


def _marked(pack: Pack, answers: Int64Array, others: Int64Array) -> LossMask:
    """Return the targets of a pack, including the targets of its KL completions."""
    mask = pack.loss_mask.copy()
    for answer, other in zip(answers.tolist(), others.tolist(), strict=True):
        start, stop = pack.cu_seqlens[answer : answer + 2].tolist()
        own = pack.loss_mask[start:stop]
        if own.any():
            first, last = pack.cu_seqlens[other : other + 2].tolist()
            # No token predicts the first token of a segment, so it is not a target.
            mask[min(first + max(int(own.argmax()), 1), last) : last] = True
    return mask


def _taken(pack: Pack, mask: LossMask, segments: Int64Array) -> Pack:
    return replace(pack, loss_mask=mask).take(segments.tolist())
