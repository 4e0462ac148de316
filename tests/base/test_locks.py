"""The directory of derived files."""

from __future__ import annotations

import os

import pytest

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
