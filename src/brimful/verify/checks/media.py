"""Media of the batch: every image, video and audio clip once, with its own features, in the order
of its tokens.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

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
    noun, has_sizes = kind.noun, any(item.size is not None for item in items)
    if values is None or (has_sizes and sizes is None):
        key = kind.values if values is None else kind.sizes
        detail = f"the batch has no {key}, and its samples have {len(items)} {noun}s"
        return detail, f"the collator drops all {noun}s: {key}"
    rows = _as_array(values)
    batch_sizes = _as_array(sizes) if has_sizes else items
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


def _is_same(rows: AnyArray, item: _Item) -> bool:
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


def _has_size(size: Any, item: _Item) -> bool:
    """Return true if a grid, or a mask of any width, is the item's."""
    return item.size is not None and np.array_equal(
        np.trim_zeros(size, "b"), np.trim_zeros(item.size, "b")
    )


def _as_array(value: Any) -> AnyArray:
    """Return a tensor or an array in host memory; numbers with a fraction as float32."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        return np.asarray(value.float() if value.is_floating_point() else value)
    return np.asarray(value)
