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
from typing import TYPE_CHECKING, Any

import numpy as np

from brimful.base.attachment import AttachmentStorage
from brimful.base.blobs import LocalBlobStore
from brimful.base.checks import choice_of
from brimful.base.typing import BoolArray
from brimful.base.wording import setting, size_of
from brimful.encode.encoded import StoredSamples
from brimful.errors import (
    BadSampleError,
    BrimfulError,
    LengthChangedError,
    OversizedSampleError,
    SettingsError,
    StoreFullError,
    StoreMismatchError,
)
from brimful.lengths.table import LengthTable
from brimful.media import PlacedMedium
from brimful.media.encode.media_chat import MediaChatEncoder
from brimful.media.feature_maker import FeatureMaker
from brimful.media.job.media_layout import MediaLayout
from brimful.media.job.survey import MediaSurvey, survey_media
from brimful.media.rope_positions import rope_rule
from brimful.media.store import MediaCensus, files_of, root_note
from brimful.plan import Overflow, Plan, PlanSettings
from brimful.store.shards import ATTACHMENT_VERSION, ShardRecord

if TYPE_CHECKING:
    from brimful.store.claim import PackJob

_REMEDIES = {
    "max_pixels": f"smaller images with {setting('max_pixels')}",
    "fps": f"fewer frames with {setting('fps')} and {setting('max_frames')}",
    "video_max_pixels": f"smaller frames with {setting('video_max_pixels')}",
}
"""Words for each setting of a family that makes fewer tokens of a medium (``Family.remedies``)."""


