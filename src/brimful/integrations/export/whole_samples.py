"""The samples of packs, for layouts that hold texts: each segment must be a whole sample."""

from typing import Any

from brimful.base.wording import setting
from brimful.errors import SettingsError, StoreMismatchError
from brimful.plan import Overflow
from brimful.serve import Pack
from brimful.sources import Source, open_source
from brimful.store.shards.pack import FingerprintedPacks

_CUTS = (Overflow.TRUNCATE.value, Overflow.TRUNCATE_LEFT.value, Overflow.SPLIT.value)


def source_of_packs(source: Any, packs: FingerprintedPacks) -> Source:
    """Return the source of some packs, open.

    Args:
        source: the samples, or anything that ``open_source`` takes.
        packs: packs that were made of it.

    Raises:
        StoreMismatchError: the packs were made of other data.
        SettingsError: the plan cut samples.
    """
    samples = source if isinstance(source, Source) else open_as_packed(source, packs)
    identity = getattr(packs, "identity", None)
    if identity is not None:
        if identity["source"] != samples.fingerprint:
            raise StoreMismatchError(
                f"{samples.title} is not the data that was packed, or was changed since: name that as {setting('source')}, "
                "several in the order in which they were packed"
            )
        overflow = identity.get("settings", {}).get("overflow")
        if overflow in _CUTS:
            raise SettingsError(
                f"the packs were planned with {setting('overflow', overflow)}, and a text cannot be cut at a token: "
                f"pack again with {setting('overflow', 'drop')}"
            )
    return samples


def open_as_packed(data: Any, packs: FingerprintedPacks, **options: Any) -> Source:
    """Open data as it was opened for packing: with its media, or without them if the packs were packed so.

    Args:
        data: anything that ``open_source`` takes.
        packs: packs that were made of it.
        options: of ``open_source``.
    """
    samples = open_source(data, media=True, **options)
    identity = getattr(packs, "identity", None)
    if identity is not None and identity["source"] != samples.fingerprint and options.get("media_dir") is None:
        plain_samples = open_source(data, **options)
        if identity["source"] == plain_samples.fingerprint:
            return plain_samples
    return samples


def check_whole(pack: Pack, index: int) -> None:
    """Refuse a pack with a part of a sample.

    Raises:
        SettingsError: names pack and sample.
    """
    if pack.starts.any():
        sample_id = int(pack.sample_ids[pack.starts.argmax()])
        raise SettingsError(
            f"pack {index} holds a part of sample {sample_id}, and a text cannot be cut at a token: pack again with "
            f"{setting('overflow', 'drop')}"
        )
