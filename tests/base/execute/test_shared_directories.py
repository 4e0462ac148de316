"""A directory is the same on two machines if both find the same mark in it."""

import shutil

from brimful.base.execute.shared_directories import marks_of, unshared


def test_the_same_directory_is_known_again(tmp_path):
    """Without it a cache on a disk of each machine would swallow what workers measure."""
    marks = marks_of([tmp_path / "a", tmp_path / "b"])
    assert marks == marks_of([tmp_path / "a", tmp_path / "b"]), "two jobs at once agree"
    assert unshared(marks) == ""


def test_another_directory_of_the_same_path_is_found(tmp_path):
    marks = marks_of([tmp_path / "a", tmp_path / "b"])
    shutil.rmtree(tmp_path / "b")
    assert unshared(marks) == str(tmp_path / "b"), "absent"
    marks_of([tmp_path / "b"])
    assert unshared(marks) == str(tmp_path / "b"), "another one"
