"""Isolation: the tokens of one sample do not move the logits of another; and movement without a
leak.

In a dense model a token's numbers do not depend on what else is in the batch: changing another
sample moves nothing, to the last bit, in bf16 as in fp32. Experts are computed in groups whose size
depends on all tokens of a batch, and a kernel rounds differently for another size; in bf16 that may
even change a router's choice. The same samples in rows of their own, where no mask can fail, show
the size of this rounding::

    changed        A A A · b b           packed: a leak, or rounding?
                   A A A                 b moves here too, and nothing but rounding can have moved it
                   b b

In a tree, one segment changes at a time. Samples that have it move after it, and nothing else does::

    trunk a b c    branches d e · f        d changes: d and e move      c changes: all but a and b

In fp32 rounding is far below any leak that matters, so 1e-5 is always allowed. In bf16 and fp16
nothing is allowed if nothing moves in rows; if something does, float32 decides: the weights are the
same, a leak stays, and rounding is gone.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import torch

from brimful.base.typing import Int64Array
from brimful.doctor.probing.model_facts import media_tokens, parity_limit_of
from brimful.doctor.probing.modes import LOW_PRECISIONS, experiment, in_float32
from brimful.verify.collated_batch import CollatedBatch
from brimful.verify.media_items import KINDS, media_of
from brimful.verify.reference_samples import UNCHANGED, Change
from brimful.verify.setup import PackingSetup, difference
from brimful.verify.verify_report import (
    CheckResult,
    Diagnosis,
    Status,
    compared,
    joined,
    not_supported,
)

_PADDING_IS_SEEN = Diagnosis(
    "padding before or between samples is attended to, or takes part in routing or state",
    "put padding at the end, as a last segment of its own",
)

_NOISE_FACTOR = 8
"""Movement that passes ÷ movement with a row for each sample."""

_MAX_NOISE = 1e-3
"""Largest relative movement in float32 that can be rounding."""

_MAX_CHANGED_SAMPLES = 8
"""Samples that are changed, one forward for each."""

_MAX_CHANGED_SEGMENTS = 16
"""Segments of trees that are changed: trunks and branches."""

_TOKEN_STEPS = (1, 2, 3, 5)
"""Changes that are tried in rows: each token becomes the one this many steps later among the
samples' tokens.
"""

_NOT_THE_PACKING = Diagnosis(
    "not the packing: samples move each other as well with a row for each (experts of limited "
    "capacity, statistics over the batch)",
    "raise the capacity of experts until no token is dropped; take statistics of fixed batches",
)


class Movement(NamedTuple):
    """Movement of numbers, and its limit.

    Attributes:
        size: largest difference, relative to the largest value (at least 1).
        limit: largest size that passes.
        noise: size with a row for each sample, in the precision that decided.
        precise: true if float32 decided.
        remark: facts about the decision that a reader has to know.
    """

    size: float
    limit: float
    noise: float = 0.0
    precise: bool = False
    remark: str = ""

    @property
    def passed(self) -> bool:
        """True if only rounding moved anything."""
        return self.size <= self.limit


def measure_movement(
    setup: PackingSetup, measure: Callable[[], float], measure_in_rows: Callable[[], float]
) -> Movement:
    """Measure a movement and, if it is not zero, the effect of rounding.

    Args:
        setup: says what the caller allows and in which precision the model is.
        measure: the movement in packed rows.
        measure_in_rows: the movement with a row for each sample.
    """
    size = measure()
    is_low = setup.dtype in LOW_PRECISIONS
    limit = 0.0 if is_low and setup.tolerance is None else setup.parity_limit
    if setup.tolerance is not None or size <= limit:
        return Movement(size, limit)
    noise = experiment(measure_in_rows)
    if noise is None:  # a model of packed rows may take one row only
        remark = "a row for each sample is refused, so the effect of rounding was not measured"
        return Movement(size, limit, remark=remark)
    precise, remark = False, ""
    # If nothing moves in rows, rounding is ruled out as the reason. In low precision a leak can be
    # smaller than rounding, so no limit would tell the two apart.
    if noise and is_low:

        def measure_both() -> tuple[float, float]:
            with in_float32(setup.model):
                return measure(), measure_in_rows()

        remark = (
            f"rounding in {setup.dtype_name} moves {size:.1e}, and {noise:.1e} with a row "
            "for each sample"
        )
        if (precise_sizes := experiment(measure_both)) is None:
            # Kernels of low precision only, or no room for the weights.
            remark = f"float32 cannot run here; {remark}"
            return Movement(size, _NOISE_FACTOR * noise, remark=remark)
        size, noise = precise_sizes
        limit, precise, remark = parity_limit_of(torch.float32), True, f"told in float32; {remark}"
    if noise <= _MAX_NOISE:
        limit = max(limit, _NOISE_FACTOR * noise)
    return Movement(size, limit, noise, precise, remark)


class Leak(NamedTuple):
    """Effect of a change of one part: a sample, or a segment of a tree.

    Attributes:
        change: other tokens in the part, or other media.
        moved: index of the sample that moved most where it does not have the part, -1 without one.
        size: largest relative difference in its logits.
        tokens: number of its tokens that moved.
        own: relative difference in the logits of the changed part itself.
        follows: in a tree, smallest relative difference in what continues the part; infinite
            without a continuation.
        follower: index of the sample with the smallest.
        limit: largest ``size`` that passes.
        precise: measured in float32.
    """

    change: Change
    moved: int = -1
    size: float = 0.0
    tokens: int = 0
    own: float = 0.0
    follows: float = np.inf
    follower: int = -1
    limit: float = 0.0
    precise: bool = False

    @property
    def is_cut(self) -> bool:
        """True if something that continues the changed part does not see it."""
        return self.follows <= self.limit < self.own


def check_isolation(setup: PackingSetup) -> tuple[CheckResult, Leak | None]:
    """Change one sample after the other (at most eight, spread over the batch); no other may move.

    Args:
        setup: in the mode that is to be checked.

    Returns:
        The finding, and the largest leak; None if nothing could be shown, or if packing is not the
        cause.
    """
    leaks: list[Leak] = []

    def measure() -> float:
        leaks[:] = measure_leaks(setup, setup.collate, _changes(setup))
        return max((leak.size for leak in leaks), default=0.0)

    movement = measure_movement(setup, measure, lambda: movement_in_rows(setup))
    if not any(leak.moved >= 0 for leak in leaks):
        detail = "fewer than two samples with tokens that can be changed"
        way_out = "verify with at least two samples of several tokens"
        return not_supported("isolation", detail, way_out), None
    worst = max(leaks, key=attrgetter("size"))
    kind = "media" if worst.change.ids is None else "tokens"
    finding = CheckResult("isolation", Status.FAIL, "", movement.size, movement.limit)
    if not movement.passed:
        moved_segment = setup.samples.segments[worst.moved]
        num_leaking = sum(leak.size > movement.limit for leak in leaks)
        detail = (
            f"other {kind} in {setup.samples.name_of(worst.change.part)} move {worst.tokens} of "
            f"{len(moved_segment.ids)} tokens of "
            f"{moved_segment.name}, which sees {_relation(setup, worst)}; {num_leaking} of "
            f"{len(leaks)} {'segments' if setup.samples.has_trees else 'samples'} leak"
        )
        finding = replace(finding, detail=joined(detail, movement.remark))
        if movement.noise > _MAX_NOISE:  # samples also move each other with a row for each
            return replace(finding, **_NOT_THE_PACKING._asdict()), None
        return finding, worst._replace(limit=movement.limit, precise=movement.precise)
    # A model that does not look at its input moves nothing, and would pass with any mask.
    with_media = [leak for leak in leaks if leak.change.ids is None]
    with_tokens = [leak for leak in leaks if leak.change.ids is not None]
    for kind, several in (("tokens", with_tokens), ("media", with_media)):
        if several and max(leak.own for leak in several) <= movement.limit:
            detail = (
                f"other {kind} in a sample do not even move its own logits, so nothing can "
                "be shown of them"
            )
            way_out = f"verify with a model that looks at its {kind}"
            return not_supported("isolation", detail, way_out), None
    for leak in leaks:
        leak = leak._replace(limit=movement.limit, precise=movement.precise)
        if leak.is_cut:
            kind = "media" if leak.change.ids is None else "tokens"
            detail = (
                f"other {kind} in {setup.samples.name_of(leak.change.part)} do not move "
                f"{setup.samples.segments[leak.follower].name}, which continues it"
            )
            return replace(finding, detail=joined(detail, movement.remark)), leak
    detail = joined(
        f"{len(with_tokens)} {'segments' if setup.samples.has_trees else 'samples'} changed, one "
        "at a time",
        f"{len(with_media)} samples with other media" if with_media else "",
        movement.remark,
    )
    return replace(finding, status=Status.PASS, detail=detail), worst


def _relation(setup: PackingSetup, leak: Leak) -> str:
    """Return what the changed part is to the sample that moved."""
    samples, part = setup.samples, leak.change.part
    if not samples.has_trees:
        return f"the {'earlier' if part < leak.moved else 'later'} sample"
    if part in samples.segments[leak.moved].parts:
        return "a later token of its own path"
    roots = {samples.segments[index].parts[0] for index in samples.samples_of(part)}
    return "a sibling" if samples.segments[leak.moved].parts[0] in roots else "another tree"


def movement_in_rows(setup: PackingSetup) -> float:
    """Measure how far samples move each other in rows of their own: rounding, if the model keeps
    rows apart.

    Several changes are tried, as some happen to leave groups of experts as large as they were.
    """
    changes = [change for steps in _TOKEN_STEPS for change in _changes(setup, steps)]
    return max((leak.size for leak in measure_leaks(setup, setup.in_rows, changes)), default=0.0)


def _changes(setup: PackingSetup, steps: int = 1) -> list[Change]:
    """Return the changes that are tried: other tokens or other media in one sample."""
    samples = [sample for sample, _ in setup.batch.located]
    indices = sorted({part for sample in samples for part in sample.parts})
    most = _MAX_CHANGED_SEGMENTS if setup.samples.has_trees else _MAX_CHANGED_SAMPLES
    changes = [
        Change(index, ids)
        for index in _spread(indices, most)
        if (ids := other_tokens(setup, index, steps)) is not None
    ]
    # In samples with media, the media alone are changed too: towers see all media together.
    with_media = sorted(
        {
            setup.samples.part_at(sample.index, item.start)
            for sample in samples
            for kind in KINDS
            for item in media_of(kind, sample)
        }
    )
    return changes + list(map(Change, _spread(with_media, _MAX_CHANGED_SAMPLES)))


def _spread(indices: list[int], most: int) -> list[int]:
    """Return every k-th index, k rounded up: at most the maximum, spread from the first to near the
    last.
    """
    return indices[:: max(1, -(-len(indices) // most))]


def measure_leaks(
    setup: PackingSetup,
    lay_out: Callable[[Change], CollatedBatch],
    changes: Iterable[Change],
) -> list[Leak]:
    """Measure the effect of each change.

    Args:
        setup: the model.
        lay_out: from a change, or none, to the batch that the model is run on.
        changes: each of one segment.
    """
    batch = lay_out(UNCHANGED)
    logits = setup.logits(batch.kwargs)
    leaks = []
    for change in changes:
        leak = Leak(change)
        changed_batch = lay_out(change)
        changed_logits = setup.logits(changed_batch.kwargs)
        # Logits are compared by sample, not by column: a collator may order the changed samples
        # differently.
        changed_places = changed_batch.places
        for sample, place in batch.located:
            index = sample.index
            if index not in changed_places:
                continue
            before, after = logits[place.index], changed_logits[changed_places[index].index]
            depth = setup.samples.depth_of(change.part, index)
            if depth is not None:
                leak = _with_own_movement(leak, setup, index, before[depth:], after[depth:])
                before, after = before[:depth], after[:depth]
            size = difference(before, after)
            if len(before) and (size > leak.size or leak.moved < 0):
                num_moved = int((before != after).any(dim=-1).sum())
                leak = leak._replace(moved=index, size=size, tokens=num_moved)
        leaks.append(leak)
    return leaks


def _with_own_movement(
    leak: Leak, setup: PackingSetup, index: int, before: torch.Tensor, after: torch.Tensor
) -> Leak:
    """Return the effect of a change with its movement in a sample that has the part.

    Args:
        leak: of the change.
        setup: the samples.
        index: of the sample.
        before, after: logits of its tokens from the part on.
    """
    path = setup.samples.segments[index].parts
    size = len(setup.samples.parts[leak.change.part])
    following = path[path.index(leak.change.part) + 1 :]
    end = size + sum(len(setup.samples.parts[part]) for part in following[:1])
    leak = leak._replace(own=max(leak.own, difference(before[:size], after[:size])))
    # What is farther away may be outside of the windows of all layers.
    if end > size and (moved := difference(before[size:end], after[size:end])) < leak.follows:
        leak = leak._replace(follows=moved, follower=index)
    return leak


def other_tokens(setup: PackingSetup, index: int, steps: int = 1) -> Int64Array | None:
    """Replace each token of a part by another one that occurs in the samples, but for media.

    Returns:
        ``int64[n]``; None if no token can be replaced.
    """
    media = media_tokens(setup.config)
    ids = setup.samples.parts[index]
    replaceable = ~np.isin(ids, media)
    new_ids = ids.copy()
    # Without any replaceable token there may be no candidate to replace it by either.
    if replaceable.any():
        new_ids[replaceable] = setup.samples.next_tokens(ids[replaceable], steps, exclude=media)
        # A collator that compares tokens would join a branch with one that begins like it.
        while len(ids) and replaceable[0] and setup.samples.begins_like_sibling(index, new_ids[0]):
            steps += 1
            new_ids[0] = setup.samples.next_tokens(ids[:1], steps, exclude=media)[0]
    return None if np.array_equal(new_ids, ids) else new_ids


def check_padding_moves_nothing(setup: PackingSetup) -> CheckResult | None:
    """Put other tokens into the padding; None without padding, or if the collator pads with several
    tokens.
    """
    batch = setup.batch
    if not batch.padding.any():
        return None
    padding, media = batch.padding, media_tokens(setup.config)
    # Different tokens at every place: equal ones could move nothing by symmetry. A medium's token
    # would require a medium that the batch does not have.
    tokens = batch.ids[padding] + 1 + np.arange(np.count_nonzero(padding))
    tokens %= batch.ids.max() + 1
    other_ids = batch.ids.copy()
    other_ids[padding] = np.where(np.isin(tokens, media), 1, tokens)
    original = batch.kwargs["input_ids"]
    ids = torch.from_numpy(other_ids).to(original).reshape(original.shape)

    def measure() -> float:
        own_logits = setup.logits(batch.kwargs)
        other_logits = setup.logits({**batch.kwargs, "input_ids": ids})
        return max(
            difference(own_logits[place.index], other_logits[place.index])
            for _, place in batch.located
        )

    movement = measure_movement(setup, measure, lambda: movement_in_rows(setup))
    return compared(
        "padding",
        movement.size,
        movement.limit,
        passed=joined("other tokens in the padding move nothing", movement.remark),
        failed=joined("other tokens in the padding move the logits of samples", movement.remark),
        diagnosis=_PADDING_IS_SEEN,
    )
