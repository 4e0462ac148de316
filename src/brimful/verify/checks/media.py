"""Media of the batch: every image, video and audio clip once, with its own features, in the order
of its tokens.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from brimful.base.typing import AnyArray
from brimful.doctor.batch.words import as_array
from brimful.verify.media_items import KINDS, KindOfMedia, MediaItem, shown_media
from brimful.verify.setup import PackingSetup
from brimful.verify.verify_report import CheckResult, failed, passed

_TOLERANCE = 0.05
"""Largest mean difference of equal features, relative to their mean size: decoders and resizers
round differently.
"""

_WAY_OUT = "join the features of the samples in the order of their tokens, with their grids"

_SHARED_WAY_OUT = "share tokens of media only where their content is the same"


def check_media(setup: PackingSetup) -> CheckResult | None:
    """Compare the towers' inputs in the batch with their inputs for each sample alone; None for
    texts.

    A tower does not know samples: it takes rows in their order, and the model puts them where
    placeholders stand.
    """
    if not setup.samples.has_media:
        return None
    batch = setup.batch
    counts = []
    for kind in KINDS:
        media = shown_media(kind, batch)
        items = [several[0] for several in media]
        values = batch.kwargs.get(kind.values)
        if not items and values is None:
            continue
        if fault := _shared_fault(kind, media):
            return failed("media", *fault, _SHARED_WAY_OUT)
        if fault := _fault(kind, items, values, batch.kwargs.get(kind.sizes)):
            return failed("media", *fault, _WAY_OUT)
        counts.append(f"{len(items)} {kind.noun}{'s' if len(items) > 1 else ''}")
    return passed("media", ", ".join(counts))


def _shared_fault(
    kind: KindOfMedia, media: Sequence[Sequence[MediaItem]]
) -> tuple[str, str] | None:
    """Return the first trunk whose samples have other media there, and its cause; None if they have
    the same.
    """
    for number, (first, *others) in enumerate(media):
        for item in others:
            if not _is_same(item.values, first) or len(item.values) != len(first.values):
                return (
                    f"{kind.noun} {number} of the batch is the one of {first.name} and of "
                    f"{item.name}, which has another",
                    f"samples with other {kind.noun}s share a trunk: their tokens are equal, and "
                    "no one compared what the tokens stand for",
                )
    return None


def _fault(
    kind: KindOfMedia, items: Sequence[MediaItem], values: Any, sizes: Any
) -> tuple[str, str] | None:
    """Return the first fault of one kind of media in the batch, and its cause; None if they are
    right.
    """
    noun, has_sizes = kind.noun, any(item.size is not None for item in items)
    if values is None or (has_sizes and sizes is None):
        key = kind.values if values is None else kind.sizes
        detail = f"the batch has no {key}, and its samples have {len(items)} {noun}s"
        return detail, f"the collator drops all {noun}s: {key}"
    rows: Any = as_array(values)
    batch_sizes: Any = as_array(sizes) if has_sizes else items
    ends = np.cumsum([0, *(len(item.values) for item in items)])
    blocks = [(item, rows[start:]) for item, start in zip(items, ends, strict=False)]
    wrong = [number for number, (item, block) in enumerate(blocks) if not _is_same(block, item)]
    if len(rows) != ends[-1] or len(batch_sizes) != len(items):
        detail = (
            f"the batch has {len(rows):,} rows of {kind.values} for {len(batch_sizes)} {noun}s, "
            f"and its samples have {ends[-1]:,} for {len(items)}"
        )
        if wrong and len(rows) < ends[-1]:
            name = items[wrong[0]].name
            return detail, f"one {noun} dropped: number {wrong[0]}, of {name}, is not in the batch"
        if len(rows) == ends[-1]:
            return detail, f"{kind.sizes} has not one row for each {noun}"
        place = (
            f"before the {noun} of {items[wrong[0]].name}" if wrong else f"after the last {noun}"
        )
        cause = f"features that belong to no token stand {place}: of a text-only neighbor"
        return detail, cause
    if wrong:
        number = wrong[0]
        item, block = blocks[number]
        detail = f"{noun} {number} of the batch, of {item.name}, has other {kind.values} than alone"
        # Exchanged media may have other sizes.
        for other in items:
            if _is_same(block, other):
                if other.name == item.name:
                    return detail, f"{noun}s of {item.name} in another order"
                return (
                    detail,
                    f"{noun}s of two samples exchanged: {other.name} has its own at the tokens "
                    f"of {item.name}",
                )
        # Sums of rows are equal for the same rows in any order.
        actual_sums, sums = (
            np.sort(part.reshape(len(part), -1).sum(axis=1))
            for part in (block[: len(item.values)], item.values)
        )
        if _is_same(actual_sums, item._replace(values=sums, size=None)):
            return (
                detail,
                f"patches in another order: {item.name} has its own, and not in the order of its "
                "tokens",
            )
        return (
            detail,
            f"another {noun}, or another processor: the features of {item.name} belong to no "
            "sample",
        )
    for number, item in enumerate(items):
        if item.size is None or _has_size(batch_sizes[number], item):
            continue
        owners = (other.name for other in items if _has_size(batch_sizes[number], other))
        return (
            f"{noun} {number} of the batch, of {item.name}, has another {kind.sizes}",
            f"a {kind.size_noun} of the wrong sample: {item.name} has the one of "
            f"{next(owners, 'no sample')}",
        )
    return None


def _is_same(rows: AnyArray, item: MediaItem) -> bool:
    """Return true if rows of a batch begin with the values of an item but for rounding.

    Of audio, columns that its mask marks are compared: towers that read no column after the end of
    a clip take batches as wide as the longest clip (Qwen2.5-Omni).
    """
    expected, actual = item.values, rows[: len(item.values)]
    mask: Any = 1
    if item.size is not None and item.size.shape != (3,):
        actual, mask = actual[..., : len(item.size)], item.size
    if actual.shape != expected.shape:
        return False
    scale = max(float(np.abs(expected * mask).mean()), 1e-3)
    return float(np.abs((actual - expected) * mask).mean()) <= _TOLERANCE * scale


def _has_size(size: Any, item: MediaItem) -> bool:
    """Return true if a grid, or a mask of any width, is the item's."""
    return item.size is not None and np.array_equal(
        np.trim_zeros(size, "b"), np.trim_zeros(item.size, "b")
    )
