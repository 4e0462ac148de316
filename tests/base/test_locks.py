"""The directory of derived files."""

from __future__ import annotations

import os

import pytest

from brimful.base import locks
from brimful.base.locks import exclusive, is_held


def test_the_cache_is_where_the_argument_then_the_environment_says(tmp_path, monkeypatch):
    """Without it derived files would land in the home directory of a cluster node."""
    from brimful.base.locks import cache_dir

    monkeypatch.setenv("BRIMFUL_CACHE", "/named")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert [str(cache_dir(given)) for given in (tmp_path, None)] == [str(tmp_path), "/named"]
    monkeypatch.delenv("BRIMFUL_CACHE")
    assert str(cache_dir()) == "/xdg/brimful"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert str(cache_dir()) == "/home/me/.cache/brimful"


@pytest.mark.skipif(os.name != "posix", reason="permissions as POSIX has them")
@pytest.mark.parametrize(
    ("mode", "user", "is_writable", "is_own"),
    [(0o755, None, True, False), (0o1777, None, True, False), (0o755, 65_534, True, False),
     (0o1777, 65_534, True, True), (0o755, None, False, True)],
)  # fmt: skip
def test_a_file_of_another_user_is_read_and_not_replaced(
    mode, user, is_writable, is_own, tmp_path, monkeypatch, logged
):
    """In a folder such as /tmp, or one that cannot be written: this process makes its files elsewhere, and says so once."""
    folder = tmp_path / "cache"
    folder.mkdir()
    (folder / "a").write_text("theirs")
    folder.chmod(mode)
    monkeypatch.setattr(locks, "_own_folders", [])
    monkeypatch.setattr(os, "access", lambda path, flags: is_writable or flags == os.R_OK)
    if user is not None:
        monkeypatch.setattr(os, "geteuid", lambda: user)
    paths = [locks.cached(folder / name) for name in ("a", "deep/b", "a")]
    if not is_own:
        assert paths == [folder / "a", folder / "deep/b", folder / "a"]
        assert logged == []
        return
    assert (paths[0].read_text(), paths[0] == folder / "a", paths[2]) == ("theirs", False, paths[0])
    assert paths[1].parent.is_dir() == (not is_writable)
    assert (paths[1] == folder / "deep/b") == is_writable
    assert [line.partition(":")[0] for line in logged] == [f"{folder} cannot be written by this user"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a process is forked")
@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_process_that_was_forked_meanwhile_does_not_keep_the_lock(tmp_path):
    """Workers of a data loader that stay would: the next plan of the same epoch would be waited for without an end."""
    path = tmp_path / "plan"
    reader, writer = os.pipe()
    with exclusive(path):
        child = os.fork()
        if not child:
            os.close(writer)
            os.read(reader, 1)  # until the other process closes it
            os._exit(0)
    with open(path.with_name("plan.lock"), "rb") as file:
        is_kept = is_held(file)
    os.close(writer)
    os.waitpid(child, 0)
    assert not is_kept
