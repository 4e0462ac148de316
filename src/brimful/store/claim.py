"""A job that writes packs: its settings, data, encoder and directories, and the claim of the
directory for its packs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from brimful.base.arguments import option
from brimful.base.atomic_file import atomic_file
from brimful.base.attachment import AttachmentStorage
from brimful.base.blobs import BlobStore, LocalBlobStore, open_blob_store
from brimful.base.execute import Resources
from brimful.base.fingerprint import fingerprint_of
from brimful.base.locks import cache_dir as default_cache_dir
from brimful.base.locks import cached
from brimful.base.typing import AnyPath, BoolArray
from brimful.base.wings import ATTACHMENT_JOB, loaded
from brimful.encode.choose import as_encoder
from brimful.encode.encoded import StoredSamples
from brimful.encode.encoded_samples import EncodedSamples
from brimful.encode.encoder import Encoder
from brimful.lengths.table import LengthTable
from brimful.measure.measure_settings import SampleSettings
from brimful.plan import Overflow, Plan, PlanSettings
from brimful.plan.policies.groups import check_beginnings_stay
from brimful.sources.opening import open_source
from brimful.sources.source import Source
from brimful.store.shards import LANES, ShardRecord, StreamLog

SHARD_BYTES = 64 << 20
"""Target size of a shard in bytes: few files, and small enough to build in memory."""


_PIECE = 8 << 20
"""Bytes of a file that are read at a time."""


@dataclass(frozen=True, kw_only=True)
class JobSettings(SampleSettings):
    """Settings of a job that writes packs; none of them changes the plan but
    ``on_bad_sample``.

    Attributes:
        on_bad_sample: as for ``measure_lengths``.
        media_storage: how the store holds media in files: ``references``, ``bytes`` or
            ``features``. Bytes are stored once for each distinct medium; bytes that came with rows
            are always stored.
        shard_bytes: target size of a shard.
        notes: information for users, such as the name of the tokenizer; kept in the header, not
            compared.
        num_proc: processes; all cores if None, one for small jobs. Never changes a byte.
        cache_dir: directory of finished blocks and of fingerprints of files.
        execution: ``ray``, for a cluster, or an ``Execution``, for one share of the shards. All
            machines must see the source, the plan and the directory.
        progress: reports samples, packs and tokens per second and the remaining time.
    """

    media_storage: AttachmentStorage | str = option(
        AttachmentStorage.REFERENCES,
        "What packs hold of media in files: path and fingerprint; their bytes; or the processor's "
        "features. Distinct bytes and features are stored once.",
        None,
        "--media",
    )
    shard_bytes: int = SHARD_BYTES
    notes: Mapping[str, Any] | None = None


class JobHome:
    """Local files of a job next to its packs; ``publish`` and ``fetch`` copy them to and from a
    URL.

    Attributes:
        directory: directory of the files: the store, if it is local.
        local: the same as a store, which is marked as used while the job runs.
    """

    def __init__(self, store: BlobStore, cache_dir: AnyPath | None = None) -> None:
        self._store = store
        if isinstance(store, LocalBlobStore):
            self.directory, self._is_remote = store.directory, False
        else:
            folder = default_cache_dir(cache_dir) / "jobs" / fingerprint_of(store.url)
            self.directory, self._is_remote = cached(folder / "plan.arrow").parent, True
        self.local = LocalBlobStore(self.directory)

    def path(self, name: str) -> Path:
        """Return the local path of a file next to the packs."""
        return self.directory / name

    def publish(self, *names: str) -> None:
        """Copy files to the store; a file that is absent here is removed there. Local stores
        already have them.
        """
        for name in names if self._is_remote else ():
            if not self.path(name).exists():
                self._store.delete(name)
                continue
            with self._store.blob(name) as blob, open(self.path(name), "rb") as file:
                while piece := file.read(_PIECE):
                    blob.write(piece)
                blob.publish(name)

    def fetch(self, name: str) -> None:
        """Copy a file from the store, if it exists: another machine may have begun the job."""
        size = self._store.size(name) if self._is_remote else None
        if size is not None:
            with atomic_file(self.path(name)) as file:
                for start in range(0, size, _PIECE):
                    file.write(self._store.get_range(name, start, min(start + _PIECE, size)))


class AttachmentJob(Protocol):
    """The attachments of one job: surveyed once it is known which samples are packed, laid out when
    it is known in which packs, and written with the shards.

    Attributes:
        root: directory that references to files are relative to.
        maker: makes the inputs that the store holds instead of files; None for files.
        layout: places of the attachments; None before ``lay_out``. Its ``of_samples(seq,
            sample_ids)`` is what the writer of a shard needs to know.
    """

    root: str
    maker: Any
    layout: Any

    def check_fit(self, table: LengthTable, settings: PlanSettings) -> None:
        """Refuse a sample whose attachments exceed a pack, unless such samples are dropped."""

    def remedy(self, table: LengthTable, sample_id: int) -> str | None:
        """Return settings that shorten the attachments of a sample, each with a comma after it;
        None without any.
        """

    def explained(self, *, is_measured_now: bool) -> AbstractContextManager[None]:
        """Add the remedy to errors of attachments that are not as they were measured."""

    def survey(self, is_wanted: BoolArray) -> None:
        """Read sizes and fingerprints of the attachments of samples: ``bool[num_samples]``."""

    def lay_out(self, plan: Plan, encoded: StoredSamples | None) -> None:
        """Decide the places of the attachments of a plan."""

    def packs_per_shard(self, limit: int, num_packs: int) -> int:
        """Return the packs of each shard: ``limit``, or fewer if their attachments are large."""

    @property
    def identity(self) -> dict[str, Any]:
        """Identity that two jobs must share to write the same attachments."""

    def expected(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Return the ``identity`` of a finished store, given the one in its header, ``facts``."""

    @property
    def notes(self) -> dict[str, Any]:
        """Notes of the header of the store."""

    def check_notes(self, facts: Mapping[str, Any]) -> None:
        """Refuse a store whose notes say that its attachments are elsewhere."""

    @property
    def is_small(self) -> bool:
        """True if one process stores the attachments faster than several."""

    def announce(self, shards: Sequence[int]) -> None:
        """Report the attachments of the shards to write, and check the space that they need."""

    def census(self, records: Sequence[ShardRecord]) -> Any:
        """Return the counts of the attachments in the packs."""


