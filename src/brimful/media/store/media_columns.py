"""Media of a pack in columns of a shard: numbers of fixed size, digests and texts; and media as
JSON.

===================  ==============  =======================================================================
``media_numbers``    list<int64>     ``NUMBERS`` of each medium, medium by medium
``media_seconds``    list<float64>   seconds from one grid of a video to the next, NaN for none; empty if all are none
``media_runs``       list<int32>     first tokens of the runs of each medium, ``num_runs`` of them; none for the usual one run
``media_digests``    binary          XXH3-128 of the bytes of each medium, 16 bytes; zeros for an unknown one
``media_texts``      binary          name and path of each medium in UTF-8, of ``name_bytes`` and ``path_bytes``
===================  ==============  =======================================================================

Numbers of a medium:

====================================  ==========================================================================
``kind``                              0 image, 1 video, 2 audio
``segment``                           number of its segment
``start``, ``length``                 first of its tokens in the pack, and their number
``num_tokens``                        tokens among them whose embeddings come from a tower
``num_patches``                       patches of the vision tower
``grid_time``                         patches in time; 0 without a grid, as the two below
``grid_height``, ``grid_width``       patches in height and width
``num_frames``, ``num_mel_frames``    frames of a video, columns of a spectrogram
``num_runs``                          its numbers in ``media_runs``; 0 for one run that begins at ``start``
``name_bytes``, ``path_bytes``        bytes of name and path in ``media_texts``; no path for stored bytes
``container``                         number of the shard whose container holds the bytes; -1 for a reference
``offset``, ``size``                  its bytes in the container, or in the file at the path
====================================  ==========================================================================
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Any, NamedTuple

import numpy as np

from brimful.base.ragged import offsets_of
from brimful.base.tables import to_arrow, to_arrow_binary, to_numpy_dtype
from brimful.errors import CorruptFileError
from brimful.media.medium import MediaKind, Medium, PlacedMedium
from brimful.media.store.files import MediaFiles

NUMBERS = (
    "kind",
    "segment",
    "start",
    "length",
    "num_tokens",
    "num_patches",
    "grid_time",
    "grid_height",
    "grid_width",
    "num_frames",
    "num_mel_frames",
    "num_runs",
    "name_bytes",
    "path_bytes",
    "container",
    "offset",
    "size",
)
"""Numbers of a medium, in their order. ``kind`` counts image, video, audio; ``container`` is -1 for
a reference.
"""

COLUMNS = ("media_numbers", "media_seconds", "media_runs", "media_digests", "media_texts")
"""Columns of a shard, in the order in which they are written and enter the checksum of a row."""

ROW = Struct(f"={len(NUMBERS)}q")
"""Bytes of the numbers of one medium."""

KINDS = tuple(MediaKind)
"""Kinds by their number."""

_KIND_INDEX = {kind: number for number, kind in enumerate(KINDS)}

_NO_GRID = (0, 0, 0)
"""Grid of a medium without one: a real grid of patches is never empty."""

ONE_RUN = (0,)
"""Runs of a medium whose tokens are contiguous; not written."""

DIGEST_BYTES = 16
"""Bytes of the fingerprint of one medium."""

NO_DIGEST = bytes(DIGEST_BYTES)
"""Fingerprint of bytes that were not read."""

TEXT = ("utf-8", "surrogatepass")
"""Encoding of names: file names need not be Unicode, so a lone surrogate stands for a byte that is
not.
"""


class MediaCells(NamedTuple):
    """Cells of one pack, in the order of ``COLUMNS``: the bytes of their values."""

    rows: bytes = b""
    seconds: bytes = b""
    runs: bytes = b""
    digests: bytes = b""
    texts: bytes = b""


def cells_of(media: Iterable[PlacedMedium], root: str = "") -> MediaCells:
    """Return the cells of a pack.

    Args:
        media: in the order of their tokens.
        root: directory that the paths of files in it are relative to; empty for absolute ones.

    >>> from brimful.media import Medium
    >>> picture = PlacedMedium(Medium(MediaKind.IMAGE, "a", "/data/a", size=3), start=5, length=1, num_tokens=1)
    >>> cells = cells_of([picture], "/data")
    >>> cells.texts, dict(zip(NUMBERS, ROW.unpack(cells.rows)))["start"]
    (b'aa', 5)
    """
    packed_rows, texts, digests = bytearray(), bytearray(), bytearray()
    seconds: list[float] = []
    runs: list[int] = []
    for item in media:
        medium = item.medium
        assert medium.path or item.shard >= 0, "bytes that are in no file have to be stored"
        assert medium.size is not None, (
            "a reference without a size would hide that its file was cut short"
        )
        name, path = medium.name.encode(*TEXT), _relative_path(medium.path, root).encode(*TEXT)
        grid = item.grid or _NO_GRID
        packed_rows += ROW.pack(
            *(_KIND_INDEX[medium.kind], item.segment, item.start, item.length, item.num_tokens),
            *(
                item.num_patches,
                *grid,
                item.num_frames,
                item.num_mel_frames,
                len(item.runs) * (item.runs != ONE_RUN),
            ),
            *(len(name), len(path), item.shard, medium.offset, medium.size),
        )
        texts += name + path
        digests += bytes.fromhex(item.fingerprint) or NO_DIGEST
        seconds.append(math.nan if item.seconds_per_grid is None else item.seconds_per_grid)
        runs += item.runs if item.runs != ONE_RUN else ()
    if all(map(math.isnan, seconds)):
        seconds = []
    return MediaCells(
        bytes(packed_rows),
        np.array(seconds, dtype=np.float64).tobytes(),
        np.array(runs, dtype=np.int32).tobytes(),
        bytes(digests),
        bytes(texts),
    )


def _relative_path(path: str, root: str) -> str:
    """Return a path below a root relative to it, with slashes; any other path unchanged.

    >>> _relative_path("/data/pictures/a.png", "/data"), _relative_path("/database/a.png", "/data")
    ('pictures/a.png', '/database/a.png')
    """
    prefix = root.rstrip(os.sep) + os.sep
    return path[len(prefix) :].replace(os.sep, "/") if root and path.startswith(prefix) else path


def columns_of(cells: Sequence[MediaCells]) -> list[Any]:
    """Return the columns of some packs, as arrays of Arrow."""
    import pyarrow as pa

    columns = []
    for name, values in zip(COLUMNS, zip(*cells, strict=True), strict=True):
        field_type = column_types()[name]
        if field_type == pa.binary():
            columns.append(to_arrow_binary(values))
            continue
        flat = np.frombuffer(b"".join(values), dtype=to_numpy_dtype(field_type.value_type))
        offsets = offsets_of([len(value) // flat.itemsize for value in values]).astype(np.int32)
        columns.append(pa.ListArray.from_arrays(to_arrow(offsets), to_arrow(flat)))
    return columns


def column_types() -> dict[str, Any]:
    """Return the type of each column."""
    import pyarrow as pa

    types = (
        pa.list_(pa.int64()),
        pa.list_(pa.float64()),
        pa.list_(pa.int32()),
        pa.binary(),
        pa.binary(),
    )
    return dict(zip(COLUMNS, types, strict=True))


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
    rows = list(ROW.iter_unpack(values.rows))
    seconds = np.frombuffer(values.seconds, dtype=np.float64).tolist() or [math.nan] * len(rows)
    all_runs = np.frombuffer(values.runs, dtype=np.int32).tolist()
    media = []
    text = run = 0
    try:
        for index, row in enumerate(rows):
            kind, segment, start, length, num_tokens, num_patches, *grid = row[:9]
            num_frames, num_mel_frames, num_runs, name_bytes, path_bytes, *location = row[9:]
            shard, offset, size = location
            end_of_name = text + name_bytes
            name = values.texts[text:end_of_name].decode(*TEXT)
            path = values.texts[end_of_name : end_of_name + path_bytes].decode(*TEXT)
            if shard < 0:
                medium = Medium(KINDS[kind], name, os.path.join(files.root, path), offset, size)
            else:
                box = files.container(shard)
                medium = Medium(KINDS[kind], name, box.path, offset, size, container=box)
            digest = values.digests[DIGEST_BYTES * index : DIGEST_BYTES * (index + 1)]
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
                None if math.isnan(seconds[index]) else seconds[index],
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
        location = (medium.kind.value, medium.name, medium.path, medium.offset, medium.size)
        rows.append({"medium": location, **{name: getattr(item, name) for name in _FACTS}})
    return json.dumps(rows, separators=(",", ":")).encode()


def from_json(text: bytes) -> tuple[PlacedMedium, ...]:
    """Return the media of ``to_json``; none for an empty text."""
    media = []
    for values in json.loads(text) if text else ():
        kind, *location = values["medium"]
        values["medium"] = Medium(MediaKind(kind), *location)
        values["runs"] = tuple(values["runs"])
        if values["grid"] is not None:
            values["grid"] = tuple(values["grid"])
        media.append(PlacedMedium(**values))
    return tuple(media)
