"""Media of the packs of a shard: their places, and their bytes in the container of the shard that
uses them first.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from brimful.base.attachment import BadAttachmentError, attachments_of_segment
from brimful.base.blobs import BlobStore
from brimful.base.fingerprint import fingerprint_bytes
from brimful.base.ragged import offsets_of
from brimful.base.typing import Fingerprint, Int64Array, Lengths, Offsets
from brimful.base.wording import setting
from brimful.encode.encoded_samples import EncodedSamples
from brimful.errors import BadSampleError, OversizedSampleError, SettingsError, StoreFullError
from brimful.media import BadMediumError, PlacedMedium
from brimful.media.feature_maker import FeatureMaker
from brimful.media.job.media_layout import ShardMedia
from brimful.media.store import CountedContainer

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
        self._container = CountedContainer(
            shard, lambda prefix: self._stack.enter_context(store.blob(prefix))
        )
        self._is_written = np.zeros(len(media.sample_ids), dtype=bool)

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
        places = offsets_of(lengths).tolist()
        indices = self._media.indices_of(sample_ids).tolist()
        packs: list[list[PlacedMedium]] = []
        for first, end in zip(segments[:-1].tolist(), segments[1:].tolist(), strict=True):
            pack: list[PlacedMedium] = []
            for segment in range(first, end):
                sample_id = int(sample_ids[segment])
                media = kept.get(sample_id)
                if media is None:
                    continue
                index = indices[segment]
                is_repeat = bool(self._is_written[index])  # as a mixture draws a sample again
                if not is_repeat:
                    self._is_written[index] = True
                    self._store_new(sample_id, index, media)
                place = {
                    "start": int(starts[segment]),
                    "length": int(lengths[segment]),
                    "segment": segment - first,
                    "offset": places[segment] - places[first],
                }
                for row, item in zip(self._media.rows_of(index), media, strict=True):
                    pack += self._placed(sample_id, row, item, place, is_repeat=is_repeat)
            packs.append(pack)
        return packs

    def _placed(
        self,
        sample_id: int,
        row: int,
        whole: PlacedMedium,
        place: Mapping[str, int],
        *,
        is_repeat: bool,
    ) -> Iterator[PlacedMedium]:
        """Yield a medium of a segment with its fingerprint and the place of its bytes; nothing if
        it is in another.
        """
        facts = self._media
        try:
            for item in attachments_of_segment([whole], **place):
                if (
                    self._features is not None
                    and self._features.block_bytes(item) != facts.stored_sizes[row]
                ):
                    raise self._error(
                        sample_id, item, "has features of another shape than equal bytes before it"
                    )
                is_first = not is_repeat and bool(facts.is_first_use[row])
                self._container.count(item, sample_id, int(facts.sizes[row]), is_first=is_first)
                yield facts.stored(row, item)
        except BadAttachmentError as error:
            raise OversizedSampleError(
                f"{self._samples.source.where(sample_id)} (sample {sample_id}): {error}; choose "
                f"{setting('overflow', 'drop')}"
            ) from error

    def _store_new(self, sample_id: int, index: int, media: Sequence[PlacedMedium]) -> None:
        """Check the files of a sample, and copy the media that no earlier pack brought."""
        facts = self._media
        for number, (row, item) in enumerate(zip(facts.rows_of(index), media, strict=True)):
            # Both must come from one state of the file, or the length and the fingerprint may
            # belong to different contents.
            if item.stamp != int(facts.stamps[row]):
                raise self._error(sample_id, item, _CHANGED)
            if facts.is_new[row]:
                content = self._content(sample_id, number, item)
                if fingerprint_bytes(content) != facts.fingerprint(row):
                    raise self._error(sample_id, item, _CHANGED)
                ending = None
                if self._features is not None:
                    content, ending = (
                        self._block(sample_id, item, content, facts.fingerprint(row)),
                        _ENDING,
                    )
                with _full_disk_explained():
                    offset = self._container.add(
                        item.medium.name, facts.fingerprint(row), content, ending=ending
                    )
                assert offset == facts.positions[row], (
                    "the layout of a container is known before it is written"
                )

    def _block(
        self, sample_id: int, item: PlacedMedium, content: bytes, fingerprint: Fingerprint
    ) -> bytes:
        """Return the features of a medium as a block."""
        assert self._features is not None
        try:
            return self._features.block(replace(item.medium, data=content), item, fingerprint)
        except BadMediumError as error:
            raise self._error(sample_id, item, str(error)) from error
        except SettingsError as error:
            where = self._samples.source.where(sample_id)
            raise SettingsError(
                f"{where} (sample {sample_id}): {item.title}: {error.message}"
            ) from error

    def _content(self, sample_id: int, number: int, item: PlacedMedium) -> bytes:
        """Return the bytes of a medium; bytes that came with a row are read with it."""
        medium = item.medium
        if not medium.path and medium.data is None:
            medium = self._samples.source[sample_id].media[number]
        try:
            return medium.read()
        except BadMediumError as error:
            raise self._error(sample_id, item, str(error)) from error

    def _error(self, sample_id: int, item: PlacedMedium, reason: str) -> BadSampleError:
        return BadSampleError(
            f"{item.title}: {reason}",
            sample_id=sample_id,
            where=self._samples.source.where(sample_id),
        )

    def publish(self) -> dict[str, Any] | None:
        """Publish the container, and return the log entry on the media of the shard; None without
        media.
        """
        features = {} if self._features is None else {"features": True}
        with _full_disk_explained():
            return self._container.close(lambda key, blob: blob.publish(key), **features)


@contextmanager
def _full_disk_explained() -> Iterator[None]:
    """Add a storage that needs less space to the error of a full disk."""
    try:
        yield
    except StoreFullError as error:
        raise StoreFullError(
            error.errno,
            f"{error.message}; {setting('media_storage', 'references')}, in another directory, "
            "needs no space for media",
        ) from error
