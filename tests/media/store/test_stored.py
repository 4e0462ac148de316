"""Media of packs in columns of a shard: written, read, and made into objects again."""

import dataclasses
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.base.blobs import open_blob_store
from brimful.base.fingerprint import fingerprint_bytes
from brimful.base.ragged import offsets_of
from brimful.errors import CorruptFileError
from brimful.media import BadMediumError, MediaKind, Medium, PlacedMedium
from brimful.media.store import MediaFiles
from brimful.media.store.media_columns import MediaCells, cells_of, stored
from brimful.store.shards import ATTACHMENT_VERSION, PackRows, ShardReader, ShardWriter
from tests.media.store.test_files import written

CONTENTS = (b"abc", b"defg", b"x" * 600)


def files_of(folder):
    """A store whose one container holds ``CONTENTS``, and the places of them."""
    store, records, offsets = written(folder, *CONTENTS)
    places = [(0, offset, len(content)) for offset, content in zip(offsets, CONTENTS, strict=True)]
    return MediaFiles(store, records, "/data"), places


def media_of(files, places):
    """A picture and a video of the container, and a sound in a file; and what is written for them."""
    video: dict[str, Any] = {"grid": (2, 4, 4), "num_frames": 4, "runs": (2, 8), "seconds_per_grid": 0.7, "segment": 1}
    in_container: list[tuple[MediaKind, str, dict[str, Any]]] = [
        (MediaKind.IMAGE, "a.png", {"start": 1, "length": 4, "num_tokens": 4, "num_patches": 16, "grid": (1, 4, 4)}),
        (MediaKind.VIDEO, "ä \udcff.mp4", {"start": 9, "length": 12, "num_tokens": 8, "num_patches": 32, **video}),
    ]
    items, rows = [], []
    for (kind, name, facts), place, content in zip(in_container, places, CONTENTS, strict=False):
        container = files.container(0)
        medium = Medium(kind, name, container.path, *place[1:], container=container)
        items.append(PlacedMedium(medium, fingerprint=fingerprint_bytes(content), **facts))
        rows.append(items[-1].in_container(*place))
    sound = Medium(MediaKind.AUDIO, "c.wav", "/data/b/c.wav", offset=7, size=9)
    items.append(PlacedMedium(sound, start=30, length=2, num_tokens=2, num_mel_frames=8, segment=1))
    rows.append(items[-1])
    return tuple(items), rows


def shard(path, rows, files):
    rows = PackRows(
        np.arange(40, dtype=np.int32), np.ones(40, dtype=bool), np.array([8, 32], dtype=np.int32), np.array([4, 2]),
        np.zeros(2, dtype=np.int32), offsets_of([1, 1]), [rows, []],
    )  # fmt: skip
    with open(path, "wb") as file:
        writer = ShardWriter(file, version=ATTACHMENT_VERSION, root="/data")
        writer.add(rows)
        writer.close()
    return ShardReader(str(path), size=path.stat().st_size, files=lambda: files)


def test_media_come_back_as_they_were(tmp_path):
    """All fields of all kinds: names that are no Unicode, runs and seconds of videos, files below the root."""
    files, places = files_of(tmp_path)
    items, rows = media_of(files, places)
    reader = shard(tmp_path / "s.arrow", rows, files)
    pack = reader.pack(0)
    assert (len(pack.attachments), pack.attachments, reader.pack(1).attachments) == (3, items, ())
    names = [field.name for field in dataclasses.fields(PlacedMedium)]
    assert [[getattr(item, name) for name in names] for item in pack.attachments] == [
        [getattr(item, name) for name in names] for item in items
    ]
    assert [item.read() for item in pack.attachments[:2]] == [*CONTENTS[:2]]
    assert hash(pack.attachments) == hash(items)


def test_media_of_a_shard_are_rows_like_any_other(tmp_path):
    """They are compared, changed, sent to other processes, and keys of dictionaries."""
    files, places = files_of(tmp_path)
    items, rows = media_of(files, places)
    media = stored(cells_of(rows, "/data"), files)
    for item, own in zip(items, media, strict=True):
        assert isinstance(own, PlacedMedium)
        assert (own, hash(own), repr(own)[-80:]) == (item, hash(item), repr(item)[-80:])
        assert type(dataclasses.replace(own, start=3)) is PlacedMedium
        assert dataclasses.replace(own, start=3) == dataclasses.replace(item, start=3) != own
        assert pickle.loads(pickle.dumps(own)) == item
    assert pickle.loads(pickle.dumps(media)) == items
    assert pickle.loads(pickle.dumps(media))[0].read() == CONTENTS[0]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (lambda path: path.unlink(), r"0\.tar is missing and was committed with"),
        (
            lambda path: path.write_bytes(path.read_bytes()[:-512]),
            r"0\.tar has [\d,]+ bytes and was committed with [\d,]+:",
        ),
        (
            lambda path: path.write_bytes(path.read_bytes() + bytes(512)),
            r"0\.tar has [\d,]+ bytes and was committed with",
        ),
    ],
)
def test_a_pack_whose_container_is_not_whole_is_not_served(tmp_path, fault, message):
    """Tokens without their pictures would be trained on: refused with the pack, before anybody asks for a medium."""
    files, places = files_of(tmp_path)
    shard(tmp_path / "s.arrow", media_of(files, places)[1], files)
    fault(tmp_path / "media" / "0.tar")
    fresh = MediaFiles(open_blob_store(tmp_path), files._records, "/data")
    reader = ShardReader(str(tmp_path / "s.arrow"), size=(tmp_path / "s.arrow").stat().st_size, files=lambda: fresh)
    with pytest.raises(CorruptFileError, match=message):
        reader.pack(0)
    assert reader.pack(1).attachments == (), "a pack without media needs no container"


