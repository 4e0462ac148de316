"""Media of a pack of a shard, from the columns of the shard; and media as JSON."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Sequence

import numpy as np

from brimful.errors import CorruptFileError
from brimful.media.medium import MediaKind, Medium, PlacedMedium
from brimful.media.store.files import MediaFiles
from brimful.media.store.media_columns import (
    DIGEST_BYTES,
    KINDS,
    NO_DIGEST,
    ONE_RUN,
    ROW,
    TEXT,
    MediaCells,
)


def stored(cells: Sequence[bytes], files: MediaFiles) -> tuple[PlacedMedium, ...]:
    """Return the media of a pack of a shard.

    Args:
        cells: of the pack.
        files: of its media.

    Raises:
        CorruptFileError: a container is missing or has another size than was committed; or values
            that a writer never writes.
    """
    if not cells[0]:
        return ()
    values = MediaCells._make(cells)
    rows = list(ROW.iter_unpack(values.numbers))
    seconds = np.frombuffer(values.seconds, dtype=np.float64).tolist() or [math.nan] * len(rows)
    all_runs = np.frombuffer(values.runs, dtype=np.int32).tolist()
    media = []
    text = run = 0
    try:
        for number, row in enumerate(rows):
            kind, segment, start, length, num_tokens, num_patches, *grid = row[:9]
            num_frames, num_mel_frames, num_runs, name_bytes, path_bytes, *place = row[9:]
            shard, offset, size = place
            end_of_name = text + name_bytes
            name = values.texts[text:end_of_name].decode(*TEXT)
            path = values.texts[end_of_name : end_of_name + path_bytes].decode(*TEXT)
            if shard < 0:
                medium = Medium(KINDS[kind], name, os.path.join(files.root, path), offset, size)
            else:
                box = files.container(shard)
                medium = Medium(KINDS[kind], name, box.path, offset, size, container=box)
            digest = values.digests[DIGEST_BYTES * number : DIGEST_BYTES * (number + 1)]
            item = PlacedMedium(
                medium,
                start,
                length,
                num_tokens,
                num_patches,
                (grid[0], grid[1], grid[2]) if grid[0] else None,
                num_frames,
                num_mel_frames,
                tuple(all_runs[run : run + num_runs]) or ONE_RUN,
                None if math.isnan(seconds[number]) else seconds[number],
                segment,
                "" if digest == NO_DIGEST else digest.hex(),
            )
            media.append(item)
            text, run = end_of_name + path_bytes, run + num_runs
    except (ValueError, IndexError) as error:
        raise CorruptFileError(f"the media of a pack cannot be read: {error}") from error
    return tuple(media)


_FACTS = tuple(name for name in PlacedMedium.__dataclass_fields__ if name != "medium")


def to_json(media: Iterable[PlacedMedium]) -> bytes:
    """Return the media of one sample without their bytes, for tokens that a job keeps.

    >>> item = PlacedMedium(Medium(MediaKind.IMAGE, "a"), start=1, length=2, num_tokens=2, grid=(1, 2, 4))
    >>> from_json(to_json([item])) == (item,)
    True
    """
    rows = []
    for item in media:
        medium = item.medium
        place = (medium.kind.value, medium.name, medium.path, medium.offset, medium.size)
        rows.append({"medium": place, **{name: getattr(item, name) for name in _FACTS}})
    return json.dumps(rows, separators=(",", ":")).encode()


def from_json(text: bytes) -> tuple[PlacedMedium, ...]:
    """Return the media of ``to_json``; none for an empty text."""
    media = []
    for values in json.loads(text) if text else ():
        kind, *place = values["medium"]
        values["medium"] = Medium(MediaKind(kind), *place)
        values["runs"] = tuple(values["runs"])
        if values["grid"] is not None:
            values["grid"] = tuple(values["grid"])
        media.append(PlacedMedium(**values))
    return tuple(media)
