"""Media of a producer: fingerprinted as they arrive, carried over, and written to the container of
a shard.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from brimful.base.blobs import BlobGroup, BlobStore
from brimful.base.typing import Fingerprint
from brimful.base.wording import setting
from brimful.encode.encoded import EncodedSample
from brimful.encode.encoded_samples import is_compared
from brimful.encode.encoder import Encoder
from brimful.errors import BadSampleError, CorruptFileError, ProcessorDiffersError
from brimful.media import BadMediumError, MediaKind, PlacedMedium
from brimful.media.encode.processor import reference_of
from brimful.media.store import ContainerWriter, MediaFiles
from brimful.sources.sample import Sample
from brimful.store.shards import ShardRecord

_THREADS = 8
"""Files that are read at a time: a network disk has high latency, and serves many requests at
once.
"""


class ArrivedMedia:
    """Intake of the media of one feed, with a comparison of a share of its samples with the model's
    own processor.

    Args:
        encoder: of the samples.
        title: of the feed, for messages.
    """

    def __init__(self, encoder: Encoder, title: str) -> None:
        self._title, self._reference = title, reference_of(encoder)
        self._kinds_seen: set[frozenset[MediaKind]] = set()

    def fingerprinted(
        self, samples: Sequence[Sample], results: Sequence[EncodedSample | BadSampleError]
    ) -> list[EncodedSample | BadSampleError]:
        """Return encoded samples whose media have size and fingerprint; an error for a sample that
        changed meanwhile.

        Args:
            samples, results: inputs and outputs of the encoder.
        """

        def fingerprinted(
            sample: Sample, result: EncodedSample | BadSampleError
        ) -> EncodedSample | BadSampleError:
            if isinstance(result, BadSampleError):
                return result
            media = []
            for item in result.attachments:
                try:
                    fingerprint = item.medium.fingerprint()
                    if not item.is_unchanged:
                        raise BadMediumError("was changed while it was taken")
                    medium = replace(item.medium, size=item.medium.num_bytes)
                except BadMediumError as error:
                    return BadSampleError(f"{item.title}: {error}", sample_id=sample.sample_id)
                media.append(replace(item, medium=medium, fingerprint=fingerprint))
            return replace(result, attachments=tuple(media))

        with ThreadPoolExecutor(_THREADS) as pool:
            return list(pool.map(fingerprinted, samples, results))

    def compare(
        self, samples: Sequence[Sample], results: Sequence[EncodedSample | BadSampleError]
    ) -> None:
        """Compare the first sample of each kind, and then a share, with the processor of the model.

        Raises:
            ProcessorDiffersError: a sample has other tokens or another grid.
        """
        for sample, result in zip(samples, results, strict=True):
            if self._reference is None:
                return
            kinds = frozenset(medium.kind for medium in sample.attachments)
            if not kinds or isinstance(result, BadSampleError):
                continue
            if kinds in self._kinds_seen and not is_compared(sample.sample_id):
                continue
            self._kinds_seen.add(kinds)
            if self._reference.obstacle:
                logging.getLogger("brimful").warning(
                    "media are not compared with the processor of the model, which cannot be "
                    "loaded (%s)",
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
                    f"{self._title} (sample {sample.sample_id}): {difference}. Nothing is packed "
                    "with such lengths: name the processor of the model with "
                    f"{setting('processor')}, or its chat template with "
                    f"{setting('chat_template')}; leave the sample out; or go on without the "
                    f"comparison by {setting('compare_media', False)}"
                )


def read_again(item: PlacedMedium, sample_id: int) -> bytes:
    """Return the bytes of a medium that was taken earlier.

    Raises:
        BadSampleError: its file is gone, or has other bytes now.
    """
    try:
        return item.read()
    except BadMediumError as error:
        origin = f" at {item.medium.path!r}" if item.medium.path else ""
        reason = str(error).partition(":")[0]
        raise BadSampleError(
            f"{item.title}{origin} {reason}; it is in no shard yet: bring it back as it was, and "
            "the same command goes on",
            sample_id=sample_id,
        ) from error


class ShardContainer:
    """Self-contained media of one shard: older shards may be removed once they are trained.

    Args:
        files: of the commit, to which the container is added.
        seq: number of the shard.
    """

    def __init__(self, files: BlobGroup, seq: int) -> None:
        self._files, self._seq = files, seq
        self._container = ContainerWriter(f"media/{seq:08d}", files.blob)
        self._locations: dict[str, tuple[int, int]] = {}
        self._kinds_seen: set[tuple[str, str]] = set()

    def add(self, pack: Any) -> list[PlacedMedium]:
        """Store the media of a pack, and return them with their places.

        Raises:
            BadSampleError: a medium was changed after intake, or is gone.
        """
        media = []
        for item in pack.attachments:
            sample_id, content_of_kind = (
                int(pack.sample_ids[item.segment]),
                (item.medium.kind.value, item.fingerprint),
            )
            location = self._locations.get(item.fingerprint)
            if location is None:
                content = read_again(item, sample_id)
                offset = self._container.add(item.medium.name, item.fingerprint, content)
                location = self._locations[item.fingerprint] = offset, len(content)
            is_first = content_of_kind not in self._kinds_seen
            self._container.count(item, sample_id, item.medium.num_bytes, is_first=is_first)
            self._kinds_seen.add(content_of_kind)
            media.append(item.in_container(self._seq, *location))
        return media

    def close(self) -> dict[str, Any] | None:
        """Add the container to the commit, and return the log entry on the media of the shard; None
        without media.
        """
        facts = self._container.close(self._files.add)
        return facts if facts["items"] else None


class CarriedMedia:
    """Bytes that one producer has carried over so far, and their places.

    Args:
        store: of the stream.
    """

    def __init__(self, store: BlobStore) -> None:
        self._store = store
        self.forget()

    def forget(self) -> None:
        """Forget all that was carried over: another record is resumed from."""
        self._containers: dict[str, dict[str, Any]] = {}
        self._locations: dict[Fingerprint, tuple[str, int]] = {}
        """Container and first byte of each medium whose bytes came with a row."""

    def save(
        self, files: BlobGroup, prefix: str, rows: Sequence[Sequence[PlacedMedium]]
    ) -> tuple[list[list[PlacedMedium]], list[dict[str, Any]]]:
        """Store the new media of some rows; return the places of all, and the needed containers.

        Args:
            files: of the commit, to which a new container is added.
            prefix: of the key of a new container.
            rows: media of each pack or segment that is carried over.
        """
        carried = {item.fingerprint: item for row in rows for item in row if not item.medium.path}
        container = ContainerWriter(prefix, files.blob)
        offsets = {
            name: container.add(item.medium.name, name, item.read())
            for name, item in carried.items()
            if name not in self._locations
        }
        # Media that left the carry-over are in a shard now.
        self._locations = {
            name: location for name, location in self._locations.items() if name in carried
        }
        facts = container.close(files.add)
        if offsets:
            key = facts["file"]
            self._containers[key] = {name: facts[name] for name in ("file", "bytes", "xxh3_128")}
            self._locations |= {name: (key, offset) for name, offset in offsets.items()}
        keys = sorted({key for key, _ in self._locations.values()})
        self._containers = {key: self._containers[key] for key in keys}

        def placed(item: PlacedMedium) -> PlacedMedium:
            if item.medium.path:
                return item
            key, offset = self._locations[item.fingerprint]
            return item.in_container(keys.index(key), offset, item.medium.num_bytes)

        locations = [[placed(item) for item in row] for row in rows]
        return locations, list(self._containers.values())

    def files(self, containers: Sequence[dict[str, Any]]) -> MediaFiles:
        """Return the media files that a record names."""
        self._containers = {facts["file"]: dict(facts) for facts in containers}
        # A container is found by the number of its record, like the containers of shards.
        records = [
            ShardRecord(seq, "", 0, "", 0, 0, 0, 0, "", media=facts)
            for seq, facts in enumerate(containers)
        ]
        return MediaFiles(self._store, records, "")

    def loaded(self, media: Sequence[PlacedMedium]) -> tuple[PlacedMedium, ...]:
        """Return media with the bytes that came with rows; the files of others are read when their
        shard is written.

        Raises:
            FileNotFoundError: a later record was committed, and the container is gone.
            CorruptFileError: it is damaged.
        """
        items = []
        for item in media:
            medium = item.medium
            if medium.container is not None:
                try:
                    content = item.read()
                except BadMediumError as error:
                    if isinstance(error.__cause__, FileNotFoundError):
                        raise FileNotFoundError(medium.path) from error
                    raise CorruptFileError(f"{medium.path}: {error}") from error
                self._locations[item.fingerprint] = medium.container.key, medium.offset
                data = replace(medium, path="", offset=0, data=content, container=None)
                item = replace(item, medium=data)
            items.append(item)
        return tuple(items)
