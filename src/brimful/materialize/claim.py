"""A job that writes packs: its data, encoder and directory, and the claim of the directory for its packs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from brimful.blobs import BlobStore, open_blob_store
from brimful.checks import choice_of
from brimful.encode.choose import as_encoder
from brimful.encode.encoded_samples import EncodedSamples
from brimful.encode.encoder import Encoder
from brimful.errors import StoreMismatchError
from brimful.execute import Execution, as_execution
from brimful.materialize.feature_sizes import feature_facts, feature_maker
from brimful.materialize.media_layout import MediaLayout
from brimful.materialize.settings import JobSettings
from brimful.media.features import FeatureMaker
from brimful.media.storage import MediaStorage
from brimful.media.store import root_note
from brimful.messages import setting
from brimful.plan import Overflow, Plan
from brimful.plan.policies.groups import check_beginnings_stay
from brimful.progress import Progress
from brimful.shards import LANES, MEDIA_VERSION, StreamLog
from brimful.sources.open import open_source
from brimful.sources.source import Source


@dataclass(frozen=True)
class PackJob:
    """Everything that measuring, planning and writing of one job share.

    Attributes:
        source, encoder: of the samples.
        directory: of the packs; a path or a URL.
        settings: of the job, as given.
        storage, execution, progress: of the settings.
        store, log: of the packs.
        maker: of the features that the packs hold; None if they hold none.
    """

    source: Source
    encoder: Encoder
    directory: str
    settings: JobSettings
    storage: MediaStorage
    execution: Execution
    progress: Progress
    store: BlobStore
    log: StreamLog
    maker: FeatureMaker | None

    @classmethod
    def open(
        cls,
        source: Source | Any,
        encoder: Encoder | Any,
        directory: str | os.PathLike[str],
        settings: JobSettings,
        overflow: Overflow,
    ) -> PackJob:
        """Open the data and the directory of a job, and check that they fit its settings."""
        source = open_source(source, cache_dir=settings.cache_dir)
        if source.joins_rows:
            check_beginnings_stay(overflow)
        encoder = as_encoder(source, encoder)
        storage = choice_of(MediaStorage, settings.media_storage, argument="media_storage")
        maker = feature_maker(encoder, storage)
        execution, progress = as_execution(settings.execution), settings.progress or Progress()
        store = open_blob_store(directory)
        log = StreamLog(store)
        directory = os.fspath(directory)
        return cls(source, encoder, directory, settings, storage, execution, progress, store, log, maker)

    @cached_property
    def samples(self) -> EncodedSamples:
        """Samples of the source, encoded on request."""
        return EncodedSamples(self.source, self.encoder)

    @property
    def resources(self) -> dict[str, Any]:
        """Arguments of every step that runs tasks."""
        return {"num_proc": self.settings.num_proc, "execution": self.execution, "progress": self.progress}

    @property
    def fingerprints(self) -> dict[str, Any]:
        """Identity of the samples."""
        return {"source": self.source.fingerprint, "encoder": self.encoder.fingerprint}

    def identity(self, plan: Plan, per_shard: int) -> dict[str, Any]:
        """Return the settings and fingerprints that two jobs must share to write the same files."""
        settings = plan.settings.identity(plan.outcome.groups)
        media = self.encoder.length_settings.get("media")
        return {
            **({"alignment": settings["alignment"]} if "alignment" in settings else {}),
            "settings": settings,
            "capacity": plan.capacity,
            "plan": plan.fingerprint,
            **self.fingerprints,
            "train_on": self.encoder.label_settings.get("train_on"),
            # For media, the settings that the collator needs: MediaFeatures.of_packs.
            **({"media_settings": media} if media else {}),
            "lanes": LANES,
            "packs_per_shard": per_shard,
        }

    def claim(self, plan: Plan, layout: MediaLayout | None) -> int:
        """Claim the directory for the packs of a plan, and return its packs per shard.

        Raises:
            StoreMismatchError: it holds packs of another job, or of media in another directory.
        """
        per_shard = packs_per_shard(plan, self.settings.shard_bytes)
        notes = dict(self.settings.notes or {})
        if layout is None:
            self.log.begin(self.identity(plan, per_shard), notes)
            return per_shard
        per_shard = layout.packs_per_shard(per_shard, plan.num_packs)
        note = root_note(self.store, media_root_of(self.source)) if layout.num_references else {}
        media: dict[str, Any] = {
            "storage": layout.storage.value,
            "fingerprint": layout.fingerprint,
            "shards": MEDIA_VERSION,
        }
        if layout.features is not None:
            media["features"] = dict(layout.features)
        self.log.begin({**self.identity(plan, per_shard), "media": media}, {**notes, **note})
        # References are relative to the root of the job that began the store, which may have been moved with its media.
        begun = self.log.header()["notes"]
        for name, root in note.items():
            if not set(root.items()) & set(begun.get(name, {}).items()):
                raise StoreMismatchError(
                    f"{self.store.url} names media in {begun.get(name, {}).get('path')!r} and the job has them in "
                    f"{root['path']!r}: choose another {setting('directory')}, or {setting('media_dir')} as before"
                )
        return per_shard

    def expect(self, identity: Mapping[str, Any]) -> None:
        """Check that a store was made by this job, with this storage of media; does not read the media.

        Raises:
            StoreMismatchError: it holds packs of another job.
        """
        expected = dict(identity)
        if self.encoder.takes_media:
            expected.pop("packs_per_shard", None)  # useless without the sizes of media
            media = self.log.header()["identity"].get("media", {})
            if media:
                features = {} if self.maker is None else {"features": feature_facts(self.maker)}
                expected["media"] = {**media, "storage": self.storage.value, **features}
        self.log.expect(expected)


def packs_per_shard(plan: Plan, shard_bytes: int) -> int:
    """Return the number of packs in one shard, at 4 bytes a token; at least one."""
    return max(1, min(shard_bytes // (4 * plan.capacity), plan.num_packs))


def media_root_of(source: Source) -> str:
    """Return the common directory of all media of a source, as its rows are placed; empty if it is only the root."""
    try:
        root = os.path.commonpath(source.media_directories)
    except ValueError:  # none, or on several drives
        return ""
    return "" if os.path.dirname(root) == root else root
