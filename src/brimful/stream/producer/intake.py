"""Intake of a producer: encodes arrived samples and applies its policies."""

import logging
from collections.abc import Sequence

from brimful.base.typing import LossMask
from brimful.base.wording import setting
from brimful.encode.encoded import EncodedSample
from brimful.encode.encoded_samples import compare_share
from brimful.encode.encoder import Encoder
from brimful.errors import BadSampleError, NoTargetError
from brimful.plan import NoTarget, Overflow
from brimful.sources.sample import Sample
from brimful.stream.producer.settings import ProducerSettings

_ERRORS_SHOWN = 10
"""Left-out samples that are logged; the rest are only counted."""


class Intake:
    """Encoder and filter of the samples of one feed.

    Args:
        encoder: of the samples.
        settings: with the policies.
        title: of the feed, for messages.
    """

    def __init__(self, encoder: Encoder, settings: ProducerSettings, title: str) -> None:
        self._encoder, self._settings, self._title = encoder, settings, title
        self._media = None
        if encoder.takes_attachments:
            from brimful.media.job.producer import ArrivedMedia

            self._media = ArrivedMedia(encoder, title)
        self._num_shown = 0

    def take(
        self, samples: Sequence[Sample | BadSampleError], first_id: int
    ) -> tuple[dict[int, EncodedSample], dict[str, int]]:
        """Encode samples, numbered from ``first_id``, and apply the policies.

        Returns:
            Samples to pack by their ids, and numbers of samples: ``samples_read``, and those left
            out as ``malformed`` or ``without_target``.

        Raises:
            BadSampleError, NoTargetError: by the policies.
            EncodersDifferError, ProcessorDiffersError: a fast library and its reference, or the
                encoder and the model's processor, gave different tokens.
        """
        kept: dict[int, EncodedSample] = {}
        counts = {"samples_read": len(samples), "malformed": 0, "without_target": 0}
        for sample_id, result in enumerate(self._encoded(samples), first_id):
            if isinstance(result, EncodedSample) and not len(result):
                result = BadSampleError("has no tokens", sample_id=sample_id)
            if isinstance(result, BadSampleError):
                self._refuse(result)
                counts["malformed"] += 1
            elif self._settings.no_target is NoTarget.KEEP or self._has_target(result.loss_mask):
                kept[sample_id] = result
            elif self._settings.no_target is NoTarget.DROP:
                counts["without_target"] += 1
            else:
                raise NoTargetError(
                    f"sample {sample_id} of {self._title} has no target of the loss; choose "
                    f"{setting('no_target', 'drop')} or {setting('no_target', 'keep')}",
                    sample_id=sample_id,
                )
        return kept, counts

    def _encoded(
        self, samples: Sequence[Sample | BadSampleError]
    ) -> list[EncodedSample | BadSampleError]:
        readable = [sample for sample in samples if isinstance(sample, Sample)]
        results = self._encoder.encode_batch(readable)
        if self._encoder.engine.id:
            compare_share(
                self._encoder,
                readable,
                results,
                location_of=lambda _: self._title,
                remedy="begin the stream again",
            )
        if self._media is not None:
            self._media.compare(readable, results)
            results = self._media.fingerprinted(readable, results)
        remaining_results = iter(results)
        return [
            sample if isinstance(sample, BadSampleError) else next(remaining_results)
            for sample in samples
        ]

    def _refuse(self, error: BadSampleError) -> None:
        if self._settings.on_bad_sample == "error":
            raise error
        self._num_shown += 1
        if self._num_shown <= _ERRORS_SHOWN:
            logging.getLogger("brimful").warning("left out: %s", error)

    def _has_target(self, loss_mask: LossMask) -> bool:
        """Return true if a sample has a target, after truncation; the first token of a segment is
        not a target.
        """
        if self._settings.overflow is Overflow.TRUNCATE:
            loss_mask = loss_mask[: self._settings.capacity]
        elif self._settings.overflow is Overflow.TRUNCATE_LEFT:
            loss_mask = loss_mask[-self._settings.capacity :]
        return bool(loss_mask[1:].any())
