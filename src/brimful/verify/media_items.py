"""Media of a batch, one by one: the inputs of their towers, in the order of their tokens."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from brimful.base.typing import AnyArray
from brimful.media import MediaKind
from brimful.verify.collated_batch import CollatedBatch
from brimful.verify.reference_samples import ReferenceSample


class KindOfMedia(NamedTuple):
    """Arguments of a model for one kind of media: its values, and the grid or mask of each item."""

    kind: MediaKind
    noun: str
    values: str
    sizes: str
    size_noun: str = "grid"


KINDS = (
    KindOfMedia(MediaKind.IMAGE, "image", "pixel_values", "image_grid_thw"),
    KindOfMedia(MediaKind.VIDEO, "video", "pixel_values_videos", "video_grid_thw"),
    KindOfMedia(MediaKind.AUDIO, "audio clip", "input_features", "feature_attention_mask", "mask"),
)


class MediaItem(NamedTuple):
    """One medium, or all media of a sample if their rows cannot be told apart.

    Attributes:
        name: of the sample.
        values: ``[rows, …]``: input of its tower.
        size: grid or mask; None if the model takes none.
        segment: index of the sample.
        start: its first token in the sample.
    """

    name: str
    values: AnyArray
    size: AnyArray | None
    segment: int
    start: int


def media_of(kind: KindOfMedia, segment: ReferenceSample) -> Iterator[MediaItem]:
    """Yield the media of one kind of a segment with their features.

    Args:
        kind: of media.
        segment: the sample.
    """
    if kind.values not in segment.features:
        return
    values, sizes = segment.features[kind.values], segment.features.get(kind.sizes)
    starts = [item.start for item in segment.media if item.medium.kind is kind.kind]
    if sizes is not None and sizes.shape[1:] == (3,):
        ends = sizes.prod(axis=1).cumsum()  # patches of grids
    elif len(values) == len(starts):
        ends = np.arange(1, len(starts) + 1)
    else:
        yield MediaItem(segment.name, values, None, segment.index, starts[0])
        return
    for number, item_values in enumerate(np.split(values, ends[:-1])):
        size = None if sizes is None else sizes[number]
        yield MediaItem(segment.name, item_values, size, segment.index, starts[number])


def shown_media(kind: KindOfMedia, batch: CollatedBatch) -> list[list[MediaItem]]:
    """Return the media of a batch in the order of their tokens: for each, the samples that show it
    there, which are several if it lies in a trunk.
    """
    items: dict[tuple[int, int], list[MediaItem]] = {}
    for sample, place in batch.located:
        for item in media_of(kind, sample):
            column = int(place.columns[item.start])
            items.setdefault((place.row, column), []).append(item)
    return [items[key] for key in sorted(items)]
