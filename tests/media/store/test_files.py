"""Files of media next to shards."""

import json
import tarfile
from dataclasses import replace

import numpy as np
import pytest

from brimful.base.blobs import open_blob_store
from brimful.errors import CorruptFileError
from brimful.media import BadMediumError, MediaKind, Medium, PlacedMedium
from brimful.media.store import (
    ContainerWriter,
    MediaCensus,
    MediaFiles,
    check_of,
    container_ends,
    padded,
    recorded_root,
    root_note,
)
from brimful.store.shards import ShardRecord
from brimful.testing.toys import toy_pack

SUMS = {"distinct": 2, "tokens": 0, "patches": 0, "frames": 0, "mel_frames": 0, "largest": None}


def written(folder, *contents):
    store = open_blob_store(folder)
    with store.blob("media") as blob:
        writer = ContainerWriter("media/0", lambda _: blob)
        offsets = [writer.add(f"{number}.PNG", f"{number:032x}", content) for number, content in enumerate(contents)]
        writer.close(lambda *_: blob.publish("media/0.tar"))
    facts = {"file": "media/0.tar", "bytes": blob.size, "xxh3_128": "", "stored": len(contents)}
    facts["items"] = {"image": {"count": len(contents), "bytes": sum(map(len, contents)), **SUMS}}
    return store, [ShardRecord(0, "shards/0", 1, "", 1, 1, 1, 1, "me", media=facts)], offsets


def test_any_tar_reader_opens_a_container(tmp_path):
    """Data in a format that only we can read would be a trap; and its layout is known before it is written."""
    contents = [b"abc", b"", b"x" * 513]
    _, _, offsets = written(tmp_path, *contents)
    sizes = np.array([*map(len, contents)])
    assert offsets == (container_ends(sizes) - padded(sizes)).tolist()
    with tarfile.open(tmp_path / "media" / "0.tar") as tar:
        assert tar.getnames() == [f"{number:032x}.png" for number in range(3)]
        assert [tar.extractfile(member).read() for member in tar] == contents
        assert [member.offset_data for member in tar] == offsets


def test_a_medium_is_read_by_its_range(tmp_path):
    """With the container, or with path, offset and size alone."""
    store, records, offsets = written(tmp_path, b"abc", b"defg")
    container = MediaFiles(store, records, "").container(0)
    medium = Medium(MediaKind.IMAGE, "a", container.path, offsets[1], 4, container=container)
    assert medium.read() == b"defg"
    assert (tmp_path / "media/0.tar").read_bytes()[medium.offset :][: medium.size] == b"defg"
    census = MediaCensus.of(records, directory="d")
    assert (census.kinds["image"].count, census.num_stored, census.containers) == (2, 2, 1)
    assert census.lines()[-1] == "media in       2 distinct in 1 file of d/media (3.07 kB)"


def test_containers_behind_a_url_are_read_by_range(tmp_path, monkeypatch):
    """A picture of an object store must not cost a whole container."""
    store, records, offsets = written(tmp_path, b"abc", b"defg")
    asked = []
    real = type(store).get_range
    monkeypatch.setattr(type(store), "local_path", lambda self, key: None)
    monkeypatch.setattr(type(store), "get_range", lambda *args: asked.append(args[1:]) or real(*args))
    assert MediaFiles(store, records, "").container(0).read(offsets[1], 4) == b"defg"
    assert asked == [("media/0.tar", offsets[1], offsets[1] + 4)]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (lambda path: path.unlink(), "0.tar is missing and was committed with"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "was committed with"),
    ],
)
def test_a_container_that_is_not_whole_is_refused_before_it_is_used(tmp_path, fault, message):
    """Its size is held against the log at the first medium of it."""
    store, records, _ = written(tmp_path, b"abc")
    fault(tmp_path / "media" / "0.tar")
    with pytest.raises(CorruptFileError, match=message):
        MediaFiles(store, records, "").container(0)


