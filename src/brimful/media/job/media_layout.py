"""Layout of the bytes of media: in the container of the shard that uses them first, or in their
files. Pure: no I/O.

Everything follows from the plan and from the fingerprints of the media, so shards are equal in any
order of writing, by any process, and when written twice.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from brimful.base.attachment import CONTAINER_BYTES, AttachmentStorage
from brimful.base.fingerprint import fingerprint_array, fingerprint_of
from brimful.base.ragged import offsets_of, ranges
from brimful.base.tables import to_numpy
from brimful.base.typing import BoolArray, Fingerprint, Int64Array, Offsets
from brimful.media import PlacedMedium
from brimful.media.job.survey import Digests, MediaSurvey, fingerprint_of_digest
from brimful.media.store import container_ends, padded
from brimful.plan import Plan


@dataclass(frozen=True)
class MediaLayout:
    """Place of every medium of a job.

    Attributes:
        survey: sizes and fingerprints.
        storage: the chosen one.
        is_used: ``bool[num_media]``, true for media of samples that are in a pack; in trees, media
            of a trunk for each of its samples.
        first_uses: ``int64[num_stored]``, for each distinct stored medium, its first occurrence in
            the survey, ordered by first use in packs.
        stored_index: ``int64[num_media]``, index into ``first_uses`` of the medium with the same
            bytes; -1 for references.
        first_packs: ``int64[num_stored]``, pack that uses each first.
        first_use_packs: ``int64[num_media]``, pack of a medium that is the first use, in the order
            of packs, of its content as its kind; -1 for all others. The entries that are not -1
            count distinct media, stored or not.
        stored_sizes: ``int64[num_stored]``, bytes of each in its container, without header and
            padding.
        features: if features are stored, the facts that decide them
            (``feature_sizes.feature_facts``).
        has_trees: true if samples of a pack share their beginnings, and media in them.
        packs_of_shard: packs of each shard but the last; 0 until it is decided.
    """

    survey: MediaSurvey
    storage: AttachmentStorage
    is_used: BoolArray
    first_uses: Int64Array
    stored_index: Int64Array
    first_packs: Int64Array
    first_use_packs: Int64Array
    stored_sizes: Int64Array
    features: Mapping[str, Any] | None = None
    has_trees: bool = False
    packs_of_shard: int = 0

    @classmethod
    def of(cls, plan: Plan, survey: MediaSurvey, storage: AttachmentStorage) -> "MediaLayout":
        """Find the first use of every distinct medium.

        ::

            packs                [7 3] [5]          samples 7, 3 and 5
            their media          a b   b a c        letters are fingerprints
            stored, in order     a b c              c in the container of the shard of pack 1
        """
        num_segments = int(plan.offsets[-1])
        sample_ids = plan.sample_ids[:num_segments]
        # Assigned backwards, so that the first segment of a sample is assigned last.
        first_segments = np.full(len(survey.offsets) - 1, -1, dtype=np.int64)
        first_segments[sample_ids[::-1]] = np.arange(num_segments - 1, -1, -1)
        segments = np.repeat(first_segments, np.diff(survey.offsets))
        is_used = segments >= 0
        is_stored = (
            is_used & survey.is_in_row if storage is AttachmentStorage.REFERENCES else is_used
        )
        # Uses in the order of packs: a stable sort keeps the order of media within a sample.
        rows = np.flatnonzero(is_used)
        rows = rows[np.argsort(segments[rows], kind="stable")]
        packs = np.searchsorted(plan.offsets, segments, side="right") - 1
        # A film used as both video and audio counts as two media, and has different features.
        contents = np.column_stack([survey.digests, survey.kinds.astype(np.uint64)])
        firsts = rows[_numbered(contents[rows])[1]]
        first_use_packs = np.full(len(survey), -1, dtype=np.int64)
        first_use_packs[firsts] = packs[firsts]
        rows = rows[is_stored[rows]]
        is_of_kind = storage is AttachmentStorage.FEATURES
        indices, firsts = _numbered((contents if is_of_kind else survey.digests)[rows])
        stored_index = np.full(len(survey), -1, dtype=np.int64)
        stored_index[rows] = indices
        first_uses = rows[firsts]
        return cls(
            survey,
            storage,
            is_used,
            first_uses,
            stored_index,
            packs[first_uses],
            first_use_packs,
            survey.sizes[first_uses],
            has_trees=plan.sharing is not None,
        )

    @property
    def num_stored(self) -> int:
        """Number of distinct media that are stored."""
        return len(self.first_uses)

    @cached_property
    def num_references(self) -> int:
        """Number of media in packs that are stored as references."""
        return int(np.count_nonzero(self.is_used & (self.stored_index < 0)))

    @cached_property
    def stored_bytes(self) -> int:
        """Bytes of containers on disk, including the headers of their members."""
        return int(container_ends(self.stored_sizes)[-1]) if self.num_stored else 0

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """Fingerprint of all media in packs: a job resumes only with the same media."""
        digests = self.survey.digests[self.is_used]
        return fingerprint_of([fingerprint_array(digests), self.storage.value])

    def packs_per_shard(self, limit: int, num_packs: int) -> int:
        """Return the packs per shard: ``limit``, or fewer if new media would exceed
        ``CONTAINER_BYTES`` on average.
        """
        if not self.stored_bytes:
            return limit
        return max(1, min(limit, num_packs * CONTAINER_BYTES // self.stored_bytes))

    @cached_property
    def shards(self) -> Int64Array:
        """``int64[num_stored]``, ascending: shard whose container holds each stored medium."""
        shards: Int64Array = self.first_packs // self.packs_of_shard
        return shards

    @cached_property
    def positions(self) -> Int64Array:
        """``int64[num_stored]``, first byte of each stored medium in its container."""
        ends = container_ends(self.stored_sizes)
        # Each container begins at 0: the bytes before its first member are subtracted.
        first_members = np.searchsorted(self.shards, self.shards, side="left")
        before = np.concatenate([np.zeros(1, dtype=np.int64), ends])[first_members]
        positions: Int64Array = ends - padded(self.stored_sizes) - before
        return positions

    def of_samples(self, shard: int, sample_ids: Int64Array) -> "ShardMedia":
        """Return what the writer of a shard needs to know about the media of its samples."""
        survey = self.survey
        sample_ids = np.unique(sample_ids)
        offsets = offsets_of(survey.offsets[sample_ids + 1] - survey.offsets[sample_ids])
        rows = ranges(survey.offsets[sample_ids], np.diff(offsets))
        is_stored = self.stored_index[rows] >= 0
        stored = self.stored_index[rows][is_stored]
        containers, positions = np.full((2, len(rows)), -1, dtype=np.int64)
        containers[is_stored], positions[is_stored] = self.shards[stored], self.positions[stored]
        stored_sizes = survey.sizes[rows]
        stored_sizes[is_stored] = self.stored_sizes[stored]
        is_new = np.zeros(len(rows), dtype=bool)
        is_new[is_stored] = self.first_uses[stored] == rows[is_stored]
        return ShardMedia(
            sample_ids,
            offsets,
            survey.digests[rows],
            survey.sizes[rows],
            survey.stamps[rows],
            containers,
            positions,
            is_new & (containers == shard),
            self.first_use_packs[rows] // self.packs_of_shard == shard,
            stored_sizes,
        )


def _numbered(contents: Digests) -> tuple[Int64Array, Int64Array]:
    """Return the number of each row among the distinct rows, in order of first appearance, and the
    places of these first ones.
    """
    import pyarrow as pa

    buffers = [None, pa.py_buffer(np.ascontiguousarray(contents))]
    values = pa.Array.from_buffers(pa.binary(8 * contents.shape[1]), len(contents), buffers)
    indices = to_numpy(values.dictionary_encode().indices).astype(np.int64)
    return indices, np.unique(indices, return_index=True)[1]


@dataclass(frozen=True)
class ShardMedia:
    """Facts of the media of the samples of one shard; sent to the process that writes it.

    Attributes:
        sample_ids: ``int64[num_samples]``, ascending. All facts are arrays: a shard of short
            samples has a million of them.
        offsets: ``int64[num_samples + 1]``, first medium of each sample, and the end.
        digests, sizes, stamps: as in ``MediaSurvey``.
        containers: shard whose container holds each medium; -1 for a reference.
        positions: first byte in that container.
        is_new: true if this occurrence writes the bytes to the container of this shard.
        is_first_use: true for the first use of a content as a kind, if it is in this shard.
        stored_sizes: bytes in the container; bytes of the file for a reference.
    """

    sample_ids: Int64Array
    offsets: Offsets
    digests: Digests
    sizes: Int64Array
    stamps: Int64Array
    containers: Int64Array
    positions: Int64Array
    is_new: BoolArray
    is_first_use: BoolArray
    stored_sizes: Int64Array

    def indices_of(self, sample_ids: Int64Array) -> Int64Array:
        """Return the index among the shard's ``sample_ids`` of each given sample."""
        return np.searchsorted(self.sample_ids, sample_ids)

    def rows_of(self, index: int) -> range:
        """Return the rows of the media of a sample, by its index."""
        return range(int(self.offsets[index]), int(self.offsets[index + 1]))

    def fingerprint(self, row: int) -> Fingerprint:
        """Return the fingerprint of a medium."""
        return fingerprint_of_digest(self.digests[row].tolist())

    def stored(self, row: int, item: PlacedMedium) -> PlacedMedium:
        """Return a placed medium with its fingerprint, and its place in the store or the size of
        its file.
        """
        container, size = int(self.containers[row]), int(self.stored_sizes[row])
        location: dict[str, Any] = (
            {} if container < 0 else {"path": "", "offset": int(self.positions[row])}
        )
        medium = replace(item.medium, size=size, data=None, **location)
        return replace(item, medium=medium, fingerprint=self.fingerprint(row), shard=container)
