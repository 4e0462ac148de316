"""Files that hold media, by the endings of their names."""

from collections.abc import Mapping

from brimful.media import MediaKind

MEDIA_ENDINGS: Mapping[str, MediaKind] = {
    **dict.fromkeys(
        ("jpg", "jpeg", "jfif", "png", "webp", "gif", "bmp", "tif", "tiff", "ppm", "pgm", "jp2", "heic", "avif"),
        MediaKind.IMAGE,
    ),
    **dict.fromkeys(("mp4", "m4v", "mov", "avi", "mkv", "webm", "mpg", "mpeg", "flv", "wmv"), MediaKind.VIDEO),
    **dict.fromkeys(("wav", "flac", "mp3", "ogg", "opus", "m4a", "aac", "wma"), MediaKind.AUDIO),
}
"""Kind of medium by the ending of a file's name, in lower case. A fixed table: that of a machine may differ."""

COLUMN_OF_KIND: Mapping[MediaKind, str] = {kind: f"{kind.value}s" for kind in MediaKind}
"""Column that rows get for media that have their name and that they do not name themselves."""


def media_kind(name: str) -> MediaKind | None:
    """Return the kind of medium in a file, judged by its name; None for other files.

    >>> media_kind("a.b.JPG"), media_kind("a.json") is None, media_kind("jpg") is None
    (<MediaKind.IMAGE: 'image'>, True, True)
    """
    stem, dot, ending = name.rpartition(".")
    return MEDIA_ENDINGS.get(ending.lower()) if stem and dot else None
