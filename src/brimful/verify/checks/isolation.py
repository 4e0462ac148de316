"""Isolation: the tokens of one sample do not move the logits of another."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from brimful.typing import Int64Array
from brimful.verify.batch import CollatedBatch
from brimful.verify.noise import Movement, measure_movement
from brimful.verify.report import Diagnosis, Finding, Status, joined, not_supported
from brimful.verify.setup import PackingSetup, difference, media_tokens

_MAX_CHANGED_SAMPLES = 8
"""Samples that are changed, one forward for each."""

_TOKEN_STEPS = (1, 2, 3, 5)
"""Changes that are tried in rows: each token becomes the one this many steps later among the samples' tokens."""

_NOT_THE_PACKING = Diagnosis(
    "not the packing: samples move each other as well with a row for each (experts of limited capacity, statistics over "
    "the batch)",
    "raise the capacity of experts until no token is dropped; take statistics of fixed batches",
)


@dataclass(frozen=True, slots=True)
class Leak:
    """Effect of a change of one sample.

    Attributes:
        changed, moved: indices of segments; ``moved`` is the segment that moved most, -1 without another one.
        size: largest relative difference in its logits.
        tokens: number of its tokens that moved.
        own: relative difference in the logits of the changed sample itself.
        limit: largest ``size`` that passes.
        precise: measured in float32.
        is_of_media: the change was other media in the place of the sample's; else other tokens.
    """

    changed: int
    moved: int
    size: float
    tokens: int
    own: float
    limit: float = 0.0
    precise: bool = False
    is_of_media: bool = False


def check_isolation(setup: PackingSetup) -> tuple[Finding, Leak | None]:
    """Change one sample after the other (at most eight, spread over the batch); no other may move.

    Args:
        setup: in the mode that is to be checked.

    Returns:
        The finding, and the largest leak; None if nothing could be shown, or if packing is not the cause.
    """
    leaks: list[Leak] = []

    def measure() -> float:
        leaks[:] = _leaks(setup, setup.collate)
        return max((leak.size for leak in leaks), default=0.0)

    movement = measure_movement(setup, measure, lambda: movement_in_rows(setup))
    if not any(leak.moved >= 0 for leak in leaks):
        detail = "fewer than two samples with tokens that can be changed"
        return not_supported("isolation", detail, "verify with at least two samples of several tokens"), None
    worst = max(leaks, key=lambda leak: leak.size)
    worst = replace(worst, limit=movement.limit, precise=movement.precise)
    finding = Finding("isolation", Status.PASS, "", movement.size, movement.limit)
    if movement.passed:
        # A model that does not look at its input moves nothing, and would pass with any mask.
        if max(leak.own for leak in leaks) <= movement.limit:
            detail = "changing a sample does not even move its own logits, so nothing can be shown"
            return not_supported("isolation", detail, "verify with a model whose output depends on its input"), None
        with_media = [leak for leak in leaks if leak.is_of_media]
        if with_media and max(leak.own for leak in with_media) <= movement.limit:
            detail = "other media in a sample do not even move its own logits, so nothing can be shown of them"
            return not_supported("isolation", detail, "verify with a model that looks at its media"), None
        num_changed = f"{len(leaks) - len(with_media)} samples changed, one at a time"
        media_text = f"{len(with_media)} samples with other media" if with_media else ""
        detail = joined(num_changed, media_text, movement.remark)
        return replace(finding, detail=detail), worst
    finding = replace(finding, status=Status.FAIL, detail=_describe(setup, movement, worst, leaks))
    if movement.without_packing:
        return replace(finding, **_NOT_THE_PACKING._asdict()), None
    return finding, worst


def _describe(setup: PackingSetup, movement: Movement, worst: Leak, leaks: list[Leak]) -> str:
    """Say which sample moves which, and how many leak."""
    changed_segment, moved_segment = setup.samples.segments[worst.changed], setup.samples.segments[worst.moved]
    side = "earlier" if worst.changed < worst.moved else "later"
    num_leaking = sum(leak.size > movement.limit for leak in leaks)
    detail = (
        f"other {'media' if worst.is_of_media else 'tokens'} in {changed_segment.name} move {worst.tokens} of {len(moved_segment.ids)} tokens of "
        f"{moved_segment.name}, which sees the {side} sample; {num_leaking} of {len(leaks)} samples leak"
    )
    return joined(detail, movement.remark)


