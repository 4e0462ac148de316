"""Choice of what a pack store holds of its media."""

from enum import Enum


class MediaStorage(str, Enum):
    """What a pack store holds of the media that lie in files. Bytes that came with rows it holds always."""

    REFERENCES = "references"
    """Path, offset, size and fingerprint; the files have to be there when packs are read."""
    BYTES = "bytes"
    """Their bytes, each distinct medium once: the store is complete by itself."""
