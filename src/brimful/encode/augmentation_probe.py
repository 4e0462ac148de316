"""A probe for random augmentation: lengths are guaranteed only if it does not change them.

A plan is made from lengths that were measured once. A transform that training applies to a sample each time it is
served, such as a random crop or a rephrased prompt, may give it more tokens than its pack has room for. A few samples
are transformed and encoded before anything is measured; the error names the transform that changes a length.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from brimful.base.checks import whole_number
from brimful.encode.encoder import Encoder
from brimful.errors import AugmentationError, BadSampleError
from brimful.sources.augmented import Transform, as_transforms, name_of, not_a_sample
from brimful.sources.sample import Sample
from brimful.sources.source import Source

_ROWS_PER_SAMPLE = 16
"""Rows examined for each sample to probe: most may be texts, on which a transform of images has no effect."""


def check_augmentation(
    source: Source, encoder: Encoder, transforms: Sequence[Transform], *, samples: int = 8, draws: int = 2
) -> dict[str, int]:
    """Check on a few samples that transforms change no length; name the transform that does.

    Each transform is applied separately, ``draws`` times to each sample, and the sample is encoded: it must have as
    many tokens, and take as much of every other budget, as without the transform. A probe finds frequent changes; a
    transform that changes one length in a thousand passes it, and is refused when its pack is encoded.

    Args:
        source: the samples; some from all over it are taken, samples with media first.
        encoder: encoder of the job.
        transforms: functions from a sample to a sample; ``on_pictures`` makes one from a transform of images.
        samples: number of samples to probe.
        draws: number of times that each is transformed.

    Returns:
        Number of the probed samples that each transform changed, by its name: 0 says that nothing was checked.

    Raises:
        AugmentationError: names the transform, the sample and both lengths.

    >>> from dataclasses import replace
    >>> from brimful.sources import open_source
    >>> from brimful.testing.toys import toy_chat_encoder
    >>> source = open_source([{"text": "abc"}, {"text": "de"}])
    >>> def shout(sample):
    ...     return replace(sample, text=sample.text.upper())
    >>> check_augmentation(source, toy_chat_encoder(), [shout])
    {'shout': 2}
    """
    whole_number("samples", samples, minimum=1)
    whole_number("draws", draws, minimum=1)
    num_changed: dict[str, int] = {}
    probes = list(_probes(source, encoder, samples))
    for number, transform in enumerate(as_transforms(transforms)):
        name = name_of(transform)
        if name in num_changed:
            name = f"{name} (transform {number})"
        num_changed[name] = 0
        for sample, sizes in probes:
            transformed_samples = [transform(sample) for _ in range(draws)]
            num_changed[name] += any(transformed_sample != sample for transformed_sample in transformed_samples)
            for transformed_sample in transformed_samples:
                if not isinstance(transformed_sample, Sample):
                    raise not_a_sample(transform, source.where(sample.sample_id), sample.sample_id, transformed_sample)
                _compare(source, encoder, name, sample, transformed_sample, sizes)
    return num_changed


def _probes(source: Source, encoder: Encoder, number: int) -> Iterator[tuple[Sample, Mapping[str, int]]]:
    """Yield samples from all over the source with what they take of each budget, samples with media first."""
    rows = np.unique(np.linspace(0, len(source) - 1, min(len(source), number * _ROWS_PER_SAMPLE)).astype(int))
    samples = [sample for row in rows.tolist() for sample in source.read(row, row + 1) if isinstance(sample, Sample)]
    for sample in sorted(samples, key=lambda sample: not sample.media):
        if number == 0:
            return
        try:
            sizes = _sizes(encoder, sample)
        except BadSampleError:  # measuring reports what is wrong with it
            continue
        number -= 1
        yield sample, sizes


def _sizes(encoder: Encoder, sample: Sample) -> Mapping[str, int]:
    encoded_items = encoder.encode(sample)
    return {"tokens": len(encoded_items), **encoder.sizes_of_media(encoded_items.media)}


def _compare(
    source: Source, encoder: Encoder, name: str, sample: Sample, other: Sample, sizes: Mapping[str, int]
) -> None:
    """Raise an error if a transformed sample takes more or less of a budget than it did."""
    place = f"{source.where(sample.sample_id)} (sample {sample.sample_id})"
    try:
        other_sizes = _sizes(encoder, other)
    except BadSampleError as error:
        raise AugmentationError(f"{name} turns {place} into a sample that cannot be encoded: {error.reason}") from error
    for budget, size in sizes.items():
        if other_sizes[budget] != size:
            raise AugmentationError(
                f"{name} changes lengths: {place} takes {size:,} {budget} as it is, and {other_sizes[budget]:,} after it. "
                f"Packs are planned with the lengths of samples as they are: let it keep the size of what it changes, or "
                f"measure, plan and serve with it: source.augmented([{name}])"
            )
