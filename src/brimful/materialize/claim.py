"""Claim of a directory for the packs of one job, and the identity that two jobs must share to write the same files."""

import os
from collections.abc import Mapping
from typing import Any

from brimful.encode.encoder import Encoder
from brimful.errors import StoreMismatchError
from brimful.materialize.feature_sizes import feature_facts
from brimful.materialize.media_layout import MediaLayout
from brimful.media.features import FeatureMaker
from brimful.media.storage import MediaStorage
from brimful.messages import setting
from brimful.plan import Plan
from brimful.shards import (
    LANES,
    MEDIA_VERSION,
    StreamLog,
    root_note,
)
from brimful.sources.source import Source


def packs_per_shard(plan: Plan, shard_bytes: int) -> int:
    """Return the number of packs in one shard, at 4 bytes a token; at least one."""
    return max(1, min(shard_bytes // (4 * plan.capacity), plan.num_packs))


def identity_of(plan: Plan, source: Source, encoder: Encoder, per_shard: int) -> dict[str, Any]:
    """Return the settings and fingerprints that two jobs must share to write the same files."""
    settings = plan.settings.identity(plan.outcome.groups)
    return {
        **({"alignment": settings["alignment"]} if "alignment" in settings else {}),
        "settings": settings,
        "capacity": plan.capacity,
        "plan": plan.fingerprint,
        "source": source.fingerprint,
        "encoder": encoder.fingerprint,
        "train_on": encoder.label_settings.get("train_on"),
        # For media, the settings that the collator needs: MediaFeatures.of_packs.
        **(
            {"media_settings": settings_of_media} if (settings_of_media := encoder.length_settings.get("media")) else {}
        ),
        "lanes": LANES,
        "packs_per_shard": per_shard,
    }


def claim_store(
    log: StreamLog,
    plan: Plan,
    source: Source,
    encoder: Encoder,
    *,
    shard_bytes: int,
    notes: dict[str, Any] | None,
    layout: MediaLayout | None,
) -> int:
    """Claim the directory of a store for a job, and return its packs per shard.

    Raises:
        StoreMismatchError: it holds packs of another job, or of media in another directory.
    """
    per_shard = packs_per_shard(plan, shard_bytes)
    if layout is None:
        log.begin(identity_of(plan, source, encoder, per_shard), notes or {})
        return per_shard
    per_shard = layout.packs_per_shard(per_shard, plan.num_packs)
    note = root_note(log.store, media_root_of(source)) if layout.num_references else {}
    media: dict[str, Any] = {
        "storage": layout.storage.value,
        "fingerprint": layout.fingerprint,
        "shards": MEDIA_VERSION,
    }
    if layout.features is not None:
        media["features"] = dict(layout.features)
    log.begin({**identity_of(plan, source, encoder, per_shard), "media": media}, {**(notes or {}), **note})
    # References are relative to the root of the job that began the store, which may have been moved with its media.
    begun = log.header()["notes"]
    for name, root in note.items():
        if not set(root.items()) & set(begun.get(name, {}).items()):
            raise StoreMismatchError(
                f"{log.store.url} names media in {begun.get(name, {}).get('path')!r} and the job has them in "
                f"{root['path']!r}: choose another {setting('directory')}, or {setting('media_dir')} as before"
            )
    return per_shard


def expect_media(
    log: StreamLog, identity: Mapping[str, Any], storage: MediaStorage, maker: FeatureMaker | None = None
) -> None:
    """Check that a store was made by this job, with this storage of media; does not read the media.

    Raises:
        StoreMismatchError: it holds packs of another job.
    """
    media = log.header()["identity"].get("media", {})
    features = {} if maker is None else {"features": feature_facts(maker)}
    expected = {**identity, **({"media": {**media, "storage": storage.value, **features}} if media else {})}
    expected.pop("packs_per_shard", None)  # useless without the sizes of media
    log.expect(expected)


def media_root_of(source: Source) -> str:
    """Return the common directory of all media of a source, as its rows are placed; empty if it is only the root."""
    try:
        root = os.path.commonpath(source.media_directories)
    except ValueError:  # none, or on several drives
        return ""
    return "" if os.path.dirname(root) == root else root
