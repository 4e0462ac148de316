"""Entry point of planning: checks, defaults, and the order of the steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

from brimful.errors import InvalidLengthsError, SettingsError
from brimful.measure.table import REJECTED, LengthTable, as_lengths
from brimful.plan.best_fit import best_fit
from brimful.plan.best_fit_decreasing import best_fit_decreasing
from brimful.plan.bound import lower_bound
from brimful.plan.concat_split import concat_split
from brimful.plan.first_fit import first_fit
from brimful.plan.first_fit_decreasing import first_fit_decreasing
from brimful.plan.histogram import Histogram, Placements, decreasing_order
from brimful.plan.ledger import Ledger
from brimful.plan.next_fit import next_fit
from brimful.plan.optimal import pack_optimally
from brimful.plan.overflow import Overflow, Pieces, apply_overflow
from brimful.plan.packing import Packing
from brimful.plan.phases import Recipe
from brimful.plan.plan import Plan
from brimful.plan.shuffle import random_order, shuffle_classes
from brimful.plan.worst_fit import worst_fit
from brimful.rng import generator
from brimful.typing import AnyIntArray, Lengths

__all__ = ["ALGORITHMS", "plan_packs"]

_BY_COUNTS: Mapping[str, Callable[..., Any]] = {
    "best_fit_decreasing": best_fit_decreasing,
    "first_fit_decreasing": first_fit_decreasing,
}
_IN_ORDER: Mapping[str, Callable[..., Packing]] = {
    "next_fit": next_fit,
    "first_fit": first_fit,
    "best_fit": best_fit,
    "worst_fit": worst_fit,
}
_SEARCHING = ("optimal", "auto")
_SECONDS = 60.0
"""That ``optimal`` may search, unless told otherwise."""
_OPERATIONS = 2e9
"""That ``auto`` may search, unless told otherwise (``Effort``): some seconds, and the same plan on every machine."""
ALGORITHMS = (*_BY_COUNTS, *_SEARCHING, "phased", *_IN_ORDER, "concat_split")
"""Names of the algorithms. Textbook names: what they do is what the books say."""

_ALIASES = {
    "bfd": "best_fit_decreasing",
    "ffd": "first_fit_decreasing",
    "sequential": "next_fit",
    "wrapped": "concat_split",
}
"""What others call them."""

_CLOSE_ENOUGH = 0.001
"""Distance from the bound, as a share of it, that ``auto`` leaves as it is."""

_MAX_CAPACITY = 2**31 - 1


def plan_packs(
    lengths: LengthTable | AnyIntArray | Sequence[int],
    *,
    capacity: int,
    algorithm: str = "auto",
    overflow: Overflow | str = Overflow.ERROR,
    seed: int | None = 0,
    time_limit: float | None = None,
    phases: Recipe | str | None = None,
) -> Plan:
    """Decide which samples share which pack, from their lengths alone.

    Pure: no I/O; the same arguments give the same plan, on any machine and with any number of processes.

    Args:
        lengths: a ``LengthTable``, or whole numbers: tokens of each sample.
        capacity: most tokens of a pack, from 1 to 2**31 - 1.
        algorithm: one of ``ALGORITHMS``. ``optimal`` searches for as few packs as the lengths allow and proves how
            far from that it is; ``auto`` does so only where best fit decreasing is over 0.1 % above the bound;
            ``next_fit``, ``first_fit``, ``best_fit`` and ``worst_fit`` take the samples in their order;
            ``concat_split`` cuts the stream of all tokens. ``settings["outcome"]`` says what was found. The names
            that others use (``bfd``, ``ffd``, ``wrapped``, and ``sequential`` for next fit, whose packs follow each
            other as the samples do) are understood.
        overflow: what becomes of samples longer than a pack (``Overflow``).
        seed: shuffles samples of equal length and the order of the packs, at no cost in fill, so that packs do
            not come sorted by length; None keeps the textbook order. Algorithms that keep the order of the
            samples ignore it.
        time_limit: seconds that ``optimal`` (60 if None) and ``auto`` may search. Where it strikes, the best packs so
            far are taken, which may be others on a slower machine: then save the plan rather than make it again.
            If None, ``auto`` stops after so many operations instead, and its plan is the same everywhere.
        phases: what ``phased`` does, as a ``Recipe`` or its text (docs/phased-recipe.md); ``Recipe.default()`` if None.
            ``settings["phase_reports"]`` says what each phase did.

    Raises:
        InvalidLengthsError: no samples, a length below 1, or no whole numbers.
        OversizedSampleError: a length exceeds the capacity and ``overflow`` is ``error``.
        SettingsError: an impossible capacity, an unknown name.
        MissingExtraError: ``optimal`` without a solver installed.

    >>> plan_packs([70, 30, 30, 30, 20], capacity=100, algorithm="first_fit_decreasing").num_packs
    2
    """
    table = lengths if isinstance(lengths, LengthTable) else LengthTable({"tokens": as_lengths(lengths)})
    policy = Overflow.named(overflow)
    algorithm = _ALIASES.get(algorithm, algorithm)
    _check(table.tokens, capacity, algorithm, seed, time_limit, may_reject=isinstance(lengths, LengthTable))
    recipe = _recipe(phases, algorithm)
    if algorithm == "concat_split":
        pieces, packing = _concat_split(table.tokens, capacity, policy)
    else:
        pieces = apply_overflow(table.tokens, capacity=capacity, policy=policy)
    items = Histogram.of(pieces.lengths)
    settings: dict[str, Any] = {
        "algorithm": algorithm,
        "overflow": policy.value,
        "seed": seed,
        "capacity": int(capacity),
    }
    bound = lower_bound(items, capacity=capacity)
    if algorithm in _IN_ORDER:
        packing = _IN_ORDER[algorithm](pieces.lengths, capacity=capacity)
    elif recipe is not None:
        phased = recipe.run(items, capacity=capacity)
        settings |= {"phases": str(recipe), "phase_reports": phased.describe()}
        packing = _named(phased.placements, pieces.lengths, items, seed)
    elif algorithm != "concat_split":
        placements, bound, outcome = _place(items, capacity, algorithm, bound, time_limit)
        if outcome is not None:
            settings["outcome"] = outcome
        packing = _named(placements, pieces.lengths, items, seed)
    ledger = _ledger(table, pieces, policy, capacity, tokens_packed=items.total)
    return _make_plan(table, pieces, packing, ledger, capacity=int(capacity), bound=bound, settings=settings)


def _concat_split(tokens: Lengths, capacity: int, policy: Overflow) -> tuple[Pieces, Packing]:
    """The stream of what the policy keeps, cut; under ``split`` that is every token of every sample."""
    if policy is Overflow.SPLIT:
        return concat_split(tokens, capacity=capacity)
    kept = apply_overflow(tokens, capacity=capacity, policy=policy)
    cut, packing = concat_split(kept.lengths, capacity=capacity)
    assert cut.sample_ids is not None
    assert cut.starts is not None
    ids = cut.sample_ids if kept.sample_ids is None else kept.sample_ids[cut.sample_ids]
    starts = cut.starts if kept.starts is None else cut.starts + kept.starts[cut.sample_ids]
    return Pieces(cut.lengths, ids, starts, kept.dropped), packing


def _recipe(phases: Recipe | str | None, algorithm: str) -> Recipe | None:
    if algorithm != "phased":
        if phases is not None:
            raise SettingsError(f"--phases is for --algorithm phased, and the algorithm is {algorithm}")
        return None
    if phases is None:
        return Recipe.default()
    return Recipe.parse(phases) if isinstance(phases, str) else phases


def _named(placements: Placements, lengths: Lengths, items: Histogram, seed: int | None) -> Packing:
    return placements.fill(_class_order(lengths, items, seed), _pack_order(placements.num_packs, seed))


def _place(
    items: Histogram, capacity: int, algorithm: str, bound: int, time_limit: float | None
) -> tuple[Placements, int, str | None]:
    """Placements, the bound as far as it is proven, and what was done, where there was a choice."""
    if algorithm in _BY_COUNTS:
        return _BY_COUNTS[algorithm](items, capacity=capacity), bound, None
    placements = None
    if algorithm == "auto":
        placements = best_fit_decreasing(items, capacity=capacity)
        over = placements.num_packs - bound
        if over == 0:
            return placements, bound, "best_fit_decreasing meets the bound"
        if over <= _CLOSE_ENOUGH * bound:
            return placements, bound, "best_fit_decreasing, within 0.1 % of the bound"
        if not _has_solver():
            found = f"best_fit_decreasing, {over:,} packs above the bound"
            return placements, bound, f"{found}; with pip install 'brimful[optimal]' fewer may be found"
    operations = None
    if time_limit is None:
        time_limit, operations = (None, _OPERATIONS) if algorithm == "auto" else (_SECONDS, None)
    result = pack_optimally(items, capacity=capacity, start=placements, time_limit=time_limit, operations=operations)
    return result.placements, result.bound, result.status


def _has_solver() -> bool:
    return find_spec("highspy") is not None or find_spec("scipy") is not None


def _check(
    tokens: Lengths, capacity: int, algorithm: str, seed: int | None, time_limit: float | None, *, may_reject: bool
) -> None:
    if isinstance(capacity, bool) or not isinstance(capacity, (int, np.integer)):
        raise SettingsError(f"--max-length must be a whole number and is {capacity!r}")
    if not 1 <= capacity <= _MAX_CAPACITY:
        raise SettingsError(f"--max-length must be from 1 to {_MAX_CAPACITY:,} and is {capacity:,}")
    if time_limit is not None and not time_limit >= 0:
        raise SettingsError(f"--time-limit must be at least 0 seconds and is {time_limit}")
    if algorithm not in ALGORITHMS:
        raise SettingsError(f"--algorithm {algorithm!r} is unknown: use one of {', '.join(ALGORITHMS)}")
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, (int, np.integer))):
        raise SettingsError(f"--seed must be a whole number and is {seed!r}")
    if len(tokens) == 0:
        raise InvalidLengthsError("there are no lengths: nothing to plan")
    if int(tokens.min()) < 1:
        wrong = np.flatnonzero((tokens < 1) & (tokens != REJECTED) if may_reject else tokens < 1)
        if len(wrong):
            at = int(wrong[0])
            raise InvalidLengthsError(f"sample {at} has length {int(tokens[at])}; every sample needs at least 1 token")


def _class_order(lengths: Lengths, items: Histogram, seed: int | None) -> AnyIntArray:
    """Longest first; equal lengths by position, or shuffled among themselves."""
    order = decreasing_order(lengths, items)
    if seed is None:
        return order
    return shuffle_classes(order, items.counts[::-1], generator(seed=seed, epoch=0, purpose="companions"))


def _pack_order(num_packs: int, seed: int | None) -> AnyIntArray | None:
    """An order that has nothing to do with lengths; packs are opened longest first."""
    return None if seed is None else random_order(num_packs, generator(seed=seed, epoch=0, purpose="pack order"))


def _make_plan(
    table: LengthTable,
    pieces: Pieces,
    packing: Packing,
    ledger: Ledger,
    *,
    capacity: int,
    bound: int,
    settings: dict[str, Any],
) -> Plan:
    items = packing.items
    starts = np.broadcast_to(np.zeros(1, dtype=np.int32), items.shape)
    if pieces.starts is not None:
        starts = pieces.starts[items]
    sample_ids = items
    if pieces.sample_ids is not None:
        narrow = np.int32 if len(table) < 2**31 else np.int64
        sample_ids = pieces.sample_ids[items].astype(narrow, copy=False)
    return Plan(
        capacity=capacity,
        offsets=packing.offsets,
        sample_ids=sample_ids,
        starts=starts,
        lengths=lambda: pieces.lengths[items],
        dropped_ids=pieces.dropped,
        ledger=ledger,
        settings=settings,
        bound=bound,
        length_fingerprint=lambda: table.fingerprint,
    )


def _ledger(table: LengthTable, pieces: Pieces, policy: Overflow, capacity: int, *, tokens_packed: int) -> Ledger:
    tokens = table.tokens
    if pieces.lengths is tokens:  # nothing dropped, cut or rejected: no need to look at every sample again
        return Ledger(
            samples_in=len(tokens),
            tokens_in=tokens_packed,
            samples_packed=len(tokens),
            tokens_packed=tokens_packed,
            segments=len(tokens),
        )
    tokens_in = table.total_tokens
    tokens_dropped = int(tokens[pieces.dropped].sum(dtype=np.int64))
    rejected = int(np.count_nonzero(tokens < 0))
    packed = len(tokens) - rejected - len(pieces.dropped)
    split = truncated = 0
    if len(pieces.lengths) != packed:
        assert pieces.sample_ids is not None
        split = int(np.count_nonzero(np.bincount(pieces.sample_ids) > 1))
    if policy in (Overflow.TRUNCATE, Overflow.TRUNCATE_LEFT):
        truncated = int(np.count_nonzero(tokens > capacity))
    return Ledger(
        samples_in=len(tokens),
        tokens_in=tokens_in,
        samples_packed=packed,
        tokens_packed=tokens_packed,
        samples_dropped=len(pieces.dropped),
        tokens_dropped=tokens_dropped,
        samples_truncated=truncated,
        tokens_truncated=tokens_in - tokens_packed - tokens_dropped,
        samples_split=split,
        segments=len(pieces.lengths),
        samples_rejected=rejected,
    )
