"""Files of media read by range, and the state of the files that references name."""

import os
import pickle

import pytest

from brimful.blobs import open_blob_store
from brimful.media import BadMediumError, MediaKind, Medium
from brimful.media.container import MediaContainer


def test_a_container_travels_to_other_processes(tmp_path):
    """Workers of a loader get packs by pickling; an open file cannot be pickled."""
    store = open_blob_store(tmp_path)
    store.put_atomic("media/0.tar", b"abcdef")
    container = MediaContainer(store, "media/0.tar")
    medium = container.medium(MediaKind.IMAGE, "a", 1, 3)
    assert vars(medium) == vars(Medium(MediaKind.IMAGE, "a", container.path, 1, 3, None, container))
    assert (medium.read(), pickle.loads(pickle.dumps(medium)).read()) == (b"bcd", b"bcd")
    assert medium.fingerprint() == Medium(MediaKind.IMAGE, "a", data=b"bcd").fingerprint()


def test_a_file_that_was_cut_short_is_found_by_its_size(tmp_path, monkeypatch):
    """No byte of a long video is read for it."""
    path = tmp_path / "a"
    path.write_bytes(b"abcdef")
    medium = Medium(MediaKind.VIDEO, "a", str(path), offset=2, size=9)
    monkeypatch.setattr("brimful.media.reference._PIECE_BYTES", None)  # a reading would fail with it
    with pytest.raises(BadMediumError, match="has 4 bytes and 9 are due: the file was cut short"):
        medium.fingerprint()


@pytest.mark.parametrize("piece", [1, 2, 5, 100])
def test_a_file_is_fingerprinted_in_pieces(tmp_path, monkeypatch, piece):
    """A video need not fit in memory; the whole file, and a part of one."""
    monkeypatch.setattr("brimful.media.reference._PIECE_BYTES", piece)
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
    assert Medium(MediaKind.IMAGE, "a", data=b"abc").stamp() == 0
    path.unlink()
    with pytest.raises(BadMediumError, match="there is no such file"):
        medium.stamp()
