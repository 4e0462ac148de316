"""Do the tokens of one sample move the logits of another?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from brimful.typing import Int64Array
from brimful.verify.layout import Collated
from brimful.verify.report import Finding, Status
from brimful.verify.subject import Subject, difference

__all__ = ["Leak", "check_isolation", "other_tokens", "worst_leak"]

_MOST_PERTURBED = 8


@dataclass(frozen=True, slots=True)
class Leak:
    """What a change of one sample did.

    Attributes:
        changed, moved: indices of segments; ``moved`` is the one that moved most, -1 where there is no other.
        size: largest relative difference in its logits.
        tokens: of its tokens, how many moved above the limit.
        own: relative difference in the logits of the changed sample itself.
    """

    changed: int
    moved: int
    size: float
    tokens: int
    own: float


def check_isolation(subject: Subject, attention: str) -> tuple[Finding, Leak | None]:
    """Change one sample after the other (at most eight, spread over the batch); nobody else may notice."""
    segments = subject.case.segments
    there = [index for index, place in enumerate(subject.batch.places) if place is not None]
    chosen = there[:: max(1, -(-len(there) // _MOST_PERTURBED))]
    limit = subject.tolerance.isolation
    before = subject.logits(subject.batch.kwargs)
    leaks = [leak for index in chosen if (leak := worst_leak(subject, before, subject.batch, index, limit)) is not None]
    if len(there) < 2 or not leaks:
        return (
            Finding(
                "isolation",
                Status.NOT_SUPPORTED,
                attention,
                detail="fewer than two samples with tokens that can be changed",
                way_out="verify with at least two samples of several tokens",
            ),
            None,
        )
    worst = max(leaks, key=lambda leak: leak.size)
    if worst.size <= limit:
        if max(leak.own for leak in leaks) <= limit:
            return (
                Finding(
                    "isolation",
                    Status.NOT_SUPPORTED,
                    attention,
                    detail="changing a sample does not even move its own logits, so nothing can be shown",
                    way_out="verify with a model whose output depends on its input",
                ),
                None,
            )
        detail = f"{len(leaks)} samples changed, one at a time"
        return Finding("isolation", Status.PASS, attention, worst.size, limit, detail), worst
    one, other = segments[worst.changed], segments[worst.moved]
    side = "earlier" if worst.changed < worst.moved else "later"
    detail = (
        f"other tokens in {one.name} move {worst.tokens} of {len(other.ids)} tokens of {other.name}, "
        f"which sees the {side} sample; {sum(leak.size > limit for leak in leaks)} of {len(leaks)} samples leak"
    )
    return Finding("isolation", Status.FAIL, attention, worst.size, limit, detail), worst


def worst_leak(subject: Subject, before: object, batch: Collated, index: int, limit: float) -> Leak | None:
    """Change one segment, in a batch collated anew; None if it has no token that can be changed."""
    import torch

    assert isinstance(before, torch.Tensor)
    ids = other_tokens(subject, index)
    if ids is None:
        return None
    changed = subject.collate({index: ids})
    return compare(subject, before, subject.logits(changed.kwargs), batch, changed, index, limit)


def compare(
    subject: Subject, before: object, after: object, batch: Collated, changed: Collated, index: int, limit: float
) -> Leak:
    """Differences of the logits between two batches that differ in one segment."""
    import torch

    assert isinstance(before, torch.Tensor)
    assert isinstance(after, torch.Tensor)
    worst = Leak(index, -1, 0.0, 0, 0.0)
    own = 0.0
    for other, (old, new) in enumerate(zip(batch.places, changed.places, strict=True)):
        if old is None or new is None:
            continue
        one, two = before[old.row, old.start : old.stop], after[new.row, new.start : new.stop]
        size = difference(one, two)
        if other == index:
            own = size
        elif size > worst.size or worst.moved < 0:
            scale = max(1.0, float(one.abs().max()))
            tokens = int(((one - two).abs().amax(dim=-1) / scale > limit).sum())
            worst = Leak(index, other, size, tokens, 0.0)
    return Leak(index, worst.moved, worst.size, worst.tokens, own)


def other_tokens(subject: Subject, index: int) -> Int64Array | None:
    """Each token of a segment replaced by the next that occurs in the samples; tokens of media stay.

    Only ids that occur are used, so that no special token comes in that would change more than content.
    """
    kept = _media_tokens(subject.config)
    known = np.unique(np.concatenate([segment.ids for segment in subject.case.segments]))
    known = known[~np.isin(known, kept)]
    ids = subject.case.segments[index].ids
    if len(known) < 2:
        return None
    after = np.roll(known, -1)
    free = ~np.isin(ids, kept)
    changed = ids.copy()
    changed[free] = after[np.searchsorted(known, ids[free])]
    return None if np.array_equal(changed, ids) else changed


def _media_tokens(config: object) -> list[int]:
    names = ("image", "video", "audio", "vision_start", "vision_end")
    values = [getattr(config, f"{name}_{kind}", None) for name in names for kind in ("token_id", "token_index")]
    return [int(value) for value in values if isinstance(value, int)]
