"""Former place of ``brimful.media.collate``, which scripts of users may name."""

from brimful.media.collate import MediaFeatures as MediaFeatures