def test_flipped_bytes_are_found_before_they_are_used(tmp_path):
    """Each byte of a medium in its container; the neighbours are read as before."""
    files, places = files_of(tmp_path)
    media = stored(cells_of(media_of(files, places)[1], "/data"), files)
    container = tmp_path / "media" / "0.tar"
    whole = container.read_bytes()
    for position in range(places[1][1], places[1][1] + places[1][2]):
        container.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        begin, end = places[1][1], places[1][1] + places[1][2]
        with pytest.raises(BadMediumError, match=rf"bytes {begin:,} … {end:,} of .*0.tar differ from what was written"):
            media[1].read()
        assert media[0].read() == CONTENTS[0]


def test_flipped_bytes_of_a_shard_are_noticed_or_harmless(tmp_path):
    """Places and digests too: another picture at a sample's tokens would train silently."""
    files, places = files_of(tmp_path)
    items, rows = media_of(files, places)
    path = tmp_path / "s.arrow"
    shard(path, rows, files)
    data, raised = path.read_bytes(), 0
    # Every third byte is in each of the columns many times over.
    for position in range(0, len(data), 3):
        path.write_bytes(data[:position] + bytes([data[position] ^ (1 << position % 8)]) + data[position + 1 :])
        try:
            media = ShardReader(str(path), size=len(data), files=lambda: files).pack(0).attachments
        except CorruptFileError:
            raised += 1
        else:
            assert media == items
    assert raised > 200


def test_values_that_no_writer_writes(tmp_path):
    """A row with the right checksum and a fourth kind is of another program, and named."""
    files, places = files_of(tmp_path)
    cells = cells_of(media_of(files, places)[1], "/data")
    other = MediaCells(np.full(17, 9, dtype=np.int64).tobytes()[:64] + cells.rows[64:], *cells[1:])
    with pytest.raises(CorruptFileError, match="the media of a pack cannot be read"):
        stored(other, files)


numbers = st.integers(0, 2**31 - 1)
placed = st.builds(
    PlacedMedium,
    st.builds(
        Medium, st.sampled_from(MediaKind), st.text(max_size=9), st.just("/data/a"), offset=numbers, size=numbers
    ),
    start=numbers, length=numbers, num_tokens=numbers, num_patches=numbers, num_frames=numbers, num_mel_frames=numbers,
    grid=st.none() | st.tuples(st.integers(1, 99), numbers, numbers),
    runs=st.just((0,)) | st.lists(numbers, min_size=1, max_size=4).map(tuple),
    seconds_per_grid=st.none() | st.floats(0, 9),
    segment=numbers,
    fingerprint=st.just("") | st.binary(min_size=16, max_size=16).filter(any).map(bytes.hex),
)  # fmt: skip


@given(st.lists(placed, max_size=4))
def test_round_trip(tmp_path_factory, items):
    """Any media of a pack, in any order."""
    files = MediaFiles(open_blob_store(tmp_path_factory.getbasetemp()), [], "/data")
    assert stored(cells_of(items, "/data"), files) == tuple(items)


def test_lists_of_media_compare_as_tuples_do(tmp_path):
    files, places = files_of(tmp_path)
    items, rows = media_of(files, places)
    media = stored(cells_of(rows, "/data"), files)
    assert media == items
    assert media == stored(cells_of(rows, "/data"), files)
    assert media != items[:2]
    assert media != list(items)
    assert (media[1], media[-1], media[1:], list(reversed(media))) == (
        items[1],
        items[-1],
        items[1:],
        [*reversed(items)],
    )


def test_media_of_one_pack_lie_in_any_containers(tmp_path):
    """A later sample may have a picture that an earlier shard brought: containers come in no order."""
    store, (record,), offsets = written(tmp_path, *CONTENTS)
    files = MediaFiles(store, [record] * 3, "")
    rows = []
    for number, shard in enumerate((2, 0, 1, 1)):
        medium = Medium(MediaKind.IMAGE, "a", data=CONTENTS[0])
        item = PlacedMedium(medium, start=number, length=1, num_tokens=1, fingerprint=fingerprint_bytes(CONTENTS[0]))
        rows.append(item.in_container(shard, offsets[0], len(CONTENTS[0])))
    media = stored(cells_of(rows), files)
    assert [item.read() for item in media] == [CONTENTS[0]] * 4
    assert len({id(item.medium.container) for item in media}) == 3
