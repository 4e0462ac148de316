"""Stores with media that were written before open, and hold the media that they held."""

import json
import shutil
from pathlib import Path

import pytest

from brimful import open_packs
from brimful.base.fingerprint import fingerprint_bytes
from brimful.errors import StoreMismatchError, UnfinishedStoreError
from brimful.report.store_check import check_store
from tests.golden import make_media
from tests.golden.test_golden import normalised

FOLDER = Path(__file__).parent / "media_4"
STORES = ("references", "bytes")

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
"""Pictures of both stores."""


@pytest.fixture
def golden(tmp_path, monkeypatch):
    """A copy of the files, as the working directory."""
    shutil.copytree(FOLDER, tmp_path / "golden")
    monkeypatch.chdir(tmp_path / "golden")
    return tmp_path / "golden"


def everything(directory):
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for folder in ("shards", "media")
        for path in sorted((directory / folder).glob("*"))
    }


@pytest.mark.parametrize("store", STORES)
def test_finished_stores_open(golden, store):
    """Without it an update of brimful would cost every packed data set with pictures."""
    expected = json.loads((golden / "expected.json").read_text())["stores"][store]
    packs = open_packs(store)
    assert normalised(make_media.contents_of_media(packs)) == expected
    for pack in packs:
        for item in pack.attachments:
            assert fingerprint_bytes(item.read()) == item.fingerprint


@pytest.mark.parametrize("store", STORES)
def test_the_census_needs_the_log_alone(golden, store):
    """Nothing is made up, or read for it."""
    shutil.rmtree(Path(store, "shards"))
    census = open_packs(store).census
    assert census.as_dict()["kinds"] == {"image": COUNTS}
    assert len(census.lines()) == 3


def test_moved_stores_are_whole(golden):
    """A store that is moved with its pictures finds them."""
    for store in STORES:
        assert check_store(store).media == len(json.loads(Path("expected.json").read_text())["stores"][store]["media"])


def test_another_storage_is_another_store(golden):
    with pytest.raises(StoreMismatchError, match=r"media storage \(references there, bytes now\)"):
        make_media.pack("references", media_storage="bytes")


def test_interrupted_stores_are_finished(golden):
    """Without it a job that was stopped for an update could not go on, or would end with other files."""
    with pytest.raises(UnfinishedStoreError, match=r"\d shards? with \d packs so far"):
        open_packs("interrupted")
    make_media.pack("interrupted", media_storage="bytes")
    assert everything(golden / "interrupted") == everything(golden / "bytes")
    make_media.pack("references")
