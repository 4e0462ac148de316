"""Media of a job that writes packs: measured against a pack, surveyed, laid out, and announced
before they are written.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from brimful.base.attachment import AttachmentStorage
from brimful.base.blobs import BlobStore, LocalBlobStore
from brimful.base.checks import choice_of
from brimful.base.typing import BoolArray
from brimful.base.wording import counted, setting, size_of
from brimful.encode.encoded import StoredSamples
from brimful.encode.encoder import Encoder
from brimful.errors import (
    BadSampleError,
    BrimfulError,
    LengthChangedError,
    OversizedSampleError,
    StoreFullError,
    StoreMismatchError,
)
from brimful.lengths.table import LengthTable
from brimful.media import PlacedMedium
from brimful.media.encode.media_chat import MediaChatEncoder
from brimful.media.feature_maker import FeatureMaker
from brimful.media.job.feature_job import feature_facts, feature_maker, with_features
from brimful.media.job.media_layout import MediaLayout
from brimful.media.job.survey import MediaSurvey, survey_media
from brimful.media.store import MediaCensus, files_of, root_note
from brimful.plan import Overflow, Plan, PlanSettings
from brimful.sources.source import Source
from brimful.store.shards import MEDIA_VERSION, ShardRecord

_REMEDIES = {
    "max_pixels": f"smaller images with {setting('max_pixels')}",
    "fps": f"fewer frames with {setting('fps')} and {setting('max_frames')}",
    "video_max_pixels": f"smaller frames with {setting('video_max_pixels')}",
}
"""Words for each setting of a family that makes fewer tokens of a medium (``Family.remedies``)."""


def check_media_fit(
    table: LengthTable, settings: PlanSettings, source: Source, encoder: Encoder
) -> None:
    """Reject a sample with media that exceeds a pack in tokens or another budget, unless such
    samples are dropped.

    Raises:
        OversizedSampleError: names the largest of them, its largest medium, and the settings that
            make it smaller.
    """
    if not encoder.takes_media or settings.overflow_policy is Overflow.DROP:
        return
    has_media = np.any([table.budgets[name] > 0 for name in encoder.budgets], axis=0)
    limits = {"tokens": settings.usable, **(settings.budgets or {})}
    for name, limit in limits.items():
        # Budgets that follow from lengths have no columns; planning itself checks them.
        too_large = (
            np.flatnonzero(has_media & (table.budgets[name] > limit))
            if name in table.budgets
            else ()
        )
        if len(too_large):
            sample_id = int(too_large[np.argmax(table.budgets[name][too_large])])
            size = int(table.budgets[name][sample_id])
            way_out = (
                setting("capacity", size) if name == "tokens" else setting("budgets", {name: size})
            )
            item = _largest_medium(source, encoder, sample_id)
            share = (
                ""
                if item is None or name != "tokens"
                else f", {item.length:,} of them of its {item.title}"
            )
            others = (
                f" (and {counted(len(too_large) - 1, 'more sample')} with media)"
                if len(too_large) > 1
                else ""
            )
            raise OversizedSampleError(
                f"{source.where(sample_id)} (sample {sample_id}){others} has {size:,} "
                f"{name.replace('_', ' ')}{share}, and a pack holds {limit:,}: samples with media "
                "are not cut. Choose "
                f"{remedy_of(source, encoder, sample_id)}{setting('overflow', 'drop')}, or "
                f"{way_out}"
            )


def remedy_of(source: Source, encoder: Encoder, sample_id: int) -> str:
    """Return settings that shorten the largest medium of a sample, each with a comma after it;
    empty without any.
    """
    item = _largest_medium(source, encoder, sample_id)
    if item is None or not isinstance(encoder, MediaChatEncoder):
        return ""
    names = encoder.family.remedies.get(item.medium.kind, ())
    return "".join(f"{_REMEDIES[name]}, " for name in names if name in _REMEDIES)


def _largest_medium(source: Source, encoder: Encoder, sample_id: int) -> PlacedMedium | None:
    """Return the medium with the largest number of tokens; a table has only sums, so the sample is
    encoded again.
    """
    try:
        media = encoder.encode(source[sample_id]).media
    except BrimfulError:
        return None  # changed since it was measured: the caller reports its length
    return max(media, key=lambda item: item.length, default=None)


_IN_PROCESS_BYTES = 256 << 20
"""Bytes of media below which one process is faster than several."""


class MediaJob:
    """The media of one job.

    Args:
        job: source, encoder, store and settings (``store.claim.PackJob``).
        storage: how the store holds media in files.
        maker: of the features to store; None for other storages.

    Attributes:
        root: common directory of all media; empty if it is only the root.
        maker: as above.
        layout: places of the media, after ``lay_out``.
    """

    def __init__(self, job: Any, storage: AttachmentStorage, maker: FeatureMaker | None) -> None:
        self._job, self._storage, self.maker = job, storage, maker
        self.root = media_root_of(job.source)
        self._survey: MediaSurvey | None = None
        self.layout: MediaLayout | None = None

    def check_fit(self, table: LengthTable, settings: PlanSettings) -> None:
        """Reject a sample with media that is larger than a pack (``check_media_fit``)."""
        check_media_fit(table, settings, self._job.source, self._job.encoder)

    def remedy(self, table: LengthTable, sample_id: int) -> str | None:
        """Return settings that shorten the media of a sample; None for a sample without media."""
        names = [name for name in ("patches", "audio_frames") if name in table.budgets]
        if not any(table.budgets[name][sample_id] > 0 for name in names):
            return None
        return remedy_of(self._job.source, self._job.encoder, sample_id)

    @staticmethod
    @contextmanager
    def explained(*, is_measured_now: bool) -> Iterator[None]:
        """Add the remedy to errors of media that cannot be read any more, or differ from the
        measured ones.

        Measuring again finds the change: lengths are stored with the sizes and times of their
        files.

        Args:
            is_measured_now: true if the packing job also measures, and would again; false for
                lengths from elsewhere.

        >>> with MediaJob.explained(is_measured_now=True):
        ...     raise BadSampleError("image 'a.png': is empty", sample_id=3, where="a.jsonl:4")
        Traceback (most recent call last):
        brimful.errors.BadSampleError: a.jsonl:4 (sample 3): image 'a.png': is empty; it could be read when it was measured: \
