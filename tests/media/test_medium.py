"""A medium is found and read in its place, and a missing one says so in a line."""

import os

import pytest

from brimful.media import BadMediumError, MediaKind, Medium


def test_a_part_of_a_file(tmp_path):
    """As a member of a tar, which is not unpacked."""
    path = tmp_path / "a.tar"
    path.write_bytes(b"..abc..")
    medium = Medium(MediaKind.IMAGE, "a.png", str(path), offset=2, size=3)
    assert (medium.read(), medium.num_bytes, medium.open().read()) == (b"abc", 3, b"abc")
    assert medium.fingerprint() == Medium(MediaKind.IMAGE, "b", data=b"abc").fingerprint()


def test_a_file_that_is_not_there(tmp_path):
    """No traceback: the sample is named by the caller that knows it."""
    medium = Medium(MediaKind.IMAGE, "a.png", str(tmp_path / "a.png"))
    for use in (medium.read, medium.open, lambda: medium.num_bytes):
        with pytest.raises(BadMediumError, match="does not exist"):
            use()


def test_a_file_that_was_cut_short(tmp_path):
    """A tar that was written again since its index was made."""
    path = tmp_path / "a.tar"
    path.write_bytes(b"..a")
    with pytest.raises(BadMediumError, match="1 bytes and 3 are due"):
        Medium(MediaKind.IMAGE, "a.png", str(path), offset=2, size=3).read()


def test_a_named_pipe_is_no_file(tmp_path):
    """Without it one row that names a pipe lets a job on rows of others wait for ever."""
    os.mkfifo(tmp_path / "a.png")
    medium = Medium(MediaKind.IMAGE, "a.png", str(tmp_path / "a.png"))
    for use in (medium.read, medium.open, lambda: medium.num_bytes, medium.fingerprint, medium.stamp):
        with pytest.raises(BadMediumError, match="is a named pipe and not a file"):
            use()
    with pytest.raises(BadMediumError, match="is a device"):
        Medium(MediaKind.IMAGE, "zero", "/dev/zero").read()
