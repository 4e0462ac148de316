"""A file is there when it is complete, and killed writers leave nothing for ever."""

from __future__ import annotations

import os

import pytest

from brimful.base.atomic_file import atomic_file
from brimful.errors import StoreFullError
from tests.base.blobs.tools import files, full_disk


def test_an_atomic_file_appears_at_the_end_of_its_block(tmp_path):
    """Without it a reader could open a table that is still being written."""
    path = tmp_path / "deep" / "t.bin"
    with atomic_file(path) as file:
        file.write(b"whole")
        file.flush()
        assert not path.exists()
    assert (path.read_bytes(), files(tmp_path)) == (b"whole", ["deep/t.bin"])


def test_an_atomic_file_leaves_nothing_on_an_error(tmp_path):
    """Without it a failed job would leave half a file, or take the old one with it."""
    path = tmp_path / "t.bin"
    path.write_bytes(b"old")

    def fail():
        with atomic_file(path) as file:
            file.write(b"half")
            raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        fail()
    assert (path.read_bytes(), files(tmp_path)) == (b"old", ["t.bin"])


def test_an_atomic_file_says_that_the_disk_is_full(tmp_path, monkeypatch):
    """Without it the message would not say that the same command goes on."""
    path = tmp_path / "t.bin"
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(StoreFullError, match=r"no space left while writing .*t\.bin"), atomic_file(path) as file:
        file.write(b"1")
    assert files(tmp_path) == []


def test_an_atomic_file_clears_what_killed_writers_of_it_left(tmp_path):
    """Without it every kill would leave another copy of a table next to it."""
    from brimful.base.locks import lock

    mine, used, others = ".t.bin.7-0a1b.tmp", ".t.bin.8-0a1c.tmp", [".t.bin.x.9-0a.tmp", ".u.bin.9-0a.tmp", "t.tmp"]
    for name in (mine, used, *others):
        (tmp_path / name).write_bytes(b"half")
    with open(tmp_path / used, "r+b") as file:
        lock(file)  # of a writer that lives
        with atomic_file(tmp_path / "t.bin") as new:
            new.write(b"whole")
            held = {path.name for path in tmp_path.glob(".t.bin.*.tmp")} - {used}
            with atomic_file(tmp_path / "t.bin") as other:
                other.write(b"other")
            assert held <= set(files(tmp_path)), "a writer took the file of another one"
    assert files(tmp_path) == sorted([used, *others, "t.bin"])
    assert (tmp_path / "t.bin").read_bytes() == b"whole"
