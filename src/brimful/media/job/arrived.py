"""Media of arriving samples: fingerprinted on intake, so that a shard gets the bytes that were encoded."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from brimful.encode.encoded import EncodedSample
from brimful.encode.encoded_samples import is_compared
from brimful.encode.encoder import Encoder
from brimful.errors import BadSampleError, ProcessorDiffersError
from brimful.media import BadMediumError, MediaKind, PlacedMedium
from brimful.messages import setting
from brimful.sources.sample import Sample

_THREADS = 8
"""Files that are read at a time: a network disk has high latency, and serves many requests at once."""


class ArrivedMedia:
    """Intake of the media of one feed, with a comparison of a share of its samples with the model's own processor.

    Args:
        encoder: of the samples.
        title: of the feed, for messages.
    """

    def __init__(self, encoder: Encoder, title: str) -> None:
        self._title, self._reference = title, encoder.media_reference
        self._kinds_seen: set[frozenset[MediaKind]] = set()

    def fingerprinted(
        self, samples: Sequence[Sample], results: Sequence[EncodedSample | BadSampleError]
    ) -> list[EncodedSample | BadSampleError]:
        """Return encoded samples whose media have size and fingerprint; an error for a sample that changed meanwhile.

        Args:
            samples, results: inputs and outputs of the encoder.
        """
        with ThreadPoolExecutor(_THREADS) as pool:
            pending = [
                pool.submit(_fingerprinted, sample, result)
                if isinstance(result, EncodedSample) and result.media
                else None
                for sample, result in zip(samples, results, strict=True)
            ]
            return [
                result if future is None else future.result() for result, future in zip(results, pending, strict=True)
            ]

    def compare(self, samples: Sequence[Sample], results: Sequence[EncodedSample | BadSampleError]) -> None:
        """Compare the first sample of each kind, and then a share, with the processor of the model.

        Raises:
            ProcessorDiffersError: a sample has other tokens or another grid.
        """
        for sample, result in zip(samples, results, strict=True):
            if self._reference is None:
                return
            kinds = frozenset(medium.kind for medium in sample.media)
            if not kinds or isinstance(result, BadSampleError):
                continue
            if kinds in self._kinds_seen and not is_compared(sample.sample_id):
                continue
            self._kinds_seen.add(kinds)
            if self._reference.obstacle:
                logging.getLogger("brimful").warning(
                    "media are not compared with the processor of the model, which cannot be loaded (%s)",
                    self._reference.obstacle,
                )
                self._reference = None
                return
            try:
                difference = self._reference.difference(sample, len(result))
            except BadSampleError as error:
                logging.getLogger("brimful").warning("%s", error.located(self._title))
                continue
            if difference:
                raise ProcessorDiffersError(
                    f"{self._title} (sample {sample.sample_id}): {difference}. Nothing is packed with such lengths: name "
                    f"the processor of the model with {setting('processor')}, or its chat template with "
                    f"{setting('chat_template')}; leave the sample out; or go on without the comparison by "
                    f"{setting('compare_media', False)}"
                )


def read_again(item: PlacedMedium, sample_id: int) -> bytes:
    """Return the bytes of a medium that was taken earlier.

    Raises:
        BadSampleError: its file is gone, or has other bytes now.
    """
    try:
        return item.read()
    except BadMediumError as error:
        place = f" at {item.medium.path!r}" if item.medium.path else ""
        reason = str(error).partition(":")[0]
        raise BadSampleError(
            f"{item.title}{place} {reason}; it is in no shard yet: bring it back as it was, and the same command goes on",
            sample_id=sample_id,
        ) from error


def _fingerprinted(sample: Sample, result: EncodedSample) -> EncodedSample | BadSampleError:
    media = []
    for item in result.media:
        try:
            fingerprint = item.medium.fingerprint()
            if not item.is_unchanged:
                raise BadMediumError("was changed while it was taken")
            medium = replace(item.medium, size=item.medium.num_bytes)
        except BadMediumError as error:
            return BadSampleError(f"{item.title}: {error}", sample_id=sample.sample_id)
        media.append(replace(item, medium=medium, fingerprint=fingerprint))
    return replace(result, attachments=tuple(media))
