"""Images, videos and audio of samples: where their bytes are, what their headers say, and their pixels."""

from brimful.media.placed import PlacedMedium, media_of_segment
from brimful.media.reference import BadMediumError, MediaKind, Medium

__all__ = ["BadMediumError", "MediaKind", "Medium", "PlacedMedium", "media_of_segment"]
