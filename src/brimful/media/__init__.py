"""Images, videos and audio of samples: where their bytes are, what their headers say, and their
pixels.
"""

from brimful.media.medium import BadMediumError, MediaKind, Medium, PlacedMedium

__all__ = ["BadMediumError", "MediaKind", "Medium", "PlacedMedium"]
