"""Files of media read by range, and the state of the files that references name."""

import os
import pickle

import pytest

from brimful.base.blobs import open_blob_store
from brimful.media import BadMediumError, MediaKind, Medium, PlacedMedium
from brimful.media.medium import MediaContainer


def test_a_container_travels_to_other_processes(tmp_path):
    """Workers of a loader get packs by pickling; an open file cannot be pickled."""
    store = open_blob_store(tmp_path)
    store.put_atomic("media/0.tar", b"abcdef")
    container = MediaContainer(store, "media/0.tar")
    medium = Medium(MediaKind.IMAGE, "a", container.path, 1, 3, container=container)
    assert (medium.read(), pickle.loads(pickle.dumps(medium)).read()) == (b"bcd", b"bcd")
    assert medium.fingerprint() == Medium(MediaKind.IMAGE, "a", data=b"bcd").fingerprint()


@pytest.mark.parametrize("has_been_read", [False, True])
def test_a_container_that_is_cut_kills_nobody(tmp_path, has_been_read):
    """Read through a map, the process would die of a signal, and name nothing."""
    store = open_blob_store(tmp_path)
    store.put_atomic("media/0.tar", b"a" * 10_000)
    container = MediaContainer(store, "media/0.tar")
    if has_been_read:
        assert container.read(9_000, 1_000) == b"a" * 1_000
    os.truncate(container.path, 9_500)
    with pytest.raises(BadMediumError, match="ends at byte 9,500: write the packs again"):
        container.read(9_000, 1_000)
    assert container.read(8_000, 1_000) == b"a" * 1_000


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="this system does not say what it maps")
def test_no_page_of_a_container_stays_with_the_process(tmp_path):
    """Of a map, the memory of each rank and worker would grow to the size of all media that it has read."""
    store = open_blob_store(tmp_path)
    store.put_atomic("media/0.tar", b"a" * 10_000)
    container = MediaContainer(store, "media/0.tar")
    assert container.read(0, 10_000) == b"a" * 10_000
    with open("/proc/self/maps") as file:
        assert container.path not in file.read()


def test_a_film_takes_several_calls(tmp_path, monkeypatch):
    """One call of the system reads at most 2 GiB."""
    store = open_blob_store(tmp_path)
    store.put_atomic("media/0.tar", b"abcdef")
    monkeypatch.setattr("brimful.media.medium.pread", lambda file, size, offset: os.pread(file, min(size, 2), offset))
    container = MediaContainer(store, "media/0.tar")
    assert (container.read(1, 5), container.read(0, 5)) == (b"bcdef", b"abcde")


def test_a_file_that_was_cut_short_is_found_by_its_size(tmp_path, monkeypatch):
    """No byte of a long video is read for it."""
    path = tmp_path / "a"
    path.write_bytes(b"abcdef")
    medium = Medium(MediaKind.VIDEO, "a", str(path), offset=2, size=9)
    monkeypatch.setattr("brimful.media.medium._PIECE_BYTES", None)  # a reading would fail with it
    with pytest.raises(BadMediumError, match="has 4 bytes and 9 are due: the file was cut short"):
        medium.fingerprint()


@pytest.mark.parametrize("piece", [1, 2, 5, 100])
def test_a_file_is_fingerprinted_in_pieces(tmp_path, monkeypatch, piece):
    """A video need not fit in memory; the whole file, and a part of one."""
    monkeypatch.setattr("brimful.media.medium._PIECE_BYTES", piece)
    path = tmp_path / "a"
    path.write_bytes(b"abcdef")
    for offset, size, content in ((0, None, b"abcdef"), (2, 3, b"cde"), (4, None, b"ef"), (1, 0, b"")):
        medium = Medium(MediaKind.VIDEO, "a", str(path), offset, size)
        assert medium.fingerprint() == Medium(MediaKind.VIDEO, "", data=content).fingerprint()
        assert medium.read() == content


def test_the_state_of_a_file_changes_when_it_is_written_to(tmp_path):
    """Also by a tool that sets back the time of the last change, and by a file that is moved there."""
    path = tmp_path / "a"
    path.write_bytes(b"abc")
    medium = Medium(MediaKind.IMAGE, "a", str(path))
    states, times = [medium.stamp()], os.stat(path)
    assert medium.stamp() == states[0]
    path.write_bytes(b"abd")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    states.append(medium.stamp())
    (tmp_path / "b").write_bytes(b"abc")
    os.replace(tmp_path / "b", path)
    states.append(medium.stamp())
    assert len(set(states)) == 3
    for change in (-1, 0, 1):
        placed = PlacedMedium(medium, 0, 4, num_tokens=4, stamp=medium.stamp() + change)
        assert placed.is_unchanged == (change == 0)
    assert Medium(MediaKind.IMAGE, "a", data=b"abc").stamp() == 0
    path.unlink()
    with pytest.raises(BadMediumError, match="does not exist"):
        medium.stamp()
