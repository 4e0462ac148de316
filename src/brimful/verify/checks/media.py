"""Media of the batch: every image, video and audio clip once, with its own features, in the order of its tokens."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from brimful.media import MediaKind
from brimful.verify.report import Finding, Status, failed
from brimful.verify.setup import PackingSetup

_TOLERANCE = 0.05
"""Largest mean difference of equal features, relative to their mean size: decoders and resizers round differently."""


class _Kind(NamedTuple):
    """Arguments of a model for one kind of media: its values, and how many rows each item has."""

    kind: MediaKind
    noun: str
    values: str
    sizes: str


_KINDS = (
    _Kind(MediaKind.IMAGE, "image", "pixel_values", "image_grid_thw"),
    _Kind(MediaKind.VIDEO, "video", "pixel_values_videos", "video_grid_thw"),
    _Kind(MediaKind.AUDIO, "audio clip", "input_features", "feature_attention_mask"),
)


@dataclass(frozen=True, slots=True)
class _Item:
    """One medium, or all media of a sample if their rows cannot be told apart.

    Attributes:
        name: of the sample.
        values: ``[rows, …]``: input of its tower.
        size: grid or mask; None if the model takes none.
    """

    name: str
    values: npt.NDArray[Any]
    size: npt.NDArray[Any] | None


def check_media(setup: PackingSetup) -> Finding:
    """Compare the towers' inputs in the batch with their inputs for each sample alone.

    A tower does not know samples: it takes rows in their order, and the model puts them where placeholders stand.
    """
    batch, segments = setup.batch, setup.samples.segments
    located_item = sorted(batch.located, key=lambda pair: (pair[1].row, pair[1].start))
    counts = []
    for kind in _KINDS:
        expectation = [item for index, _ in located_item for item in _items(kind, segments[index])]
        values = batch.kwargs.get(kind.values)
        if not expectation and values is None:
            continue
        finding = _compare(kind, expectation, values, batch.kwargs.get(kind.sizes))
        if finding is not None:
            return finding
        counts.append(f"{len(expectation)} {kind.noun}{'s' if len(expectation) > 1 else ''}")
    return Finding("media", Status.PASS, detail=", ".join(counts))


def _items(kind: _Kind, segment: Any) -> Iterator[_Item]:
    """Yield the media of one kind of a segment with their features."""
    features: Mapping[str, npt.NDArray[Any]] = segment.features
    if kind.values not in features:
        return
    values, sizes = features[kind.values], features.get(kind.sizes)
    count = sum(item.medium.kind is kind.kind for item in segment.media)
    rows = _rows_of(sizes, count, len(values))
    if rows is None:
        yield _Item(segment.name, values, None)
        return
    ends = np.cumsum(rows)
    for number, end in enumerate(ends.tolist()):
        yield _Item(segment.name, values[end - rows[number] : end], None if sizes is None else sizes[number])


def _rows_of(sizes: npt.NDArray[Any] | None, count: int, num_rows: int) -> list[int] | None:
    """Return the rows of each item: patches of a grid, or one; None if unknown."""
    if sizes is not None and sizes.shape[1:] == (3,):
        return [int(rows) for rows in sizes.prod(axis=1)]
    return [1] * count if num_rows == count else None


def _compare(kind: _Kind, expected: Sequence[_Item], values: Any, sizes: Any) -> Finding | None:
    """Return the first fault of one kind of media; None if they are right."""
    noun, way_out = kind.noun, "join the features of the samples in the order of their tokens, with their grids"
    due_rows = sum(len(item.values) for item in expected)
    if values is None:
        detail = f"the batch has no {kind.values}, and its samples have {len(expected)} {noun}s"
        return failed("media", detail, f"the collator drops all {noun}s: {kind.values}", way_out)
    rows = _as_array(values)
    due_sizes = [item.size for item in expected if item.size is not None]
    actual_sizes = None if sizes is None else _as_array(sizes)
    if due_sizes and actual_sizes is None:
        return failed("media", f"the batch has no {kind.sizes}", f"the collator drops {kind.sizes}", way_out)
    if kind.kind is MediaKind.AUDIO and actual_sizes is not None:
        expected, rows, actual_sizes = _of_one_width(expected, rows, actual_sizes)
    num_items = len(expected) if actual_sizes is None or not due_sizes else len(actual_sizes)
    if len(rows) != due_rows or num_items != len(expected):
        detail = (
            f"the batch has {len(rows):,} rows of {kind.values} for {num_items} {noun}s, and its samples have "
            f"{due_rows:,} for {len(expected)}"
        )
        return failed("media", detail, _cause_of_count(kind, expected, rows), way_out)
    ends = np.cumsum([len(item.values) for item in expected])
    blocks = [rows[end - len(item.values) : end] for item, end in zip(expected, ends.tolist(), strict=True)]
    for number, (item, block) in enumerate(zip(expected, blocks, strict=True)):
        if not _is_same(block, item.values):
            detail = f"{noun} {number} of the batch, of {item.name}, has other {kind.values} than alone"
            return failed("media", detail, _cause_of_values(noun, expected, blocks, number, rows), way_out)
    for number, item in enumerate(expected):
        if item.size is None or actual_sizes is None or np.array_equal(actual_sizes[number], item.size):
            continue
        sizes_text = f": {actual_sizes[number].tolist()} and not {item.size.tolist()}" if item.size.size == 3 else ""
        owners = [
            sibling.name
            for sibling in expected
            if sibling.size is not None and sibling is not item and np.array_equal(actual_sizes[number], sibling.size)
        ]
        owner = f"{owners[0]}'s" if owners else "one of no sample"
        return failed(
            "media",
            f"{noun} {number} of the batch, of {item.name}, has another {kind.sizes}{sizes_text}",
            f"a {_word(kind)} of the wrong sample: {item.name} has {owner}",
            way_out,
        )
    return None


def _of_one_width(
    expected: Sequence[_Item], rows: npt.NDArray[Any], masks: npt.NDArray[Any]
) -> tuple[Sequence[_Item], npt.NDArray[Any], npt.NDArray[Any]]:
    """Return audio and masks padded to one width, with 0 after the end of each clip; unchanged if the widths are equal.

    Towers that read no column after the end of a clip take batches as wide as the longest clip (Qwen2.5-Omni).
    """
    widths = {rows.shape[-1], *(item.values.shape[-1] for item in expected)}
    if len(widths) == 1 or any(item.size is None for item in expected) or len(masks) != len(rows):
        return expected, rows, masks
    width = max(widths)
    items = [
        _Item(
            item.name, _ended(item.values, np.asarray(item.size)[None], width), _widened(np.asarray(item.size), width)
        )
        for item in expected
    ]
    return items, _ended(rows, masks, width), _widened(masks, width)


def _widened(values: npt.NDArray[Any], width: int) -> npt.NDArray[Any]:
    return np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, width - values.shape[-1])])


def _ended(values: npt.NDArray[Any], masks: npt.NDArray[Any], width: int) -> npt.NDArray[Any]:
    """Return spectrograms of this width with 0 in each column outside their mask."""
    return _widened(np.where(masks[:, None, :] != 0, values, 0), width)


def _word(kind: _Kind) -> str:
    return "mask" if kind.kind is MediaKind.AUDIO else "grid"


def _cause_of_count(kind: _Kind, expected: Sequence[_Item], rows: npt.NDArray[Any]) -> str:
    """Say which medium is missing, or that features belong to no token."""
    noun = kind.noun
    begin = 0
    for number, item in enumerate(expected):
        block = rows[begin : begin + len(item.values)]
        if not _is_same(block, item.values):
            remainder = sum(len(sibling.values) for sibling in expected[number + 1 :])
            follows = len(rows) - begin == remainder
            if follows or len(rows) < begin + len(item.values) + remainder:
                return f"one {noun} dropped: number {number}, of {item.name}, is not in the batch"
            return f"features that belong to no token stand before the {noun} of {item.name}: of a text-only neighbor"
        begin += len(item.values)
    if begin < len(rows):
        return f"features that belong to no token stand after the last {noun}: of a text-only neighbor"
    return f"{kind.sizes} has not one row for each {noun}"


def _cause_of_values(
    noun: str, expected: Sequence[_Item], blocks: Sequence[npt.NDArray[Any]], number: int, rows: npt.NDArray[Any]
) -> str:
    """Say which other features replace one medium's."""
    item = expected[number]
    for other_number, sibling in enumerate(expected):
        if other_number != number and _begins_with(rows, blocks, number, sibling.values):
            if sibling.name == item.name:
                return f"{noun}s of {item.name} in another order: number {other_number} stands at number {number}"
            return f"{noun}s of two samples exchanged: {sibling.name} has its own at the tokens of {item.name}"
    if _is_same(_row_sums(blocks[number]), _row_sums(item.values)):
        return f"patches in another order: {item.name} has its own, and not in the order of its tokens"
    return f"another {noun}, or another processor: the features of {item.name} belong to no sample"


def _begins_with(
    rows: npt.NDArray[Any], blocks: Sequence[npt.NDArray[Any]], number: int, values: npt.NDArray[Any]
) -> bool:
    """Return true if the rows at the beginning of a block are these: exchanged media may have other sizes."""
    begin = sum(len(block) for block in blocks[:number])
    return _is_same(rows[begin : begin + len(values)], values)


def _row_sums(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the sums of rows in rising order: equal for the same rows in any order."""
    return np.sort(values.reshape(len(values), -1).sum(axis=1))


def _is_same(actual: npt.NDArray[Any], expected: npt.NDArray[Any]) -> bool:
    """Return true if two arrays are the same but for rounding."""
    if actual.shape != expected.shape:
        return False
    scale = max(float(np.abs(expected).mean()), 1e-3) if expected.size else 1.0
    return not expected.size or float(np.abs(actual - expected).mean()) <= _TOLERANCE * scale


def _as_array(value: Any) -> npt.NDArray[Any]:
    """Return a tensor or an array in host memory; numbers with a fraction as float32."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        return np.asarray(value.float().numpy() if value.is_floating_point() else value.numpy())
    return np.asarray(value)
