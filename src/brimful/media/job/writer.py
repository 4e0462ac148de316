"""Media of the packs of a shard: their places, and their bytes in the container of the shard that
uses them first.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np

from brimful.base.attachment import BadAttachmentError, attachments_of_segment
from brimful.base.blobs import BlobStore
from brimful.base.fingerprint import fingerprint_bytes
from brimful.base.ragged import offsets_of
from brimful.base.typing import Int64Array, Lengths, Offsets
from brimful.base.wording import setting
from brimful.encode.encoded_samples import EncodedSamples
from brimful.errors import BadSampleError, OversizedSampleError, SettingsError
from brimful.media import BadMediumError, PlacedMedium
from brimful.media.feature_maker import FeatureMaker
from brimful.media.job.media_layout import ShardMedia
from brimful.media.store import ContainerWriter

_ENDING = ".safetensors"
"""Ending of a block of features in a container."""

_CHANGED = "was changed while it was packed"


class ShardMediaWriter:
    """Writer of the media of one shard: returns the media of each pack, and fills the container of
    the shard.

    Args:
        shard: number of the shard.
        media: facts of the media of its samples.
        samples: source and encoder, for bytes that came with rows.
        store: of the packs.
        features: makes the features to store instead of bytes; None for bytes.
    """

    def __init__(
        self,
        shard: int,
        media: ShardMedia,
        samples: EncodedSamples,
        store: BlobStore,
        features: FeatureMaker | None = None,
    ) -> None:
        self._media, self._samples, self._features = media, samples, features
        self._stack = ExitStack()
        self._container = ContainerWriter(
            f"media/{shard:08d}", lambda prefix: self._stack.enter_context(store.blob(prefix))
        )
        self._is_written = np.zeros(len(media.sample_ids), dtype=bool)
        self._is_counted = np.zeros(len(media.sizes), dtype=bool)

    def __enter__(self) -> "ShardMediaWriter":
        return self

    def __exit__(self, *details: Any) -> None:
        self._stack.__exit__(*details)

    def packs(
        self,
        kept: Mapping[int, Sequence[PlacedMedium]],
        sample_ids: Int64Array,
        starts: Lengths,
        lengths: Lengths,
        segments: Offsets,
    ) -> list[list[PlacedMedium]]:
        """Return the media of each pack, in order; their new bytes go to the container.

        Args:
            kept: media of each sample with media.
            sample_ids, starts, lengths: of the segments, as in ``PackRows``.
            segments: first segment of each pack, and the end.

        Raises:
            BadSampleError: a medium that cannot be read, or was changed since it was measured.
            OversizedSampleError: a sample was cut within a medium.
        """
        facts, offsets = self._media, offsets_of(lengths).tolist()
        indices = facts.indices_of(sample_ids).tolist()
        packs: list[list[PlacedMedium]] = []
        for first, end in zip(segments[:-1].tolist(), segments[1:].tolist(), strict=True):
            pack: list[PlacedMedium] = []
            for segment in range(first, end):
                sample_id, index = int(sample_ids[segment]), indices[segment]
                media = kept.get(sample_id)
                if media is None:
                    continue
                # A mixture draws a sample again, and a tree has it in several segments.
                if not self._is_written[index]:
                    self._is_written[index] = True
                    self._store_new(sample_id, index, media)
                try:
                    for row, whole in zip(facts.rows_of(index), media, strict=True):
                        # A medium may be in another segment of the sample.
                        for item in attachments_of_segment(
                            [whole],
                            start=int(starts[segment]),
                            length=int(lengths[segment]),
                            segment=segment - first,
                            offset=offsets[segment] - offsets[first],
                        ):
                            is_first = bool(facts.is_first_use[row] and not self._is_counted[row])
                            self._is_counted[row] = True
                            num_bytes = int(facts.sizes[row])
                            self._container.count(item, sample_id, num_bytes, is_first=is_first)
                            pack.append(facts.stored(row, item))
                except BadAttachmentError as error:
                    raise OversizedSampleError(
                        f"{self._samples.source.where(sample_id)} (sample {sample_id}): {error}; "
                        f"choose {setting('overflow', 'drop')}, without "
                        f"{setting('algorithm', 'concat_split')}"
                    ) from error
            packs.append(pack)
        return packs

    def _store_new(self, sample_id: int, index: int, media: Sequence[PlacedMedium]) -> None:
        """Check the files of a sample, and copy the media that no earlier pack brought, or their
        features.
        """
        facts, source = self._media, self._samples.source
        for item_index, (row, item) in enumerate(zip(facts.rows_of(index), media, strict=True)):
            medium, fingerprint, ending = item.medium, facts.fingerprint(row), None
            try:
                # Both must come from one state of the file, or the length and the fingerprint may
                # belong to different contents.
                if item.stamp != int(facts.stamps[row]):
                    raise BadMediumError(_CHANGED)
                if not facts.is_new[row]:
                    continue
                if not medium.path and medium.data is None:
                    medium = source[sample_id].attachments[
                        item_index
                    ]  # its bytes came with the row
                content = medium.read()
                if fingerprint_bytes(content) != fingerprint:
                    raise BadMediumError(_CHANGED)
                if self._features is not None:
                    medium = replace(medium, data=content)
                    content, ending = self._features.block(medium, item, fingerprint), _ENDING
            except BadMediumError as error:
                raise BadSampleError(
                    f"{item.title}: {error}", sample_id=sample_id, where=source.where(sample_id)
                ) from error
            except SettingsError as error:
                where = source.where(sample_id)
                raise SettingsError(
                    f"{where} (sample {sample_id}): {item.title}: {error.message}"
                ) from error
            offset = self._container.add(medium.name, fingerprint, content, ending=ending)
            assert offset == facts.positions[row], (
                "the layout of a container is known before it is written"
            )

    def publish(self) -> dict[str, Any] | None:
        """Publish the container, and return the log entry on the media of the shard; None without
        media.
        """
        facts = self._container.close(lambda key, blob: blob.publish(key))
        if self._features is not None and "file" in facts:
            facts["features"] = True
        return facts if facts["items"] else None
