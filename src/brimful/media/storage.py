"""Choice of how a pack store holds its media."""

from enum import Enum


class MediaStorage(str, Enum):
    """Storage of media that are in files. Bytes that came with rows are always in the store."""

    REFERENCES = "references"
    """Path, offset, size and fingerprint; the files must exist when packs are read."""
    BYTES = "bytes"
    """Their bytes, each distinct medium once: the store is complete."""
    FEATURES = "features"
    """Arrays from the model's processor, each distinct medium once: training needs neither media nor processor."""