_READ_MEDIA = 4096
"""Media whose features are measured at a time."""

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

    def __init__(
        self, job: PackJob, storage: AttachmentStorage, maker: FeatureMaker | None
    ) -> None:
        self._job, self._storage, self.maker = job, storage, maker
        try:
            root = os.path.commonpath(job.source.attachment_directories)
        except ValueError:  # none, or on several drives
            root = ""
        self.root = "" if os.path.dirname(root) == root else root
        self._survey: MediaSurvey | None = None
        self.layout: MediaLayout | None = None

    def check_fit(self, table: LengthTable, settings: PlanSettings) -> None:
        """Reject a sample with media that exceeds a pack in tokens or another budget, unless such
        samples are dropped.

        Raises:
            OversizedSampleError: names the largest of them, its largest medium, and the settings
                that make it smaller.
        """
        if settings.overflow_policy is Overflow.DROP:
            return
        names = self._job.encoder.budgets
        has_media = np.any([table.budgets[name] > 0 for name in names], axis=0)
        limits = {"tokens": settings.longest_segment, **(settings.budgets or {})}
        for name, limit in limits.items():
            if name not in table.budgets:
                continue  # it follows from lengths, and planning itself checks it
            sizes = table.budgets[name] * has_media
            sample_id = int(np.argmax(sizes))
            size = int(sizes[sample_id])
            if size <= limit:
                continue
            item, remedy = self._largest_medium(sample_id)
            share, holder, hint = "", "a pack holds", setting("budgets", {name: size})
            if name == "tokens":
                hint = setting("capacity", size)
                if limit < settings.usable:
                    holder, hint = "a sample may have", setting("max_path", size)
                if item is not None:
                    share = f", {item.length:,} of them of its {item.title}"
            raise OversizedSampleError(
                f"{self._job.source.where(sample_id)} (sample {sample_id}) has {size:,} "
                f"{name.replace('_', ' ')}{share}, and {holder} {limit:,}: samples with media "
                f"are not cut. Choose {remedy}{setting('overflow', 'drop')}, or {hint}"
            )

    def remedy(self, table: LengthTable, sample_id: int) -> str | None:
        """Return settings that shorten the media of a sample, each with a comma after it; None for
        a sample without media.
        """
        names = [name for name in ("patches", "audio_frames") if name in table.budgets]
        if not any(table.budgets[name][sample_id] > 0 for name in names):
            return None
        return self._largest_medium(sample_id)[1]

    def _largest_medium(self, sample_id: int) -> tuple[PlacedMedium | None, str]:
        """Return the medium of a sample with the largest number of tokens, and the settings that
        shorten it; None and nothing if the sample changed since it was measured.

        A table has only sums, so the sample is encoded again.
        """
        encoder = self._job.encoder
        try:
            media = encoder.encode(self._job.source[sample_id]).attachments
            item: PlacedMedium = max(media, key=lambda item: item.length)
        except (BrimfulError, ValueError):
            return None, ""  # the caller reports its length
        remedies = encoder.family.remedies if isinstance(encoder, MediaChatEncoder) else {}
        names = remedies.get(item.medium.kind, ())
        return item, "".join(f"{_REMEDIES[name]}, " for name in names)

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
        hint = (
            f"run the job again, with another {directory} if this one holds packs already"
            if is_measured_now
            else f"measure again, with another {directory}"
        )
        try:
            yield
        except BadSampleError as error:
            reason = (
                f"{error.reason}; it could be read when it was measured: bring it back, or {hint}"
            )
            raise BadSampleError(reason, sample_id=error.sample_id, where=error.where) from error
        except LengthChangedError as error:
            raise LengthChangedError(
                f"{error.message}. If an image or audio file was changed: bring it back, or {hint}"
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
        if self._survey is None:
            is_packed = np.zeros(plan.ledger.samples_in, dtype=bool)
            is_packed[plan.sample_ids] = True
            self.survey(is_packed)
        assert self._survey is not None
        self.layout = layout = MediaLayout.of(plan, self._survey, self._storage)
        if self.maker is None:
            return
        sample_ids = np.searchsorted(self._survey.offsets, layout.first_uses, side="right") - 1
        indices = layout.first_uses - self._survey.offsets[sample_ids]
        # In the order of samples, so that each is read once and neighbors together.
        order = np.argsort(layout.first_uses)
        samples, progress = encoded or self._job.samples, self._job.resources.progress
        sizes = np.zeros(len(order), dtype=np.int64)
        with progress.stage("features", total=len(order), unit="media"):
            for start in range(0, len(order), _READ_MEDIA):
                chunk = order[start : start + _READ_MEDIA]
                ids = np.unique(sample_ids[chunk])
                group = list(samples.read(ids.tolist()))
                slots = np.searchsorted(ids, sample_ids[chunk]).tolist()
                sizes[chunk] = [
                    self.maker.block_bytes(group[slot].attachments[index])
                    for slot, index in zip(slots, indices[chunk].tolist(), strict=True)
                ]
                progress.advance(len(chunk))
        facts = feature_facts(self.maker)
        self.layout = replace(layout, stored_sizes=sizes, features=facts)

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
            "shards": ATTACHMENT_VERSION,
            **features,
        }

    def expected(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Return the ``identity`` that a store must have whose media are not read; given the
        one in its header, ``facts``.
        """
        features = {} if self.maker is None else {"features": feature_facts(self.maker)}
        return {**facts, "storage": self._storage.value, **features}

    @property
    def notes(self) -> dict[str, Any]:
        """Notes of the header: the directory that references are relative to."""
        assert self.layout is not None
        return root_note(self._job.store, self.root) if self.layout.num_references else {}

    def check_notes(self, facts: Mapping[str, Any]) -> None:
        """Compare the notes with the ones of the job that began the store, which may have been
        moved with its media.

        Raises:
            StoreMismatchError: its media are in another directory.
        """
        for name, root in self.notes.items():
            known = facts.get(name, {})
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

    def announce(self, shards: Sequence[int]) -> None:
        """Report the media, and check the space that the media of the shards to write take: they
        are large, and their sizes are known.

        Raises:
            StoreFullError: the disk has less.
        """
        assert self.layout is not None
        layout, store = self.layout, self._job.store
        num_used = int(np.count_nonzero(layout.is_used))
        if not num_used:
            return
        used_bytes = int(layout.survey.sizes[layout.is_used].sum())
        scope = "of the samples in the packs" if layout.has_trees else "in the packs"
        phrases = [f"{num_used:,} {scope} ({size_of(used_bytes)})"]
        if layout.num_stored:
            form, factor = "stored", ""
            if layout.features is not None:
                source_bytes = int(layout.survey.sizes[layout.first_uses].sum())
                form = "stored as features"
                factor = f" ({layout.stored_bytes / source_bytes:.1f} × their bytes)"
            phrases.append(
                f"{layout.num_stored:,} distinct ones {form}, {size_of(layout.stored_bytes)} on "
                f"disk{factor}"
            )
        if layout.num_references:
            phrases.append(
                f"{layout.num_references:,} referenced" + (f" in {self.root}" if self.root else "")
            )
        self._job.resources.progress.say(f"media: {'; '.join(phrases)}")
        if not isinstance(store, LocalBlobStore):
            return
        sizes = layout.stored_sizes[np.isin(layout.shards, shards)]
        num_bytes = int(sizes.sum()) + 1024 * len(sizes)
        home = store.directory
        while not home.exists():
            home = home.parent
        free = shutil.disk_usage(home).free
        if num_bytes > free:
            raise StoreFullError(
                errno.ENOSPC,
                f"{store.url} needs {size_of(num_bytes)} for media, and {size_of(free)} are free: "
                f"free some space, or choose {setting('media_storage', 'references')}",
            )


def feature_facts(maker: FeatureMaker) -> dict[str, Any]:
    """Return facts on features for a store: ``settings``, a fingerprint, and ``tokens_per_second``
    for positions.
    """
    rule = rope_rule(maker.family, maker.directory)
    return {
        "settings": maker.fingerprint,
        "tokens_per_second": None if rule is None else rule.tokens_per_second,
    }


def job_of(job: PackJob) -> MediaJob | None:
    """Return the media of a job; None if its encoder takes none.

    Raises:
        SettingsError: an unknown storage, or features without a processor that makes them.
    """
    storage = choice_of(AttachmentStorage, job.settings.media_storage, argument="media_storage")
    maker = None
    if storage is AttachmentStorage.FEATURES:
        family = job.encoder.family if isinstance(job.encoder, MediaChatEncoder) else None
        if family is None or family.directory is None:
            raise SettingsError(
                f"{setting('media_storage', 'features')} needs {setting('processor')}, the "
                "directory of the model's processor, which makes them"
            )
        maker = FeatureMaker(family.directory, family)
    return MediaJob(job, storage, maker) if job.encoder.takes_attachments else None
