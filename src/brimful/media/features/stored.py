"""Features of a medium that a pack store holds instead of its bytes."""

from brimful.errors import SettingsError
from brimful.media.features.block import Features, from_block
from brimful.media.features.trimmed import restored
from brimful.media.placed import PlacedMedium
from brimful.media.reference import BadMediumError
from brimful.typing import Fingerprint


def metadata_of(item: PlacedMedium, fingerprint: Fingerprint, settings: Fingerprint) -> dict[str, str]:
    """Return the metadata of a block: kind and fingerprint of the medium, and fingerprint of the settings."""
    return {"kind": item.medium.kind.value, "medium": fingerprint, "settings": settings}


def read_features(item: PlacedMedium, settings: Fingerprint) -> Features:
    """Return the features of a medium in a container of features, bit for bit as they were made.

    Args:
        item: of a pack of such a store.
        settings: fingerprint of the expected settings.

    Raises:
        BadMediumError: the block is damaged, or belongs to another medium.
        SettingsError: it was made with other settings.
    """
    features, metadata = from_block(item.medium.read())
    expected = metadata_of(item, item.fingerprint, settings)
    for name in ("kind", "medium"):
        if metadata.get(name) != expected[name]:
            raise BadMediumError(f"its features belong to another medium in {item.medium.path}: write the packs again")
    if metadata.get("settings") != settings:
        raise SettingsError(
            "its features were made with another processor, or other settings of it: give the processor that the packs "
            "were made with, or none"
        )
    return restored(features, item)
