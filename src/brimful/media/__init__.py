"""Images, videos and audio of samples: where their bytes are, what their headers say, and their pixels."""

from brimful.media.placed import PlacedMedium
from brimful.media.reference import BadMediumError, MediaKind, Medium

__all__ = ["BadMediumError", "MediaKind", "Medium", "PlacedMedium"]
