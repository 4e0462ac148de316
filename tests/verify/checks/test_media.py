"""Media of a batch against the media of each sample: what is missing, exchanged or another one, without a tower."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from brimful.media import MediaKind, Medium, PlacedMedium  # noqa: E402
from brimful.verify.checks.media import check_media  # noqa: E402
from brimful.verify.collated_batch import CollatedBatch  # noqa: E402
from brimful.verify.locate import Place, SampleLayout  # noqa: E402
from brimful.verify.reference_samples import ReferenceSample  # noqa: E402

GRIDS = ([[1, 2, 2]], [], [[1, 2, 3], [1, 3, 2]])
"""Grids of the images of three samples of ten tokens: four patches, none, and six each."""


def pixels(seed, rows):
    return np.random.default_rng(seed).normal(size=(rows, 3)).astype(np.float32)


def placed(kind, start):
    return PlacedMedium(Medium(kind, "x"), start=start, length=2, num_tokens=2)


def segments_of(grids=GRIDS):
    segments = []
    for number, own in enumerate(grids):
        features: dict[str, Any] = {}
        if own:
            values = [pixels(10 * number + index, int(np.prod(grid))) for index, grid in enumerate(own)]
            features = {"pixel_values": np.concatenate(values), "image_grid_thw": np.array(own)}
        media = tuple(placed(MediaKind.IMAGE, 1 + 4 * index) for index in range(len(own)))
        ids = np.arange(10) + 10 * number
        segments.append(ReferenceSample(f"sample {number}", ids, ids, number, None, media, features, (number,)))
    return segments


def check(kwargs, segments=None, order=(0, 1, 2)):
    segments = segments_of() if segments is None else segments
    places = [Place(0, 10 * order.index(number), 10 * order.index(number) + 10) for number in range(len(segments))]
    ids = np.zeros((1, 10 * len(segments)), dtype=np.int64)
    tensors = {name: torch.from_numpy(np.asarray(value)) for name, value in kwargs.items()}
    batch = CollatedBatch(tensors, ids, SampleLayout(tuple(places), (), np.zeros(ids.shape, bool), True), segments)
    setup: Any = SimpleNamespace(samples=SimpleNamespace(has_media=True, segments=segments), batch=batch)
    return check_media(setup)


def joined(segments=None, order=(0, 1, 2)):
    segments = segments_of() if segments is None else segments
    own = [segments[number].features for number in order if segments[number].features]
    return {name: np.concatenate([features[name] for features in own]) for name in own[0]}


def test_media_in_the_order_of_their_tokens_pass():
    """Also in another order of samples; decoders and resizers round differently."""
    assert check(joined()).detail == "3 images"
    assert check(joined(order=(2, 0, 1)), order=(2, 0, 1)).passed
    batch = joined()
    assert check({**batch, "pixel_values": batch["pixel_values"] * 1.04}).passed
    assert check({**batch, "pixel_values": batch["pixel_values"] * 1.06}).failed
    one = segments_of(([[1, 2, 2]], [], []))
    assert check(joined(one), one).detail == "1 image"
    setup: Any = SimpleNamespace(samples=SimpleNamespace(has_media=False))
    assert check_media(setup) is None


def changed(change):
    batch = joined()
    return change(batch["pixel_values"], batch["image_grid_thw"])


@pytest.mark.parametrize(
    ("change", "detail", "cause"),
    [
        (lambda values, grids: (None, grids), "the batch has no pixel_values, and its samples have 3 images", "the collator drops all images: pixel_values"),
        (lambda values, grids: (values, None), "the batch has no image_grid_thw, and", "the collator drops all images: image_grid_thw"),
        (lambda values, grids: (values[:10], grids[:2]), "10 rows of pixel_values for 2 images, and its samples have 16 for 3", "one image dropped: number 2, of sample 2"),
        (lambda values, grids: (values[4:], grids[1:]), "12 rows of pixel_values for 2 images", "one image dropped: number 0, of sample 0"),
        (lambda values, grids: (values, grids[:2]), "16 rows of pixel_values for 2 images", "image_grid_thw has not one row for each image"),
        (lambda values, grids: (np.concatenate([values, values[:4]]), np.concatenate([grids, grids[:1]])), "20 rows of pixel_values for 4 images", "features that belong to no token stand after the last image"),
        (lambda values, grids: (np.concatenate([values[:4] * 0, values]), np.concatenate([grids[:1], grids])), "20 rows", "features that belong to no token stand before the image of sample 0"),
        (lambda values, grids: (np.concatenate([values[:4], values[:4] * 0, values[4:]]), grids), "20 rows", "features that belong to no token stand before the image of sample 2"),
        (lambda values, grids: (np.concatenate([values[:4], values[10:], values[4:10]]), grids[[0, 2, 1]]), "image 1 of the batch, of sample 2, has other pixel_values", "images of sample 2 in another order"),
        (lambda values, grids: (np.concatenate([values[4:10], values[:4], values[10:]]), grids[[1, 0, 2]]), "image 0 of the batch, of sample 0,", "images of two samples exchanged: sample 2 has its own at the tokens of sample 0"),
        (lambda values, grids: (np.concatenate([values[:4], values[[5, 4, 6, 7, 8, 9]], values[10:]]), grids), "image 1 of the batch, of sample 2", "patches in another order: sample 2"),
        (lambda values, grids: (np.concatenate([values[:4] + 3, values[4:]]), grids), "image 0 of the batch, of sample 0", "another image, or another processor: the features of sample 0"),
        (lambda values, grids: (values, grids[[0, 2, 1]]), "image 1 of the batch, of sample 2, has another image_grid_thw", "a grid of the wrong sample: sample 2 has the one of sample 2"),
        (lambda values, grids: (values, np.concatenate([[[1, 4, 1]], grids[1:]])), "image 0 of the batch, of sample 0, has another image_grid_thw", "a grid of the wrong sample: sample 0 has the one of no sample"),
    ],
)  # fmt: skip
def test_a_fault_of_media_is_named_by_what_lies_there(change, detail, cause):
    """Every shape may be right, and the model trains on without a word."""
    values, grids = changed(change)
    kwargs = {name: value for name, value in (("pixel_values", values), ("image_grid_thw", grids)) if value is not None}
    finding = check(kwargs)
    assert finding.failed, finding
    assert detail in finding.detail
    assert finding.cause.startswith(cause)


def audio(widths, total):
    """Clips of samples with masks of their lengths, as wide as ``total``."""
    segments = []
    for number, width in enumerate(widths):
        values = np.random.default_rng(number).normal(size=(1, 2, total[number])).astype(np.float32)
        mask = (np.arange(total[number]) < width).astype(np.int64)[None]
        features = {"input_features": values, "feature_attention_mask": mask}
        ids = np.arange(10)
        segments.append(
            ReferenceSample(
                f"sample {number}", ids, ids, number, None, (placed(MediaKind.AUDIO, 0),), features, (number,)
            )
        )
    return segments


def test_clips_are_as_wide_as_the_longest():
    """What lies after the end of a clip is read by no tower; the mask is compared, and its own columns."""
    segments = audio((4, 6), (4, 6))
    values, masks = np.zeros((2, 2, 6), dtype=np.float32), np.zeros((2, 6), dtype=np.int64)
    for number, segment in enumerate(segments):
        width = 4 + 2 * number
        values[number, :, :width], masks[number, :width] = segment.features["input_features"][0], 1
    kwargs = {"input_features": values, "feature_attention_mask": masks}
    assert check(kwargs, segments, order=(0, 1)).detail == "2 audio clips"
    values[0, :, 4:] = 9
    assert check(kwargs, segments, order=(0, 1)).passed
    masks[0, 4] = 1
    finding = check(kwargs, segments, order=(0, 1))
    assert finding.cause.startswith("a mask of the wrong sample: sample 0")
    values[0, :, 2] += 9
    assert "another audio clip" in check(kwargs, segments, order=(0, 1)).cause


def test_media_without_sizes_are_one_for_each_row():
    """As many rows as media; or all media of a sample together, if their rows cannot be told apart."""
    segments = segments_of(([[1, 2, 2]], [], [[1, 2, 3]] * 3))
    for number in (0, 2):
        features = {"pixel_values": pixels(number, len(segments[number].media))}
        segments[number] = ReferenceSample(
            **{**{name: getattr(segments[number], name) for name in ReferenceSample.__slots__}, "features": features}
        )
    assert check(joined(segments), segments).detail == "4 images"
    rows = joined(segments)["pixel_values"]
    assert "images of sample 2 in another order" in check({"pixel_values": rows[[0, 1, 3, 2]]}, segments).cause
    several = segments_of(([[1, 2, 2]], [], []))
    features = {"pixel_values": pixels(0, 7)}
    several[0] = ReferenceSample(
        **{**{name: getattr(several[0], name) for name in ReferenceSample.__slots__}, "features": features}
    )
    assert check({"pixel_values": features["pixel_values"]}, several).detail == "1 image"


def test_samples_that_share_a_trunk_share_its_media():
    segments = segments_of(([[1, 2, 2]], [[1, 2, 2]], []))
    ids = np.zeros((1, 30), dtype=np.int64)
    places = (Place(0, 0, 10), Place(0, 0, 10), Place(0, 20, 30))
    kwargs = {name: torch.from_numpy(value) for name, value in segments[0].features.items()}
    batch = CollatedBatch(kwargs, ids, SampleLayout(places, (), np.zeros(ids.shape, bool), True), segments)
    setup: Any = SimpleNamespace(samples=SimpleNamespace(has_media=True, segments=segments), batch=batch)
    finding = check_media(setup)
    assert finding is not None
    assert finding.detail == "image 0 of the batch is the one of sample 0 and of sample 1, which has another"
    segments[1] = ReferenceSample(
        **{**{name: getattr(segments[1], name) for name in ReferenceSample.__slots__}, "features": segments[0].features}
    )
    same = check_media(setup)
    assert same is not None
    assert same.detail == "1 image"
