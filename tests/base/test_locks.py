"""The directory of derived files."""

from __future__ import annotations


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