bring it back, or run the job again, with another directory if this one holds packs already
        """
        directory = setting("directory")
        way_out = (
            f"run the job again, with another {directory} if this one holds packs already"
            if is_measured_now
            else f"measure again, with another {directory}"
        )
        try:
            yield
        except BadSampleError as error:
            reason = f"{error.reason}; it could be read when it was measured: bring it back, or {way_out}"
            raise BadSampleError(reason, sample_id=error.sample_id, where=error.where) from error
        except LengthChangedError as error:
            raise LengthChangedError(
                f"{error.message}. If an image or audio file was changed: bring it back, or "
                f"{way_out}"
            ) from error

    def survey(self, is_wanted: BoolArray) -> None:
        """Read the sizes and fingerprints of the media of some samples (``bool[num_samples]``)."""
        cache_dir = self._job.settings.cache_dir
        self._survey = survey_media(
            self._job.source, is_wanted, cache_dir=cache_dir, resources=self._job.resources
        )

    def lay_out(self, plan: Plan, encoded: StoredSamples | None) -> None:
        """Decide the places of the media of a plan, and of their features if the packs hold
        them.
        """
        assert self._survey is not None, "media are surveyed before they are laid out"
        layout = MediaLayout.of(plan, self._survey, self._storage)
        self.layout = with_features(
            layout, self.maker, self._job.samples, encoded, self._job.resources
        )

    def packs_per_shard(self, limit: int, num_packs: int) -> int:
        """Return the packs of each shard: ``limit``, or fewer if its media are large."""
        assert self.layout is not None
        per_shard = self.layout.packs_per_shard(limit, num_packs)
        self.layout = replace(self.layout, packs_of_shard=per_shard)
        return per_shard

    @property
    def identity(self) -> dict[str, Any]:
        """Storage and fingerprints that two jobs must share to write the same media."""
        assert self.layout is not None
        features = {} if self.layout.features is None else {"features": dict(self.layout.features)}
        return {
            "storage": self._storage.value,
            "fingerprint": self.layout.fingerprint,
            "shards": MEDIA_VERSION,
            **features,
        }

    def expected(self, recorded: Mapping[str, Any]) -> dict[str, Any]:
        """Return the ``identity`` that a store must have whose media are not read; given the
        recorded one.
        """
        features = {} if self.maker is None else {"features": feature_facts(self.maker)}
        return {**recorded, "storage": self._storage.value, **features}

    @property
    def notes(self) -> dict[str, Any]:
        """Notes of the header: the directory that references are relative to."""
        assert self.layout is not None
        return root_note(self._job.store, self.root) if self.layout.num_references else {}

    def check_notes(self, recorded: Mapping[str, Any]) -> None:
        """Compare the notes with the ones of the job that began the store, which may have been
        moved with its media.

        Raises:
            StoreMismatchError: its media are in another directory.
        """
        for name, root in self.notes.items():
            known = recorded.get(name, {})
            if not set(root.items()) & set(known.items()):
                raise StoreMismatchError(
                    f"{self._job.store.url} names media in {known.get('path')!r} and the job has "
                    f"them in {root['path']!r}: choose another {setting('directory')}, or "
                    f"{setting('media_dir')} as before"
                )

    def census(self, records: Sequence[ShardRecord]) -> MediaCensus:
        """Return the numbers of the media in the packs, from the log."""
        files = files_of(self._job.store, records, self._job.log.header()["notes"])
        return files.census(self._job.directory)

    @property
    def is_small(self) -> bool:
        """True if one process stores the media faster than several."""
        assert self.layout is not None
        return self.layout.stored_bytes < _IN_PROCESS_BYTES

    def announce(self, plan: Plan, pending: Sequence[int]) -> None:
        """Report the media, and check the space that the media of the pending shards take.

        Raises:
            StoreFullError: the disk has less.
        """
        assert self.layout is not None
        layout = self.layout
        num_used = int(np.count_nonzero(layout.is_used))
        if not num_used:
            return
        used_bytes = int(layout.survey.sizes[layout.is_used].sum())
        parts = [f"{num_used:,} in the packs ({size_of(used_bytes)})"]
        if layout.num_stored:
            form, factor = "stored", ""
            if layout.features is not None:
                source_bytes = int(layout.survey.sizes[layout.first_uses].sum())
                form, factor = (
                    "stored as features",
                    f" ({layout.stored_bytes / source_bytes:.1f} × their bytes)",
                )
            parts.append(
                f"{layout.num_stored:,} distinct ones {form}, {size_of(layout.stored_bytes)} on "
                f"disk{factor}"
            )
        if layout.num_references:
            parts.append(
                f"{layout.num_references:,} referenced" + (f" in {self.root}" if self.root else "")
            )
        self._job.resources.progress.say(f"media: {'; '.join(parts)}")
        _check_space(self._job.store, plan, layout, pending)


def job_of(job: Any) -> MediaJob | None:
    """Return the media of a job; None if its encoder takes none.

    Raises:
        SettingsError: an unknown storage, or features without a processor that makes them.
    """
    storage = choice_of(AttachmentStorage, job.settings.media_storage, argument="media_storage")
    maker = feature_maker(job.encoder, storage)
    return MediaJob(job, storage, maker) if job.encoder.takes_media else None


def media_root_of(source: Source) -> str:
    """Return the common directory of all media of a source, as its rows are placed; empty if it is
    only the root.
    """
    try:
        root = os.path.commonpath(source.media_directories)
    except ValueError:  # none, or on several drives
        return ""
    return "" if os.path.dirname(root) == root else root


def _check_space(store: BlobStore, plan: Plan, layout: MediaLayout, pending: Sequence[int]) -> None:
    """Check the free space before writing: media are large, and their sizes are known.

    Raises:
        StoreFullError: the disk has less free space than the media of the missing shards take.
    """
    if not isinstance(store, LocalBlobStore):
        return
    is_pending = np.isin(layout.shards, pending)
    sizes = layout.stored_sizes[is_pending]
    num_bytes = (
        int(sizes.sum())
        + 1024 * len(sizes)
        + 5 * plan.ledger.tokens_packed * len(pending) * layout.packs_of_shard // plan.num_packs
    )
    home = store.directory
    while not home.exists():
        home = home.parent
    free = shutil.disk_usage(home).free
    if len(sizes) and num_bytes > free:
        way_out = (
            f", or choose {setting('media_storage', 'references')}"
            if layout.storage is not AttachmentStorage.REFERENCES
            else ""
        )
        raise StoreFullError(
            errno.ENOSPC,
            f"{store.url} needs {size_of(num_bytes)}, most of them for media, and {size_of(free)} "
            f"are free: free some space{way_out}",
        )
