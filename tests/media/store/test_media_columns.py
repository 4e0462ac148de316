"""Numbers of a medium as every version writes them: shards of equal packs have equal bytes."""

import numpy as np
import pytest

from brimful.media import MediaKind, Medium, PlacedMedium
from brimful.media.store.media_columns import NUMBERS, ROW, _relative_path, cells_of

SOUND = PlacedMedium(
    Medium(MediaKind.AUDIO, "ä", "/data/b", offset=7, size=9),
    start=3,
    length=2,
    num_tokens=1,
    num_mel_frames=8,
    segment=1,
)
VIDEO = PlacedMedium(
    Medium(MediaKind.VIDEO, "v", data=b"abc"),
    start=5,
    length=6,
    num_tokens=4,
    num_patches=16,
    grid=(2, 4, 2),
    num_frames=4,
    runs=(0, 3),
    seconds_per_grid=0.5,
    fingerprint="0f" * 16,
)


def test_every_number_has_its_place():
    cells = cells_of([SOUND, VIDEO.in_container(6, 512, 3)], "/data")
    rows = [dict(zip(NUMBERS, numbers, strict=True)) for numbers in ROW.iter_unpack(cells.rows)]
    assert rows == [
        {
            "kind": 2, "segment": 1, "start": 3, "length": 2, "num_tokens": 1, "num_patches": 0, "grid_time": 0,
            "grid_height": 0, "grid_width": 0, "num_frames": 0, "num_mel_frames": 8, "num_runs": 0, "name_bytes": 2,
            "path_bytes": 1, "container": -1, "offset": 7, "size": 9,
        },
        {
            "kind": 1, "segment": 0, "start": 5, "length": 6, "num_tokens": 4, "num_patches": 16, "grid_time": 2,
            "grid_height": 4, "grid_width": 2, "num_frames": 4, "num_mel_frames": 0, "num_runs": 2, "name_bytes": 1,
            "path_bytes": 0, "container": 6, "offset": 512, "size": 3,
        },
    ]  # fmt: skip
    assert [row[-3:] for row in ROW.iter_unpack(cells.rows)] == [(-1, 7, 9), (6, 512, 3)]
    assert cells.texts == "äbv".encode()
    assert cells.digests == bytes(16) + b"\x0f" * 16
    assert np.frombuffer(cells.runs, np.int32).tolist() == [0, 3]
    assert np.frombuffer(cells.seconds).tolist() == pytest.approx([np.nan, 0.5], nan_ok=True)


def test_what_no_medium_has_is_not_written():
    """Empty cells take no room: most packs have pictures alone."""
    cells = cells_of([SOUND], "/data")
    assert (cells.seconds, cells.runs) == (b"", b"")
    assert cells_of([]) == (b"",) * 5


def test_paths_outside_of_the_root_stay_absolute():
    """A name that begins alike is not a directory above."""
    assert [_relative_path(path, "/a") for path in ("/a/b.png", "/ab.png", "/c/d.png")] == [
        "b.png",
        "/ab.png",
        "/c/d.png",
    ]
    assert _relative_path("/a/b.png", "") == "/a/b.png"
