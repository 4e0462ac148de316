"""Samples of a source, encoded on access; a share of them is also encoded by the reference.

While lengths are measured, some rows of every block are compared with the reference
(``measure/comparison.py``). All later encoding goes through this class, on the fly or to write
packs, and compares again: tokens may be wrong even if their number is right.

A plan is made from lengths that were measured once. A transform that training applies to a sample
each time it is served, such as a random crop or a rephrased prompt, may give it more tokens than
its pack has room for. So a few samples are transformed and encoded before anything is measured
(``check_augmentation``); the error names the transform that changes a length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np

from brimful.base.checks import position, whole_number
from brimful.base.typing import AnyPath
from brimful.base.wording import counted, setting
from brimful.encode.choose import as_encoder
from brimful.encode.encoded import EncodedSample
from brimful.encode.encoder import Encoder
from brimful.errors import AugmentationError, BadSampleError, EncodersDifferError
from brimful.sources.augmented import Transform, as_transforms, name_of, transformed
from brimful.sources.opening import open_source
from brimful.sources.sample import Sample
from brimful.sources.source import Source

_BATCH_SAMPLES = 256
"""Number of samples in one call of the encoder: more are not faster, and need more memory."""

_COMPARED_ONE_OF = 1024
"""One sample in this many is compared: the reference takes about ten times as long, which costs 1
or 2 %.
"""


class EncodedSamples:
    """Samples that are encoded on access, several together, for ``TokenBudgetBatches`` and any
    map-style loader.

    A loader that fetches several at once through ``__getitems__``, as PyTorch's does, is three
    times faster than one by one. Iterating encodes some hundred ahead. Picklable, for the workers
    of a loader.

    Args:
        source: the samples, or anything that ``open_source`` takes.
        encoder: turns them into tokens; or a tokenizer, or its name.
        transforms: functions from a sample to a sample, applied in order at each access, for random
            augmentation.

    Raises:
        AugmentationError: on access; a transform did not return a sample.
        BadSampleError: on access; the row cannot be read or encoded; names file, line and reason.
        EncodersDifferError: on access; a fast library gave other tokens or targets than its
            reference.

    >>> from brimful import open_source
    >>> from brimful.testing.toys import toy_chat_encoder
    >>> samples = EncodedSamples(open_source([{"prompt": "1+1?", "completion": "2"}]), toy_chat_encoder())
    >>> len(samples), samples[0]
    (1, EncodedSample(22 tokens, 2 loss tokens))
    """

    def __init__(
        self,
        source: Source | Any,
        encoder: Encoder | AnyPath | Any,
        *,
        transforms: Sequence[Transform] = (),
    ) -> None:
        self.source = open_source(source)
        self.encoder = as_encoder(self.source, encoder)
        self.transforms = as_transforms(transforms) if transforms else ()

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> EncodedSample:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[EncodedSample]:
        """Return several samples, encoded together."""
        return list(self.read([position(index, len(self), "sample") for index in indices]))

    def __iter__(self) -> Iterator[EncodedSample]:
        return self.read(range(len(self)))

    def read(self, sample_ids: Sequence[int]) -> Iterator[EncodedSample]:
        """Yield samples in the order of their ids, some hundred read ahead."""
        for start in range(0, len(sample_ids), _BATCH_SAMPLES):
            samples = self._samples(sample_ids[start : start + _BATCH_SAMPLES])
            results = self.encoder.encode_batch(samples)
            # Compared before any of them is yielded: one that differs puts all in doubt.
            if self._has_reference:
                remedy = "measure, plan and begin again"
                compare_share(
                    self.encoder, samples, results, location_of=self.source.where, remedy=remedy
                )
            for sample, result in zip(samples, results, strict=True):
                if isinstance(result, BadSampleError):
                    raise result.located(self.source.where(sample.sample_id))
                yield result

    def _samples(self, sample_ids: Sequence[int]) -> list[Sample]:
        """Return samples as training sees them this time."""
        samples = []
        for sample in self.source.read_many(sample_ids):
            if isinstance(sample, BadSampleError):
                raise sample
            samples.append(transformed(sample, self.transforms, self.source.where))
        return samples

    def __repr__(self) -> str:
        return f"EncodedSamples({counted(len(self), 'sample')} of {self.source.title!r})"

    @cached_property
    def _has_reference(self) -> bool:
        # Computed once: it takes as long as encoding ten samples.
        return bool(self.encoder.engine.id)


def compare_share(
    encoder: Encoder,
    samples: Sequence[Sample],
    results: Sequence[EncodedSample | BadSampleError],
    *,
    location_of: Callable[[int], str],
    remedy: str,
) -> None:
    """Compare a share of encoded samples with the reference of a faster encoder; remember a
    difference, and raise it.

    Args:
        encoder: the encoder that encoded them, with libraries that have a reference.
        samples, results: its inputs, and its output for each.
        location_of: returns the file and line of a sample.
        remedy: what to do again, for the message.

    Raises:
        EncodersDifferError: one differs, so that all are in doubt.
    """
    indices = [index for index, sample in enumerate(samples) if is_compared(sample.sample_id)]
    if not indices:
        return
    engine = encoder.engine
    references = engine.reference.encode_batch([samples[index] for index in indices])
    for index, reference in zip(indices, references, strict=True):
        difference = _difference(results[index], reference)
        if difference:
            sample_id = samples[index].sample_id
            name = engine.name
            engine.disable(engine.id, f"it differed from the reference on {location_of(sample_id)}")
            raise EncodersDifferError(
                f"{location_of(sample_id)} (sample {sample_id}): {name} encodes it differently "
                f"than its reference libraries: {difference}. It is not used again for this tokenizer, and "
                f"what it encoded may be wrong: {remedy}, which continues without it, as with "
                f"{setting('fast', False)}"
            )


def is_compared(sample_id: int) -> bool:
    """Return true for samples that are compared: the same ones in every epoch, process and run.

    >>> [sample_id for sample_id in range(2000) if is_compared(sample_id)]
    [0, 610, 1597]
    """
    # Multiples of the golden ratio are spread evenly, and do not align with rows of alternating
    # kinds.
    return (sample_id * 2_654_435_769 & 0xFFFF_FFFF) < (1 << 32) // _COMPARED_ONE_OF


def _difference(
    result: EncodedSample | BadSampleError, reference: EncodedSample | BadSampleError
) -> str:
    """Describe the difference between a sample and the reference's sample; empty if they are
    equal.
    """
    if isinstance(result, BadSampleError):
        return (
            ""
            if isinstance(reference, BadSampleError)
            else f"refused ({result.reason}), but not by the reference"
        )
    if isinstance(reference, BadSampleError):
        return f"the reference refuses it: {reference.reason}"
    if len(result) != len(reference):
        return f"{len(result):,} tokens, and {len(reference):,} by the reference"
    return result.difference(reference)


_ROWS_PER_SAMPLE = 16
"""Rows examined for each sample to probe: most may be texts, on which a transform of images has no
effect.
"""


def check_augmentation(
    source: Source,
    encoder: Encoder,
    transforms: Sequence[Transform],
    *,
    samples: int = 8,
    draws: int = 2,
) -> dict[str, int]:
    """Check on a few samples that transforms change no length; name the transform that does.

    Each transform is applied separately, ``draws`` times to each sample, and the sample is encoded:
    it must have as many tokens, and take as much of every other budget, as without the transform. A
    probe finds frequent changes; a transform that changes one length in a thousand passes it, and
    is refused when its pack is encoded.

    Args:
        source: the samples; some from all over it are taken, samples with media first.
        encoder: encoder of the job.
        transforms: functions from a sample to a sample; ``on_pictures`` makes one from a transform
            of images.
        samples: number of samples to probe.
        draws: number of times that each is transformed.

    Returns:
        Number of the probed samples that each transform changed, by its name: 0 says that nothing
            was checked.

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
    probes = list(islice(_probes(source, encoder, samples * _ROWS_PER_SAMPLE), samples))
    for index, transform in enumerate(as_transforms(transforms)):
        name = name_of(transform)
        if name in num_changed:
            name = f"{name} (transform {index})"
        num_changed[name] = 0
        for sample, sizes in probes:
            variants = [transformed(sample, [transform], source.where) for _ in range(draws)]
            num_changed[name] += any(variant != sample for variant in variants)
            for variant in variants:
                _compare(source, encoder, name, sample, variant, sizes)
    return num_changed


