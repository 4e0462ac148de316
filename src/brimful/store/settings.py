"""Settings of a job that writes packs, with their help."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from brimful.base.arguments import option
from brimful.base.attachment import AttachmentStorage
from brimful.measure.measure_settings import SampleSettings

SHARD_BYTES = 64 << 20
"""Target size of a shard in bytes: few files, and small enough to build in memory."""


@dataclass(frozen=True, kw_only=True)
class JobSettings(SampleSettings):
    """Settings of a job that writes packs; none of them changes the plan but ``filters`` and ``on_bad_sample``.

    Attributes:
        on_bad_sample, filters: as for ``measure_lengths``.
        media_storage: how the store holds media in files: ``references``, ``bytes`` or ``features``. Bytes are stored
            once for each distinct medium; bytes that came with rows are always stored.
        shard_bytes: target size of a shard.
        notes: information for users, such as the name of the tokenizer; kept in the header, not compared.
        num_proc: processes; all cores if None, one for small jobs. Never changes a byte.
        cache_dir: directory of finished blocks and of fingerprints of files.
        execution: ``ray``, for a cluster, or an ``Execution``, for one share of the shards. All machines must see the
            source, the plan and the directory.
        progress: reports samples, packs and tokens per second and the remaining time.
    """

    media_storage: AttachmentStorage | str = option(
        AttachmentStorage.REFERENCES,
        "What packs hold of media in files: path and fingerprint; their bytes; or the processor's features. Distinct "
        "bytes and features are stored once.",
        None,
        "--media",
    )
    shard_bytes: int = SHARD_BYTES
    notes: Mapping[str, Any] | None = None