def test_a_container_that_is_cut_while_it_is_open(tmp_path):
    """No SIGBUS, and no short picture."""
    store, records, offsets = written(tmp_path, b"abc")
    container = MediaFiles(store, records, "").container(0)
    assert container.read(offsets[0], 3) == b"abc"
    with open(tmp_path / "media" / "0.tar", "r+b") as file:
        file.truncate(offsets[0] + 1)
    with pytest.raises(BadMediumError, match=r"0.tar ends at byte 513: write the packs again"):
        container.read(offsets[0], 3)


def test_files_of_packs_are_held_against_their_fingerprints(tmp_path):
    """Each is read once, those in containers not at all; a changed one is named with its sample and its path."""
    path = tmp_path / "a.png"
    path.write_bytes(b"abc")
    medium = Medium(MediaKind.IMAGE, "a.png", str(path), size=3)
    item = PlacedMedium(medium, 0, 1, num_tokens=1, fingerprint=medium.fingerprint())
    store, records, offsets = written(tmp_path, b"abc")
    container = MediaFiles(store, records, "").container(0)
    held = Medium(MediaKind.IMAGE, "b", container.path, offsets[0], 3, container=container)
    pack = replace(
        toy_pack([1, 1], first_sample=7), attachments=(item, replace(item, medium=held, fingerprint="0" * 32))
    )
    check = check_of(MediaFiles(store, records, ""))
    check.check(pack, "pack 0")
    path.unlink()
    check.check(pack, "pack 1")
    assert check.num_checked == 4
    path.write_bytes(b"abd")
    with pytest.raises(CorruptFileError, match=rf"^pack 2: sample 8, image 'a.png': was changed .* \({path}\)$"):
        check_of(MediaFiles(store, records, "")).check(replace(pack, attachments=(replace(item, segment=1),)), "pack 2")


def test_a_shard_without_media_has_no_container(tmp_path):
    """A pack that names one is of other files."""
    store, records, _ = written(tmp_path, b"abc")
    with pytest.raises(CorruptFileError, match="names media of shard 3, which has none"):
        MediaFiles(store, records, "").container(3)


def test_the_root_moves_with_the_store(tmp_path):
    """Next to the store first, then in the old place; nowhere for stores without references."""
    (tmp_path / "old" / "photos").mkdir(parents=True)
    store = open_blob_store(tmp_path / "old" / "packs")
    notes = root_note(store, str(tmp_path / "old" / "photos"))
    assert json.loads(json.dumps(notes))["media_root"]["from_store"] == "../photos"
    assert recorded_root(store, notes) == str(tmp_path / "old" / "photos")
    (tmp_path / "old").rename(tmp_path / "new")
    assert recorded_root(open_blob_store(tmp_path / "new" / "packs"), notes) == str(tmp_path / "new" / "photos")
    elsewhere = open_blob_store(tmp_path / "scratch" / "deep" / "packs")
    assert recorded_root(elsewhere, notes) == str(tmp_path / "old" / "photos")
    assert (root_note(store, ""), recorded_root(store, {})) == ({}, "")


def test_many_containers_are_not_all_kept_open(tmp_path, monkeypatch):
    """The one that was opened first is closed, and opened again when it is asked for."""
    monkeypatch.setattr("brimful.media.store.files._MAX_CONTAINERS", 2)
    store, (record,), _ = written(tmp_path, b"abc")
    files = MediaFiles(store, [record] * 4, "")
    first = files.container(0)
    for shard in (1, 0, 2, 3):
        files.container(shard)
    assert list(files._containers) == [2, 3]
    assert files.container(3) is files.container(3)
    assert files.container(0) is not first


def test_endings_of_members(tmp_path):
    """The medium's name if it is a plain one, so that users can open it; or as the writer is told."""
    store = open_blob_store(tmp_path)
    with store.blob("media") as blob:
        writer = ContainerWriter("media/0", lambda _: blob)
        for name in ("a.JPEG", "b", "c.not plain", "d.tar.gz", "e.ninechars"):
            writer.add(name, "0" * 32, b"x")
        writer.add("f.png", "0" * 32, b"x", ending=".safetensors")
        assert writer.close(lambda *_: blob.publish("media/0.tar"))["stored"] == 6
    with tarfile.open(tmp_path / "media" / "0.tar") as tar:
        assert [name[32:] for name in tar.getnames()] == [".jpeg", "", "", ".gz", "", ".safetensors"]