def _probes(
    source: Source, encoder: Encoder, num_rows: int
) -> Iterator[tuple[Sample, Mapping[str, int]]]:
    """Yield samples from all over the source with what they take of each budget, samples with media
    first.
    """
    rows = np.unique(np.linspace(0, len(source) - 1, min(len(source), num_rows)).astype(int))
    samples = [
        sample
        for row in rows.tolist()
        for sample in source.read(row, row + 1)
        if isinstance(sample, Sample)
    ]
    for sample in sorted(samples, key=lambda sample: not sample.attachments):
        try:
            yield sample, _sizes(encoder, sample)
        except BadSampleError:  # measuring reports what is wrong with it
            continue


def _sizes(encoder: Encoder, sample: Sample) -> Mapping[str, int]:
    encoded_items = encoder.encode(sample)
    return {"tokens": len(encoded_items), **encoder.attachment_sizes(encoded_items.attachments)}


def _compare(
    source: Source,
    encoder: Encoder,
    name: str,
    sample: Sample,
    other: Sample,
    sizes: Mapping[str, int],
) -> None:
    """Raise an error if a transformed sample takes more or less of a budget than it did."""
    location = f"{source.where(sample.sample_id)} (sample {sample.sample_id})"
    try:
        other_sizes = _sizes(encoder, other)
    except BadSampleError as error:
        raise AugmentationError(
            f"{name} turns {location} into a sample that cannot be encoded: {error.reason}"
        ) from error
    for budget, size in sizes.items():
        if other_sizes[budget] != size:
            raise AugmentationError(
                f"{name} changes lengths: {location} takes {size:,} {budget} as it is, and "
                f"{other_sizes[budget]:,} after it. Packs are planned with the lengths of samples "
                "as they are: let it keep the size of what it changes, or measure, plan and serve "
                f"with it: source.augmented([{name}])"
            )
