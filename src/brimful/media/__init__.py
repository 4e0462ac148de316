"""Pictures, videos and sounds of samples: where their bytes are, what their headers say, and their pixels."""

from brimful.media.reference import BadMediumError, MediaKind, Medium

__all__ = ["BadMediumError", "MediaKind", "Medium"]