def movement_in_rows(setup: PackingSetup) -> float:
    """Measure how far samples move each other in rows of their own: rounding, if the model keeps rows apart.

    Several changes are tried, as some happen to leave groups of experts as large as they were.
    """
    leaks = [leak for steps in _TOKEN_STEPS for leak in _leaks(setup, setup.in_rows, steps)]
    return max((leak.size for leak in leaks), default=0.0)


def _leaks(setup: PackingSetup, lay_out: Callable[..., CollatedBatch], steps: int = 1) -> list[Leak]:
    """Change each of some samples in a layout, and return the effects."""
    batch = lay_out(None)
    logits = setup.logits(batch.kwargs)
    indices = [index for index, _ in batch.located]
    # Every k-th sample, k rounded up: at most the maximum, spread from the first to near the last.
    stride = max(1, -(-len(indices) // _MAX_CHANGED_SAMPLES))
    leaks = []
    for index in indices[::stride]:
        if (ids := other_tokens(setup, index, steps)) is not None:
            changed_batch = lay_out({index: ids})
            leaks.append(compare_logits(logits, setup.logits(changed_batch.kwargs), batch, changed_batch, index))
    # In samples with media, the media alone are changed too: towers see all media together, regardless of tokens.
    with_media = [index for index in indices if setup.samples.segments[index].media]
    stride = max(1, -(-len(with_media) // _MAX_CHANGED_SAMPLES))
    for index in with_media[::stride]:
        if (media := setup.samples.other_media(index)) is not None:
            changed_batch = lay_out(None, {index: media})
            leak = compare_logits(logits, setup.logits(changed_batch.kwargs), batch, changed_batch, index)
            leaks.append(replace(leak, is_of_media=True))
    return leaks


def changed_batch_of(setup: PackingSetup, leak: Leak) -> CollatedBatch:
    """Return the batch of the collator with the change that showed a leak."""
    if leak.is_of_media:
        media = setup.samples.other_media(leak.changed)
        assert media is not None
        return setup.collate(None, {leak.changed: media})
    ids = other_tokens(setup, leak.changed)
    assert ids is not None
    return setup.collate({leak.changed: ids})


def compare_logits(
    logits: torch.Tensor,
    changed_logits: torch.Tensor,
    batch: CollatedBatch,
    changed_batch: CollatedBatch,
    changed_index: int,
) -> Leak:
    """Compare the logits of two batches that differ in one segment.

    Args:
        logits, changed_logits: ``float[B, T, V]``.
        batch, changed_batch: the batches.
        changed_index: index of the segment.
    """
    worst = Leak(changed_index, -1, 0.0, 0, 0.0)
    own_size = 0.0
    # Logits are compared by sample, not by column: a collator may order the changed samples differently.
    for index, (place, changed_place) in enumerate(zip(batch.layout.places, changed_batch.layout.places, strict=True)):
        if place is None or changed_place is None or not changed_batch.layout.certain:
            continue
        sample_logits, changed_sample_logits = logits[place.index], changed_logits[changed_place.index]
        size = difference(sample_logits, changed_sample_logits)
        if index == changed_index:
            own_size = size
        elif size > worst.size or worst.moved < 0:
            num_moved = int(((sample_logits - changed_sample_logits).abs() > 0).any(dim=-1).sum())
            worst = Leak(changed_index, index, size, num_moved, 0.0)
    return replace(worst, own=own_size)


def other_tokens(setup: PackingSetup, index: int, steps: int = 1) -> Int64Array | None:
    """Replace each token of a segment by another one that occurs in the samples, but for media.

    Returns:
        ``int64[n]``; None if no token can be replaced.
    """
    media = media_tokens(setup.config)
    ids = setup.samples.segments[index].ids
    replaceable = ~np.isin(ids, media)
    new_ids = ids.copy()
    # Without any replaceable token there may be no candidate to replace it by either.
    if replaceable.any():
        new_ids[replaceable] = setup.samples.next_tokens(ids[replaceable], steps, exclude=media)
    return None if np.array_equal(new_ids, ids) else new_ids