@dataclass(frozen=True)
class PackJob:
    """Everything that measuring, planning and writing of one job share.

    Attributes:
        source, encoder: of the samples.
        directory: of the packs; a path or a URL.
        settings: of the job, as given.
        store, log: of the packs.
    """

    source: Source
    encoder: Encoder
    directory: str
    settings: JobSettings
    store: BlobStore
    log: StreamLog

    @classmethod
    def open(
        cls,
        source: Source | Any,
        encoder: Encoder | Any,
        directory: AnyPath,
        settings: JobSettings,
        overflow: Overflow,
    ) -> PackJob:
        """Open the data and the directory of a job, and check that they fit its settings."""
        source = open_source(source, cache_dir=settings.cache_dir)
        if source.joins_rows:
            check_beginnings_stay(overflow)
        encoder = as_encoder(source, encoder)
        store = open_blob_store(directory)
        job = cls(source, encoder, os.fspath(directory), settings, store, StreamLog(store))
        _ = job.attached  # now, so that settings are refused before any work
        return job

    @cached_property
    def attached(self) -> AttachmentJob | None:
        """The attachments of the samples; None if the encoder takes none."""
        storage = self.settings.media_storage
        if storage == AttachmentStorage.REFERENCES and not self.encoder.takes_attachments:
            return None  # a job of texts loads nothing of attachments
        attached: AttachmentJob | None = loaded(ATTACHMENT_JOB)(self)
        return attached

    @cached_property
    def samples(self) -> EncodedSamples:
        """Samples of the source, encoded on request."""
        return EncodedSamples(self.source, self.encoder)

    @property
    def resources(self) -> Resources:
        """Means of every step that runs tasks."""
        return self.settings.resources

    @property
    def fingerprints(self) -> dict[str, Any]:
        """Identity of the samples."""
        return {"source": self.source.fingerprint, "encoder": self.encoder.fingerprint}

    def identity(self, plan: Plan, per_shard: int) -> dict[str, Any]:
        """Return the settings and fingerprints that two jobs must share to write the same files."""
        settings = plan.settings.identity(plan.outcome.groups)
        of_attachments = self.encoder.length_settings.get("media")
        return {
            **({"alignment": settings["alignment"]} if "alignment" in settings else {}),
            "settings": settings,
            "capacity": plan.capacity,
            "plan": plan.fingerprint,
            **self.fingerprints,
            "train_on": self.encoder.label_settings.get("train_on"),
            # Settings that the collator needs to make inputs for attachments.
            **({"media_settings": of_attachments} if of_attachments else {}),
            "lanes": LANES,
            "packs_per_shard": per_shard,
        }

    def claim(self, plan: Plan) -> int:
        """Claim the directory for the packs of a plan, and return its packs per shard.

        Raises:
            StoreMismatchError: it holds packs of another job, or of attachments in another
                directory.
        """
        per_shard = packs_per_shard(plan, self.settings.shard_bytes)
        notes, attached = dict(self.settings.notes or {}), self.attached
        if attached is None:
            self.log.claim(self.identity(plan, per_shard), notes)
            return per_shard
        per_shard = attached.packs_per_shard(per_shard, plan.num_packs)
        self.log.claim(
            {**self.identity(plan, per_shard), "media": attached.identity},
            {**notes, **attached.notes},
        )
        attached.check_notes(self.log.header()["notes"])
        return per_shard

    def expect(self, identity: Mapping[str, Any]) -> None:
        """Check that a store was made by this job, with this storage of attachments; does not read
        them.

        Raises:
            StoreMismatchError: it holds packs of another job.
        """
        expected = dict(identity)
        if self.attached is not None:
            expected.pop("packs_per_shard", None)  # useless without the sizes of attachments
            facts = self.log.header()["identity"].get("media", {})
            if facts:
                expected["media"] = self.attached.expected(facts)
        self.log.expect(expected)


def packs_per_shard(plan: Plan, shard_bytes: int) -> int:
    """Return the number of packs in one shard, at 4 bytes a token; at least one."""
    return max(1, min(shard_bytes // (4 * plan.capacity), plan.num_packs))
