"""Stores with media of older versions open, and hold the media that they held."""

import json
import shutil
from pathlib import Path

import pytest

from brimful import check_store, open_packs
from brimful.errors import StoreMismatchError, UnfinishedStoreError
from brimful.fingerprint import fingerprint_bytes
from tests.golden import make_media
from tests.golden.test_golden import normalised

FORMATS = sorted(Path(__file__).parent.glob("media_*"))
STORES = [(path, name) for path in FORMATS for name in ("references", "bytes") if (path / name).is_dir()]

COUNTS = {
    "count": 14,
    "bytes": 794,
    "distinct": 4,
    "tokens": 66,
    "patches": 264,
    "frames": 0,
    "mel_frames": 0,
    "largest": {"name": "pictures/p0.png", "sample": 0, "tokens": 6, "patches": 24},
}
"""Pictures of the stores of versions 3 and 4."""


@pytest.fixture
def golden(request, tmp_path, monkeypatch):
    """A copy of the files of one version, as the working directory."""
    shutil.copytree(request.param, tmp_path / "golden")
    monkeypatch.chdir(tmp_path / "golden")
    return tmp_path / "golden"


def everything(directory):
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for folder in ("shards", "media")
        for path in sorted((directory / folder).glob("*"))
    }


def test_there_are_golden_files():
    """An empty folder would pass every other test here."""
    assert [(path.name, store) for path, store in STORES] == [
        ("media_2", "references"),
        ("media_3", "references"),
        ("media_3", "bytes"),
        ("media_4", "references"),
        ("media_4", "bytes"),
    ]


@pytest.mark.parametrize(
    ("golden", "store"), STORES, indirect=["golden"], ids=lambda value: getattr(value, "name", value)
)
def test_finished_stores_open(golden, store):
    """Without it an update of brimful would cost every packed data set with pictures."""
    expected = json.loads((golden / "expected.json").read_text())["stores"][store]
    packs = open_packs(store)
    assert normalised(make_media.contents_of_media(packs)) == expected
    for pack in packs:
        for item in pack.media:
            # References of version 2 are absolute paths: their files lay elsewhere.
            if golden.parent in Path(item.medium.path).parents or not item.medium.path:
                assert fingerprint_bytes(item.read()) == item.fingerprint


@pytest.mark.parametrize(
    ("golden", "store", "known"),
    [
        (FORMATS[0], "references", {}),
        (FORMATS[1], "references", {"image": COUNTS}),
        (FORMATS[1], "bytes", {"image": COUNTS}),
        (FORMATS[2], "references", {"image": COUNTS}),
        (FORMATS[2], "bytes", {"image": COUNTS}),
    ],
    indirect=["golden"],
    ids=lambda value: getattr(value, "name", None),
)
def test_the_census_of_older_stores_is_what_they_say(golden, store, known):
    """Version 2 has none, the records of later ones have all; nothing is made up, or read for it."""
    shutil.rmtree(Path(store, "shards"))
    census = open_packs(store).media
    assert census.as_dict()["kinds"] == known
    assert len(census.lines()) == (3 if known else 0)


@pytest.mark.parametrize("golden", FORMATS[1:], indirect=True)
def test_moved_stores_are_whole(golden):
    """From version 3 on a store that is moved with its pictures finds them."""
    for store in ("references", "bytes"):
        assert check_store(store).media == len(json.loads(Path("expected.json").read_text())["stores"][store]["media"])


@pytest.mark.parametrize("golden", FORMATS[:1], indirect=True)
def test_the_same_job_accepts_a_finished_store_of_version_2(golden):
    """Without it the command that made a store would refuse it, or write it anew; another storage is another store."""
    before = everything(golden / "references")
    make_media.pack("references")
    assert everything(golden / "references") == before
    with pytest.raises(StoreMismatchError, match=r"media storage \(None there, bytes now\)"):
        make_media.pack("references", media_storage="bytes")


@pytest.mark.parametrize("golden", FORMATS[1:], indirect=True)
def test_interrupted_stores_are_finished(golden):
    """Without it a job that was stopped for an update could not go on, or would end with other files."""
    with pytest.raises(UnfinishedStoreError, match=r"\d shards? with \d packs so far"):
        open_packs("interrupted")
    make_media.pack("interrupted", media_storage="bytes")
    assert everything(golden / "interrupted") == everything(golden / "bytes")
    make_media.pack("references")
