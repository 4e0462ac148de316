"""Media of packs in shards: what was written is read, also what earlier versions wrote."""

import json

from brimful.media import MediaKind, Medium, PlacedMedium
from brimful.shards.pack_media import PackMedium, media_from_json, media_to_json


def resolve(kind, name, place):
    return Medium(kind, name, place["path"], place["offset"], place["size"])


def test_runs_and_seconds_of_a_video_come_back():
    """Positions follow from them."""
    video = Medium(MediaKind.VIDEO, "a.mp4", path="/a.mp4", offset=3, size=9)
    item = PlacedMedium(
        video, start=1, length=12, num_tokens=8, grid=(2, 4, 4), num_frames=4, runs=(2, 8), seconds_per_grid=0.7
    )
    assert media_from_json(media_to_json([PackMedium(item)]), resolve) == (item,)


def test_json_of_an_earlier_version_is_read():
    """It knew neither: one run at the beginning, and no seconds."""
    picture = Medium(MediaKind.IMAGE, "a.png", path="/a.png", offset=0, size=9)
    item = PlacedMedium(picture, start=1, length=2, num_tokens=2, grid=(1, 2, 4))
    (row,) = json.loads(media_to_json([PackMedium(item)]))
    del row["runs"], row["seconds_per_grid"]
    assert media_from_json(json.dumps([row]).encode(), resolve) == (item,)
