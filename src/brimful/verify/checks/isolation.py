"""Do the tokens of one sample move the logits of another?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from brimful.typing import Int64Array
from brimful.verify.layout import Collated
from brimful.verify.noise import Weighed, weigh
from brimful.verify.report import Finding, Status
from brimful.verify.subject import Subject, difference, media_tokens

__all__ = ["Leak", "check_isolation", "compare", "moved_in_rows", "other_tokens"]

_MOST_PERTURBED = 8
_SHIFTS = (1, 2, 3, 5)
_EVERYWHERE = (
    "not the packing: samples move each other as well with a row for each (experts of limited capacity, statistics over "
    "the batch)",
    "raise the capacity of experts until no token is dropped; take statistics of fixed batches",
)


@dataclass(frozen=True, slots=True)
class Leak:
    """What a change of one sample did.

    Attributes:
        changed, moved: indices of segments; ``moved`` is the one that moved most, -1 where there is no other.
        size: largest relative difference in its logits.
        tokens: of its tokens, how many moved.
        own: relative difference in the logits of the changed sample itself.
        limit: most that ``size`` may be.
        precise: measured in float32.
    """

    changed: int
    moved: int
    size: float
    tokens: int
    own: float
    limit: float = 0.0
    precise: bool = False


def check_isolation(subject: Subject, attention: str, check: str = "isolation") -> tuple[Finding, Leak | None]:
    """Change one sample after the other (at most eight, spread over the batch); nobody else may notice.

    Args:
        subject: in the mode that is to be checked.
        attention: name of the implementation.
        check: name of the finding: ``isolation``, or ``training`` in training mode.
    """
    leaks: list[Leak] = []

    def measure() -> float:
        leaks[:] = _leaks(subject, subject.collate, 0.0)
        return max((leak.size for leak in leaks), default=0.0)

    weighed = weigh(subject, measure, lambda: moved_in_rows(subject))
    if not any(leak.moved >= 0 for leak in leaks):
        return _not_shown(check, attention, "fewer than two samples with tokens that can be changed"), None
    worst = max(leaks, key=lambda leak: leak.size)
    worst = Leak(*_numbers(worst), limit=weighed.limit, precise=weighed.precise)
    if weighed.passed:
        if max(leak.own for leak in leaks) <= weighed.limit:
            return (
                _not_shown(
                    check,
                    attention,
                    "changing a sample does not even move its own logits, so nothing can be shown",
                    "verify with a model whose output depends on its input",
                ),
                None,
            )
        detail = "; ".join(filter(None, [f"{len(leaks)} samples changed, one at a time", weighed.remark]))
        return Finding(check, Status.PASS, attention, worst.size, weighed.limit, detail), worst
    return _leaking(subject, attention, check, weighed, worst, leaks)


def _leaking(
    subject: Subject, attention: str, check: str, weighed: Weighed, worst: Leak, leaks: list[Leak]
) -> tuple[Finding, Leak | None]:
    one, other = subject.case.segments[worst.changed], subject.case.segments[worst.moved]
    side = "earlier" if worst.changed < worst.moved else "later"
    detail = (
        f"other tokens in {one.name} move {worst.tokens} of {len(other.ids)} tokens of {other.name}, which sees the "
        f"{side} sample; {sum(leak.size > weighed.limit for leak in leaks)} of {len(leaks)} samples leak"
    )
    detail = "; ".join(filter(None, [detail, weighed.remark]))
    if weighed.everywhere:
        cause, way_out = _EVERYWHERE
        found = Finding(check, Status.FAIL, attention, worst.size, weighed.limit, detail, cause, way_out)
        return found, None
    return Finding(check, Status.FAIL, attention, worst.size, weighed.limit, detail), worst


def _not_shown(
    check: str, attention: str, detail: str, way_out: str = "verify with at least two samples of several tokens"
) -> Finding:
    return Finding(check, Status.NOT_SUPPORTED, attention, detail=detail, way_out=way_out)


def _numbers(leak: Leak) -> tuple[int, int, float, int, float]:
    return leak.changed, leak.moved, leak.size, leak.tokens, leak.own


def moved_in_rows(subject: Subject) -> float:
    """How far samples move each other with a row each: rounding, where the model keeps rows apart.

    Several changes are tried, as some happen to leave groups of experts as large as they were.
    """
    tried = [_leaks(subject, subject.in_rows, 0.0, by) for by in _SHIFTS]
    return max((leak.size for leaks in tried for leak in leaks), default=0.0)


def _leaks(
    subject: Subject, lay_out: Callable[[Mapping[int, Int64Array] | None], Collated], limit: float, by: int = 1
) -> list[Leak]:
    """What the change of each of some samples does in a layout."""
    batch = lay_out(None)
    there = [index for index, place in enumerate(batch.places) if place is not None]
    before = subject.logits(batch.kwargs)
    found = []
    for index in there[:: max(1, -(-len(there) // _MOST_PERTURBED))]:
        if (ids := other_tokens(subject, index, by)) is not None:
            changed = lay_out({index: ids})
            found.append(compare(before, subject.logits(changed.kwargs), batch, changed, index, limit))
    return found


def compare(
    before: torch.Tensor, after: torch.Tensor, batch: Collated, changed: Collated, index: int, limit: float
) -> Leak:
    """Differences of the logits between two batches that differ in one segment."""
    worst = Leak(index, -1, 0.0, 0, 0.0)
    own = 0.0
    for other, (old, new) in enumerate(zip(batch.places, changed.places, strict=True)):
        if old is None or new is None or not changed.found.certain:
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


def other_tokens(subject: Subject, index: int, by: int = 1) -> Int64Array | None:
    """Each token of a segment replaced by the next (``by``: or a later one) that occurs in the samples, but for media.

    Only ids that occur are used, so that no special token comes in that would change more than content.
    """
    kept = media_tokens(subject.config)
    known = np.unique(np.concatenate([segment.ids for segment in subject.case.segments]))
    known = known[~np.isin(known, kept)]
    ids = subject.case.segments[index].ids
    if len(known) < 2:
        return None
    after = np.roll(known, -by)
    free = ~np.isin(ids, kept)
    changed = ids.copy()
    changed[free] = after[np.searchsorted(known, ids[free])]
    return None if np.array_equal(changed, ids) else changed
