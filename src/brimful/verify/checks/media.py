"""Media of the batch: every image, video and audio clip once, with its own features, in the order
of its tokens.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from brimful.base.typing import AnyArray
from brimful.media import MediaKind
from brimful.verify.reference_samples import Segment
from brimful.verify.setup import PackingSetup
from brimful.verify.verify_report import Finding, failed, passed

_TOLERANCE = 0.05
"""Largest mean difference of equal features, relative to their mean size: decoders and resizers
round differently.
"""

_WAY_OUT = "join the features of the samples in the order of their tokens, with their grids"


class _Kind(NamedTuple):
    """Arguments of a model for one kind of media: its values, and the grid or mask of each item."""

    kind: MediaKind
    noun: str
    values: str
    sizes: str
    size_noun: str = "grid"


_KINDS = (
    _Kind(MediaKind.IMAGE, "image", "pixel_values", "image_grid_thw"),
    _Kind(MediaKind.VIDEO, "video", "pixel_values_videos", "video_grid_thw"),
    _Kind(MediaKind.AUDIO, "audio clip", "input_features", "feature_attention_mask", "mask"),
)


class _Item(NamedTuple):
    """One medium, or all media of a sample if their rows cannot be told apart.

    Attributes:
        name: of the sample.
        values: ``[rows, …]``: input of its tower.
        size: grid or mask; None if the model takes none.
    """

    name: str
    values: AnyArray
    size: AnyArray | None


def check_media(setup: PackingSetup) -> Finding | None:
    """Compare the towers' inputs in the batch with their inputs for each sample alone; None for
    texts.

    A tower does not know samples: it takes rows in their order, and the model puts them where
    placeholders stand.
    """
    if not setup.samples.has_media:
        return None
    batch, segments = setup.batch, setup.samples.segments
    located = sorted(batch.located, key=lambda pair: (pair[1].row, pair[1].start))
    counts = []
    for kind in _KINDS:
        items = [item for index, _ in located for item in _items(kind, segments[index])]
        values = batch.kwargs.get(kind.values)
        if not items and values is None:
            continue
        if fault := _fault(kind, items, values, batch.kwargs.get(kind.sizes)):
            return failed("media", *fault, _WAY_OUT)
        counts.append(f"{len(items)} {kind.noun}{'s' if len(items) > 1 else ''}")
    return passed("media", ", ".join(counts))


def _items(kind: _Kind, segment: Segment) -> Iterator[_Item]:
    """Yield the media of one kind of a segment with their features."""
    if kind.values not in segment.features:
        return
    values, sizes = segment.features[kind.values], segment.features.get(kind.sizes)
    count = sum(item.medium.kind is kind.kind for item in segment.media)
    if sizes is not None and sizes.shape[1:] == (3,):
        ends = sizes.prod(axis=1).cumsum()  # patches of grids
    elif len(values) == count:
        ends = np.arange(1, count + 1)
    else:
        yield _Item(segment.name, values, None)
        return
    for number, item_values in enumerate(np.split(values, ends[:-1])):
        yield _Item(segment.name, item_values, None if sizes is None else sizes[number])


def _fault(kind: _Kind, items: Sequence[_Item], values: Any, sizes: Any) -> tuple[str, str] | None:
    """Return the first fault of one kind of media in the batch, and its cause; None if they are
    right.
    """
    noun = kind.noun
    has_sizes = any(item.size is not None for item in items)
    if values is None:
        detail = f"the batch has no {kind.values}, and its samples have {len(items)} {noun}s"
        return detail, f"the collator drops all {noun}s: {kind.values}"
    if has_sizes and sizes is None:
        return f"the batch has no {kind.sizes}", f"the collator drops {kind.sizes}"
    rows, batch_sizes = _as_array(values), None if sizes is None else _as_array(sizes)
    if kind.kind is MediaKind.AUDIO and batch_sizes is not None:
        items, rows, batch_sizes = _of_one_width(items, rows, batch_sizes)
    num_items = len(batch_sizes) if batch_sizes is not None and has_sizes else len(items)
    ends = np.cumsum([0, *(len(item.values) for item in items)])
    if len(rows) != ends[-1] or num_items != len(items):
        detail = (
            f"the batch has {len(rows):,} rows of {kind.values} for {num_items} {noun}s, and its "
            f"samples have {ends[-1]:,} for {len(items)}"
        )
        return detail, _cause_of_count(kind, items, rows)
    for number, item in enumerate(items):
        if not _is_same(rows[ends[number] : ends[number + 1]], item.values):
            detail = (
                f"{noun} {number} of the batch, of {item.name}, has other {kind.values} than alone"
            )
            return detail, _cause_of_values(noun, items, number, rows[ends[number] :])
    for number, item in enumerate(items):
        if (
            item.size is None
            or batch_sizes is None
            or np.array_equal(batch_sizes[number], item.size)
        ):
            continue
        size = batch_sizes[number]
        sizes_text = (
            f": {size.tolist()} and not {item.size.tolist()}" if item.size.size == 3 else ""
        )
        owners = (
            f"{owner.name}'s"
            for owner in items
            if owner.size is not None and np.array_equal(size, owner.size)
        )
        return (
            f"{noun} {number} of the batch, of {item.name}, has another {kind.sizes}{sizes_text}",
            f"a {kind.size_noun} of the wrong sample: {item.name} has "
            f"{next(owners, 'one of no sample')}",
        )
    return None


def _of_one_width(
    items: Sequence[_Item], rows: AnyArray, masks: AnyArray
) -> tuple[Sequence[_Item], AnyArray, AnyArray]:
    """Return audio and masks padded to one width, with 0 after the end of each clip; unchanged if
    the widths are equal.

    Towers that read no column after the end of a clip take batches as wide as the longest clip
    (Qwen2.5-Omni).
    """
    widths = {rows.shape[-1], *(item.values.shape[-1] for item in items)}
    if len(widths) == 1 or len(masks) != len(rows):
        return items, rows, masks

    def widen(values: AnyArray) -> AnyArray:
        return np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, max(widths) - values.shape[-1])])

    def end(values: AnyArray, masks: AnyArray) -> AnyArray:
        return widen(np.where(masks[:, None, :] != 0, values, 0))

    wide_items = []
    for item in items:
        if item.size is None:
            return items, rows, masks
        wide_items.append(_Item(item.name, end(item.values, item.size[None]), widen(item.size)))
    return wide_items, end(rows, masks), widen(masks)


def _cause_of_count(kind: _Kind, items: Sequence[_Item], rows: AnyArray) -> str:
    """Say which medium is missing, or that features belong to no token."""
    noun, num_remaining = kind.noun, sum(len(item.values) for item in items)
    for number, item in enumerate(items):
        num_remaining -= len(item.values)
        if not _is_same(rows[: len(item.values)], item.values):
            if len(rows) == num_remaining or len(rows) < len(item.values) + num_remaining:
                return f"one {noun} dropped: number {number}, of {item.name}, is not in the batch"
            return f"features that belong to no token stand before the {noun} of {item.name}: of a text-only neighbor"
        rows = rows[len(item.values) :]
    if len(rows):
        return (
            f"features that belong to no token stand after the last {noun}: of a text-only neighbor"
        )
    return f"{kind.sizes} has not one row for each {noun}"


def _cause_of_values(noun: str, items: Sequence[_Item], number: int, rows: AnyArray) -> str:
    """Say which other features replace one medium's: ``rows`` begin where its own should."""
    name, values = items[number].name, items[number].values
    for other_number, other in enumerate(items):
        # Exchanged media may have other sizes.
        if other_number != number and _is_same(rows[: len(other.values)], other.values):
            if other.name == name:
                return f"{noun}s of {name} in another order: number {other_number} stands at number {number}"
            return f"{noun}s of two samples exchanged: {other.name} has its own at the tokens of {name}"
    # Sums of rows are equal for the same rows in any order.
    sums = [
        np.sort(block.reshape(len(block), -1).sum(axis=1))
        for block in (rows[: len(values)], values)
    ]
    if _is_same(*sums):
        return f"patches in another order: {name} has its own, and not in the order of its tokens"
    return f"another {noun}, or another processor: the features of {name} belong to no sample"


def _is_same(actual: AnyArray, expected: AnyArray) -> bool:
    """Return true if two arrays are the same but for rounding."""
    if actual.shape != expected.shape:
        return False
    scale = max(float(np.abs(expected).mean()), 1e-3) if expected.size else 1.0
    return not expected.size or float(np.abs(actual - expected).mean()) <= _TOLERANCE * scale


def _as_array(value: Any) -> AnyArray:
    """Return a tensor or an array in host memory; numbers with a fraction as float32."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        return np.asarray(value.float().numpy() if value.is_floating_point() else value.numpy())
    return np.asarray(value)
