"""Choice of what a pack store holds of its media."""

from enum import Enum


class MediaStorage(str, Enum):
    """Storage of the media that lie in files. Bytes that came with rows are in the store always."""

    REFERENCES = "references"
    """Path, offset, size and fingerprint; the files have to be there when packs are read."""
    BYTES = "bytes"
    """Their bytes, each distinct medium once: the store is complete by itself."""
    FEATURES = "features"
    """Arrays that the model's processor makes of them, each distinct picture once: training needs neither media nor processor."""
